"""Orders of elimination for pivots on the diagonal, and what they leave of a graph that fills in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

from implicitsolve._typing import HostArray
from implicitsolve.structure._sparse import Sparse, from_csc

LEAST_ELIMINATED = 0.05  # part of the vertices, that a further round is worth
LAST_ORDERED = 10.0  # times sqrt(N) entries, as in COLAMD: an order of minimum degree ends with such rows and columns
PIVOTS: Any = {"diag_pivot_thresh": 0.0, "panel_size": 8, "relax": 1, "options": {"SymmetricMode": True}}


@dataclass(frozen=True, eq=False)
class Elimination:
    """P A P^T, whose pivots are on the diagonal, for the matrices A of a pattern."""

    order: HostArray  # place of each row (N,)
    entries: HostArray  # places of its entries in A
    pattern: Sparse
    pivots: HostArray  # rows (N,) whose diagonal entries must not be zero

    @classmethod
    def of(cls, structure: Sparse, diagonal: HostArray) -> Elimination | None:
        """An order of minimum degree on A + A^T, for a diagonal with some zeros; None if these are too many.

        A row with a zero on the diagonal becomes a pivot after a neighbor, whose elimination fills in the zero. If most
        such rows would precede their neighbors, as in saddle points, each pair is one node of the graph [1]_; in
        networks of pipes this would double the fill. Full rows are last, as are those without such a neighbor.

        References
        ----------
        .. [1] I. S. Duff and S. Pralet, "Strategies for scaling and pivoting for sparse symmetric indefinite problems",
               SIAM J. Matrix Anal. Appl. 27 (2005) 313-340.
        """
        n, A = structure.unknowns, structure.to_scipy()
        is_last = structure.row_counts + np.diff(structure.indptr) > LAST_ORDERED * n**0.5
        pivots, nodes = (diagonal != 0) & ~is_last, np.arange(n)
        others = np.flatnonzero((diagonal == 0) & ~is_last)
        if others.size:
            pairs = scipy.sparse.csr_array(A.multiply(A.T))[others] @ scipy.sparse.diags_array(pivots.astype(float))
            pairs.eliminate_zeros()
            nodes[others] = scipy.sparse.csgraph.maximum_bipartite_matching(pairs, perm_type="column")
            if np.count_nonzero(nodes < 0) > n**0.5:
                return None
        nodes[is_last] = -1
        places = _places(A, np.where(nodes < 0, -1, np.arange(n)))
        after = np.where(nodes < 0, n, places[nodes])  # the same where a row is its own node
        if np.count_nonzero(after[others] > places[others]) > others.size / 2:  # all in saddle points, 0.4 in pipes
            places = after = _places(A, nodes)
        order = np.empty(n, dtype=np.intp)
        order[np.lexsort((~pivots, np.maximum(places, after)))] = np.arange(n)
        back = np.argsort(order)
        P = structure.with_entries(np.arange(structure.nnz, dtype=np.int32)).tocsr()[back].tocsc()[:, back]
        return cls(order, P.data, from_csc(P.indptr, P.indices), pivots)


def _places(A: Any, nodes: HostArray) -> HostArray:
    """Positions of rows by minimum degree of their nodes, -1 last, by SuperLU's ILU, which keeps the diagonal."""
    inner = np.flatnonzero(nodes >= 0)
    used, node = np.unique(nodes[inner], return_inverse=True)
    if used.size < nodes.size:
        merged = scipy.sparse.csr_array((np.ones(inner.size), (inner, node)), (nodes.size, used.size))
        A = merged.T @ A @ merged
    dominant = scipy.sparse.csc_array(A + 4.0 * nodes.size * scipy.sparse.eye_array(used.size))
    factors = scipy.sparse.linalg.spilu(dominant, 0.5, 1.0, permc_spec="MMD_AT_PLUS_A", **PIVOTS)
    places = np.full(nodes.size, used.size)
    places[inner] = factors.perm_c[node]
    return places


@dataclass(frozen=True)
class Core:
    """What is left of a graph once vertices of few neighbors are eliminated; its fill is estimated as that of a band.

    Separators of grids and meshes are about as large as the band after reverse Cuthill-McKee; of networks, a tenth.
    """

    unknowns: float
    width: float  # half bandwidth, about the size of a separator
    eliminated: float = 0.0  # entries of the factors

    @classmethod
    def of(cls, graph: Any) -> Core:
        """That of a symmetric pattern in compressed rows.

        Vertices of at most three neighbors are eliminated, which adds no edges, in rounds without two neighbors.
        Unknowns with the same neighbors, as those of one point, are one vertex.
        """
        n, entries, random = graph.shape[0], 0.0, np.random.default_rng(0)
        graph = scipy.sparse.csr_array(graph + scipy.sparse.eye_array(n, dtype=bool, format="csr"))
        sizes, neighborhoods = np.ones(n), graph @ random.integers(2**40, size=n)
        if np.unique(neighborhoods).size < n:
            _, first, sizes = np.unique(neighborhoods, return_index=True, return_counts=True)
            sizes, first = sizes[np.argsort(first)], np.sort(first)
            graph = graph[first][:, first]
        while np.count_nonzero((neighbors := np.diff(graph.indptr) - 1) <= 3) > LEAST_ELIMINATED * sizes.size:
            turn = sizes.size * neighbors + random.permutation(sizes.size)
            goes = (neighbors <= 3) & (turn == _smallest(turn, graph))
            around, own = graph[goes], sizes[goes]
            entries += float(own @ (2.0 * (around @ sizes) - own))
            around, sizes = around[:, ~goes], sizes[~goes]
            graph = scipy.sparse.csr_array(graph[~goes][:, ~goes] + around.T @ around)
        if not sizes.size:
            return cls(0.0, 0.0, entries)
        place = np.argsort(scipy.sparse.csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True))
        return cls(float(sizes.sum()), float(np.mean(sizes) * np.mean(place - _smallest(place, graph))), entries)


def _smallest(values: HostArray, graph: Any) -> HostArray:
    """The smallest value at each vertex and its neighbors."""
    return np.minimum.reduceat(values[graph.indices], graph.indptr[:-1])
