"""Where a matrix has entries, and how large they are, in at most a few hundred cells along each side."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from implicitsolve._sparse_structure import Detection
from implicitsolve._typing import HostArray
from implicitsolve.diagnostics._condition import position
from implicitsolve.diagnostics._history import native
from implicitsolve.linearize._jacobian import jacobian
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.result import NonlinearResult
from implicitsolve.structure import BlockBanded, Grid, Sparse


class Pattern(NamedTuple):
    """A structure of so many unknowns, and the rows that are full beside it."""

    structure: BlockBanded | Sparse
    unknowns: int
    full_rows: HostArray = np.zeros(0, dtype=np.intp)

    def shares(self, most: int) -> HostArray:
        """The share of entries in each of at most `most` cells along each side."""
        if isinstance(self.structure, Sparse):
            table = _counted(self.structure.indices, self.structure.columns, self.unknowns, most)
        else:
            table = _counted(*_band(self.structure, self.unknowns, most), most)
        table[self.full_rows // _step(self.unknowns, most)] = 1.0
        return table

    @property
    def entries(self) -> int:
        """Their number."""
        band = self.structure
        if isinstance(band, Sparse):
            return band.nnz + self.full_rows.size * self.unknowns
        length = band.length(self.unknowns)
        outside = sum(min(d, length) for side in (band.lower, band.upper) for d in range(1, side + 1))
        return (length * band.width - (0 if band.periodic else outside)) * band.block_size**2


def pattern_of(caller: str, given: Any, unknowns: int | None = None) -> Pattern:
    """The pattern of a structure, of what a search has found, or of what a solve has used."""
    found: Any = native(given)
    found = found.sparse if isinstance(found, Grid) else found
    if isinstance(found, BlockBanded):
        if unknowns is None:
            raise TypeError(f"{caller}: a BlockBanded needs `unknowns`")
        return Pattern(found, unknowns)
    if isinstance(found, NonlinearResult) and found.detection is None:
        raise ValueError(f"{caller}: the solve that led to this result looked for no sparsity of J")
    found = found.detection if isinstance(found, NonlinearResult) else found
    if isinstance(found, Detection) and found.structure is None:
        raise ValueError(f"{caller}: no sparsity was used, since {found.reason}")
    sparse, *full = (found.structure, found.full_rows) if isinstance(found, Detection) else (found,)
    if not isinstance(sparse, Sparse):
        expected = f"{caller}: `structure` must be a BlockBanded, Sparse, Grid, Detection or a result"
        raise TypeError(f"{expected}, got {type(given).__name__}")
    sparse.check_size(sparse.unknowns if unknowns is None else unknowns)
    return Pattern(sparse, sparse.unknowns, *full)


def shade(table: HostArray) -> HostArray:
    """How dark each cell is, up to 1: the fullest is the darkest, and one with a single entry can still be seen."""
    return np.where(table > 0, 0.4 + 0.6 * np.sqrt(table / (table.max(initial=0.0) or 1.0)), 0.0)


def assembled(caller: str, problem: Any, x: Any, system: Any) -> Any:
    """J of one system at x, as a SciPy sparse array."""
    x = native(x)
    J = jacobian(problem, x.x if isinstance(x, NonlinearResult) else x)
    row = position(caller, system, J.batch_shape)
    if isinstance(J, SparseMatrix):
        return J.to_sparse(system=row)
    return (J.take(np.array([row])) if J.batch_shape else J).to_sparse("csr")


def magnitudes(A: Any, most: int) -> HostArray:
    """The largest modulus in each cell of a SciPy sparse array."""
    entries, step = A.tocoo(), _step(A.shape[0], most)
    table = np.zeros((-(-A.shape[0] // step),) * 2)
    np.maximum.at(table, (entries.row // step, entries.col // step), np.abs(entries.data))
    return table


def _step(n: int, most: int) -> int:
    """Rows that share a cell."""
    return max(1, -(-n // most))


def _counted(rows: HostArray, columns: HostArray, n: int, most: int) -> HostArray:
    step = _step(n, most)
    size = np.bincount(np.arange(n) // step)
    places = rows.astype(np.int64) // step * size.size + columns // step
    return np.bincount(places, minlength=size.size**2).reshape(size.size, size.size) / np.outer(size, size)


def _band(structure: BlockBanded, unknowns: int, most: int) -> tuple[HostArray, HostArray, int]:
    """Rows and columns of the entries, in blocks no larger than the picture can show, and the number of rows."""
    length = structure.length(unknowns)
    size = min(structure.block_size, max(1, most // max(length, 1)))
    rows, offsets = np.meshgrid(np.arange(length), np.arange(-structure.lower, structure.upper + 1), indexing="ij")
    columns = rows + offsets
    columns = columns % length if structure.periodic else columns
    inside = (columns >= 0) & (columns < length)
    a, b = np.divmod(np.arange(size * size), size)
    rows, columns = (part[inside][:, None] * size + within for part, within in ((rows, a), (columns, b)))
    return rows.ravel(), columns.ravel(), length * size
