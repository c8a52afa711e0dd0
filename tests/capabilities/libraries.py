"""Where a case runs: one array library and dtype."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from array_api_compat import is_cupy_array

import implicitsolve as ims


class Library:
    """Arrays of one library and dtype."""

    def __init__(self, xp: ModuleType, dtype: str = "float64") -> None:
        self.xp, self.dtype, self.host_dtype = xp, getattr(xp, dtype), np.dtype(dtype)
        self.is_complex = dtype.startswith("complex")
        self.eps = float(np.finfo(dtype).eps)
        self.stop = ims.NonlinearStop(rtol=30 * self.eps, max_iterations=500)
        self.linear_stop = ims.LinearStop(rtol=100 * self.eps)

    def __deepcopy__(self, memo: Any) -> Library:
        return self  # modules have no copies

    def array(self, values: Any) -> Any:
        """Numbers as an array; complex ones turned a little, where the dtype is."""
        values = np.asarray(values)
        return self.xp.asarray(values * (1 + 0.1j) if self.is_complex else values, dtype=self.dtype)

    def host(self, value: Any) -> np.ndarray:
        """A value of an outcome as a NumPy array; arrays must be of this library and precision."""
        if isinstance(value, bool | int | float | np.number | np.bool_):
            return np.asarray(value)
        assert self.owns(value), f"an array of {type(value).__module__} came back"
        assert value.dtype in (self.dtype, self.xp.finfo(self.dtype).dtype), value.dtype
        return value.get() if is_cupy_array(value) else np.asarray(value)

    def owns(self, value: Any) -> bool:
        return type(value) is type(self.xp.zeros(1))
