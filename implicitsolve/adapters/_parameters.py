"""Parameters of layers: random ones, and the sizes that given ones declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from implicitsolve.adapters._common import Array, check_array, check_generator


def draw(
    caller: str, shapes: Mapping[str, tuple[int, ...]], scale: float, rng: np.random.Generator, dtype: Any
) -> dict[str, npt.NDArray[Any]]:
    """Draw arrays uniformly from [-scale, scale], one after the other."""
    check_generator(caller, rng)
    if not 0 <= scale < np.inf:
        raise ValueError(f"{caller}: `scale` must be finite and not negative, got {scale}")
    if np.dtype(dtype).name not in ("float32", "float64"):
        raise TypeError(f"{caller}: `dtype` must be float32 or float64, got {dtype}")
    return {name: rng.uniform(-scale, scale, shape).astype(dtype) for name, shape in shapes.items()}


def state_size(caller: str, params: Mapping[str, Array], name: str, shape: str, like: Array) -> int:
    """k, the last axis of one of the parameters, which should have the shape that is written out in `shape`."""
    value = check_array(caller, name, params[name], None, like)
    if value.ndim == 0 or value.shape[-1] == 0:
        raise ValueError(f"{caller}: `{name}` must have shape {shape} with k at least 1, got {tuple(value.shape)}")
    return value.shape[-1]
