"""Sparse structures of a Jacobian: any pattern of entries, and stencils on a grid."""

from __future__ import annotations

import copy
import itertools
import math
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse

from implicitsolve._summary import Representation
from implicitsolve._typing import HostArray, Indices
from implicitsolve.stopping import check_flag, check_limit

COMMON = 32  # a diagonal is common if one in so many of its places at least is an entry
LEAST_COMMON = 0.7  # part of the entries that common diagonals must have, where the pattern is one of diagonals


class Sparse(Representation):
    """A sparse matrix of which only the places of its entries are known.

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
    Newton's method converge slowly or not at all; it never makes a root out of what is none.

    Examples
    --------
    >>> import numpy as np
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

    @cached_property
    def rows(self) -> HostArray:
        """`indices` as numbers that NumPy takes for indices as they are: 32 bits cost two to ten times as much."""
        return self.indices.astype(np.intp)

    @cached_property
    def columns(self) -> HostArray:
        """Column of each entry, in the order of `indices`."""
        return np.repeat(np.arange(self.unknowns), np.diff(self.indptr))

    @cached_property
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
        """The pattern with all of the main diagonal; places in it of this one's entries, and of the diagonal."""
        n = self.unknowns
        pattern = self.union(Sparse(scipy.sparse.eye_array(n, dtype=bool)))
        pattern = self if pattern.nnz == self.nnz else pattern
        keys, own = (part.columns.astype(np.int64) * n + part.indices for part in (pattern, self))
        return pattern, np.searchsorted(keys, own), np.searchsorted(keys, np.arange(n, dtype=np.int64) * (n + 1))

    @cached_property
    def diagonals(self) -> HostArray:
        """Offsets of the diagonals on which most entries are, if these are few; else none."""
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
        if not self.nnz:
            return 0, 0
        return max(0, -int(self.offsets.min())), max(0, int(self.offsets.max()))

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


def compressed(indptr: HostArray, indices: HostArray) -> Sparse:
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
    if isinstance(pattern, np.ndarray | list):
        dense = np.asarray(pattern)
        if dense.ndim != 2 or dense.dtype.kind not in "biufc":
            raise TypeError(f"Sparse: a dense `pattern` must be a matrix, got {dense.dtype} of shape {dense.shape}")
        return scipy.sparse.coo_array(dense != 0)
    raise TypeError(
        "Sparse: `pattern` must be a sparse matrix, a dense array or a tuple (rows, columns), "
        f"got {type(pattern).__name__}"
    )


