"""Substitution in a lifted net whose graph is acyclic.

x = phi(A x + c) is solved by substitution if the graph of A's nonzero entries, in which x_i depends on x_j where A_ij
is not zero, is acyclic: for instance if A is strictly triangular. The unknowns of a level depend on those of earlier
levels only, so that one sweep over the levels takes one product with A.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from implicitsolve.adapters._common import (
    Array,
    ByFields,
    HostIndices,
    Matrix,
    array_namespace,
    from_host,
    is_array,
    to_host,
)
from implicitsolve.adapters._lifted_weights import entries, times

Update: TypeAlias = Callable[..., Array]


def sweep_of(A: Matrix, like: Array) -> Sweep | None:
    """Return the substitution for a square matrix A, on arrays like `like`, or None where its graph has a cycle."""
    n = A.shape[0]
    if is_array(A) and np.count_nonzero(to_host(A != 0)) > n * (n - 1) // 2:  # more than fit in a triangle
        return None
    matrix, order = entries(A), None
    offsets = matrix.indices - np.repeat(np.arange(n), np.diff(matrix.indptr))
    if not ((offsets > 0).all() or (offsets < 0).all()):
        order = topological_order(matrix)
        if len(order) < n:
            return None
        matrix = matrix[order][:, order]
        matrix.sort_indices()
    return Sweep(matrix, order, like)


@dataclass(frozen=True, eq=False)
class Sweep(ByFields):
    """Substitution for one matrix A.

    Attributes
    ----------
    matrix : CSR array
        A, strictly triangular, its indices sorted.
    order : numpy.ndarray of intp, optional
        The unknown of each row of `matrix`, if that is not the unknowns' own order.
    like : Array
        Of the library and dtype of the vectors.
    """

    matrix: Any
    order: HostIndices | None
    like: Array

    @cached_property
    def T(self) -> Sweep:
        """Substitution for the transpose."""
        return Sweep(self.matrix.T.tocsr(), self.order, self.like)

    @property
    def width(self) -> float:
        """Unknowns of a level, on average."""
        return self.matrix.shape[0] / len(self.levels)

    @cached_property
    def levels(self) -> list[tuple[slice, slice, Any]]:
        """For each level its rows, the columns they depend on, and A there: dense, unless most entries are zero."""
        A, n = self.matrix, self.matrix.shape[0]
        filled = np.flatnonzero(np.diff(A.indptr))
        first, last = A.indices[A.indptr[filled]], A.indices[A.indptr[filled + 1] - 1]
        is_upper = filled.size > 0 and first[0] > filled[0]
        latest = np.full(n, -1)
        latest[n - 1 - filled if is_upper else filled] = n - 1 - first if is_upper else last
        starts = [0]
        for i, row in enumerate(latest.tolist()):
            if row >= starts[-1]:
                starts.append(i)
        found: list[tuple[slice, slice, Any]] = []
        for start, stop in pairwise([*starts, n]):
            level = slice(n - stop, n - start) if is_upper else slice(start, stop)
            own = A[level]
            near = slice(own.indices.min(), own.indices.max() + 1) if own.nnz else slice(0, 0)
            own = own[:, near]
            is_sparse = 2 * own.nnz < own.shape[0] * own.shape[1] and isinstance(self.like, np.ndarray)
            found.append((level, near, own if is_sparse else from_host(own.toarray(), self.like)))
        return found

    def __call__(self, update: Update, *given: Array, factors: Array = None) -> Array:
        """Return x with x = update(A (factors * x), *given), for (..., n), where `update` acts on each number."""
        xp, like = array_namespace(given[0]), given[-1]
        given, scale = tuple(self._ordered(x) for x in given), None if factors is None else self._ordered(factors)
        x = xp.empty_like(like)
        known = x if scale is None else xp.empty_like(x)
        for level, near, rows in self.levels:
            values = update(times(rows, known[..., near]), *(own[..., level] for own in given))
            x[..., level] = xp.astype(values, x.dtype, copy=False)
            if scale is not None:
                known[..., level] = scale[..., level] * x[..., level]
        return self._ordered(x, back=True)

    def _ordered(self, x: Array, *, back: bool = False) -> Array:
        if self.order is None:
            return x
        order = np.argsort(self.order) if back else self.order
        return array_namespace(x).take(x, from_host(order, x), axis=-1)


def topological_order(pattern: Matrix) -> HostIndices:
    """The nodes of a CSR array's graph, each after those that it depends on; without those that depend on a cycle."""
    left, by_column = np.diff(pattern.indptr), pattern.tocsc()
    found = [np.flatnonzero(left == 0)]
    while found[-1].size:
        dependents = by_column[:, found[-1]].indices
        np.subtract.at(left, dependents, 1)
        found.append(np.unique(dependents[left[dependents] == 0]))
    return np.concatenate(found)
