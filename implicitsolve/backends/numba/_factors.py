"""What the factors of all direct kernels share."""

from __future__ import annotations

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.kernels import StoredFactors


def usable(x: HostArray) -> HostArray:
    """Return x in C order, aligned and writeable: one type to compile for. A copy only where it is not so already."""
    if type(x) is np.ndarray and x.flags.carray:
        return x
    return np.require(x, requirements=["C", "A", "W"])


class Batch(StoredFactors):
    """Factors of a batch of NumPy systems, which solve in place."""

    def solve(self, b: HostArray, adjoint: bool = False) -> HostArray:
        """Return A^-1 b or A^-H b for b (B, T, k, K)."""
        x = np.array(b, order="C")
        self.solve_in_place(x, adjoint)
        return x

    def solve_in_place(self, x: HostArray, adjoint: bool = False) -> None:
        """Overwrite x (B, T, k, K), in C order, with A^-1 x or A^-H x."""
        if x.size:
            self._solve(x, adjoint)

    def _solve(self, x: HostArray, adjoint: bool) -> None:
        """Solve for one column after the other."""
        B, T, k, K = x.shape
        if K == 1:
            self._solve_column(x.reshape((B, T * k)), adjoint)
            return
        columns = np.ascontiguousarray(np.moveaxis(x, 3, 0))
        for column in columns.reshape((K, B, T * k)):
            self._solve_column(column, adjoint)
        x[...] = np.moveaxis(columns, 0, 3)

    def _solve_column(self, x: HostArray, adjoint: bool) -> None:
        """Overwrite x (B, T k), in C order."""
        raise NotImplementedError
