"""Which rows may be exchanged, and the second attempt where the first choice was not good enough."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, gather, scatter
from implicitsolve._typing import Array, Indices
from implicitsolve.kernels import Factors, block_lu


def secured(factors: Factors, blocks: Array, lower: int, upper: int, growth_limit: float, facts: Any) -> Factors:
    """Factor again, with pivoting over the whole band, where the entries grew or a block was singular."""
    is_bad = ~(factors.growth <= growth_limit)
    bad, good = np.flatnonzero(is_bad), np.flatnonzero(~is_bad)
    if not bad.size:
        return factors
    kept = factors.take(good)
    del factors  # the only reference, if the caller keeps none: the second attempt can use the room
    blocks = gather(blocks, bad) if good.size else blocks
    facts = facts | {"pivoting": "band"}
    again = block_lu.select(blocks, **facts)(blocks, lower, upper, pivoting="band")
    return joined((kept, again), (good, bad)) if good.size else again


def joined(parts: tuple[Factors, ...], places: tuple[Indices, ...]) -> Factors:
    """Factors of a batch from those of some systems and of the others."""
    return _Mixed(parts, places)


class _Mixed:
    """Factors of a batch, of which some systems were factored in another way: parts, and their places in the batch."""

    def __init__(self, parts: tuple[Factors, ...], places: tuple[Indices, ...]) -> None:
        self.parts, self.places = parts, places
        size = sum(place.size for place in places)
        self.singular, self.growth = np.empty(size, dtype=int), np.empty(size)
        for part, place in zip(parts, places):
            self.singular[place], self.growth[place] = part.singular, part.growth

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(part.nbytes for part in self.parts)

    def solve(self, b: Array, adjoint: bool = False) -> Array:
        """Return A^-1 b or A^-H b for b (B, T, k, K)."""
        x = array_namespace(b).empty_like(b)
        for part, place in zip(self.parts, self.places):
            scatter(x, place, part.solve(gather(b, place), adjoint))
        return x

    def take(self, indices: Indices) -> Factors:
        """Return the factors of some systems."""
        owner = np.isin(indices, self.places[1])
        parts: list[Factors] = []
        places: list[Indices] = []
        for i, (part, place) in enumerate(zip(self.parts, self.places)):
            chosen = np.flatnonzero(owner == i)
            parts.append(part.take(np.searchsorted(place, indices[chosen])))  # places are sorted
            places.append(chosen)
        return _Mixed(tuple(parts), tuple(places))
