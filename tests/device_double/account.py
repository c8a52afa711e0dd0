"""What work on a device would cost: launches, transfers and memory, counted since the last reset."""

from collections import Counter
from typing import Any

import numpy as np

GUARD, GUARD_BYTE = 64, 0xFE  # bytes
counts: Counter[str] = Counter()  # "to_host", "to_device", "launch"
sites: Counter[str] = Counter()  # what was called, by name
transfers: list[tuple[str, str, int]] = []  # "to_host" or "to_device", by what, bytes
peak = {"now": 0, "most": 0}  # bytes allocated, without the guards


def reset() -> None:
    """Begin to count anew."""
    counts.clear()
    sites.clear()
    transfers.clear()
    peak["most"] = peak["now"]


def note(name: str, launches: int = 1) -> None:
    """Count what a device would be asked to do."""
    counts["launch"] += launches
    sites[name] += 1


def transfer(kind: str, name: str, nbytes: int) -> None:
    """Count what crosses the bus; the host waits for what comes to it."""
    counts[kind] += 1
    sites[f"{kind}: {name}"] += 1
    transfers.append((kind, name, nbytes))


class Memory(np.ndarray):
    """Bytes of one allocation, between guards, or without them what somebody else has; views of it are plain arrays."""

    @property
    def size_of_array(self) -> int:
        return self.nbytes - (2 * GUARD if self.base is None else 0)

    def __del__(self) -> None:
        if self.base is None:
            peak["now"] -= self.size_of_array


def allocate(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Memory that holds NaN, between guards of other bytes: what is read there is large and wrong."""
    dtype = np.dtype(dtype)
    if dtype.char not in "?bBhHiIlLqQefdFD":
        raise ValueError(f"Unsupported dtype {dtype}")
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = Memory((size + 2 * GUARD,), np.uint8)
    memory.fill(GUARD_BYTE)
    memory[GUARD : GUARD + size] = 0xFF
    peak["now"] += size
    peak["most"] = max(peak.values())
    return memory.view(np.ndarray)[GUARD : GUARD + size].view(dtype).reshape(shape)


def memory_of(x: np.ndarray[Any, Any]) -> Memory | None:
    """The allocation that an array is a view of; None for one of NumPy's own."""
    base: Any = x
    while isinstance(base, np.ndarray) and not isinstance(base, Memory):
        base = base.base
    while isinstance(base, Memory) and isinstance(base.base, Memory):
        base = base.base
    return base if isinstance(base, Memory) else None


def guards_hold(x: np.ndarray[Any, Any]) -> bool:
    """Whether nobody wrote beyond the ends of an allocation."""
    memory = memory_of(x)
    is_foreign = memory is None or memory.base is not None
    return is_foreign or bool((memory[:GUARD] == GUARD_BYTE).all() and (memory[-GUARD:] == GUARD_BYTE).all())
