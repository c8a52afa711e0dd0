"""The block triangular form of a pattern: which equations determine which unknowns, and in what order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from implicitsolve._typing import HostArray
from implicitsolve.structure._names import few_names
from implicitsolve.structure._sparse import Sparse

MOST_LEVELS = 64  # of blocks, one after another
MOST_NAMED = 6  # equations, or unknowns, in a text


@dataclass(frozen=True, eq=False)
class Block:
    """Equations that determine as many unknowns, given those of blocks before."""

    equations: HostArray
    unknowns: HostArray


@dataclass(frozen=True, eq=False)
class BlockTriangular:
    """What a pattern shows before any evaluation.

    Attributes
    ----------
    levels : list of lists of Block
        The blocks of a level depend only on blocks of earlier levels. Empty where there are more than 64 levels, or
        where J is singular whatever its entries are.
    equations, unknowns : ndarray of int
        Where J is singular: equations that are too many for their unknowns, and unknowns with too few equations [1]_.

    References
    ----------
    .. [1] A. Pothen and C.-J. Fan, "Computing the block triangular form of a sparse matrix", ACM Transactions on
           Mathematical Software 16 (1990) 303-324.
    """

    levels: list[list[Block]]
    equations: HostArray
    unknowns: HostArray

    @classmethod
    def of(cls, structure: Sparse) -> BlockTriangular:
        """The form of a pattern: by a matching and the strong components of its graph."""
        A, none = scipy.sparse.csr_array(structure.to_scipy()), np.zeros(0, dtype=np.intp)
        match = scipy.sparse.csgraph.maximum_bipartite_matching(A, perm_type="column").astype(np.intp)
        if (match < 0).any():
            row = np.full(match.size, -1)
            row[match[match >= 0]] = np.flatnonzero(match >= 0)
            equations = _reachable(A, row, np.flatnonzero(match < 0))
            return cls([], equations, _reachable(scipy.sparse.csr_array(A.T), match, np.flatnonzero(row < 0)))
        count, label = scipy.sparse.csgraph.connected_components(A[:, match], directed=True, connection="strong")
        order = np.argsort(label, kind="stable")
        ends = np.cumsum(np.bincount(label, minlength=count))[:-1]
        blocks = [Block(equations, match[equations]) for equations in np.split(order, ends)]
        owner = np.empty(match.size, dtype=np.intp)
        owner[match] = label
        level = _levels(label[structure.rows], owner[structure.columns], count)
        levels = [[blocks[b] for b in np.flatnonzero(level == k)] for k in range(int(level.max(initial=-1)) + 1)]
        return cls(levels, none, none)

    @property
    def largest(self) -> int:
        """Unknowns of the largest block."""
        return max((block.unknowns.size for blocks in self.levels for block in blocks), default=0)


def singularity(structure: Sparse, problem: Any = None) -> str:
    """Why J is singular whatever its entries are, and its equations and unknowns, as the problem calls them; or ""."""
    if np.count_nonzero(structure.offsets == 0) == structure.unknowns:
        return ""  # a full diagonal is a matching
    form = BlockTriangular.of(structure)
    if not form.equations.size:
        return ""
    names, labels = getattr(problem, "names", None), getattr(problem, "equations", None)
    equations = few_names("F", labels, form.equations, (structure.unknowns,), MOST_NAMED)
    unknowns = few_names("x", names, form.unknowns, (structure.unknowns,), MOST_NAMED)
    return (
        f"J is singular whatever its entries are: the equations {equations} are more than the unknowns in them, "
        f"and the unknowns {unknowns} more than the equations that hold them"
    )


def _reachable(A: Any, match: HostArray, start: HostArray) -> HostArray:
    """Rows reached by alternating paths from unmatched rows; `match` holds the row of each column."""
    seen = np.zeros(A.shape[0], dtype=bool)
    new = start
    while new.size:
        seen[new] = True
        rows = match[np.unique(A[new].indices)]
        rows = rows[rows >= 0]
        new = rows[~seen[rows]]
    return np.flatnonzero(seen)


def _levels(block: HostArray, needs: HostArray, count: int) -> HostArray:
    """The level of each block, one above the highest of those it depends on; none where levels are too many."""
    pairs = np.unique((block * np.int64(count) + needs)[block != needs])
    block, needs = np.divmod(pairs, count)
    level = np.zeros(count, dtype=np.intp)
    for _ in range(MOST_LEVELS):
        higher = level.copy()
        np.maximum.at(higher, block, level[needs] + 1)
        if np.array_equal(higher, level):
            return level
        level = higher
    return np.full(count, -1)
