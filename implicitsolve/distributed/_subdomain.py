"""A rank's own rows as a system of their own, for values of the neighbours that are taken as given."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from implicitsolve._typing import HostArray, Indices
from implicitsolve.direct import BlockLU
from implicitsolve.direct._block_lu import MergedFactors
from implicitsolve.direct._layout import Layout
from implicitsolve.distributed._rows import OwnRows, add_dense, as_rows, first, last
from implicitsolve.kernels import Factors
from implicitsolve.operators import BlockBandedMatrix

PLAIN, MIXED = 0, 1  # what is given: the neighbours' values, or mixtures of them with one's own


def mixtures(lower: int, upper: int) -> tuple[HostArray, HostArray]:
    """G (lower, upper) and G' (upper, lower) of kind MIXED: random, identical for every rank and number of ranks.

    What is known of a neighbour's numbers is these minus G times the rank's own adjacent numbers. That G and G' are
    independent matters: a skew-symmetric D with the same number at both ends of its diagonal would stay singular.
    """
    rng = np.random.default_rng((lower, upper))
    G, G_after = rng.standard_normal((lower, upper)), rng.standard_normal((upper, lower))
    return G / max(upper, 1) ** 0.5, G_after / max(lower, 1) ** 0.5


@dataclass(frozen=True)
class Subdomain:
    """The factored rows of one rank, for each system of a batch.

    Attributes
    ----------
    factors, layout : Factors, Layout
        D: the rows without what lies beyond them.
    spikes : ndarray (B, T k, columns)
        D^-1 times the couplings to the rank before and to the one after, if there are such ranks.
    columns : slice
        Which columns these are of (lower + upper) k.
    kind : ndarray (B,) of int
        What is given: PLAIN or MIXED.
    singular : ndarray (B,) of int
        Block of this rank in which D is singular, or -1.
    growth : ndarray (B,)
        Growth of the elimination, times the largest entry of the spikes if that is above 1.
    """

    factors: Factors
    layout: Layout
    spikes: HostArray
    columns: slice
    kind: HostArray
    singular: HostArray
    growth: HostArray

    @classmethod
    def of(cls, rows: OwnRows, method: BlockLU, kind: int = PLAIN) -> Subdomain:
        """Factor the rows, for one kind of given values."""
        D = BlockBandedMatrix(_closed(rows, kind), lower=rows.lower, upper=rows.upper, periodic=rows.is_periodic)
        layout = Layout.banded(D)
        factors = method.factors(layout.blocks(D), layout.lower, layout.upper)
        B, T, _, k, _ = rows.blocks.shape
        lower, upper = rows.lower * k, rows.upper * k
        columns = slice(0 if rows.has_previous else lower, lower + upper if rows.has_next else lower)
        couplings = np.zeros((B, T, k, lower + upper), dtype=rows.blocks.dtype)
        first(couplings, rows.lower)[..., :lower] = rows.before.reshape(B, rows.lower, k, lower)
        last(couplings, rows.upper)[..., lower:] = rows.after.reshape(B, rows.upper, k, upper)
        with np.errstate(all="ignore"):
            solved = as_rows(_solved(factors, layout, couplings[..., columns], adjoint=False))
            growth = factors.growth * np.max(np.abs(solved), axis=(1, 2), initial=1.0)
        singular = layout.first_block(factors.singular)
        return cls(factors, layout, solved, columns, np.full(B, kind), singular, np.fmax(growth, _unknown(growth)))

    def stabilized(self, rows: OwnRows, method: BlockLU, limit: float) -> Subdomain:
        """The same, but with mixtures for those systems whose growth was above `limit`, and is below it then."""
        bad = np.flatnonzero(~(self.growth <= limit))
        if not bad.size or not (rows.lower and rows.upper) or not rows.couples:
            return self
        mixed = Subdomain.of(rows.take(bad), method, MIXED)
        better = mixed.growth < self.growth[bad]
        places, rest = bad[better], np.setdiff1d(np.arange(self.growth.size), bad[better])
        if not places.size:
            return self
        parts = self.take(rest), mixed.take(np.flatnonzero(better))
        return parts[1] if not rest.size else _merged(parts, (rest, places))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.factors.nbytes + self.spikes.nbytes

    def take(self, indices: Indices) -> Subdomain:
        """The rows of some systems."""
        return replace(
            self,
            factors=self.factors.take(indices),
            **{name: getattr(self, name)[indices] for name in ("spikes", "kind", "singular", "growth")},
        )

    def solve(self, b: HostArray, adjoint: bool = False) -> HostArray:
        """D^-1 b or D^-H b, for b (B, T, k, K)."""
        return _solved(self.factors, self.layout, b, adjoint)


def _closed(rows: OwnRows, kind: int) -> HostArray:
    """The band of D: the rows' own, and what the given mixtures add to it."""
    if kind == PLAIN:
        return rows.blocks
    blocks = rows.blocks.copy()
    k = blocks.shape[-1]
    G_before, G_after = (G.astype(blocks.dtype) for G in mixtures(rows.lower * k, rows.upper * k))
    add_dense(first(blocks, rows.lower), rows.lower, rows.before @ G_before)
    add_dense(last(blocks, rows.upper), rows.upper, rows.after @ G_after)
    return blocks


def _solved(factors: Factors, layout: Layout, b: HostArray, adjoint: bool) -> HostArray:
    return layout.restored(factors.solve(layout.vectors(b), adjoint), b.shape[2])


def _unknown(growth: HostArray) -> HostArray:
    """Infinity where the growth is not a number, else 0."""
    return np.where(np.isnan(growth), np.inf, 0.0)


def _merged(parts: tuple[Subdomain, Subdomain], places: tuple[Indices, Indices]) -> Subdomain:
    """The systems of two batches in one, at their places."""
    order = np.argsort(np.concatenate(places))

    def both(name: str) -> HostArray:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    factors = MergedFactors((parts[0].factors, parts[1].factors), places)
    return replace(
        parts[0],
        factors=factors,
        spikes=both("spikes"),
        kind=both("kind"),
        singular=both("singular"),
        growth=both("growth"),
    )
