# pyright: basic
"""What the factors of all direct kernels share."""

from __future__ import annotations

from typing import Any, ClassVar

import cupy
import numpy as np

from implicitsolve._typing import HostArray, Indices

WARP = 32


class Factors:
    """Arrays of the device with the batch along an axis of their own, and what the factoring found.

    ``found`` (B, 2) holds the first singular block, or -1, and the growth; it comes to the host once.
    """

    axes: ClassVar[dict[str, int]] = {"found": 0}
    found: Any

    def __init__(self, **arrays: Any) -> None:
        self.__dict__.update(arrays)
        self.singular, self.growth = singular_and_growth(self.found.get())

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(getattr(self, name).nbytes for name in self.axes)

    def take(self, indices: Indices) -> Any:
        """Return the factors of some systems."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        places = cupy.asarray(indices)
        for name, axis in self.axes.items():
            setattr(other, name, cupy.take(getattr(self, name), places, axis=axis))
        other.singular, other.growth = self.singular[indices], self.growth[indices]
        return other

    def solve(self, b: Any, adjoint: bool = False) -> Any:
        """Return A^-1 b or A^-T b for b (B, T, k, K)."""
        b = cupy.ascontiguousarray(b)
        x = cupy.empty_like(b)
        if b.size:
            self._solve(b, x, adjoint)
        return x

    def _solve(self, b: Any, x: Any, adjoint: bool) -> None:
        raise NotImplementedError


def singular_and_growth(found: HostArray) -> tuple[HostArray, HostArray]:
    """`singular` and `growth` of the contract."""
    singular = found[:, 0].astype(int)
    return singular, np.where(singular < 0, found[:, 1], np.inf)


def lanes(k: int) -> int:
    """Lanes of a warp that work on one block row."""
    return 8 if k <= 8 else 16 if k <= 16 else WARP


def tile(K: int) -> int:
    """Right-hand sides that a lane works on at a time."""
    return 1 if K == 1 else 4
