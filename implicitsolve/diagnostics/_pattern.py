"""The pattern of a Jacobian, as a picture shows it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.diagnostics._system import unwrap
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import check_limit
from implicitsolve.structure import BlockBanded, Detection, Grid, Sparse


class Pattern(NamedTuple):
    """The square blocks of J that have entries, their size, and the full rows in addition to them."""

    blocks: Sparse
    size: int = 1
    full_rows: HostArray = np.zeros(0, dtype=np.intp)

    @property
    def unknowns(self) -> int:
        return self.blocks.unknowns * self.size

    @property
    def entries(self) -> int:
        return self.blocks.nnz * self.size**2 + self.full_rows.size * self.unknowns

    def shares(self, most: int) -> HostArray:
        """The share of entries in each of at most `most` cells along each side; blocks are no larger than needed."""
        length = self.blocks.unknowns
        size = min(self.size, max(1, most // max(length, 1)))
        step, inside = _step(length * size, most), np.arange(size)
        cells = np.bincount(np.arange(length * size) // step)
        rows, columns = (part[:, None].astype(np.int64) * size for part in (self.blocks.indices, self.blocks.columns))
        places = ((rows + inside) // step * cells.size)[:, :, None] + ((columns + inside) // step)[:, None, :]
        table = np.bincount(places.reshape(-1), minlength=cells.size**2).reshape(cells.size, cells.size)
        table = table / np.outer(cells, cells)
        table[self.full_rows // step] = 1.0
        return table


def pattern_of(caller: str, given: Any, unknowns: int | None = None) -> Pattern:
    """The pattern of a structure, of a `Detection`, or of the structure that a solve has used."""
    found: Any = unwrap(given)
    if isinstance(found, BlockBanded):
        if unknowns is None:
            raise TypeError(f"{caller}: a BlockBanded needs `unknowns`")
        check_limit(caller, "unknowns", unknowns)
        length = found.length(unknowns)
        columns = np.arange(length)[:, None] + np.arange(-found.lower, found.upper + 1)
        rows, places = np.nonzero(found.periodic | (columns >= 0) & (columns < length))
        return Pattern(Sparse((rows, columns[rows, places] % length), unknowns=length), found.block_size)
    if isinstance(found, NonlinearResult) and found.detection is None:
        raise ValueError(f"{caller}: the solve that led to this result looked for no sparsity of J")
    found = found.detection if isinstance(found, NonlinearResult) else found
    if isinstance(found, Detection) and found.structure is None:
        raise ValueError(f"{caller}: no sparsity was used, since {found.reason}")
    is_found = isinstance(found, Detection)
    sparse: Any = found.structure if is_found else found.sparse if isinstance(found, Grid) else found
    if not isinstance(sparse, Sparse):
        expected = f"{caller}: `structure` must be a BlockBanded, Sparse, Grid, Detection or a result"
        raise TypeError(f"{expected}, got {type(given).__name__}")
    sparse.check_size(sparse.unknowns if unknowns is None else unknowns)
    return Pattern(sparse, full_rows=found.full_rows) if is_found else Pattern(sparse)


def magnitudes(A: Any, most: int) -> HostArray:
    """The largest modulus in each cell of a SciPy sparse array."""
    entries, step = A.tocoo(), _step(A.shape[0], most)
    table = np.zeros((-(-A.shape[0] // step),) * 2)
    np.maximum.at(table, (entries.row // step, entries.col // step), np.abs(entries.data))
    return table


def _step(n: int, most: int) -> int:
    """Rows that share a cell."""
    return max(1, -(-n // most))
