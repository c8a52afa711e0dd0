"""References on the array API: block LU and cyclic reduction of block-banded matrices.

All of them work on a batch: ``blocks (B, T, m, k, k)`` with ``blocks[:, t, j] = A[t, t + j - lower]``. They loop over
blocks, not over systems, and store plain blocks, which are factored again (by the library's ``solve``) when used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import lapack

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace, host_dtype, is_complex
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels import _lapack
from implicitsolve.kernels._contract import Factors


def block_lu(blocks: Array, lower: int, upper: int, *, pivoting: str = "block", overwrite: bool = False) -> Factors:
    """Factor block-banded matrices: LU with pivoting inside the blocks; over the band by LAPACK, on the host."""
    if pivoting == "band" and 0 not in blocks.shape:
        return _OnHost(_lapack.block_lu(to_host(blocks), lower, upper))
    return _factor(_BlockLU.factor, blocks, lower, upper)


def cyclic_reduction(blocks: Array, *, overwrite: bool = False) -> Factors:
    """Factor block tridiagonal matrices by eliminating every second block row, all at once, again and again."""
    return _factor(_CyclicReduction.factor, blocks)


def _factor(factor: Callable[..., Factors], blocks: Array, *bands: int) -> Factors:
    if 0 in blocks.shape:
        return _Reference([], np.full(blocks.shape[0], -1), np.ones(blocks.shape[0]))
    with np.errstate(all="ignore"):
        return factor(blocks, *bands)


class _Reference:
    """Nested lists of arrays whose first axis is the batch, and what the factoring found."""

    def __init__(self, parts: Any, singular: HostArray, growth: HostArray) -> None:
        self.parts, self.singular, self.growth = parts, singular, growth

    @property
    def nbytes(self) -> int:
        return sum(math.prod(x.shape) * host_dtype(x.dtype).itemsize for x in _leaves(self.parts))

    def take(self, indices: Indices) -> Factors:
        parts = _map(lambda x: gather(x, indices), self.parts)
        return type(self)(parts, self.singular[indices], self.growth[indices])

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        xp = array_namespace(b)
        if 0 in b.shape:
            return xp.zeros_like(b)
        with np.errstate(all="ignore"):
            x = (self._solve_adjoint if adjoint else self._solve)([b[:, t, :, :] for t in range(b.shape[1])])
            return self._mark(xp.stack(x, axis=1))

    def _mark(self, x: Array) -> Array:
        """NaN in the rows of singular systems."""
        bad = self.singular >= 0
        if bad.any():
            x[from_host(bad, x), ...] = np.nan
        return x

    def _solve(self, b: list[Array]) -> list[Array]:
        raise NotImplementedError

    def _solve_adjoint(self, b: list[Array]) -> list[Array]:
        raise NotImplementedError


class _Watch:
    """Replaces singular blocks, and remembers where they were and how the entries grew."""

    def __init__(self, blocks: Array, arrays: list[Array]) -> None:
        xp = array_namespace(blocks)
        self.xp = xp
        self.identity = xp.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)
        self.places: list[HostArray] = []
        self.bad: list[Array] = []
        self.sizes: list[Array] = []
        self.scale = self._largest(arrays)

    def regular(self, D: Array, places: HostArray) -> Array:
        """Return D (B, n, k, k), blocks of rows `places`, with the identity where D is singular or not finite."""
        _, logarithm = self.xp.linalg.slogdet(D)
        bad = ~self.xp.isfinite(logarithm)
        self.bad.append(bad)
        self.places.append(places)
        return self.xp.where(bad[..., None, None], self.identity, D)

    def step(self, entries: list[Array], multipliers: list[Array]) -> None:
        """Note what one block step produced."""
        size = self._largest(entries)
        if multipliers:
            size = size * self.xp.maximum(self._largest(multipliers), self.xp.ones_like(size))
        self.sizes.append(size)

    def summarize(self) -> tuple[HostArray, HostArray]:
        """First singular block of each system, and the largest noted size over the largest entry of A."""
        bad, places = to_host(self.xp.concat(self.bad, axis=1)), np.concatenate(self.places)
        first = np.where(bad, places, places.size).min(axis=1)
        singular = np.where(first < places.size, first, -1)
        sizes = to_host(self.xp.max(self.xp.stack([self.scale, *self.sizes], axis=0), axis=0)).astype(np.float64)
        growth = sizes / to_host(self.scale).astype(np.float64)
        return singular, np.where(singular < 0, growth, np.inf)

    def _largest(self, arrays: list[Array]) -> Array:
        largest = [self.xp.max(self.xp.abs(x), axis=tuple(range(1, x.ndim))) for x in arrays if 0 not in x.shape]
        return self.xp.max(self.xp.stack(largest, axis=0), axis=0)


class _BlockLU(_Reference):
    """A = L U, L unit block lower triangular, the diagonal blocks of U stored unfactored."""

    @classmethod
    def factor(cls, blocks: Array, lower: int, upper: int) -> Factors:
        """Eliminate row by row; ``L[t][s]`` for s < t and ``U[t][s]`` for s >= t."""
        rows = _rows(blocks, lower)
        watch = _Watch(blocks, _leaves(rows))
        L: list[dict[int, Array]] = []
        U: list[dict[int, Array]] = []
        for t, row in enumerate(rows):
            multipliers: dict[int, Array] = {}
            for s in range(max(t - lower, 0), t):
                multipliers[s] = L_ts = _right_solve(row.pop(s), U[s][s])
                for c in range(s + 1, max(U[s]) + 1):
                    row[c] = row[c] - L_ts @ U[s][c]
            row[t] = watch.regular(row[t][:, None, :, :], np.asarray([t]))[:, 0, :, :]
            L.append(multipliers)
            U.append(row)
        for s, row in enumerate(U):
            watch.step(list(row.values()), [L[t][s] for t in range(s + 1, min(s + lower + 1, len(L)))])
        return cls((L, U), *watch.summarize())

    def _solve(self, b: list[Array]) -> list[Array]:
        L, U = self.parts
        x = list(b)
        for t in range(len(x)):
            for s in L[t]:
                x[t] = x[t] - L[t][s] @ x[s]
        _substitute(U, x)
        return x

    def _solve_adjoint(self, b: list[Array]) -> list[Array]:
        L, U = self.parts
        x = list(b)
        _substitute_adjoint(U, x)
        for t in reversed(range(len(x))):
            for s in L[t]:
                x[s] = x[s] - _adjoint(L[t][s]) @ x[t]
        return x


class _OnHost:
    """LAPACK's factors on the host, for arrays of another library or device."""

    def __init__(self, factors: Factors) -> None:
        self.factors, self.singular, self.growth = factors, factors.singular, factors.growth

    @property
    def nbytes(self) -> int:
        return self.factors.nbytes

    def take(self, indices: Indices) -> Factors:
        return _OnHost(self.factors.take(indices))

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        return from_host(to_host(self.factors.solve(to_host(b), adjoint)), b)


