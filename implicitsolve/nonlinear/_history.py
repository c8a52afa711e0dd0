"""History of Anderson's method, its last steps for each system of a batch."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from implicitsolve._arrays.host import clear, empty_vectors, from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace, is_complex
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._rules import HALVED
from implicitsolve.kernels._vectors import vectors_like
from implicitsolve.krylov._arnoldi import FIRST_COLUMNS
from implicitsolve.krylov._recycling import room_of

RENEWALS = np.asarray([8, 32, 128])  # ages at which M is built anew, and counted from when a system goes back
PIVOT_NOISE = 100  # units of roundoff below which a pivot of the small problem is noise
PREDICTED_STEPS, FALLEN = 5, 0.9  # steps in which ||F|| must fall so far, if mixtures predict that each halves it
PLAIN = 10  # binary orders of magnitude from 1 within which ||F|| needs no scaling before it is squared


def room(method: Any, shape: tuple[int, ...], unit: float) -> tuple[int, float]:
    """Most differences that are kept of systems of that shape (b, N), and the least square of a new direction."""
    most = min(method.memory, shape[-1], room_of(math.prod(shape)))
    return most, max(method.regularization, PIVOT_NOISE * unit)


def first_columns(memory: int) -> int:
    """Room at first for so many columns at most: all where a second piece would be larger than what is added."""
    return memory if memory < 2 * FIRST_COLUMNS else FIRST_COLUMNS


def has_fallen(norms: Any, mark: Any) -> Any:
    """Whether ||F|| has fallen since the mark was set."""
    return norms < FALLEN * mark


def is_misled(idle: Any, promised: Any) -> Any:
    """Whether ||F|| has not fallen in so many steps, though the mixtures promised it; `promised` is their sum."""
    return (idle >= PREDICTED_STEPS) & (promised < HALVED * idle)


class History:
    """The last differences of F and of its images g, and inner products of the differences of F, per system.

    Columns form a ring that all systems share; a system that has forgotten its past does not hold the older ones, nor
    those that newer ones have spanned. It begins at F (b, N) with these norms, and keeps at most `memory` differences;
    for `least` see `newest_first`.
    """

    def __init__(self, F: Array, norms: HostArray, memory: int, least: float) -> None:
        b, dtype = F.shape[0], np.complex128 if is_complex(F) else np.float64
        self.memory, self.least = memory, least
        self.work: Any = vectors_like(F)
        self.seen = 0  # columns since the start
        self.dF, self.dg = _pair(F, b, first_columns(memory))  # a ring of columns
        self.held = np.zeros((b, memory), dtype=bool)
        self.gram = np.zeros((b, memory, memory), dtype)
        self.onto_F = np.zeros((b, memory), dtype)  # <dF_i, F> at the newest F
        exponent = np.where(np.isfinite(norms) & (norms > 0), np.frexp(norms)[1], 0)
        self.exponent = np.where(np.abs(exponent) > PLAIN, -exponent, 0)

    @property
    def columns(self) -> int:
        return min(self.seen, self.memory)

    def append(self, dF: Array, dg: Array, F: Array, rejected: HostArray) -> None:
        """Append the last differences and the newer F; where the step was `rejected`, clear the history instead."""
        if not self.memory:
            return
        if self.exponent.any():
            scale = from_host(np.ldexp(1.0, self.exponent), F)[:, None]
            dF, F = scale * dF, scale * F
        if rejected.any():
            xp, mask = array_namespace(F), from_host(rejected, F)[:, None]
            dF, dg = (xp.where(mask, xp.zeros_like(d), d) for d in (dF, dg))
        j, m = self._next()
        self._note(to_host(self.work.remember(self.dF, self.dg, j, m, dF, dg, F)), rejected)

    def store(self, F: Array, old_F: Array, step: Array, image: Array, old_image: Array, x: Array) -> Array:
        """Write the differences of a step that will probably be taken; what `record` needs, and norms: `advance`."""
        j, m = self._next()
        return self.work.advance(self.dF, self.dg, j, m, F, old_F, step, image, old_image, x)

    def record(self, numbers: HostArray, rejected: HostArray) -> None:
        """Append what was stored; where the step was `rejected`, clear the history instead."""
        j, _ = self._next()
        for differences in (self.dF, self.dg):
            clear(differences[:, j, :], rejected)
        self._note(numbers, rejected)

    def _next(self) -> tuple[int, int]:
        """Place of the next column, for which there is room, and columns in use with it."""
        j = self.seen % self.memory
        if j == self.dF.shape[1]:
            self._grow()
        return j, min(self.seen + 1, self.memory)

    def _note(self, numbers: HostArray, rejected: HostArray) -> None:
        """Store the inner products (b, m + 1) of all columns with F, and the newest one's with itself."""
        j, m = self._next()
        self.seen += 1
        self.held[:, j] = True
        self.held[rejected, :] = False
        onto_F = numbers[:, :m].astype(self.gram.dtype)
        row = onto_F - self.onto_F[:, :m]
        self.gram[:, :m, j], self.gram[:, j, :m], self.gram[:, j, j] = row, np.conj(row), numbers[:, m]
        self.onto_F[:, :m] = onto_F

    def chosen(self, norms: HostArray) -> tuple[tuple[Array, Array] | None, HostArray]:
        """Weights and rows of dg of the combination of dF nearest to F, or None; and the part of ||F|| that is left."""
        m = self.columns
        if not self.held[:, :m].any():
            return None, np.ones(norms.size)
        order = (self.seen - 1 - np.arange(m)) % self.memory
        gram, right = self.gram[:, order[:, None], order[None, :]], self.onto_F[:, order]
        chosen, self.held[:, order] = newest_first(gram, right, self.held[:, order], self.least)
        weights = np.empty(chosen.shape, chosen.dtype)
        weights[:, order] = chosen
        with np.errstate(all="ignore"):
            gain = np.real(np.sum(np.conj(chosen) * right, axis=1)) / np.ldexp(norms, self.exponent) ** 2
            rest = np.sqrt(np.maximum(1.0 - gain, 0.0))
        return (from_host(weights, self.dg), self.dg[:, :m, :]), rest

    def _grow(self) -> None:
        (systems, used, _), old = self.dF.shape, (self.dF, self.dg)
        self.dF, self.dg = _pair(self.dF, systems, min(self.memory, 2 * used))
        self.dF[:, :used, :], self.dg[:, :used, :] = old

    def take(self, rows: Indices) -> History:
        part, room = copy.copy(self), _pair(self.dF, rows.size, self.dF.shape[1])
        for new, old in zip(room, (self.dF, self.dg)):
            new[:, : self.columns, :] = gather(old[:, : self.columns, :], rows)
        part.dF, part.dg = room
        part.held, part.gram, part.onto_F = self.held[rows], self.gram[rows], self.onto_F[rows]
        part.exponent = self.exponent[rows]
        return part

    def concat(self, other: History, systems: int) -> History:
        """Return the history of these systems and of others without one; columns that no system uses are dropped."""
        whole, b = copy.copy(self), other.held.shape[0]
        oldest_first = (self.seen - self.columns + np.arange(self.columns)) % max(1, self.memory)
        used = oldest_first[self.held[:, oldest_first].any(axis=0)]
        whole.dF, whole.dg = (_extend(old, used, b) for old in (whole.dF, whole.dg))
        order, whole.seen = np.append(used, np.setdiff1d(np.arange(self.memory), used)), used.size
        whole.held = np.concatenate([self.held[:, order], other.held])
        whole.onto_F = np.concatenate([self.onto_F[:, order], other.onto_F])
        whole.gram = np.concatenate([self.gram[:, order[:, None], order[None, :]], other.gram])
        whole.exponent = np.concatenate([self.exponent, other.exponent])
        return whole


