"""Approximate inverses by triangular factors: (I + U)^-1 D^-1 (I + L)^-1, and many tridiagonal matrices at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from implicitsolve._namespace import array_namespace, copied, gather, is_complex, scatter, to_host
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels import scalar_tridiagonal
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.precondition._diagonals import Diagonals


class Split:
    """(I + U)^-1 D^-1 (I + L)^-1 on arrays (B, T, k), with L strictly lower and U strictly upper block triangular.

    `D_inverse` are the inverses of the diagonal blocks, (B, T, k, k). What is None is I.
    """

    def __init__(self, D_inverse: Array | None, lower: Triangle | None = None, upper: Triangle | None = None) -> None:
        self.D_inverse = D_inverse
        self.lower = lower
        self.upper = upper
        self._D = None if D_inverse is None else BlockBandedMatrix(D_inverse[:, :, None, :, :], lower=0, upper=0)

    def solve(self, b: Array) -> Array:
        """Apply it."""
        x = b if self.lower is None else self.lower.solve(b)
        x = copied(x) if self._D is None else self._D.matvec(x)
        return x if self.upper is None else self.upper.solve(x)

    def solve_adjoint(self, b: Array) -> Array:
        """Apply its adjoint."""
        x = b if self.upper is None else self.upper.solve(b, adjoint=True)
        x = copied(x) if self._D is None else self._D.rmatvec(x)
        return x if self.lower is None else self.lower.solve(x, adjoint=True)

    def take(self, indices: Indices) -> Split:
        """Return those of some systems."""
        lower, upper = (None if part is None else part.take(indices) for part in (self.lower, self.upper))
        return Split(None if self.D_inverse is None else gather(self.D_inverse, indices), lower, upper)


def repeated(A: BlockBandedMatrix, split: Split, sweeps: int = 1) -> LinearOperator:
    """Return the operator of so many steps x <- x + M^-1 (b - A x) from x = 0, with `split` as M^-1."""
    return _repeated(split, A if sweeps > 1 else None, sweeps, A.in_shape, A.batch_shape, A.dtype)


def _repeated(
    split: Split,
    A: BlockBandedMatrix | None,
    sweeps: int,
    in_shape: tuple[int, ...],
    batch_shape: tuple[int, ...],
    dtype: Any,
) -> LinearOperator:
    """The same; `A` is kept only where it is multiplied by."""
    flat = (math.prod(batch_shape), *in_shape)

    def steps(once: Callable[[Array], Array], times: Callable[[Array], Array] | None) -> Callable[[Array], Array]:
        def product(b: Array) -> Array:
            xp = array_namespace(b)
            with np.errstate(all="ignore"):  # what is not finite is the solver's to report
                x = xp.reshape(once(xp.reshape(b, flat)), b.shape)
                if times is not None:
                    for _ in range(sweeps - 1):
                        x = x + xp.reshape(once(xp.reshape(b - times(x), flat)), b.shape)
            return x

        return product

    def take(rows: Indices) -> LinearOperator:
        return _repeated(split.take(rows), None if A is None else A.take(rows), sweeps, in_shape, (len(rows),), dtype)

    return LinearOperator(
        steps(split.solve, None if A is None else A.matvec),
        steps(split.solve_adjoint, None if A is None else A.rmatvec),
        in_shape=in_shape,
        batch_shape=batch_shape,
        dtype=dtype,
        take=take if batch_shape else None,
    )


class Triangle:
    """I + C for a strictly block-triangular C, given by its block diagonals: all below the main one, or all above.

    Solves on arrays (B, T, k). A triangle above the main diagonal is one below it with the blocks counted from behind.
    """

    def __init__(self, diagonals: Diagonals, shape: tuple[int, int, int]) -> None:
        self.shape = shape
        self.diagonals = diagonals
        self.backward = any(d > 0 for d in diagonals)
        self._solver: Any = None

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        """Return x with (I + C) x = b, or (I + C)^H x = b."""
        if not self.diagonals or 0 in b.shape:
            return b
        if self._solver is None:
            self._solver = self._prepared()
        xp = array_namespace(b)
        x = self._solver.solve(xp.flip(b, axis=1) if self.backward else b, adjoint)
        return xp.flip(x, axis=1) if self.backward else x

    def take(self, indices: Indices) -> Triangle:
        """Return the triangles of some systems."""
        diagonals = {d: gather(blocks, indices) for d, blocks in self.diagonals.items()}
        return Triangle(diagonals, (len(indices), *self.shape[1:]))

    def _prepared(self) -> Any:
        below = self.diagonals
        if self.backward:
            below = {-d: array_namespace(c).flip(c, axis=1) for d, c in reversed(self.diagonals.items())}
        is_numpy = isinstance(next(iter(below.values())), np.ndarray)
        return (_Sparse if is_numpy else _Levels)(below, self.shape)


class _Sparse:
    """SuperLU's triangular solves for NumPy arrays: the systems of a batch are the diagonal blocks of one matrix."""

    def __init__(self, below: Diagonals, shape: tuple[int, int, int]) -> None:
        self.dtype = next(iter(below.values())).dtype
        size, length, k = shape
        n = size * length * k
        rows, columns, values = [np.arange(n)], [np.arange(n)], [np.ones(n, self.dtype)]
        for d, blocks in below.items():
            system, row, i, j = np.nonzero(blocks)
            rows.append((system * length + row - d) * k + i)
            columns.append((system * length + row) * k + j)
            values.append(blocks[system, row, i, j])
        entries = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
        self.lu = scipy.sparse.linalg.splu(
            scipy.sparse.csc_array(entries, shape=(n, n)),
            permc_spec="NATURAL",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )

    def solve(self, b: HostArray, adjoint: bool) -> HostArray:
        """Solve for b (B, T, k); the real and imaginary parts separately where the matrix is real."""
        dtype = np.result_type(self.dtype, b.dtype)
        vectors = np.ascontiguousarray(b, dtype=dtype).reshape(-1, 1)
        if dtype.kind == "c" and self.dtype.kind != "c":
            vectors = vectors.view(np.finfo(dtype).dtype)
        x = self.lu.solve(vectors.astype(self.dtype), trans="H" if adjoint else "N").astype(vectors.dtype)
        return np.ascontiguousarray(x).view(dtype).reshape(b.shape)


