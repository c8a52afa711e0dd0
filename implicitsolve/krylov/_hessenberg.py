"""The least-squares problems of GMRES, one for each system of a batch."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray, Indices


class Hessenberg:
    """The problems min ||beta e_1 - H y||, for each system.

    Parameters
    ----------
    beta : ndarray (B,)
        Norms of the starting residuals.
    columns : int
        Room for so many columns; see `grow`.
    dtype : dtype
        float64 or complex128.
    """

    def __init__(self, beta: HostArray, columns: int, dtype: Any) -> None:
        size = beta.shape[0]
        self.H = np.zeros((size, columns + 1, columns), dtype)
        self.beta = self.norm = beta  # of the residuals before and after the columns so far
        self.null = np.zeros((size, columns + 1), dtype)  # unit vector with null^T H = 0: the residual's direction
        self.null[:, 0] = 1
        self.largest: HostArray = np.zeros(size)  # entry of H
        self.columns = 0

    def grow(self, columns: int) -> None:
        """Make room for more columns."""
        more = columns - self.H.shape[2]
        self.H, self.null = np.pad(self.H, ((0, 0), (0, more), (0, more))), np.pad(self.null, ((0, 0), (0, more)))

    def append(self, h: HostArray, below: HostArray, negligible: float) -> tuple[HostArray, HostArray]:
        """Add the column (h, below); return the residual norms of the larger problems, and where it added nothing.

        A column whose component outside the span of the others is at most `negligible` times the largest entry of H
        is a direction that A maps into the space already spanned: it is dropped, and the residual is unchanged.
        """
        j, null = self.columns, self.null[:, : self.columns + 1]
        last = (null * h).sum(axis=1)
        radius = np.hypot(np.abs(last), below)
        largest = np.maximum(self.largest, np.abs(h).max(axis=1))
        is_void = radius <= negligible * largest
        if is_void.any():
            used = ~is_void
            h, below, largest = h * used[:, None], below * used, np.where(used, largest, self.largest)
            last, radius = np.where(used, last, 0.0), np.where(used, radius, 1.0)
        self.H[:, : j + 1, j], self.H[:, j + 1, j] = h, below
        self.largest = np.maximum(largest, below)
        sine = below / radius
        null *= -sine[:, None]
        self.null[:, j + 1] = last / radius
        self.norm = np.where(is_void, self.norm, sine * self.norm)
        self.columns = j + 1
        return self.norm, is_void

    def append_one(self, h: HostArray, below: float, largest: float) -> HostArray:
        """The same for one real system, where the column is not negligible; `largest` is that entry of h."""
        j, null = self.columns, self.null[0, : self.columns + 1]
        last = float(null.dot(h))
        radius = math.hypot(last, below)
        self.H[0, : j + 1, j], self.H[0, j + 1, j] = h, below
        self.largest = np.maximum(self.largest, max(largest, below))
        null *= -below / radius
        self.null[0, j + 1] = last / radius
        self.norm, self.columns = below / radius * self.norm, j + 1
        return self.norm

    def solve(self, columns: HostArray) -> HostArray:
        """Minimizers y (B, m) for the first `columns` (B,) of each system, zero beyond them."""
        m = self.columns
        used = np.arange(m)[None, :] < columns[:, None]
        Q, R = np.linalg.qr(self.H[:, : m + 1, :m])
        R = np.where(used[:, :, None] & used[:, None, :], R, np.eye(m))
        g = np.where(used, np.conj(Q[:, 0, :]) * self.beta[:, None], 0.0)
        return np.where(used, np.linalg.solve(R, g[:, :, None])[:, :, 0], 0.0)

    def residual_coordinates(self, y: HostArray) -> HostArray:
        """Coordinates (B, m+1) in the basis of the residual of y."""
        coordinates = -np.matmul(self.H[:, : self.columns + 1, : self.columns], y[:, :, None])[:, :, 0]
        coordinates[:, 0] += self.beta
        return coordinates

    def take(self, indices: Indices) -> Hessenberg:
        """Return the problems of some systems."""
        part = copy.copy(self)
        for name in ("H", "beta", "norm", "null", "largest"):
            setattr(part, name, getattr(self, name)[indices])
        return part
