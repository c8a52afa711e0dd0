"""Where a case runs: one array library and dtype, or ranks that share NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
from array_api_compat import is_cupy_array

import implicitsolve as ims
from implicitsolve import distributed


class Library:
    """Arrays of one library and dtype, on one process."""

    def __init__(self, xp: ModuleType, dtype: str = "float64") -> None:
        self.xp, self.dtype = xp, getattr(xp, dtype)
        self.is_complex = dtype.startswith("complex")
        self.eps = float(np.finfo(dtype).eps)
        self.stop = ims.NonlinearStop(rtol=30 * self.eps, max_iterations=500)
        self.linear_stop = ims.LinearStop(rtol=100 * self.eps)

    @property
    def host_dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self.dtype).rsplit(".")[-1]) if "torch" in str(self.dtype) else np.dtype(self.dtype)

    def array(self, values: Any) -> Any:
        """Numbers as an array; complex ones turned a little, where the dtype is."""
        values = np.asarray(values)
        return self.xp.asarray(values * (1 + 0.1j) if self.is_complex else values, dtype=self.dtype)

    def blocks(self, values: Any) -> Any:
        """The same of numbers (B, T, k), whose axis of blocks is split where the library splits arrays."""
        return self.array(values)

    def problem(self, residual: Callable[..., Any], length: int, block_size: int, **functions: Any) -> ims.Problem:
        """A batch of chains of blocks by functions of the part that a process sees, which is here the whole."""
        whole = distributed.Part(first=0, stop=length, before=0, after=0, length=length)
        parts = ("jvp", "vjp", "linearize", "blocks", "parameter_jvp", "parameter_vjp")
        bound = {name: _bound(function, whole) if name in parts else function for name, function in functions.items()}
        structure = ims.BlockBanded(1, 1, block_size)
        return ims.Problem(_bound(residual, whole), structure=structure, batch_ndim=1, **bound)

    def host(self, value: Any) -> np.ndarray:
        """A value of an outcome as a NumPy array; arrays must be of this library and precision."""
        if isinstance(value, bool | int | float | np.number | np.bool_):
            return np.asarray(value)
        assert self.owns(value), f"an array of {type(value).__module__} came back"
        assert value.dtype in (self.dtype, self.xp.finfo(self.dtype).dtype), value.dtype
        return value.get() if is_cupy_array(value) else np.asarray(value)

    def owns(self, value: Any) -> bool:
        return type(value) is type(self.xp.zeros(1))


class Ranks(Library):
    """One of several ranks, which split the blocks among them."""

    def __init__(self, comm: distributed.Communicator) -> None:
        super().__init__(np)
        self.comm, self.has_split = comm, False

    def blocks(self, values: Any) -> Any:
        self.has_split = True
        return distributed.split(self.comm, self.array(values), axis=1)

    def problem(self, residual: Callable[..., Any], length: int, block_size: int, **functions: Any) -> ims.Problem:
        sizes = {"length": length, "block_size": block_size, "batch_ndim": 1}
        take = functions.pop("take")
        return replace(distributed.problem(self.comm, residual, **sizes, **functions), take=take)

    def host(self, value: Any) -> np.ndarray:
        if isinstance(value, distributed.DistributedArray):
            return value.gathered()
        return np.asarray(value)


def _bound(function: Callable[..., Any], part: distributed.Part) -> Callable[..., Any]:
    return lambda *arguments: function(part, *arguments)
