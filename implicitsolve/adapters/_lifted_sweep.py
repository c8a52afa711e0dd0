"""Substitution in a lifted net without circles: levels of unknowns, each a function of the levels before it.

x = phi(A x + c) can be solved by substitution if the graph of A's non-zero entries, in which x_i depends on x_j where
A_ij is not zero, has no circle: for instance if A is strictly triangular. Unknowns of level l depend on those of lower
levels only, so that one sweep over the levels takes one product with A.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from implicitsolve.adapters._common import Array, ByFields, array_namespace, device, from_host, to_host
from implicitsolve.adapters._lifted_weights import Banded, Blocks, Dense, Weight

Update: TypeAlias = Callable[..., Array]
Nodes: TypeAlias = npt.NDArray[np.intp]


class Sweep(ByFields, ABC):
    """Substitution for one matrix A."""

    @abstractmethod
    def __call__(self, update: Update, *given: Array, factors: Array = None) -> Array:
        """Return x with x = update(A (factors * x), *given), for rows (B, n), where `update` acts on each number."""

    @cached_property
    def T(self) -> Sweep:
        """Substitution for the transpose."""
        return self.transposed()

    @abstractmethod
    def transposed(self) -> Sweep:
        """Build what `T` keeps."""

    @property
    @abstractmethod
    def width(self) -> float:
        """Unknowns in a level, on average."""


SMALL = 8  # unknowns of a block below which the levels of single unknowns are swept


def sweep_of(A: Weight) -> Sweep | None:
    """Return the substitution for a square matrix A, or None where its graph has a circle."""
    if isinstance(A, Dense):
        is_entry = to_host(A.value != 0)
        if np.count_nonzero(is_entry) > len(is_entry) * (len(is_entry) - 1) // 2:  # more than fit in a triangle
            return None
        pattern = scipy.sparse.csr_array(is_entry)
        return _DenseSweep(A.value, pattern) if is_acyclic(pattern) else None
    if isinstance(A, Banded) or (isinstance(A, Blocks) and A.value.blocksize[0] == A.value.blocksize[1]):
        stack, places = _banded_blocks(A.value) if isinstance(A, Banded) else _sparse_blocks(A.value)
        is_large = stack.shape[-1] >= SMALL or not isinstance(stack, np.ndarray)
        if is_large and is_acyclic(places):
            return _BlockSweep(stack, places)
    host = to_csr(A.value)
    if host is None or not is_acyclic(host):
        return None
    return _SparseSweep(host)


# ------------------------------------------------------------------------------------------------------------ patterns


def to_csr(A: Any) -> Any:
    """Return a sparse or block-banded matrix as a new CSR array of its non-zero entries, or None if not NumPy's."""
    if not scipy.sparse.issparse(A):
        if not isinstance(A.blocks, np.ndarray):
            return None
        A = A.tosparse("csr")
    host = scipy.sparse.csr_array(A, copy=True)
    host.eliminate_zeros()
    return host


def is_acyclic(pattern: Any) -> bool:
    """Whether the graph of a CSR array's stored entries has no circle, not even of one node."""
    n = pattern.shape[0]
    offsets = pattern.indices - np.repeat(np.arange(n), np.diff(pattern.indptr))
    if (offsets > 0).all() or (offsets < 0).all():
        return True
    if (offsets == 0).any():
        return False
    graph = scipy.sparse.csr_array((np.ones(pattern.nnz), pattern.indices, pattern.indptr), shape=pattern.shape)
    return bool(connected_components(graph, connection="strong", return_labels=False) == n)


def levels_of(pattern: Any) -> list[Nodes]:
    """Nodes of a graph without circles, by level: those of the first depend on none."""
    waiting = np.diff(pattern.indptr)
    by_column = scipy.sparse.csr_array(
        (np.ones(pattern.nnz, dtype=np.int8), pattern.indices, pattern.indptr), shape=pattern.shape
    ).tocsc()
    found: list[Nodes] = []
    level = np.flatnonzero(waiting == 0)
    while level.size:
        found.append(level)
        first, counts = by_column.indptr[level], by_column.indptr[level + 1] - by_column.indptr[level]
        entries = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        dependents = by_column.indices[entries]
        np.subtract.at(waiting, dependents, 1)
        is_free = np.zeros(len(waiting), dtype=bool)
        is_free[dependents[waiting[dependents] == 0]] = True
        level = np.flatnonzero(is_free)
    return found


def _sparse_blocks(A: Any) -> tuple[Array, Any]:
    """Blocks of a BSR array that are not zero alone, and a CSR array of their places in the stack."""
    kept = np.flatnonzero(A.data.any(axis=(1, 2)))
    rows = np.repeat(np.arange(len(A.indptr) - 1), np.diff(A.indptr))
    return A.data, _places(kept, rows[kept], A.indices[kept], len(A.indptr) - 1)


