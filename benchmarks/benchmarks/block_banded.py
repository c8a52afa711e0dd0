"""Direct solves of block tridiagonal systems, beside LAPACK's band solver on the same matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import lapack

import implicitsolve as ims

from .tools import CPU, unit

SIZES = {k: 2**14 // k for k in (1, 2, 16, 64)}  # block rows T of k unknowns
METHODS = {
    "BlockLU": ims.BlockLU(),
    "BlockLU, pivots in blocks": ims.BlockLU(pivoting="block"),
    "CyclicReduction": ims.CyclicReduction(),
}
Matrix = tuple[ims.BlockBandedMatrix, Any]


def system(k: int) -> Matrix:
    """A well-conditioned matrix and a right-hand side."""
    rng, T = np.random.default_rng(0), SIZES[k]
    blocks = rng.uniform(-1.0, 1.0, (T, 3, k, k))
    blocks[:, 1] += 4 * k**0.5 * np.eye(k)
    blocks[0, 0] = blocks[-1, 2] = 0
    return ims.BlockBandedMatrix(blocks, lower=1, upper=1), rng.uniform(-1.0, 1.0, (T, k))


def band(A: ims.BlockBandedMatrix) -> Any:
    """The storage of LAPACK's gbtrf: entry (i, j) in row 2 kl + i - j, with kl = 2 k - 1 diagonals on either side."""
    T, _, k, _ = A.blocks.shape
    kl = 2 * k - 1
    ab = np.zeros((3 * kl + 1, T * k), order="F")
    for j, shift in ((0, -1), (1, 0), (2, 1)):
        t = np.arange(max(0, -shift), min(T, T - shift))
        for r in range(k):
            for c in range(k):
                row, column = t * k + r, (t + shift) * k + c
                ab[2 * kl + row - column, column] = A.blocks[t, j, r, c]
    return ab


class _Factorizations:
    """A table of methods by block sizes."""

    params = (tuple(METHODS), tuple(SIZES))
    param_names = ("method", "k")

    def setup(self, method: str, k: int) -> None:
        """Factor and solve once."""
        self.A, self.b = system(k)
        self.factors = METHODS[method].factor(self.A)
        self.x = self.factors.solve(self.b)


class Factorization(_Factorizations):
    """Memory and accuracy."""

    @unit("copies of the matrix")
    def track_memory(self, method: str, k: int) -> float:
        """Bytes of the factors over those of the blocks."""
        return self.factors.nbytes / self.A.blocks.nbytes

    @unit("rounding units")
    def track_backward_error(self, method: str, k: int) -> float:
        """max|b - A x| / (max row sum of |A| max|x| + max|b|), without refinement."""
        rows = np.abs(self.A.blocks).sum(axis=(1, 3)).max()
        error = np.abs(self.b - self.A.matvec(self.x)).max()
        return float(error / (rows * np.abs(self.x).max() + np.abs(self.b).max()) / np.finfo(float).eps)


class FactorizationTime(_Factorizations):
    """Time of a factorization, and of a solve with the factors."""

    timer = CPU

    def time_factor(self, method: str, k: int) -> None:
        """LU, or cyclic reduction."""
        METHODS[method].factor(self.A)

    def time_solve(self, method: str, k: int) -> None:
        """One right-hand side."""
        self.factors.solve(self.b)


class LapackTime:
    """LAPACK's gbtrf and gbtrs (k = 1: gttrf and gttrs) on the same matrices, given their storage for free."""

    timer = CPU
    params = tuple(SIZES)
    param_names = ("k",)

    def setup(self, k: int) -> None:
        """Store, and factor once."""
        A, b = system(k)
        self.kl, self.b = 2 * k - 1, b.reshape(-1)
        if k == 1:
            rows = A.blocks[:, :, 0, 0]
            self.diagonals = rows[1:, 0].copy(), rows[:, 1].copy(), rows[:-1, 2].copy()
            self.factors = lapack.dgttrf(*self.diagonals)[:-1]
        else:
            self.ab = band(A)
            self.factors = lapack.dgbtrf(self.ab, self.kl, self.kl)[:2]

    def time_factor(self, k: int) -> None:
        """LU."""
        if k == 1:
            lapack.dgttrf(*self.diagonals)
        else:
            lapack.dgbtrf(self.ab, self.kl, self.kl)

    def time_solve(self, k: int) -> None:
        """One right-hand side."""
        if k == 1:
            lapack.dgttrs(*self.factors, self.b)
        else:
            lapack.dgbtrs(self.factors[0], self.kl, self.kl, self.b, self.factors[1])
