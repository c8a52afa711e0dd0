"""Solves with unit block-triangular matrices: LAPACK's, SuperLU's, or level by level."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

from implicitsolve._namespace import array_namespace, gather, is_complex, scatter, to_host
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.precondition._diagonals import Diagonals

# A band's entry takes LAPACK 0.6 to 2 ns, a stored entry SuperLU 3 to 5: a band may hold so many times more of them.
BAND_OVER_SPARSE = 4


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
        if not isinstance(next(iter(below.values())), np.ndarray):
            return _Levels(below, self.shape)
        reach = max(-d for d in below)
        return (_Band if reach + 1 <= BAND_OVER_SPARSE * (len(below) + 1) else _Sparse)(below, self.shape)


class _Compiled:
    """What the two solvers of NumPy arrays share: real right-hand sides for real matrices, systems kept apart."""

    def __init__(self, below: Diagonals, shape: tuple[int, int, int]) -> None:
        self.shape = shape
        self.dtype = next(iter(below.values())).dtype

    def solve(self, b: HostArray, adjoint: bool) -> HostArray:
        dtype = np.result_type(self.dtype, b.dtype)
        vectors = np.ascontiguousarray(b, dtype=dtype).reshape(-1, 1)
        if dtype.kind == "c" and self.dtype.kind != "c":
            vectors = vectors.view(np.finfo(dtype).dtype)
        x = np.ascontiguousarray(self._solved(vectors, adjoint))
        return x.view(dtype).reshape(b.shape)

    def _solved(self, b: HostArray, adjoint: bool) -> HostArray:
        raise NotImplementedError


class _Band(_Compiled):
    """All systems one behind the other in one scalar band: their couplings are zeros."""

    def __init__(self, below: Diagonals, shape: tuple[int, int, int]) -> None:
        super().__init__(below, shape)
        size, length, k = shape
        reach = max(-d for d in below)
        columns = np.zeros((size, length, k, (reach + 1) * k), self.dtype)  # entry [.., i - j] is in row i, column j
        for d, blocks in below.items():
            for c in range(k):
                columns[:, : length + d, c, -d * k - c : -d * k - c + k] = blocks[..., c]
        self.columns = columns.reshape(size, length * k, (reach + 1) * k)

    def _solved(self, b: HostArray, adjoint: bool) -> HostArray:
        size, n = self.columns.shape[:2]
        x = self._substituted(self.columns.reshape(size * n, -1), b, adjoint)
        if size > 1 and not np.isfinite(x).all():  # zero times infinity: what overflowed must not reach its neighbours
            parts = zip(self.columns, b.reshape(size, n, -1))
            x = np.concatenate([self._substituted(columns, part, adjoint) for columns, part in parts])
        return x

    def _substituted(self, columns: HostArray, b: HostArray, adjoint: bool) -> HostArray:
        (tbtrs,) = scipy.linalg.get_lapack_funcs(("tbtrs",), (columns, b))
        x, _ = tbtrs(columns.T, b, uplo="L", trans="C" if adjoint else "N", diag="U")
        return x.reshape(b.shape)


class _Sparse(_Compiled):
    """SuperLU's factors of a matrix that is triangular already: the matrix itself."""

    def __init__(self, below: Diagonals, shape: tuple[int, int, int]) -> None:
        super().__init__(below, shape)
        size, length, k = shape
        n = size * length * k
        starts = np.arange(size)[:, None] * length
        rows, columns, values = [np.arange(n)], [np.arange(n)], [np.ones(n, self.dtype)]
        for d, blocks in below.items():
            system, row, i, j = np.nonzero(blocks)
            rows.append((starts[system, 0] + row - d) * k + i)
            columns.append((starts[system, 0] + row) * k + j)
            values.append(blocks[system, row, i, j])
        entries = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
        self.lu = scipy.sparse.linalg.splu(
            scipy.sparse.csc_array(entries, shape=(n, n)),
            permc_spec="NATURAL",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )

    def _solved(self, b: HostArray, adjoint: bool) -> HostArray:
        return self.lu.solve(b.astype(self.dtype), trans="H" if adjoint else "N").astype(b.dtype)


class _Levels:
    """Any array library: all blocks at once whose predecessors are known. The definition of the compiled ones."""

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
    """Block rows in the order of elimination, those together that do not wait for each other.

    ``exists[d]``, (T + d,), says in which of the block rows -d, ..., T - 1 block diagonal d < 0 has a block.
    """
    level = [0] * length
    waits = [(-d, rows.tolist()) for d, rows in exists.items()]
    for t in range(length):
        level[t] = max((level[t - back] + 1 for back, rows in waits if t >= back and rows[t - back]), default=0)
    rank = np.asarray(level)
    order = np.argsort(rank, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(rank[order])) + 1)