def _banded_blocks(A: Any) -> tuple[Array, Any]:
    """The same of a block-banded matrix."""
    xp, T, width, k = array_namespace(A.blocks), A.length, A.structure.width, A.block_size
    stack = xp.reshape(A.blocks, (T * width, k, k))
    kept = np.flatnonzero(to_host(xp.any(stack != 0, axis=(1, 2))))
    rows = kept // width
    return stack, _places(kept, rows, (rows + kept % width - A.lower) % T, T)


def _places(kept: npt.NDArray[Any], rows: npt.NDArray[Any], columns: npt.NDArray[Any], count: int) -> Any:
    return scipy.sparse.csr_array((kept, (rows, columns)), shape=(count, count))


# -------------------------------------------------------------------------------------------------------------- sweeps


@dataclass(frozen=True, eq=False)
class _DenseSweep(Sweep):
    """Unknowns in the order of their levels, in which A is strictly block lower triangular."""

    A: Array
    pattern: Any

    @cached_property
    def levels(self) -> list[Nodes]:
        return levels_of(self.pattern)

    @cached_property
    def upper(self) -> Array:
        """A^T in that order."""
        xp, order = array_namespace(self.A), from_host(np.concatenate(self.levels), self.A)
        return xp.take(xp.take(xp.matrix_transpose(self.A), order, axis=0), order, axis=1)

    def transposed(self) -> Sweep:
        return _DenseSweep(array_namespace(self.A).matrix_transpose(self.A), self.pattern.T.tocsr())

    @property
    def width(self) -> float:
        return self.A.shape[0] / len(self.levels)

    def __call__(self, update: Update, *given: Array, factors: Array = None) -> Array:
        xp, order = array_namespace(self.A), np.concatenate(self.levels)
        to_levels, back = from_host(order, self.A), from_host(np.argsort(order), self.A)
        ordered = [xp.take(rows, to_levels, axis=1) for rows in given]
        scale = None if factors is None else xp.take(factors, to_levels, axis=1)
        x = xp.empty_like(ordered[0])
        known = x if factors is None else xp.empty_like(x)
        start = 0
        for level in self.levels:
            part = slice(start, start + len(level))
            product = xp.matmul(known[:, :start], self.upper[:start, part])
            x[:, part] = update(product, *(rows[:, part] for rows in ordered))
            if scale is not None:
                known[:, part] = scale[:, part] * x[:, part]
            start = part.stop
        return xp.take(x, back, axis=1)


@dataclass(frozen=True, eq=False)
class _SparseSweep(Sweep):
    """Rows of each level of a CSR array at once."""

    A: Any

    @cached_property
    def levels(self) -> list[tuple[Nodes, Any]]:
        """Unknowns of each level, and their rows of A."""
        return [(level, self.A[level]) for level in levels_of(self.A)]

    def transposed(self) -> Sweep:
        return _SparseSweep(self.A.T.tocsr())

    @property
    def width(self) -> float:
        return self.A.shape[0] / len(self.levels)

    def __call__(self, update: Update, *given: Array, factors: Array = None) -> Array:
        columns = [np.ascontiguousarray(rows.T) for rows in given]
        scale = None if factors is None else factors.T
        x = np.zeros_like(columns[0])
        known = x if factors is None else np.zeros_like(x)
        for level, rows in self.levels:
            x[level] = update(rows @ known, *(column[level] for column in columns))
            if scale is not None:
                known[level] = scale[level] * x[level]
        return np.ascontiguousarray(x.T)


@dataclass(frozen=True, eq=False)
class _BlockSweep(Sweep):
    """Block after block: a product of dense matrices for each."""

    stack: Array  # (blocks, k, k)
    places: Any  # CSR array of places in the stack

    @cached_property
    def levels(self) -> list[Nodes]:
        return levels_of(self.places)

    def transposed(self) -> Sweep:
        return _BlockSweep(array_namespace(self.stack).matrix_transpose(self.stack), self.places.T.tocsr())

    @property
    def width(self) -> float:
        return self.stack.shape[-1] * self.places.shape[0] / len(self.levels)

    def __call__(self, update: Update, *given: Array, factors: Array = None) -> Array:
        xp, places, k = array_namespace(self.stack), self.places, self.stack.shape[-1]
        B, n = given[0].shape
        given = tuple(xp.reshape(rows, (B, n // k, k)) for rows in given)
        factors = None if factors is None else xp.reshape(factors, (B, n // k, k))
        x: dict[int, Array] = {}
        known: dict[int, Array] = {}
        for t in np.concatenate(self.levels).tolist():
            total = xp.zeros((B, k), dtype=self.stack.dtype, device=device(self.stack))
            row = slice(places.indptr[t], places.indptr[t + 1])
            for column, place in zip(places.indices[row].tolist(), places.data[row].tolist()):
                total += xp.matmul(known[column], xp.matrix_transpose(self.stack[place, :, :]))
            x[t] = update(total, *(rows[:, t, :] for rows in given))
            known[t] = x[t] if factors is None else factors[:, t, :] * x[t]
        return xp.reshape(xp.stack([x[t] for t in range(len(x))], axis=1), (B, n))
