"""The small least-squares problem of GMRES, min ||beta e_1 - H y||, for each system of a batch, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._typing import HostArray, Indices


class HessenbergQR:
    """Updates Q^H H = R column by column with Givens rotations; Q^H is kept, so that a column costs one product.

    Parameters
    ----------
    beta : ndarray (B,)
        Norms of the starting residuals.
    columns : int
        Most columns that will come.
    dtype : dtype
        float64 or complex128.
    """

    def __init__(self, beta: HostArray, columns: int, dtype: Any) -> None:
        size = beta.shape[0]
        self.H = np.zeros((size, columns + 1, columns), dtype)
        self.R = np.zeros((size, columns, columns), dtype)
        self.Qh = np.zeros((size, columns + 1, columns + 1), dtype)
        self.Qh[:, 0, 0] = 1
        self.g = np.zeros((size, columns + 1), dtype)
        self.g[:, 0] = beta
        self.columns = 0

    def grow(self, columns: int) -> None:
        """Make room for more columns."""
        for name, (rows, width) in (
            ("H", (columns + 1, columns)),
            ("R", (columns, columns)),
            ("Qh", (columns + 1, columns + 1)),
        ):
            old = getattr(self, name)
            new = np.zeros((old.shape[0], rows, width), old.dtype)
            new[:, : old.shape[1], : old.shape[2]] = old
            setattr(self, name, new)
        g = np.zeros((self.g.shape[0], columns + 1), self.g.dtype)
        g[:, : self.g.shape[1]] = self.g
        self.g = g

    def append(self, h: HostArray, below: HostArray, negligible: float) -> tuple[HostArray, HostArray]:
        """Add the column (h, below); return the residual norms of the larger problems, and where it added nothing.

        A column whose part outside the others is at most `negligible` times the largest entry of R belongs to a
        direction that A maps into what it has already reached. It is left out, and the residual stays.
        """
        j = self.columns
        rotated = np.matmul(self.Qh[:, : j + 1, : j + 1], h[:, :, None])[:, :, 0]
        radius = np.hypot(np.abs(rotated[:, j]), below)
        largest = np.maximum(np.abs(self.R[:, :j, :j]).max(axis=(1, 2), initial=0.0), np.abs(rotated).max(axis=1))
        is_void = radius <= negligible * largest
        used = ~is_void
        h, below, rotated = h * used[:, None], below * used, rotated * used[:, None]
        radius = radius * used
        self.H[:, : j + 1, j], self.H[:, j + 1, j] = h, below
        safe = np.where(used, radius, 1.0)
        c, s = np.where(used, np.conj(rotated[:, j]) / safe, 1.0), below / safe
        self.R[:, :j, j], self.R[:, j, j] = rotated[:, :j], radius
        upper = self.Qh[:, j, : j + 1].copy()
        self.Qh[:, j, : j + 1] = c[:, None] * upper
        self.Qh[:, j, j + 1] = s
        self.Qh[:, j + 1, : j + 1] = -s[:, None] * upper
        self.Qh[:, j + 1, j + 1] = np.conj(c)
        self.g[:, j + 1] = -s * self.g[:, j]
        self.g[:, j] *= c
        self.columns = j + 1
        return np.where(is_void, np.abs(self.g[:, j]), np.abs(self.g[:, j + 1])), is_void

    def solve(self, columns: HostArray) -> HostArray:
        """Minimizers y (B, m) for the first `columns` (B,) of each system, zero beyond them."""
        m = self.columns
        used = np.arange(m)[None, :] < columns[:, None]
        R = np.where(used[:, :, None] & used[:, None, :], self.R[:, :m, :m], np.eye(m))
        y = np.linalg.solve(R, np.where(used, self.g[:, :m], 0.0)[:, :, None])[:, :, 0]
        return np.where(used, y, 0.0)

    def residual_coordinates(self, columns: HostArray) -> HostArray:
        """Coordinates (B, m+1), in the basis, of what remains of the residual after `columns` columns."""
        rows = np.arange(self.g.shape[0])
        return np.conj(self.Qh[rows, columns, : self.columns + 1]) * self.g[rows, columns][:, None]

    def take(self, indices: Indices) -> HessenbergQR:
        """Return the part that belongs to some systems."""
        capacity, used = self.R.shape[2], self.columns + 1
        part = HessenbergQR(np.zeros(indices.size), capacity, self.R.dtype)
        for name in ("H", "R", "Qh"):
            getattr(part, name)[:, :used, :used] = getattr(self, name)[indices, :used, :used]
        part.g[:, :used] = self.g[indices, :used]
        part.columns = self.columns
        return part