class _CyclicReduction(_Reference):
    """Levels of even-odd elimination: odd rows (E, with Ao to their left and Co to their right), multipliers."""

    @classmethod
    def factor(cls, blocks: Array) -> Factors:
        """Halve the number of block rows until one is left."""
        xp = array_namespace(blocks)
        D, A, C = (xp.asarray(blocks[:, :, 1, :, :], copy=True), blocks[:, 1:, 0, :, :], blocks[:, :-1, 2, :, :])
        watch = _Watch(blocks, [D, A, C])
        places = np.arange(D.shape[1])
        levels: list[tuple[Array, ...]] = []
        while places.size > 1:
            E = watch.regular(D[:, 1::2, :, :], places[1::2])
            Ao, Co = A[:, 0::2, :, :], C[:, 1::2, :, :]
            left = Co.shape[1]  # even rows with an odd row to their left
            P_left = _right_solve(A[:, 1::2, :, :], E[:, :left, :, :])
            P_right = _right_solve(C[:, 0::2, :, :], E)
            watch.step([E, Ao, Co], [P_left, P_right])
            levels.append((E, Ao, Co, P_left, P_right))
            D = xp.asarray(D[:, 0::2, :, :], copy=True)
            D[:, 1:, :, :] = D[:, 1:, :, :] - (P_left @ Co)[:, : D.shape[1] - 1, :, :]
            D[:, : E.shape[1], :, :] = D[:, : E.shape[1], :, :] - P_right @ Ao
            A, C = -P_left @ Ao[:, :left, :, :], -P_right[:, :left, :, :] @ Co
            places = places[0::2]
        D = watch.regular(D, places)
        watch.step([D], [])
        return cls((levels, D), *watch.summarize())

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        if 0 in b.shape:
            return array_namespace(b).zeros_like(b)
        levels, D = self.parts
        with np.errstate(all="ignore"):
            return self._mark(_reduce(levels, D, b, adjoint))


