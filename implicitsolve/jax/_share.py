"""Where arrays of JAX become those of NumPy or CuPy, and these arrays of JAX."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from implicitsolve.errors import BackendUnavailable


def to_array(x: Any) -> Any:
    """The array's values on the same memory: NumPy on the CPU, CuPy on CUDA."""
    if not isinstance(x, jax.Array):
        return np.asarray(x)
    platforms = {device.platform for device in x.devices()}
    if platforms == {"cpu"}:
        return np.asarray(x)
    if platforms == {"gpu"} and len(x.devices()) == 1:
        return _cupy().from_dlpack(x)
    raise TypeError(f"root: arrays must be on the CPU or on one CUDA device, got {sorted(map(str, x.devices()))}")


def to_jax(x: Any, dtype: Any = None) -> Any:
    """Numbers or an array of CuPy as what compiled functions take: an array of NumPy, or of JAX."""
    if isinstance(x, np.ndarray | np.generic | int | float):
        return np.asarray(x, dtype)
    found = jax.dlpack.from_dlpack(x)
    return found if dtype is None else found.astype(dtype)


class Words:
    """Numbers as the 32-bit words that callbacks exchange.

    In the thread of a callback JAX makes 64-bit numbers single where `jax.enable_x64` was set for another thread alone.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.is_complex = self.dtype.kind == "c"
        self.real: Any = np.finfo(self.dtype).dtype if self.dtype.kind in "fc" else self.dtype
        pairs = self.is_complex + (self.real.itemsize == 8)
        self.words = jax.ShapeDtypeStruct((*shape, *(2,) * pairs), np.uint32)

    def pack(self, x: Any) -> Any:
        """The words of an array of JAX."""
        if self.is_complex:
            x = jnp.stack([x.real, x.imag], axis=-1)
        return lax.bitcast_convert_type(x, jnp.uint32)

    def unpack(self, words: Any) -> Any:
        """The array of JAX."""
        x = lax.bitcast_convert_type(words, self.real)
        return lax.complex(x[..., 0], x[..., 1]) if self.is_complex else x

    def pack_host(self, x: Any) -> Any:
        """The words of an array of NumPy."""
        return np.asarray(x, self.dtype).reshape(-1).view(np.uint32).reshape(self.words.shape)

    def unpack_host(self, words: Any) -> Any:
        """A copy of the array, of NumPy."""
        return np.array(words).reshape(-1).view(self.dtype).reshape(self.shape)


def _cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise BackendUnavailable(
            "implicitsolve.jax: arrays on CUDA go through CuPy, which is not installed: "
            "pip install 'implicitsolve[cuda13]' (or [cuda12]), or put the arrays on a device of jax.devices('cpu')"
        ) from error