@dataclass(frozen=True, kw_only=True)
class Grid(Representation):
    """A stencil on a grid: each point is coupled to a few points near it, all fields with each other.

    Parameters
    ----------
    shape : tuple of int
        Points along each axis.
    stencil : int, "box", or list of tuples of int, optional
        A number r: r neighbors on either side along each axis (the default 1 is the five-point stencil in the plane);
        "box": all points that differ by at most one along each axis (nine in the plane); or the offsets themselves, one
        integer for each axis. The point itself is always included.
    periodic : bool or tuple of bool, optional
        Whether the grid is closed to a ring, along all axes or each. Default False.
    fields : int, optional
        Unknowns at a point. Default 1.
    fields_last : bool, optional
        Whether the fields are the last axis of x0 (interleaved) instead of the first (stacked). Default False.

    Examples
    --------
    >>> from implicitsolve.structure import Grid
    >>> Grid(shape=(32, 32), fields=2, periodic=True).sparse
    <Sparse 2048x2048, 20480 entries, at most 10 in a row>
    """

    shape: tuple[int, ...]
    stencil: int | Literal["box"] | tuple[tuple[int, ...], ...] = 1
    periodic: bool | tuple[bool, ...] = False
    fields: int = 1
    fields_last: bool = False

    def __post_init__(self) -> None:
        shape: Any = self.shape
        if isinstance(shape, int | np.integer):
            shape = (shape,)
        if not isinstance(shape, tuple | list) or not shape:
            raise TypeError(f"Grid: `shape` must be a tuple of integers, got {shape!r}")
        for points in shape:
            check_limit("Grid", "shape", points, least=1)
        check_limit("Grid", "fields", self.fields, least=1)
        axes = len(shape)
        object.__setattr__(self, "shape", tuple(int(points) for points in shape))
        flags: Any = [self.periodic] * axes if isinstance(self.periodic, bool | np.bool_) else self.periodic
        if not isinstance(flags, tuple | list | np.ndarray) or len(flags) != axes:
            raise ValueError(f"Grid: `periodic` must be a bool or one for each of {axes} axes, got {self.periodic!r}")
        for flag in flags:
            check_flag("Grid", "periodic", flag)
        check_flag("Grid", "fields_last", self.fields_last)
        expected = f'Grid: `stencil` must be a number, "box" or a list of offsets, got {self.stencil!r}'
        if isinstance(self.stencil, str):
            if self.stencil != "box":
                raise ValueError(expected)
        elif isinstance(self.stencil, int | np.integer):
            check_limit("Grid", "stencil", self.stencil)
        else:
            try:
                stencil = tuple(tuple(operator.index(d) for d in offset) for offset in self.stencil)
            except TypeError:
                raise TypeError(expected) from None
            if any(len(offset) != axes for offset in stencil):
                raise ValueError(f"Grid: an offset of `stencil` needs one integer for each of {axes} axes")
            object.__setattr__(self, "stencil", stencil)

    @property
    def unknowns(self) -> int:
        """Points times fields."""
        return math.prod(self.shape) * self.fields

    @property
    def offsets(self) -> list[tuple[int, ...]]:
        """Offsets of the stencil, the point itself first."""
        axes = len(self.shape)
        if isinstance(self.stencil, str):
            found = list(itertools.product((-1, 0, 1), repeat=axes))
        elif isinstance(self.stencil, int):
            steps = [d for d in range(-self.stencil, self.stencil + 1) if d]
            found = [tuple(d if a == axis else 0 for a in range(axes)) for axis in range(axes) for d in steps]
        else:
            found = list(self.stencil)
        here = (0,) * axes
        return [here, *(offset for offset in dict.fromkeys(found) if offset != here)]

    @cached_property
    def sparse(self) -> Sparse:
        """The pattern as `Sparse`."""
        axes = len(self.shape)
        is_ring = self.periodic if isinstance(self.periodic, tuple) else (self.periodic,) * axes
        points = np.indices(self.shape).reshape(axes, -1)
        count = points.shape[1]
        rows: list[Indices] = []
        columns: list[Indices] = []
        for offset in self.offsets:
            there = points + np.array(offset)[:, None]
            keep = np.ones(count, dtype=bool)
            for axis, (n, ring) in enumerate(zip(self.shape, is_ring)):
                if ring:
                    there[axis] %= n
                else:
                    keep &= (there[axis] >= 0) & (there[axis] < n)
            rows.append(np.flatnonzero(keep))
            columns.append(np.asarray(np.ravel_multi_index(tuple(there[:, keep]), self.shape)))
        row, column, k = np.concatenate(rows), np.concatenate(columns), self.fields
        a, b = (each.reshape(-1, 1) for each in np.divmod(np.arange(k * k), k))
        if self.fields_last:
            return Sparse(((row * k + a).ravel(), (column * k + b).ravel()), unknowns=count * k)
        return Sparse(((row + a * count).ravel(), (column + b * count).ravel()), unknowns=count * k)

    def check_size(self, unknowns: int) -> None:
        """Raise a ValueError if a system with so many unknowns does not fit."""
        if unknowns != self.unknowns:
            raise ValueError(
                f"Grid: {self.shape} points with {self.fields} fields have {self.unknowns} unknowns, "
                f"but a system has {unknowns}"
            )