def _reduce(levels: list[tuple[Array, ...]], D: Array, b: Array, adjoint: bool) -> Array:
    """Reduce b to the even rows, solve there, substitute into the odd rows; the adjoint takes the factors in turn."""
    if not levels:
        return _left_solve(_adjoint(D) if adjoint else D, b)
    xp, (E, Ao, Co, P_left, P_right) = array_namespace(b), levels[0]
    odd, even = b[:, 1::2, :, :], xp.asarray(b[:, 0::2, :, :], copy=True)
    if adjoint:
        odd = _left_solve(_adjoint(E), odd)
        Ao, Co, P_left, P_right = map(_adjoint, (P_right, P_left, Co, Ao))
    left, right = P_left.shape[1], P_right.shape[1]
    even[:, 1:, :, :] = even[:, 1:, :, :] - P_left @ odd[:, :left, :, :]
    even[:, :right, :, :] = even[:, :right, :, :] - P_right @ odd
    x = _reduce(levels[1:], D, even, adjoint)
    odd = odd - Ao @ x[:, :right, :, :]
    odd[:, :left, :, :] = odd[:, :left, :, :] - Co @ x[:, 1:, :, :]
    return _interleave(x, odd if adjoint else _left_solve(E, odd))


def _interleave(even: Array, odd: Array) -> Array:
    xp = array_namespace(even)
    B, n, k, K = even.shape
    x = xp.empty((B, n + odd.shape[1], k, K), dtype=even.dtype, device=even.device)
    x[:, 0::2, :, :], x[:, 1::2, :, :] = even, odd
    return x


def _rows(blocks: Array, lower: int) -> list[dict[int, Array]]:
    """``rows[t][s]`` = A[t, s], without the blocks outside the matrix."""
    T, m = blocks.shape[1:3]
    inside = [range(max(t - lower, 0), min(t - lower + m, T)) for t in range(T)]
    return [{s: blocks[:, t, s - t + lower, :, :] for s in columns} for t, columns in enumerate(inside)]


def _substitute(U: list[dict[int, Array]], x: list[Array]) -> None:
    for t in reversed(range(len(x))):
        for s in U[t]:
            if s != t:
                x[t] = x[t] - U[t][s] @ x[s]
        x[t] = _left_solve(U[t][t], x[t])


def _substitute_adjoint(U: list[dict[int, Array]], x: list[Array]) -> None:
    """Overwrite x with U^-H x."""
    for t in range(len(x)):
        x[t] = _left_solve(_adjoint(U[t][t]), x[t])
        for s in range(t + 1, max(U[t]) + 1):
            x[s] = x[s] - _adjoint(U[t][s]) @ x[t]


def _left_solve(D: Any, b: Any) -> Any:
    """D^-1 b for batches of blocks; by the factors of D^H where rounding makes D singular though D^H is not."""
    xp = array_namespace(b)
    try:
        return b if 0 in b.shape else xp.linalg.solve(D, b)
    except np.linalg.LinAlgError:
        if math.prod(D.shape[:-2]) == 1:
            getrf, getrs = lapack.get_lapack_funcs(("getrf", "getrs"), (D, b))
            lu, pivots, _ = getrf(_adjoint(D.reshape(D.shape[-2:])))
            return getrs(lu, pivots, b.reshape(b.shape[-2:]), trans=2)[0].reshape(b.shape)
        axis = 0 if D.shape[0] > 1 else 1
        singles = [from_host(np.asarray([i]), D) for i in range(D.shape[axis])]
        return xp.concat([_left_solve(xp.take(D, i, axis=axis), xp.take(b, i, axis=axis)) for i in singles], axis=axis)


def _right_solve(A: Array, D: Array) -> Array:
    """A D^-1 for batches of blocks."""
    xp = array_namespace(D)
    return xp.matrix_transpose(_left_solve(xp.matrix_transpose(D), xp.matrix_transpose(A)))


def _adjoint(A: Array) -> Array:
    xp = array_namespace(A)
    return xp.matrix_transpose(xp.conj(A) if is_complex(A) else A)


def _leaves(parts: Any) -> list[Array]:
    if isinstance(parts, dict):
        parts = list(parts.values())
    return [leaf for part in parts for leaf in _leaves(part)] if isinstance(parts, list | tuple) else [parts]


def _map(function: Any, parts: Any) -> Any:
    if isinstance(parts, dict):
        return {key: _map(function, part) for key, part in parts.items()}
    return type(parts)(_map(function, part) for part in parts) if isinstance(parts, list | tuple) else function(parts)
