"""Substitution in a lifted net whose graph is acyclic: levels of unknowns, each a function of the levels before it.

x = phi(A x + c) can be solved by substitution if the graph of A's non-zero entries, in which x_i depends on x_j where
A_ij is not zero, is acyclic: for instance if A is strictly triangular. Unknowns of level l depend on those of lower
levels only, so that one sweep over the levels takes one product with A.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from implicitsolve.adapters._common import Array, ByFields, Matrix, array_namespace, from_host, to_host, zeros
from implicitsolve.adapters._lifted_weights import Banded, Blocks, Dense, Weight, sparse_times

Update: TypeAlias = Callable[..., Array]
Nodes: TypeAlias = npt.NDArray[np.intp]


def sweep_of(A: Weight) -> Sweep | None:
    """Return the substitution for a square matrix A, or None where its graph has a cycle."""
    if isinstance(A, Dense):
        is_entry = to_host(A.value != 0)
        if np.count_nonzero(is_entry) > len(is_entry) * (len(is_entry) - 1) // 2:  # more than fit in a triangle
            return None
        sweep = Sweep(scipy.sparse.csr_array(is_entry), A.value)
        return sweep if is_acyclic(sweep.graph) else None
    if isinstance(A, Banded) or (isinstance(A, Blocks) and A.value.blocksize[0] == A.value.blocksize[1]):
        sweep = _block_sweep(A)
        if is_acyclic(sweep.graph):
            return sweep
    if isinstance(A, Banded) and not isinstance(A.value.blocks, np.ndarray):
        return None
    sweep = Sweep(_entries(A))  # the blocks on the diagonal may be triangular themselves
    return sweep if is_acyclic(sweep.graph) else None


@dataclass(frozen=True, eq=False)
class Sweep(ByFields):
    """Substitution for one matrix A.

    Attributes
    ----------
    graph : CSR array
        A itself, or the places of its entries, or those of its blocks, whose numbers in the stack are its data.
    values : Array, optional
        A as an array (n, n), or a stack of its blocks (blocks, k, k).
    """

    graph: Matrix
    values: Array = None

    @cached_property
    def T(self) -> Sweep:
        """Substitution for the transpose."""
        values = None if self.values is None else array_namespace(self.values).matrix_transpose(self.values)
        return Sweep(self.graph.T.tocsr(), values)

    @property
    def block_size(self) -> int:
        """Unknowns of a node of the graph."""
        return 1 if self.values is None or self.values.ndim == 2 else self.values.shape[-1]

    @cached_property
    def levels(self) -> list[Nodes]:
        """Nodes of each level."""
        return levels_of(self.graph)

    @property
    def width(self) -> float:
        """Unknowns in a level, on average."""
        return self.block_size * self.graph.shape[0] / len(self.levels)

    @cached_property
    def nodes(self) -> Nodes:
        """Those of all levels, one level after the other."""
        return np.concatenate(self.levels)

    @cached_property
    def order(self) -> Nodes:
        """Unknowns level by level."""
        return self._unknowns(self.nodes)

    def _unknowns(self, nodes: Nodes) -> Nodes:
        k = self.block_size
        return nodes if k == 1 else (k * nodes[:, None] + np.arange(k)).reshape(-1)

    @cached_property
    def parts(self) -> list[tuple[slice | Nodes, Any]]:
        """Of each level the unknowns that it depends on, by their places in `order`, and its rows of A for them."""
        graph, start = self.graph[self.nodes][:, self.nodes], 0
        found: list[tuple[slice | Nodes, Any]] = []
        for level in self.levels:
            pointers = graph.indptr[start : start + len(level) + 1]
            entries = slice(pointers[0], pointers[-1])
            columns, local = np.unique(graph.indices[entries], return_inverse=True)
            shape = (len(level), len(columns))
            own = scipy.sparse.csr_array((graph.data[entries], local, pointers - pointers[0]), shape=shape)
            at = self._unknowns(columns)
            is_range = bool(at.size) and at[-1] - at[0] + 1 == at.size
            found.append((slice(at[0], at[-1] + 1) if is_range else at, self._rows(own, level, self.nodes[columns])))
            start += len(level)
        return found

    def _rows(self, own: Matrix, level: Nodes, columns: Nodes) -> Any:
        """A for the unknowns of some nodes: transposed, or sparse where A is and most of its entries are zero."""
        if self.values is None:
            return own.T.toarray() if 2 * own.nnz > len(level) * len(columns) else own
        if self.values.ndim == 2:
            xp, values = array_namespace(self.values), self.values
            rows = xp.take(values, from_host(level, values), axis=0)
            return xp.matrix_transpose(xp.take(rows, from_host(columns, values), axis=1))
        k, blocks = self.block_size, own.tocoo()
        matrix = zeros((len(level) * k, len(columns) * k), self.values)
        for i, j, number in zip(blocks.row.tolist(), blocks.col.tolist(), blocks.data.tolist()):
            matrix[i * k : (i + 1) * k, j * k : (j + 1) * k] = self.values[number - 1, :, :]
        return array_namespace(matrix).matrix_transpose(matrix)

    def __call__(self, update: Update, *given: Array, factors: Array = None) -> Array:
        """Return x with x = update(A (factors * x), *given), for rows (B, n), where `update` acts on each number."""
        xp, order = array_namespace(given[0]), from_host(self.order, given[0])
        given = tuple(xp.take(rows, order, axis=1) for rows in given)
        scale = None if factors is None else xp.take(factors, order, axis=1)
        x, start = xp.empty_like(given[0]), 0
        known = x if scale is None else xp.empty_like(x)
        for level, (at, rows) in zip(self.levels, self.parts):
            near = known[:, at] if isinstance(at, slice) else xp.take(known, from_host(at, x), axis=1)
            part = slice(start, start + self.block_size * len(level))
            product = sparse_times(rows, near) if scipy.sparse.issparse(rows) else near @ rows
            x[:, part] = update(product, *(own[:, part] for own in given))
            if scale is not None:
                known[:, part] = scale[:, part] * x[:, part]
            start = part.stop
        return xp.take(x, from_host(np.argsort(self.order), x), axis=1)


def _block_sweep(A: Banded | Blocks) -> Sweep:
    """By the blocks that are not zero alone of a BSR array or a block-banded matrix."""
    if isinstance(A, Banded):
        T, width, k = A.value.length, A.value.structure.width, A.value.block_size
        stack = array_namespace(A.value.blocks).reshape(A.value.blocks, (T * width, k, k))
        rows = np.repeat(np.arange(T), width)
        columns = (rows + np.tile(np.arange(width), T) - A.value.lower) % T
    else:
        stack, columns, T = A.value.data, A.value.indices, len(A.value.indptr) - 1
        rows = np.repeat(np.arange(T), np.diff(A.value.indptr))
    kept = np.flatnonzero(to_host(array_namespace(stack).any(stack != 0, axis=(1, 2))))
    graph = scipy.sparse.csr_array((kept + 1, (rows[kept], columns[kept])), shape=(T, T))
    return Sweep(graph, stack)  # numbers from 1: stored zeros would be lost


def _entries(A: Weight) -> Any:
    """The entries of a sparse or block-banded matrix that are not zero, as a new CSR array."""
    entries = scipy.sparse.csr_array(A.value.tosparse("csr") if isinstance(A, Banded) else A.value, copy=True)
    entries.eliminate_zeros()
    return entries


def is_acyclic(pattern: Matrix) -> bool:
    """Whether the graph of a CSR array's stored entries is acyclic, without loops at a node either."""
    n = pattern.shape[0]
    offsets = pattern.indices - np.repeat(np.arange(n), np.diff(pattern.indptr))
    if (offsets > 0).all() or (offsets < 0).all():
        return True
    if (offsets == 0).any():
        return False
    graph = scipy.sparse.csr_array((np.ones(pattern.nnz), pattern.indices, pattern.indptr), shape=pattern.shape)
    return bool(connected_components(graph, connection="strong", return_labels=False) == n)


def levels_of(pattern: Matrix) -> list[Nodes]:
    """Nodes of an acyclic graph by level: those of the first depend on none."""
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
