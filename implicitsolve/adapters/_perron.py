"""Bounds for the Perron root of a non-negative matrix, its spectral radius.

For any positive v, min (M v)_i / v_i <= root <= max (M v)_i / v_i (Collatz and Wielandt). The root of a matrix is the
largest one of the strongly connected components of its graph, each of which is irreducible, so that its own v is
positive.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

from implicitsolve.adapters._common import quiet

FloatArray = npt.NDArray[np.float64]

LARGEST = 2000  # nodes of a component for which linear systems are solved
CLOSE = 1e-12  # relative distance of the bounds at which the search ends
FEW_PRODUCTS, MOST_PRODUCTS, MOST_SYSTEMS = 60, 1000, 30
TINY = 2.0**-500  # entries of the scaled matrix and of v are no smaller, so that no product underflows
EPS = float(np.finfo(np.float64).eps)


def perron_bounds(M: Any) -> tuple[float, float, bool]:
    """Lower and upper bound for the Perron root of a CSR array of positive entries; whether its graph has no circle."""
    _, labels = connected_components(M, connection="strong")
    sizes = np.bincount(labels)
    diagonal = M.diagonal()
    lower = upper = float(diagonal[sizes[labels] == 1].max(initial=0.0))
    is_acyclic = bool((sizes == 1).all() and not diagonal.any())
    for nodes in _components(M, labels, sizes, lower):
        part = M[nodes][:, nodes]
        if _largest_row(part) <= lower:
            break  # nor do those that follow, whose bound is smaller, matter
        exponent = math.frexp(part.data.max())[1]
        scaled = np.ldexp(part.data, -exponent)
        part.data = np.maximum(scaled, TINY)  # which cannot lower the root: the upper bound holds still
        bounds = _bounds(part) if (scaled >= TINY).all() else (0.0, _bounds(part)[1])
        widening = (2 + int(np.diff(part.indptr).max())) * EPS  # rounding of a row's sum of products
        with np.errstate(over="ignore"):
            lower = max(lower, float(np.ldexp(bounds[0] * (1.0 - widening), exponent)))
            upper = max(upper, float(np.ldexp(bounds[1] * (1.0 + widening), exponent)))
    return lower, upper, is_acyclic


def _components(M: Any, labels: npt.NDArray[Any], sizes: npt.NDArray[Any], least: float) -> list[npt.NDArray[np.intp]]:
    """Nodes of each component of two or more whose largest row sum exceeds `least`, by falling row sum."""
    rows = np.repeat(np.arange(len(labels)), np.diff(M.indptr))
    is_inside = labels[rows] == labels[M.indices]
    with np.errstate(over="ignore"):
        sums = np.bincount(rows[is_inside], weights=M.data[is_inside], minlength=len(labels))
    bound = np.zeros(len(sizes))
    np.maximum.at(bound, labels, sums)
    by_label = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    wanted = np.flatnonzero((sizes > 1) & (bound > least))
    return [by_label[i] for i in wanted[np.argsort(-bound[wanted], kind="stable")]]


def _largest_row(part: Any) -> float:
    with np.errstate(over="ignore"):
        return float(part.sum(axis=1).max())


@quiet
def _bounds(M: Any) -> tuple[float, float]:
    """Bounds for an irreducible CSR array: by products, which are enough for most, then by systems."""
    search = _Search()
    v = np.ones(M.shape[0])
    for i in range(MOST_PRODUCTS):
        product = M @ v
        if search.ends(product / v) or (i >= FEW_PRODUCTS and len(v) <= LARGEST):
            break
        w = product + 0.5 * search.upper * v  # shifted: power iteration alone does not converge for a circle
        w /= w.max()
        if not (w >= TINY).all():
            break
        v = w
    if not search.is_over and len(v) <= LARGEST:
        _solve(M.toarray(), v, search)
    return search.lower, search.upper


def _solve(M: FloatArray, v: FloatArray, search: _Search) -> None:
    """Noda's iteration: v <- (upper bound - M)^-1 v, which stays positive and converges quadratically."""
    for _ in range(MOST_SYSTEMS):
        ratios = M @ v / v
        if search.ends(ratios):
            break
        try:
            v = np.linalg.solve(ratios.max() * np.eye(len(M)) - M, v)
        except np.linalg.LinAlgError:  # the bound is the root to rounding
            break
        v = v / v.max()
        if not (v >= TINY).all():
            break


class _Search:
    """The best bounds so far."""

    def __init__(self) -> None:
        self.lower, self.upper = 0.0, math.inf

    def ends(self, ratios: FloatArray) -> bool:
        """Take in the ratios (M v)_i / v_i of a positive v; tell whether the bounds are close."""
        self.lower, self.upper = max(self.lower, float(ratios.min())), min(self.upper, float(ratios.max()))
        return self.is_over

    @property
    def is_over(self) -> bool:
        return self.upper - self.lower <= CLOSE * self.upper
