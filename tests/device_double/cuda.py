"""`cupy.cuda`, as far as this project uses it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from tests.device_double.account import peak


class Device:
    """The only one."""

    def __init__(self, device: Any = None):
        self.id = 0 if device is None else getattr(device, "id", device)
        self.compute_capability = "90"
        self.attributes = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232448}

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *unused: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def synchronize(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"


class Stream:
    """Work is done at once."""

    null: Stream
    entered: ClassVar[list[Stream]] = []

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False):
        self.ptr = 0

    @classmethod
    def from_external(cls, obj: Any) -> Stream:
        """A stream of somebody else."""
        made = cls()
        _, made.ptr = obj.__cuda_stream__()
        return made

    def __enter__(self) -> Stream:
        self.entered.append(self)
        return self

    def __exit__(self, *unused: Any) -> None:
        self.entered.pop()

    def synchronize(self) -> None:
        pass

    def use(self) -> Stream:
        return self

    def record(self, event: Event | None = None) -> Event:
        return event or Event()

    def wait_event(self, event: Event) -> None:
        pass


class Event:
    """No time passes."""

    def __init__(self, **keywords: Any):
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    return 0.001


def get_current_stream(device_id: int = -1) -> Stream:
    return Stream.entered[-1] if Stream.entered else Stream.null


class MemoryPool:
    """All allocations, which are freed at once."""

    def used_bytes(self) -> int:
        return peak["now"]

    def total_bytes(self) -> int:
        return peak["now"]

    def free_all_blocks(self) -> None:
        pass


runtime = SimpleNamespace(
    getDeviceCount=lambda: 1,
    getDevice=lambda: 0,
    CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
    getDeviceProperties=lambda device: {"name": b"double of a device", "multiProcessorCount": 132},
    deviceSynchronize=lambda: None,
    runtimeGetVersion=lambda: 13000,
    driverGetVersion=lambda: 13000,
    is_hip=False,
)
Stream.null = Stream()


def members() -> dict[str, Any]:
    """The module's, by name."""
    classes = (Device, Event, MemoryPool, Stream, get_current_stream, get_elapsed_time)
    return {found.__name__: found for found in classes} | {"runtime": runtime}
