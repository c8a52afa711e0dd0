"""What preconditioners declare, and what they are made of: block diagonals and triangular factors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from implicitsolve._arrays.host import gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace, copy_array, is_complex
from implicitsolve._typing import Array, DType, HostArray, Indices
from implicitsolve.kernels import scalar_tridiagonal
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._block_storage import spans
from implicitsolve.stopping import kind_of

Diagonals: TypeAlias = dict[int, Array]
"""Blocks A[t, t + d] of each block diagonal d that has some, (B, T - |d|, k, k), in ascending order of d."""


class Preconditioner(Protocol):
    """Frozen settings that make an approximate inverse of a matrix."""

    kind: ClassVar[str] = "preconditioner"  # `DirectMethod` settings may take the place of these: see `build_inverse`

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Return an operator that approximates A^-1, with adjoint products."""
        ...


def builds_inverse(settings: Any) -> bool:
    """Whether these are settings from which `build_inverse` makes a preconditioner."""
    return kind_of(settings) in ("preconditioner", "direct")


def takes_sparse(settings: Any, *kinds: str) -> bool:
    """Whether these are settings of one of the `kinds` for sparse matrices as well as for block-banded ones."""
    return kind_of(settings) in (kinds or ("preconditioner", "direct")) and getattr(settings, "takes_sparse", False)


def build_inverse(settings: Any, A: Any) -> LinearOperator:
    """Return the approximate inverse of A by a preconditioner's settings, or its factors by a direct method's."""
    return settings.factor(A) if settings.kind == "direct" else settings.build(A)


def check_matrix(settings: Preconditioner, A: Any) -> None:
    owner = type(settings).__name__
    if not isinstance(A, BlockBandedMatrix):
        raise TypeError(f"{owner}.build: `A` must be a BlockBandedMatrix, got {type(A).__name__}")


def block_diagonals(A: BlockBandedMatrix) -> Diagonals:
    """Block diagonals of the systems of a flattened batch, without those that hold zeros alone, save the main one."""
    xp = array_namespace(A.blocks)
    blocks = xp.reshape(A.blocks, (math.prod(A.batch_shape), *A.blocks.shape[-4:]))
    found = {
        columns.start - rows.start: blocks[:, rows, j, :, :]
        for j in range(A.structure.width)
        for rows, columns in spans(A.length, j - A.lower, A.periodic)
    }
    found.setdefault(0, blocks[:, :, A.lower, :, :])  # no blocks at all
    used = to_host(xp.stack([xp.any(blocks != 0) for blocks in found.values()]))
    return {d: found[d] for d in sorted(d for d, some in zip(found, used) if some or d == 0)}


def rows_of(d: int, length: int) -> slice:
    """Block rows that have a block in diagonal d."""
    return slice(max(0, -d), min(length, length - d))


def row_scales(diagonals: Diagonals, length: int) -> Array:
    """A size of each block row (B, T): its largest row sum of magnitudes, that of all rows where it is 0, or 1."""
    xp = array_namespace(*diagonals.values())
    main = diagonals[0]
    sums = xp.zeros(main.shape[:-1], dtype=xp.abs(main[:0, ...]).dtype, device=main.device)
    with np.errstate(all="ignore"):
        for d, blocks in diagonals.items():
            sums[:, rows_of(d, length), :] += xp.sum(xp.abs(blocks), axis=-1)
        rows = xp.max(sums, axis=-1)
    rows = xp.where(xp.isfinite(rows), rows, xp.zeros_like(rows))
    rows = xp.where(rows > 0, rows, xp.max(rows, axis=-1, keepdims=True))
    return xp.where(rows > 0, rows, xp.ones_like(rows))


