"""Sparse structures of a Jacobian: any pattern of entries."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._summary import Representation
from implicitsolve._typing import HostArray
from implicitsolve.stopping import check_limit

COMMON = 32  # a diagonal is common if at least one in so many of its positions is an entry
LEAST_COMMON = 0.7  # part of the entries that common diagonals must have, where the pattern is one of diagonals


class Sparse(Representation):
    """A sparse matrix of which only the positions of the entries are known.

    Parameters
    ----------
    pattern : sparse matrix or array, dense array of bool, or (rows, columns)
        Entry (i, j) means that equation i may depend on unknown j. Stored entries of a sparse matrix count whatever
        their values are; of a dense array those that are not zero.
    unknowns : int, optional
        Number of unknowns N, where ``(rows, columns)`` does not determine it. Default: the largest index plus one.

    Attributes
    ----------
    unknowns : int
        N; the matrix is square.
    indptr, indices : ndarray of int
        The pattern in compressed columns: column j has the rows ``indices[indptr[j]:indptr[j + 1]]``, in order.

    Raises
    ------
    TypeError
        If `pattern` is none of these.
    ValueError
        If the matrix is not square, or an index is out of range.

    Notes
    -----
    A pattern may hold more entries than the Jacobian: they cost evaluations and fill. One that misses entries makes
    Newton's method converge slowly or not at all; it never turns another point into a root.

    Examples
    --------
    >>> from implicitsolve.structure import Sparse
    >>> Sparse((np.array([0, 1, 1, 2]), np.array([0, 0, 1, 2])))
    <Sparse 3x3, 4 entries, at most 2 in a row>
    """

    def __init__(self, pattern: Any, *, unknowns: int | None = None) -> None:
        if unknowns is not None:
            check_limit("Sparse", "unknowns", unknowns)
        coordinates = _coordinates(pattern, unknowns)
        n, m = coordinates.shape
        if n != m:
            raise ValueError(f"Sparse: `pattern` must be square, got shape {(n, m)}")
        if unknowns is not None and n != unknowns:
            raise ValueError(f"Sparse: `pattern` must have `unknowns` = {unknowns} rows and columns, got {n}")
        columns = scipy.sparse.csc_array(coordinates)
        columns.sum_duplicates()  # sorts the rows of each column as well
        self.unknowns: int = int(n)
        self.indptr: HostArray = np.asarray(columns.indptr, dtype=np.int32)
        self.indices: HostArray = np.asarray(columns.indices, dtype=np.int32)
        for array in (self.indptr, self.indices):
            array.flags.writeable = False

    @classmethod
    def from_elements(
        cls, cells: Any, *, fields: int = 1, nodes: int | None = None, fields_last: bool = True
    ) -> Sparse:
        """Return the pattern of a finite element mesh: all unknowns of a cell are coupled.

        Parameters
        ----------
        cells : array_like of int, (cells, nodes of a cell), or a list of such arrays
            Nodes of each cell, as meshio's ``cells_dict`` and the transposed ``element_dofs`` of scikit-fem have them;
            a list for meshes of several kinds of cells.
        fields : int, optional
            Unknowns at a node. Default 1: `cells` then may hold numbers of unknowns too.
        nodes : int, optional
            Number of nodes. Default: the largest index plus one.
        fields_last : bool, optional
            Whether the fields of a node are neighbors (interleaved, the default) or each is a block (stacked).

        Raises
        ------
        TypeError, ValueError
            If the cells are not integers, or a number is out of range.

        Examples
        --------
        >>> from implicitsolve.structure import Sparse
        >>> Sparse.from_elements([[0, 1, 2], [1, 2, 3]], fields=2)
        <Sparse 8x8, 56 entries, at most 8 in a row>
        """
        check_limit("Sparse.from_elements", "fields", fields, least=1)
        kinds = cells if isinstance(cells, list | tuple) and np.ndim(cells[0]) == 2 else [cells]
        rows, columns = [], []
        for kind in map(np.asarray, kinds):
            if kind.ndim != 2 or kind.dtype.kind not in "iu":
                got = f"{kind.dtype} {kind.shape}"
                raise TypeError(f"Sparse.from_elements: `cells` must be integers (cells, nodes of a cell), got {got}")
            rows.append(np.repeat(kind, kind.shape[1], axis=1).ravel())
            columns.append(np.tile(kind, (1, kind.shape[1])).ravel())
        points = cls((np.concatenate(rows), np.concatenate(columns)), unknowns=nodes)
        return points if fields == 1 else points.with_fields(fields, fields_last=fields_last)

    @classmethod
    def from_edges(cls, edges: Any, *, fields: int = 1, nodes: int | None = None, fields_last: bool = True) -> Sparse:
        """Return the pattern of a network: the unknowns of a node depend on each other and on those of its neighbors.

        Parameters
        ----------
        edges : array_like of int, (edges, 2)
            The two nodes of each edge.
        fields, nodes, fields_last
            As in `from_elements`.

        Examples
        --------
        >>> from implicitsolve.structure import Sparse
        >>> Sparse.from_edges([[0, 1], [1, 2], [1, 3]])
        <Sparse 4x4, 10 entries, at most 4 in a row>
        """
        pairs = np.asarray(edges)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise ValueError(f"Sparse.from_edges: `edges` must have shape (edges, 2), got {pairs.shape}")
        count = int(pairs.max(initial=-1)) + 1 if nodes is None else nodes
        alone = np.arange(count)[:, None]
        return cls.from_elements([pairs, alone], fields=fields, nodes=count, fields_last=fields_last)

    def with_fields(self, fields: int, *, fields_last: bool = True) -> Sparse:
        """Return the pattern in which each entry is a full block of so many unknowns, interleaved or stacked."""
        (a, b), n = (each.reshape(-1, 1) for each in np.divmod(np.arange(fields**2), fields)), self.unknowns
        if fields_last:
            return Sparse(((self.rows * fields + a).ravel(), (self.columns * fields + b).ravel()), unknowns=n * fields)
        return Sparse(((self.rows + a * n).ravel(), (self.columns + b * n).ravel()), unknowns=n * fields)

    def _entries(self) -> dict[str, str]:
        most = int(self.row_counts.max(initial=0))
        return {"unknowns": f"{self.unknowns}", "entries": f"{self.nnz}", "in a row": f"at most {most}"}

    def __repr__(self) -> str:
        """Size, entries, and the fullest row."""
        n = self.unknowns
        return f"<Sparse {n}x{n}, {self.nnz} entries, at most {int(self.row_counts.max(initial=0))} in a row>"

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return int(self.indices.size)

    @property
    def rows(self) -> HostArray:
        """`indices` in the integers that NumPy indexes with: 32 bits cost two to ten times as much."""
        return self.indices.astype(np.intp)  # not kept, as those below: each takes a vector for an entry in a row

    @property
    def columns(self) -> HostArray:
        """Column of each entry, in the order of `indices`."""
        return np.repeat(np.arange(self.unknowns), np.diff(self.indptr))

    @property
    def offsets(self) -> HostArray:
        """Column minus row of each entry: the diagonal on which it stands."""
        return self.columns - self.rows

    @cached_property
    def row_counts(self) -> HostArray:
        """Entries in each row."""
        return np.bincount(self.rows, minlength=self.unknowns)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether (j, i) is an entry wherever (i, j) is one."""
        return self.has_entries_of(self._pattern.tocsr())  # whose indices are in order

    @cached_property
    def with_diagonal(self) -> tuple[Sparse, HostArray, HostArray]:
        """The pattern with the whole main diagonal, and the positions in it of this pattern and of the diagonal."""
        n = self.unknowns
        pattern = self.union(Sparse(scipy.sparse.eye_array(n, dtype=bool)))
        pattern = self if pattern.nnz == self.nnz else pattern
        keys, own = (part.columns.astype(np.int64) * n + part.indices for part in (pattern, self))
        return pattern, np.searchsorted(keys, own), np.searchsorted(keys, np.arange(n, dtype=np.int64) * (n + 1))

    @cached_property
    def diagonals(self) -> HostArray:
        """Offsets of the diagonals that hold most entries, if these diagonals are few; else none."""
        counts = np.bincount(self.offsets + self.unknowns)
        common = np.flatnonzero(COMMON * counts >= self.unknowns)
        is_few = common.size <= 4 * int(self.row_counts.max(initial=0))
        return common[: common.size * (is_few and int(counts[common].sum()) >= LEAST_COMMON * self.nnz)] - self.unknowns

    def with_diagonals(self, offsets: HostArray) -> Sparse:
        """The pattern with all of some diagonals."""
        offsets = np.unique(offsets)
        columns = np.arange(self.unknowns)[:, None] + offsets
        inside = (columns >= 0) & (columns < self.unknowns)
        return self.union(Sparse((np.nonzero(inside)[0], columns[inside]), unknowns=self.unknowns))

    @cached_property
    def bandwidth(self) -> tuple[int, int]:
        """Diagonals below and above the main one that hold entries."""
        offsets = self.offsets
        return -int(offsets.min(initial=0)), int(offsets.max(initial=0))

    def to_scipy(self) -> Any:
        """Return the pattern as a `scipy.sparse.csc_array` of True."""
        return self.with_entries(np.ones(self.nnz, dtype=bool))

    def with_entries(self, data: HostArray) -> Any:
        """Return the `scipy.sparse.csc_array` of these entries; nothing is checked, which takes a tenth of the time."""
        A = copy.copy(self._pattern)
        A.data = data
        return A

    @cached_property
    def _pattern(self) -> Any:
        shape = self.unknowns, self.unknowns
        A = scipy.sparse.csc_array((np.ones(self.nnz, dtype=bool), self.indices, self.indptr), shape=shape)
        A.has_sorted_indices = A.has_canonical_format = True
        return A

    def has_entries_of(self, other: Any) -> bool:
        """Whether another pattern, or a matrix in the same format, has entries in the same places."""
        if self is other:
            return True
        return bool(np.array_equal(other.indptr, self.indptr) and np.array_equal(other.indices, self.indices))

    def union(self, other: Sparse) -> Sparse:
        """Return the pattern with the entries of both."""
        return Sparse(self.to_scipy() + other.to_scipy())

    def check_size(self, unknowns: int) -> None:
        """Raise a ValueError if a system with so many unknowns does not fit."""
        if unknowns != self.unknowns:
            raise ValueError(f"Sparse: the pattern is for {self.unknowns} unknowns, but a system has {unknowns}")

    @property
    def sparse(self) -> Sparse:
        """The pattern itself: a `Grid` has one too."""
        return self


