"""What Anderson's method remembers of its past, for each system of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._evaluate import FEW
from implicitsolve._namespace import (
    array_namespace,
    clear,
    empty_vectors,
    from_host,
    gather,
    is_complex,
    scatter,
    to_host,
    zero_vectors,
)
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels import newest_first, vectors

FIRST_COLUMNS = 8  # room at first; it doubles as it fills
PLAIN = 10  # binary orders of magnitude from 1 within which ||F|| needs no scaling before it is squared


class History:
    """The last differences of F and of its images g, and the inner products of the former.

    Columns form a ring that all systems share; a system that has forgotten its past does not hold the older ones.

    Parameters
    ----------
    F : Array (b, N)
        At the start.
    norms : ndarray (b,)
        Its norms.
    memory : int
        Most differences kept.
    least : float
        See `newest_first`.
    """

    def __init__(self, F: Array, norms: HostArray, memory: int, least: float) -> None:
        b, dtype = F.shape[0], np.complex128 if is_complex(F) else np.float64
        self.memory, self.least = memory, least
        self.work: Any = vectors.select(F, size=F.shape[1])
        self.is_host = isinstance(F, np.ndarray)
        self.seen = 0  # columns since the start
        self.dF, self.dg = (_room(F, b, min(memory, FIRST_COLUMNS)) for _ in range(2))
        self.places: Indices | None = None  # of the systems in these, which may hold columns of systems that have left
        self.held = np.zeros((b, memory), dtype=bool)
        self.gram = np.zeros((b, memory, memory), dtype)
        self.onto_F = np.zeros((b, memory), dtype)  # <dF_i, F> at the newest F
        exponent = np.where(np.isfinite(norms) & (norms > 0), np.frexp(norms)[1], 0)
        self.exponent = np.where(np.abs(exponent) > PLAIN, -exponent, 0)

    @property
    def columns(self) -> int:
        """Columns in use."""
        return min(self.seen, self.memory)

    @property
    def is_plain(self) -> bool:
        """Whether F is remembered as it is, for all systems that have room."""
        return bool(self.memory) and self.places is None and not self.exponent.any()

    def append(self, dF: Array, dg: Array, F: Array, lost: HostArray) -> None:
        """Take in the last differences and the newer F; where the step was `lost`, forget everything instead."""
        if not self.memory:
            return
        if self.exponent.any():
            scale = from_host(np.ldexp(1.0, self.exponent), F)[:, None]
            dF, F = scale * dF, scale * F
        if lost.any():
            xp, mask = array_namespace(F), from_host(lost, F)[:, None]
            dF, dg = (xp.where(mask, xp.zeros_like(d), d) for d in (dF, dg))
        dF, dg, F = (self._placed(rows) for rows in (dF, dg, F))
        j, m = self._next()
        numbers = to_host(self.work.remember(self.dF, self.dg, j, m, dF, dg, F))
        self._note(numbers if self.places is None else numbers[self.places], lost)

    def foresee(self, F: Array, old_F: Array, step: Array, image: Array, old_image: Array, x: Array) -> Array:
        """Write the differences of a step that will probably be taken; what `record` needs, and norms: `advance`."""
        j, m = self._next()
        return self.work.advance(self.dF, self.dg, j, m, F, old_F, step, image, old_image, x)

    def record(self, numbers: HostArray, lost: HostArray) -> None:
        """Take in what was foreseen; where the step was `lost`, forget everything instead."""
        j, _ = self._next()
        for differences in (self.dF, self.dg):
            clear(differences[:, j, :], lost)
        self._note(numbers, lost)

    def _next(self) -> tuple[int, int]:
        """Place of the next column, for which there is room, and columns in use with it."""
        j = self.seen % self.memory
        if j == self.dF.shape[1]:
            self._grow()
        return j, min(self.seen + 1, self.memory)

    def _note(self, numbers: HostArray, lost: HostArray) -> None:
        """See the inner products (b, m + 1) of all columns with F, and the newest one's with itself.

        Those with the newest difference follow from them and the older ones.
        """
        j, m = self._next()
        self.seen += 1
        self.held[:, j] = True
        self.held[lost, :] = False
        onto_F = numbers[:, :m].astype(self.gram.dtype)
        row = onto_F - self.onto_F[:, :m]
        self.gram[:, :m, j], self.gram[:, j, :m], self.gram[:, j, j] = row, np.conj(row), numbers[:, m]
        self.onto_F[:, :m] = onto_F

    def correction(self, norms: HostArray) -> tuple[Array | None, HostArray]:
        """The combination of dg that belongs to the combination of dF nearest to F, which has these norms.

        Also the part of ||F|| that the latter leaves. None and ones where no system holds anything.
        """
        chosen, rest = self.chosen(norms)
        return (None if chosen is None else self.combined(*chosen)), rest

    def chosen(self, norms: HostArray) -> tuple[tuple[Array, Array] | None, HostArray]:
        """Its weights, and the rows of dg that they belong to."""
        m = self.columns
        if not self.held[:, :m].any():
            return None, np.ones(norms.size)
        order = (self.seen - 1 - np.arange(m)) % self.memory
        gram, right = self.gram[:, order[:, None], order[None, :]], self.onto_F[:, order]
        solve = newest_first.select(gram, size=m) if self.is_host else _all_at_once
        chosen = solve(gram, right, self.held[:, order], self.least)
        weights = np.empty(chosen.shape, chosen.dtype)
        weights[:, order] = chosen
        with np.errstate(all="ignore"):
            gain = np.real(np.sum(np.conj(chosen) * right, axis=1)) / np.ldexp(norms, self.exponent) ** 2
            rest = np.sqrt(np.maximum(1.0 - gain, 0.0))
        return (self._placed(from_host(weights, self.dg)), self.dg[:, :m, :]), rest

    def combined(self, weights: Array, rows: Array) -> Array:
        """The combination of the present systems."""
        correction = self.work.combine(weights, rows)
        return correction if self.places is None else gather(correction, self.places)

    def _placed(self, rows: Array) -> Array:
        """Rows of the present systems at their places, zeros elsewhere."""
        if self.places is None:
            return rows
        placed = zero_vectors(rows, self.dF.shape[0])
        scatter(placed, self.places, rows)
        return placed

    def _grow(self) -> None:
        """Make room for twice as many columns."""
        used = self.dF.shape[1]
        for name in ("dF", "dg"):
            old = getattr(self, name)
            room = _room(old, old.shape[0], min(self.memory, 2 * used))
            room[:, :used, :] = old
            setattr(self, name, room)

    def take(self, indices: Indices) -> None:
        """Forget the other systems."""
        places = indices if self.places is None else self.places[indices]
        if places.size <= FEW * self.dF.shape[0] or not self.is_host:  # a device copies faster than it is told what to
            self._compact(places)
        else:
            self.places = places
        for name in ("held", "gram", "onto_F", "exponent"):
            setattr(self, name, getattr(self, name)[indices])

    def _compact(self, places: Indices) -> None:
        """Copy the columns of the systems at these places."""
        m = self.columns
        for name in ("dF", "dg"):
            old = getattr(self, name)
            room = _room(old, places.size, old.shape[1])
            room[:, :m, :] = gather(old[:, :m, :], places)
            setattr(self, name, room)
        self.places = None

    def join(self, other: History) -> None:
        """Take in systems that have no past yet, behind the present ones; columns that nobody holds are dropped."""
        if self.places is not None:
            self._compact(self.places)
        b = other.held.shape[0]
        oldest_first = (self.seen - self.columns + np.arange(self.columns)) % max(1, self.memory)
        used = oldest_first[self.held[:, oldest_first].any(axis=0)]
        for name in ("dF", "dg"):
            old = getattr(self, name)
            room = _room(old, old.shape[0] + b, old.shape[1])
            for to, column in enumerate(used.tolist()):
                room[:-b, to, :] = old[:, column, :]
            room[-b:, : used.size, :] = 0.0
            setattr(self, name, room)
        order = np.append(used, np.setdiff1d(np.arange(self.memory), used))
        self.held, self.onto_F = self.held[:, order], self.onto_F[:, order]
        self.gram = self.gram[:, order[:, None], order[None, :]]
        self.seen = used.size
        for name in ("held", "gram", "onto_F", "exponent"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(other, name)]))


def _all_at_once(gram: HostArray, right: HostArray, held: HostArray, least: float) -> HostArray:
    """`newest_first` in few calls, for which a device would wait, where no vector is negligible."""
    squares = np.real(np.diagonal(gram, axis1=1, axis2=2))
    held = held & (squares > 0) & np.isfinite(squares)
    scale = np.where(held, np.sqrt(np.where(held, squares, 1.0)), 1.0)
    both, products = held[:, :, None] & held[:, None, :], scale[:, :, None] * scale[:, None, :]
    A = np.where(both, gram / products, np.eye(held.shape[1]))
    try:
        pivots = np.real(np.diagonal(np.linalg.cholesky(A), axis1=1, axis2=2)) ** 2
    except np.linalg.LinAlgError:
        pivots = np.zeros(1)
    if not pivots.min() > least:
        return newest_first.reference(gram, right, held, least)
    return np.linalg.solve(A, (np.where(held, right, 0.0) / scale)[:, :, None])[:, :, 0] / scale


def _room(like: Array, systems: int, columns: int) -> Array:
    """Array (systems, columns, N) that waits to be filled."""
    return empty_vectors(like, systems, columns)