class _Levels:
    """For any array library: substitution level by level, all blocks whose predecessors are known at once."""

    def __init__(self, below: Diagonals, shape: tuple[int, int, int]) -> None:
        xp = array_namespace(*below.values())
        self.below = {d: xp.permute_dims(blocks, (1, 0, 2, 3)) for d, blocks in below.items()}
        exists = {d: to_host(xp.any(blocks != 0, axis=(1, 2, 3))) for d, blocks in self.below.items()}
        self.order = levels(exists, shape[1])

    def solve(self, b: Array, adjoint: bool) -> Array:
        xp = array_namespace(b)
        dtype = xp.result_type(b.dtype, *(blocks.dtype for blocks in self.below.values()))
        x = xp.astype(xp.permute_dims(b, (1, 0, 2)), dtype, copy=True)[..., None]
        for rows in reversed(self.order) if adjoint else self.order:
            for d, blocks in self.below.items():
                at = rows[rows >= -d]
                if not at.size:
                    continue
                block = gather(blocks, at + d)
                if adjoint:
                    block = xp.matrix_transpose(xp.conj(block) if is_complex(block) else block)
                source, target = (at, at + d) if adjoint else (at + d, at)
                scatter(x, target, gather(x, target) - block @ gather(x, source))
        return xp.permute_dims(x[..., 0], (1, 0, 2))


def levels(exists: dict[int, HostArray], length: int) -> list[Indices]:
    """Block rows in the order of elimination, level by level: those of a level depend on earlier levels alone.

    ``exists[d]``, (T + d,), marks the block rows of -d, ..., T - 1 in which block diagonal d < 0 has a block.
    """
    level = [0] * length
    waits = [(-d, rows.tolist()) for d, rows in exists.items()]
    for t in range(length):
        level[t] = max((level[t - back] + 1 for back, rows in waits if t >= back and rows[t - back]), default=0)
    rank = np.asarray(level)
    order = np.argsort(rank, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(rank[order])) + 1)


def tridiagonal_inverse(lower: Array, main: Array, upper: Array) -> LinearOperator:
    """Inverse of k independent tridiagonal matrices for each system, (B, T, k) or (T, k) each, by A = L D U.

    ``lower[t]`` multiplies x[t-1], ``upper[t]`` x[t+1]. The inverse is bounded whatever the entries are (see
    `kernels.scalar_tridiagonal`), and a product takes 2 T steps over rows of all systems.
    """
    return _by_factors(*_tridiagonal(main).factor(lower, main, upper))


def _by_factors(below: Array, scale: Array, above: Array) -> LinearOperator:
    """The inverse from its factors; `scale` is 1 / D."""
    shape, solve = tuple(scale.shape), _tridiagonal(scale).solve

    @functools.cache
    def adjoint() -> tuple[Array, Array]:
        xp = array_namespace(scale)
        return xp.roll(above, 1, axis=-2), xp.roll(below, -1, axis=-2)

    def rmatvec(b: Array) -> Array:
        below_adjoint, above_adjoint = adjoint()
        return solve(b, below_adjoint, scale, above_adjoint)

    return LinearOperator(
        lambda b: solve(b, below, scale, above),
        rmatvec,
        in_shape=shape[-2:],
        batch_shape=shape[:-2],
        dtype=scale.dtype,
        take=(lambda at: _by_factors(*(gather(x, at) for x in (below, scale, above)))) if len(shape) == 3 else None,
    )


def _tridiagonal(like: Array) -> Any:
    return scalar_tridiagonal.select(like, size=like.shape[-1])
