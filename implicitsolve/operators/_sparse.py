"""SparseMatrix: a sparse matrix, or a batch of them with one pattern, by its entries in compressed columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace, as_inexact, device, is_complex
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.operators._base import LinearOperator
from implicitsolve.structure._sparse import Sparse

PIECE = 16  # entries that are added at once: longer rows and columns are added in pieces


class SparseMatrix(LinearOperator):
    """A square sparse matrix; or the matrices of a batch of systems, which share one pattern.

    The entries `data` (..., nnz), with a batch in front, are in the order of ``structure.indices``, by columns.
    NumPy arrays are multiplied by SciPy, those of other libraries on their device, in a fixed order of summation.
    """

    def __init__(self, data: Any, structure: Sparse) -> None:
        data = as_inexact(data, "data")
        if data.ndim < 1 or data.shape[-1] != structure.nnz:
            raise ValueError(
                f"SparseMatrix: `data` must have shape (..., {structure.nnz}), one for each entry of the pattern, "
                f"got {tuple(data.shape)}"
            )
        if isinstance(data, np.ndarray):
            data = np.ascontiguousarray(data)  # SuperLU takes no strides
        self.data: Array = data
        self.structure: Sparse = structure
        n, batch_shape = structure.unknowns, tuple(data.shape[:-1])
        if isinstance(data, np.ndarray):
            rows: Any = _flat(data)
            parts = cache(lambda: [structure.with_entries(row) for row in rows])  # factors need no products
            matvec, rmatvec = (lambda v: _each(parts(), v, adjoint=False)), (lambda w: _each(parts(), w, adjoint=True))
        else:
            pattern = device_pattern(structure, data)
            matvec, rmatvec = (lambda v: pattern.product(data, v)), (lambda w: pattern.adjoint_product(data, w))
        super().__init__(
            matvec,
            rmatvec,
            in_shape=n,
            batch_shape=batch_shape,
            dtype=data.dtype,
            take=(lambda indices: _take(data, structure, indices)) if batch_shape else None,
        )

    @classmethod
    def from_scipy(cls, A: Any) -> SparseMatrix:
        """Return SciPy's sparse matrix or array `A` as a SparseMatrix of one system; duplicates are added up."""
        columns = scipy.sparse.csc_array(A, copy=not isinstance(A, scipy.sparse.csc_array | scipy.sparse.csc_matrix))
        if not columns.has_canonical_format:
            columns = columns.copy()
            columns.sum_duplicates()
        return cls(columns.data, Sparse(columns))

    @property
    def flat_data(self) -> Array:
        """Entries (B, nnz) of the flattened batch."""
        return _flat(self.data)

    def __repr__(self) -> str:
        batch = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        n, nnz = self.structure.unknowns, self.structure.nnz
        return f"<SparseMatrix {n}x{n}, {nnz} entries{batch}, dtype={self.dtype}>"

    def matmat(self, columns: Array) -> Array:
        """Return A V for the columns of V, shape ``batch_shape + (N, K)``, all at once."""
        if self.batch_shape or not isinstance(self.data, np.ndarray):
            return super().matmat(columns)
        return self.to_sparse() @ np.asarray(columns)

    def to_sparse(self, format: str = "csc", *, system: int = 0) -> Any:
        """Return one system's matrix, by its place in the flattened batch, as a SciPy sparse array.

        In the default format, compressed columns, the array shares its entries with this matrix, if these are NumPy's.
        """
        return self.structure.with_entries(to_host(self.flat_data[system, :])).asformat(format)

    def todense(self) -> Array:
        n, structure = self.structure.unknowns, self.structure
        return self._spread(structure.indices * np.int64(n) + structure.columns, slice(None), (n, n))

    def diagonal(self) -> Array:
        on_it = np.flatnonzero(self.structure.indices == self.structure.columns)
        return self._spread(self.structure.indices[on_it], from_host(on_it, self.data), (self.structure.unknowns,))

    def plus_diagonal(self, d: Array) -> SparseMatrix:
        """Return the matrices with d, ``(*batch, N)``, added to their diagonals; the pattern then includes these."""
        pattern, *places = self.structure.with_diagonal
        own, diagonal = places if isinstance(d, np.ndarray) else device_pattern(self.structure, d).places_on(places, d)
        shape = (*self.batch_shape, pattern.nnz)
        data = array_namespace(d).zeros(shape, dtype=self.data.dtype, device=device(d))
        data[..., own] = self.data
        data[..., diagonal] += d
        return SparseMatrix(data, pattern)

    def _spread(self, places: HostArray, entries: Any, shape: tuple[int, ...]) -> Array:
        """Some entries at their places in an array ``(*batch, *shape)`` of zeros."""
        xp = array_namespace(self.data)
        full = xp.zeros((*self.batch_shape, math.prod(shape)), dtype=self.data.dtype, device=device(self.data))
        full[..., from_host(places, self.data)] = self.data[..., entries]
        return xp.reshape(full, (*self.batch_shape, *shape))