def _pair(like: Array, systems: int, columns: int) -> tuple[Array, Array]:
    """Room for dF and dg, in one piece: C libraries keep as much memory for later as their largest piece."""
    both = empty_vectors(like, 2, systems, columns)
    return both[0, ...], both[1, ...]


def _extend(old: Array, used: Indices, systems: int) -> Array:
    """Some columns of all systems, followed by zeros for further ones."""
    room = empty_vectors(old, old.shape[0] + systems, old.shape[1])
    for to, column in enumerate(used.tolist()):
        room[: old.shape[0], to, :] = old[:, column, :]
    room[old.shape[0] :, : used.size, :] = 0.0
    return room


def newest_first(gram: HostArray, right: HostArray, held: HostArray, least: float) -> tuple[HostArray, HostArray]:
    """Minimizers (b, m) of ``||f - sum_i c_i y_i||_2``, by Cholesky's factorization; zero for what takes no part.

    Given <y_i, y_j> (b, m, m), in the order in which vectors are preferred, <y_i, f> (b, m), and which vectors there
    are. Those whose part outside the span of those before them is at most `least` of their squared length take no part,
    nor will they later: also returns which did.
    """
    squares = np.real(np.diagonal(gram, axis1=1, axis2=2))
    held = held & (squares > 0) & np.isfinite(squares)
    scale = np.where(held, np.sqrt(np.where(held, squares, 1.0)), 1.0)
    both, products = held[:, :, None] & held[:, None, :], scale[:, :, None] * scale[:, None, :]
    A, b = np.where(both, gram / products, np.eye(held.shape[1])), np.where(held, right, 0.0) / scale
    try:
        pivots = np.real(np.diagonal(np.linalg.cholesky(A), axis1=1, axis2=2)) ** 2
    except np.linalg.LinAlgError:
        pivots = np.zeros(1)
    if pivots.min(initial=np.inf) > least:
        return np.linalg.solve(A, b[:, :, None])[:, :, 0] / scale, held
    return _one_by_one(A, b, held, least) / scale, held


def _one_by_one(A: HostArray, z: HostArray, held: HostArray, least: float) -> HostArray:
    """Solve for scaled vectors, of which some are left out."""
    size, m = held.shape
    L = np.zeros_like(A)
    pivots = np.ones((size, m))
    for j in range(m):
        pivot = np.real(A[:, j, j])
        held[:, j] &= pivot > least
        pivots[:, j] = np.where(held[:, j], pivot, 1.0)
        column = np.where(held[:, j, None], A[:, j + 1 :, j], 0.0)
        L[:, j + 1 :, j] = column / pivots[:, j, None]
        z[:, j] *= held[:, j]
        z[:, j + 1 :] -= L[:, j + 1 :, j] * z[:, j, None]
        A[:, j + 1 :, j + 1 :] -= L[:, j + 1 :, j, None] * np.conj(column)[:, None, :]
    z /= pivots
    for j in range(m - 1, 0, -1):
        z[:, :j] -= np.conj(L[:, j, :j]) * z[:, j, None]
    return z