def inverses(blocks: Array, scales: Callable[[], Array]) -> Array:
    """Inverses of blocks (..., k, k); the identity over the block's scale (...) where there is no finite inverse."""
    xp = array_namespace(blocks)
    identity = xp.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)
    with np.errstate(all="ignore"):
        if blocks.shape[-1] == 1:
            inverse = 1 / blocks
        else:
            identities = xp.broadcast_to(identity, blocks.shape)  # the `inv` of CuPy writes nothing for singular blocks
            try:
                inverse = xp.linalg.solve(blocks, identities)
            except np.linalg.LinAlgError:  # one singular block spoils the call: 0 in the LU that it divides by
                singular = (xp.linalg.slogdet(blocks)[0] == 0)[..., None, None]
                regular = xp.where(singular, identity, blocks)
                inverse = xp.where(singular, xp.nan, xp.linalg.solve(regular, identities))
        usable = xp.all(xp.isfinite(inverse), axis=(-2, -1), keepdims=True)
        if not bool(xp.all(usable)):
            inverse = xp.where(usable, inverse, identity / scales()[..., None, None])
    return inverse


def finite(x: Array) -> Array:
    xp = array_namespace(x)
    return xp.where(xp.isfinite(x), x, xp.zeros_like(x))


class Split:
    """(I + U)^-1 D^-1 (I + L)^-1 on arrays (B, T, k), with strictly triangular L and U; None stands for I."""

    def __init__(self, D_inverse: Array | None, lower: Triangle | None = None, upper: Triangle | None = None) -> None:
        self.D_inverse = D_inverse
        self.lower = lower
        self.upper = upper
        self._D = None if D_inverse is None else BlockBandedMatrix(D_inverse[:, :, None, :, :], lower=0, upper=0)

    def solve(self, b: Array) -> Array:
        x = b if self.lower is None else self.lower.solve(b)
        x = copy_array(x) if self._D is None else self._D.matvec(x)
        return x if self.upper is None else self.upper.solve(x)

    def solve_adjoint(self, b: Array) -> Array:
        x = b if self.upper is None else self.upper.solve(b, adjoint=True)
        x = copy_array(x) if self._D is None else self._D.rmatvec(x)
        return x if self.lower is None else self.lower.solve(x, adjoint=True)

    def take(self, indices: Indices) -> Split:
        lower, upper = (None if part is None else part.take(indices) for part in (self.lower, self.upper))
        return Split(None if self.D_inverse is None else gather(self.D_inverse, indices), lower, upper)


def repeat_sweeps(A: BlockBandedMatrix, split: Split, sweeps: int = 1) -> LinearOperator:
    """Return the operator of so many steps x <- x + M^-1 (b - A x) from x = 0, with `split` as M^-1."""
    return _repeat(split, A if sweeps > 1 else None, sweeps, A.in_shape, A.batch_shape, A.dtype)


def _repeat(
    split: Split,
    A: BlockBandedMatrix | None,
    sweeps: int,
    in_shape: tuple[int, ...],
    batch_shape: tuple[int, ...],
    dtype: DType,
) -> LinearOperator:
    """Repeat an inverse; `A` is kept only where it is multiplied by."""
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
        return _repeat(split.take(rows), None if A is None else A.take(rows), sweeps, in_shape, (len(rows),), dtype)

    return LinearOperator(
        steps(split.solve, None if A is None else A.matvec),
        steps(split.solve_adjoint, None if A is None else A.rmatvec),
        in_shape=in_shape,
        batch_shape=batch_shape,
        dtype=dtype,
        take=take if batch_shape else None,
    )


class Triangle:
    """I + C for a strictly block-triangular C, given by its block diagonals: all below the main one, or all above."""

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
            below = self.diagonals
            if self.backward:
                below = {-d: array_namespace(c).flip(c, axis=1) for d, c in reversed(self.diagonals.items())}
            is_numpy = isinstance(next(iter(below.values())), np.ndarray)
            self._solver = (_Sparse if is_numpy else _Levels)(below, self.shape)
        xp = array_namespace(b)
        x = self._solver.solve(xp.flip(b, axis=1) if self.backward else b, adjoint)
        return xp.flip(x, axis=1) if self.backward else x

    def take(self, indices: Indices) -> Triangle:
        diagonals = {d: gather(blocks, indices) for d, blocks in self.diagonals.items()}
        return Triangle(diagonals, (len(indices), *self.shape[1:]))


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
    """Substitution for any array library, level by level: all blocks whose predecessors are known, at once."""

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
