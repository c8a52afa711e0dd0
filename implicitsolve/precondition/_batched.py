"""The inverses of the systems of a batch, which were factorized at different steps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, gather, scatter
from implicitsolve._typing import Array, Indices
from implicitsolve.operators._wrappers import merged


class BatchedInverse:
    """One inverse for each system of a batch, in parts (systems, inverse) that were factorized together.

    A system without one has the identity.
    """

    def __init__(self, parts: list[tuple[Indices, Any]] | None = None) -> None:
        self.parts: list[tuple[Indices, Any]] = [] if parts is None else parts

    def __copy__(self) -> BatchedInverse:
        """The same for another solve, which may replace parts."""
        return BatchedInverse([(rows, copy.copy(inverse)) for rows, inverse in self.parts])

    def matvec(self, F: Array) -> Array:
        """A^-1 F for F (b, N)."""
        if len(self.parts) == 1 and self.parts[0][0].size == F.shape[0]:
            return self.parts[0][1].matvec(F)
        z = array_namespace(F).asarray(F, copy=True)
        for rows, inverse in self.parts:
            scatter(z, rows, inverse.matvec(gather(F, rows)))
        return z

    def negative(self, F: Array) -> Array:
        """-A^-1 F for F (b, N), a new array, where every system has a factorization."""
        if len(self.parts) == 1 and self.parts[0][0].size == F.shape[0]:
            return self.parts[0][1].negative(F)
        z = array_namespace(F).empty_like(F)
        for rows, inverse in self.parts:
            scatter(z, rows, inverse.negative(gather(F, rows)))
        return z

    def replace(self, rows: Indices, inverse: Any) -> None:
        """Set the inverses of some systems."""
        self.drop(rows)
        self._append(rows, inverse)

    def _append(self, rows: Indices, inverse: Any) -> None:
        """Add a part; to the last one, if the arrays of both can be joined."""
        if self.parts:
            both = np.concatenate([self.parts[-1][0], rows])
            order = np.argsort(both)
            joined = merged(self.parts[-1][1], inverse, order)
            if joined is not None:
                self.parts[-1] = both[order], joined
                return
        self.parts.append((rows, inverse))

    def drop(self, rows: Indices) -> None:
        """Remove the inverses of some systems."""
        kept: list[tuple[Indices, Any]] = []
        for old, inverse in self.parts:
            stay = ~np.isin(old, rows)
            if stay.all():
                kept.append((old, inverse))
            elif stay.any():
                kept.append((old[stay], inverse.take(np.flatnonzero(stay))))
        self.parts = kept

    def take(self, indices: Indices) -> BatchedInverse:
        """Return the inverses of some systems, in that order."""
        parts: list[tuple[Indices, Any]] = []
        for rows, inverse in self.parts:
            place = np.full(int(max(rows.max(), indices.max(initial=0))) + 1, -1)
            place[rows] = np.arange(rows.size)
            chosen = place[indices]
            inside = np.flatnonzero(chosen >= 0)
            if inside.size:
                chosen = chosen[inside]
                is_whole = chosen.size == rows.size and (chosen == np.arange(rows.size)).all()
                parts.append((inside, inverse if is_whole else inverse.take(chosen)))
        return BatchedInverse(parts)

    def concat(self, other: BatchedInverse, systems: int) -> BatchedInverse:
        """Return the inverses of these systems, which are that many, followed by those of others."""
        whole = BatchedInverse(list(self.parts))
        for rows, inverse in other.parts:
            whole._append(systems + rows, inverse)
        return whole
