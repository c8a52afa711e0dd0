"""The one place where tensors become arrays and arrays tensors, on one memory: NumPy on the CPU, CuPy on CUDA."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from implicitsolve.errors import BackendUnavailable

P = ParamSpec("P")
R = TypeVar("R")

REAL = (torch.float32, torch.float64)
INEXACT = (*REAL, torch.complex64, torch.complex128)
HALF = (torch.float16, torch.bfloat16)


def widened(x: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The tensor itself, or in another dtype if it is in half precision, in which no system is solved."""
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype in HALF else x


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which `torch.compile` calls and does not trace: a solve is a loop on arrays, no graph of torch."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # disabled here, since to do so at import loads the compiler
            disable: Any = torch.compiler.disable
            found: R = disable(function)(*args, **kwargs)
            return found
        return function(*args, **kwargs)

    return call


def check_tensor(caller: str, name: str, value: Any, dtypes: tuple[torch.dtype, ...] = INEXACT) -> torch.Tensor:
    """Check that a value is a tensor whose memory an array can share."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{caller}: `{name}` must be a torch.Tensor, got {type(value).__name__}")
    if value.layout != torch.strided:
        raise TypeError(f"{caller}: `{name}` must be a dense tensor, got layout {value.layout}")
    if value.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{caller}: `{name}` must be on the CPU or a CUDA device, got {value.device}")
    if value.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{caller}: `{name}` must have dtype {expected}, got {value.dtype}")
    return value


def check_like(caller: str, name: str, value: torch.Tensor, like: torch.Tensor, what: str) -> None:
    """Check that two tensors have one dtype and one device; `what` is what a message calls the second."""
    if value.dtype != like.dtype:
        raise TypeError(f"{caller}: `{name}` must have the dtype of {what}, {like.dtype}, got {value.dtype}")
    if value.device != like.device:
        raise ValueError(f"{caller}: `{name}` must have the device of {what}, {like.device}, got {value.device}")


def to_array(x: torch.Tensor) -> Any:
    """The tensor's values as an array on the same memory."""
    x = x.detach().resolve_conj().resolve_neg()
    return _cupy().from_dlpack(x) if x.is_cuda else x.numpy()


def to_tensor(x: Any) -> torch.Tensor:
    """The array as a tensor on the same memory; one of which torch allows no view is copied."""
    if not isinstance(x, np.ndarray | np.generic):
        return torch.from_dlpack(x if all(stride >= 0 for stride in x.strides) else x.copy())
    x = np.asarray(x)
    has_view = x.flags.writeable and all(stride >= 0 for stride in x.strides)
    return torch.from_numpy(x if has_view else x.copy())


def full_precision(x: torch.Tensor) -> torch.autocast:
    """Work in the precision of the tensors themselves where x is, whatever the caller's autocast is."""
    return torch.autocast(x.device.type, enabled=False)


@contextmanager
def on_device(x: torch.Tensor) -> Generator[None]:
    """Make CuPy work on the device of x, and on the stream on which torch works there now."""
    if not x.is_cuda:
        yield
        return
    cuda = _cupy().cuda
    stream = torch.cuda.current_stream(x.device)
    with cuda.Device(stream.device.index), cuda.Stream.from_external(_Stream(stream)):
        yield


class _Stream:
    """A stream of torch, as CuPy asks for it; those of older versions of torch cannot be asked."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the handle."""
        return 0, self.stream.cuda_stream


def _cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise BackendUnavailable(
            "implicitsolve.torch: CUDA tensors go through CuPy, which is not installed: "
            "pip install 'implicitsolve[cuda13]' (or [cuda12]), or move the tensors to the CPU"
        ) from error
