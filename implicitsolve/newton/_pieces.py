"""Inverses of the systems of a batch that were built at different steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, gather, scatter
from implicitsolve._typing import Array, Indices


class Pieces:
    """The inverses of all systems, which were factorized at different steps: parts (systems, factorization)."""

    def __init__(self, parts: list[tuple[Indices, Any]] | None = None) -> None:
        self.parts = [] if parts is None else parts

    def matvec(self, F: Array) -> Array:
        """J^-1 F for F (b, N); F itself for a system that has no inverse yet."""
        if len(self.parts) == 1 and self.parts[0][0].size == F.shape[0]:
            return self.parts[0][1].matvec(F)
        z = array_namespace(F).asarray(F, copy=True)
        for rows, inverse in self.parts:
            scatter(z, rows, inverse.matvec(gather(F, rows)))
        return z

    def negative(self, F: Array) -> Array:
        """-J^-1 F for F (b, N), a new array."""
        if len(self.parts) == 1 and self.parts[0][0].size == F.shape[0]:
            negative = getattr(self.parts[0][1], "negative", None)
            if negative is not None:
                return negative(F)
        return -self.matvec(F)

    def replace(self, rows: Indices, inverse: Any) -> None:
        """Take over new factors of some systems."""
        self.drop(rows)
        self.parts.append((rows, inverse))

    def drop(self, rows: Indices) -> None:
        """Forget the inverses of some systems."""
        kept: list[tuple[Indices, Any]] = []
        for old, factors in self.parts:
            stay = ~np.isin(old, rows)
            if stay.all():
                kept.append((old, factors))
            elif stay.any():
                kept.append((old[stay], factors.take(np.flatnonzero(stay))))
        self.parts = kept

    def take(self, indices: Indices) -> Pieces:
        """The inverses of some systems, in that order."""
        all_of_them = np.arange(indices.size)
        if len(self.parts) == 1 and np.array_equal(self.parts[0][0], indices) and np.array_equal(indices, all_of_them):
            return self
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
        return Pieces(parts)