def _take(data: Array, structure: Sparse, indices: Indices) -> SparseMatrix:
    return SparseMatrix(gather(_flat(data), indices), structure)


def _flat(data: Array) -> Array:
    return array_namespace(data).reshape(data, (math.prod(data.shape[:-1]), data.shape[-1]))


def _each(parts: list[Any], v: Any, *, adjoint: bool) -> Array:
    """Products of each system's matrix, or its adjoint, with its vector."""
    flat = v.reshape(len(parts), v.shape[-1])
    with np.errstate(all="ignore"):
        products = [np.conj(A.T @ np.conj(row)) if adjoint else A @ row for A, row in zip(parts, flat)]
    return np.stack(products).reshape(v.shape) if products else v.copy()


class Segments:
    """Reductions over segments of the last axis, in a fixed order, which atomic additions do not have.

    `order` holds the positions of the entries, segment after segment, `counts` the lengths of the segments.
    """

    def __init__(self, order: HostArray, counts: HostArray, like: Array) -> None:
        pieces = np.maximum(-(-counts // PIECE), 1)
        segment = np.repeat(np.arange(counts.size), pieces)
        ends = np.cumsum(counts)
        first = PIECE * (np.arange(segment.size) - np.repeat(np.cumsum(pieces) - pieces, pieces))
        places = ((ends - counts)[segment] + first)[:, None] + np.arange(min(PIECE, counts.max(initial=1)))
        is_inside = places < ends[segment][:, None]
        self.shape: tuple[int, ...] = places.shape
        self._places = from_host(np.append(order, 0)[np.where(is_inside, places, -1)].astype(np.int32).ravel(), like)
        self._is_inside = from_host(is_inside, like)
        is_last = segment.size == counts.size
        self._next = None if is_last else Segments(np.arange(segment.size), pieces, like)

    def sums(self, entries: Array) -> Array:
        """Sums (..., segments) of entries (..., n)."""
        return self._reduce(entries, array_namespace(entries).sum)

    def largest(self, sizes: Array) -> Array:
        """Largest of sizes (..., n), which are not negative; 0 of empty segments."""
        return self._reduce(sizes, array_namespace(sizes).max)

    def _reduce(self, entries: Array, reduction: Callable[..., Array]) -> Array:
        xp = array_namespace(entries)
        if not entries.shape[-1]:
            return xp.zeros((*entries.shape[:-1], self.shape[0]), dtype=entries.dtype, device=device(entries))
        terms = xp.reshape(xp.take(entries, self._places, axis=-1), (*entries.shape[:-1], *self.shape))
        reduced = reduction(xp.where(self._is_inside, terms, xp.zeros_like(terms)), axis=-1)
        return reduced if self._next is None else self._next._reduce(reduced, reduction)


class DevicePattern:
    """The index arrays of a pattern on the device of the entries, and products with them."""

    def __init__(self, structure: Sparse, like: Array) -> None:
        self.rows: Array = from_host(structure.indices, like)
        self.columns: Array = from_host(structure.columns, like)
        by_rows = np.argsort(structure.indices, kind="stable")
        self.over_rows: Segments = Segments(by_rows, structure.row_counts, like)
        self._with_diagonal: list[Array] | None = None
        self.over_columns: Segments = Segments(np.arange(structure.nnz), np.diff(structure.indptr), like)

    def places_on(self, places: list[HostArray], like: Array) -> list[Array]:
        """The positions that `Sparse.with_diagonal` returns, on the device."""
        if self._with_diagonal is None:
            self._with_diagonal = [from_host(part, like) for part in places]
        return self._with_diagonal

    def product(self, data: Array, v: Array) -> Array:
        """A v for v (..., N)."""
        return self.over_rows.sums(data * array_namespace(v).take(v, self.columns, axis=-1))

    def adjoint_product(self, data: Array, w: Array) -> Array:
        """A^H w for w (..., N)."""
        xp = array_namespace(w)
        data = xp.conj(data) if is_complex(data) else data
        return self.over_columns.sums(data * xp.take(w, self.rows, axis=-1))


_patterns: WeakKeyDictionary[Sparse, dict[Any, DevicePattern]] = WeakKeyDictionary()


def device_pattern(structure: Sparse, like: Array) -> DevicePattern:
    """The pattern on the device of `like`, to which it is copied once."""
    known, where = _patterns.setdefault(structure, {}), (type(like), str(device(like)))
    if where not in known:
        known[where] = DevicePattern(structure, like)
    return known[where]