def from_csc(indptr: HostArray, indices: HostArray) -> Sparse:
    """The pattern with these compressed columns, whose rows are in order; nothing is checked."""
    structure = Sparse.__new__(Sparse)
    structure.unknowns = indptr.size - 1
    structure.indptr, structure.indices = indptr.astype(np.int32), indices.astype(np.int32)
    for array in (structure.indptr, structure.indices):
        array.flags.writeable = False
    return structure


def _coordinates(pattern: Any, unknowns: int | None) -> Any:
    """The pattern as a sparse array of True, duplicates allowed."""
    if isinstance(pattern, Sparse):
        return pattern.to_scipy()
    if scipy.sparse.issparse(pattern):
        entries: Any = scipy.sparse.coo_array(pattern)
        return scipy.sparse.coo_array((np.ones(entries.nnz, dtype=bool), (entries.row, entries.col)), entries.shape)
    if isinstance(pattern, tuple):
        return _from_pairs(pattern, unknowns)
    if isinstance(pattern, np.ndarray | list):
        dense = np.asarray(pattern)
        if dense.ndim != 2 or dense.dtype.kind not in "biufc":
            raise TypeError(f"Sparse: a dense `pattern` must be a matrix, got {dense.dtype} of shape {dense.shape}")
        return scipy.sparse.coo_array(dense != 0)
    raise TypeError(
        "Sparse: `pattern` must be a sparse matrix, a dense array or a tuple (rows, columns), "
        f"got {type(pattern).__name__}"
    )


def _from_pairs(pattern: tuple[Any, ...], unknowns: int | None) -> Any:
    if len(pattern) != 2:
        raise ValueError(f"Sparse: a tuple as `pattern` must be (rows, columns), got {len(pattern)} parts")
    rows, columns = (np.asarray(part) for part in pattern)
    for name, part in (("rows", rows), ("columns", columns)):
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise TypeError(
                f"Sparse: `{name}` must be an array of integers with one axis, got {part.dtype} {part.shape}"
            )
    if rows.size != columns.size:
        raise ValueError(
            f"Sparse: `rows` and `columns` must be equally long, got {rows.size} and {columns.size} entries"
        )
    n = unknowns if unknowns is not None else int(max(rows.max(initial=-1), columns.max(initial=-1))) + 1
    least = int(min(rows.min(initial=0), columns.min(initial=0)))
    most = int(max(rows.max(initial=0), columns.max(initial=0)))
    if least < 0 or (most >= n and rows.size):
        raise ValueError(f"Sparse: rows and columns must be from 0 to {n - 1}, got {least if least < 0 else most}")
    return scipy.sparse.coo_array((np.ones(rows.size, dtype=bool), (rows, columns)), (n, n))
