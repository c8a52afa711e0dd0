"""Jacobian products by differences of the residual, and the bounds between which these stay.

They are directional differences, with a step without units:

    J v = (F(x + h v) - F(x)) / h,        h = rdiff * sigma / ||v||,        rdiff = sqrt(eps)

`sigma` is the length on which x lives. It is ||x||, as in Knoll and Keyes [1]_ (section 2.3) without the absolute
terms that make the usual rules depend on units. Where x is zero, or so small that the step does not change F, the first
product of a solve finds `sigma` from F itself: the step is right when it changes F by about sqrt(eps) ||F||.

References
----------
.. [1] D. A. Knoll and D. E. Keyes, "Jacobian-free Newton-Krylov methods: a survey of approaches and applications",
       J. Comput. Phys. 193 (2004) 357-397.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace, is_complex, numpy_namespace, safe_range
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import norm2, norm_max
from implicitsolve.kernels._vectors import Row, vectors_like
from implicitsolve.problem import Problem, spread
from implicitsolve.structure._names import entry_name

MAX_CALIBRATIONS = 20  # evaluations at most that one solve spends to find the length of x
SHORTEST, LONGEST = 1e-290, 1e290  # lengths beyond which a step or a difference would leave the range of float64
EPS32 = float(np.finfo(np.float32).eps)
TOUCHING = 1e-3  # distance from a bound, over that of a step across it, at which x is held by the bound


@dataclass(frozen=True)
class Box:
    """Lower and upper bounds (b, N); infinite where there are none."""

    lower: Array
    upper: Array

    @classmethod
    def of(cls, problem: Problem, x0: Array, flat_shape: tuple[int, int]) -> Box:
        """The bounds of a problem on its states; x0 must lie between them."""
        if is_complex(x0):
            raise TypeError("`bounds` need a real x0, got complex numbers")
        xp = array_namespace(x0)
        whole = (from_host(spread("bounds", side, tuple(x0.shape)), x0) for side in problem.bounds)
        flat, *sides = (xp.reshape(part, flat_shape) for part in (x0, *whole))
        outside = np.flatnonzero(to_host((flat < sides[0]) | (flat > sides[1])))
        if outside.size:
            system, entry = divmod(int(outside[0]), flat_shape[1])
            name = entry_name("x0", problem.names, entry, tuple(x0.shape[problem.batch_ndim :]))
            got = float(to_host(flat)[system, entry])
            raise ValueError(
                f"`x0` must lie within `bounds`: {outside.size} of {to_host(flat).size} entries do not, the first of "
                f"them is {name} = {got:g}; np.clip(x0, lower, upper) moves them there"
            )
        return cls(*sides)

    def take(self, rows: Indices) -> Box:
        return Box(gather(self.lower, rows), gather(self.upper, rows))

    def clip(self, x: Array) -> Array:
        xp = array_namespace(x)
        return xp.minimum(xp.maximum(x, self.lower), self.upper)

    def room(self, x: Array, kept: HostArray) -> tuple[Array, Array]:
        """The least and the largest step (b, N) that leave the part `kept` (b,) of the distance to each bound."""
        part = from_host(1.0 - kept, x)[:, None]
        return part * (self.lower - x), part * (self.upper - x)

    def shorten(self, x: Array, step: Array, kept: HostArray) -> Array:
        """The step with each of its entries within `room`."""
        xp, (low, high) = array_namespace(x), self.room(x, kept)
        return xp.minimum(xp.maximum(step, low), high)

    def inward(self, x: Array, h: Array) -> Array:
        """Displacements of x as long as h, turned round where they would leave the box; shorter in a narrow one."""
        xp = array_namespace(x)
        down, up, size = x - self.lower, self.upper - x, xp.abs(h)
        room = xp.where(h < 0, down, up)
        other = xp.where(h < 0, up, down)
        within = xp.where(other >= size, -h, xp.where(up > down, 0.5 * up, -0.5 * down))
        return xp.where(room >= size, h, within)

    def blocks(self, x: Array, step: Array) -> HostArray:
        """Systems (b,) whose `step` points across a bound that x nearly touches."""
        xp = array_namespace(x)
        near = TOUCHING * xp.abs(step)
        blocked = ((step < 0) & (x - self.lower <= near)) | ((step > 0) & (self.upper - x <= near))
        return to_host(xp.any(blocked, axis=1))


class DifferenceLength:
    """The length sigma of each system's x, kept over the Newton steps of one solve; `rdiff` is sqrt(eps) by default."""

    def __init__(self, systems: int, rdiff: float | None = None) -> None:
        self.sigma: HostArray = np.zeros(systems)
        self.is_known: HostArray = np.zeros(systems, dtype=bool)
        self.is_guess: HostArray = np.ones(systems, dtype=bool)
        self.short: HostArray = np.zeros(systems)  # longest sigma that did not change F, and shortest that was too long
        self.long: HostArray = np.full(systems, np.inf)
        self.origin: HostArray = np.zeros(systems)
        self.rdiff = rdiff
        self.precision: HostArray = np.zeros(systems)  # of a residual that is coarser than x
        self.changes: int = 0

    def follow(self, rows: Indices | int, x_norm: HostArray | float) -> None:
        """See new iterates: sigma follows ||x|| at once upwards, by a factor 10 a step downwards."""
        self.changes += 1
        sigma = np.maximum(x_norm, 0.1 * self.sigma[rows])
        self.is_guess[rows] = sigma == 0
        self.sigma[rows] = self.origin[rows] = np.where(sigma > 0, sigma, 1.0)

    def reach(self, rows: Indices | int, info: Any) -> HostArray:
        """How far from x a difference is taken, within the range of numbers like those of x."""
        unit, least = float(info.eps), max(float(info.smallest_normal), SHORTEST)  # longdouble's would round to 0
        factor = np.maximum(unit, self.precision[rows]) ** 0.5 if self.rdiff is None else self.rdiff
        return np.minimum(np.maximum(factor * self.sigma[rows], least), 1 / least)

    def adjust(self, rows: Indices, change: HostArray, F_norm: HostArray, precision: HostArray, attempt: int) -> bool:
        """Adjust the first steps by how much they changed F; return whether none must be taken again.

        A row that took no step, or has no residual, has `F_norm` 0 and is not adjusted.
        A step that does not change F grows. One that changes F by more than a fourth root of the precision, or makes it
        overflow, shrinks only where sigma was a guess: elsewhere a small F means that x is near the root. Steps that
        give no information on the right size first extrapolate, and then bisect the bracket in logarithms.
        """
        self.changes += 1
        far = 10.0 ** min(4 * 2**attempt, 128)
        sigma = self.sigma[rows]
        with np.errstate(all="ignore"):
            ratio = change / F_norm
            too_small = ratio < precision**0.75
            too_large = ~(ratio <= precision**0.25) & self.is_guess[rows]
            too_small &= F_norm > 0
            too_large &= F_norm > 0
            self.short[rows] = np.where(too_small, np.maximum(sigma, self.short[rows]), self.short[rows])
            self.long[rows] = np.where(too_large, np.minimum(sigma, self.long[rows]), self.long[rows])
            is_visible = np.isfinite(ratio) & (ratio > 10 * precision)
            factor = np.where(is_visible, precision**0.5 / ratio, np.where(ratio <= 10 * precision, far, 1 / far))
            middle = np.sqrt(self.short[rows]) * np.sqrt(self.long[rows])
            wanted = np.clip(sigma * factor, SHORTEST, LONGEST)
            is_inside = (self.short[rows] < wanted) & (wanted < self.long[rows])
        wanted = np.where(is_inside, wanted, middle)
        again = ~self.is_known[rows] & (too_small | too_large)
        can_move = (wanted != sigma) & np.isfinite(wanted) & (wanted > 0) & (attempt < MAX_CALIBRATIONS)
        self.sigma[rows] = np.where(again, np.where(can_move, wanted, self.origin[rows]), sigma)
        again &= can_move  # where no step changes F, it does not depend on that direction
        self.is_known[rows] |= ~again & (F_norm > 0)
        return not again.any()


def difference_product(
    residual: Callable[[Array], Array],
    length: DifferenceLength,
    rows: Indices,
    x: Array,
    F: Array,
    box: Box | None = None,
) -> Callable[[Array], Array]:
    """Return ``v -> J(x) v`` for arrays (b, N), where `F` is F(x): one residual per product.

    The first product of a solve may take a few more to find the step, and `length` learns it for the systems `rows`. It
    also notices a residual that computes in float32 for x in float64, whose differences must be as long as float32's.
    Entries of v that lead out of `box` are taken backwards, by one more residual.
    """
    info = array_namespace(x).finfo(x.dtype)
    unit = float(info.eps)
    work: Any = vectors_like(x)
    reach, is_known, seen, is_host = None, False, -1, isinstance(x, np.ndarray)

    def matvec(v: Array) -> Array:
        nonlocal reach, is_known, seen
        attempt = 0
        while True:
            with np.errstate(all="ignore"):
                if seen != length.changes:
                    precision, seen = np.maximum(unit, length.precision[rows]), length.changes
                    is_known = bool(length.is_known[rows].all())
                    reach = from_host(length.reach(rows, info), x)
                shifted, scale = work.nearby(x, v, reach)
                if is_host and not np.isfinite(scale).all():  # v is not finite: F is not called there
                    shifted = np.where(np.isfinite(scale), shifted, x)
            value, outside = (residual(shifted), None) if box is None else _split(residual, box, x, shifted)
            change = value - F
            if outside is not None:
                change = change - (residual(outside) - F)
            if is_known or attempt > MAX_CALIBRATIONS:
                break
            known = length.precision[rows]
            precision = np.maximum(unit, known)
            if known[0] != EPS32 and Row.supports(x) and _is_clear(value[0], change[0], F[0], float(precision[0])):
                length.is_known[rows] = True
                break
            is_single = in_single(value, F)
            coarse, fine = is_single & (known == 0), ~is_single & (known == EPS32) & (norm_max(change) > 0)
            if coarse.any() or fine.any():  # what little cancellation leaves fits into float32 too; longer steps tell
                length.precision[rows] = np.where(coarse, EPS32, np.where(fine, unit, known))
                seen = -1
                attempt += 1
                continue
            F_norm = norm2(F) * (norm_max(v) > 0)
            if length.adjust(rows, norm2(change), F_norm, precision, attempt):
                break
            attempt += 1
        with np.errstate(all="ignore"):
            return change * scale

    return matvec


def difference_product_of_one(
    residual: Callable[[HostArray], HostArray], length: DifferenceLength, row: int, x: HostArray, F: HostArray
) -> Callable[[HostArray], HostArray]:
    """`difference_product` for the only system, in vectors (N,)."""
    info, (low, high) = np.finfo(x.dtype), safe_range(numpy_namespace, x.dtype)
    reach = 0.0

    def matvec(v: HostArray) -> HostArray:
        nonlocal reach
        if not reach and length.is_known[row]:
            reach = float(length.reach(row, info))
        with np.errstate(all="ignore"):
            size = math.sqrt(v.dot(v))
            is_ready = reach > 0 and low < size < high
            shifted = x + (reach / size) * v if is_ready else x
        if is_ready:
            value = residual(shifted)
            with np.errstate(all="ignore"):
                return (value - F) * (size / reach)
        general = difference_product(lambda x: residual(x[0])[None], length, np.asarray([row]), x[None], F[None])
        return general(v[None])[0]

    return matvec


def _split(residual: Callable[[Array], Array], box: Box, x: Array, shifted: Array) -> tuple[Array, Array | None]:
    """F after the displacements that stay in the box, and the point of the others, turned round."""
    xp = array_namespace(x)
    leaves = (shifted < box.lower) | (shifted > box.upper)
    if not bool(xp.any(leaves)):
        return residual(shifted), None
    return residual(xp.where(leaves, x, shifted)), xp.where(leaves, 2 * x - shifted, x)


def _is_clear(value: HostArray, change: HostArray, F: HostArray, precision: float) -> bool:
    """Whether one system's first difference has a good size, and is none of float32 numbers."""
    largest = np.abs(change).argmax()
    with np.errstate(all="ignore"):
        ratio = norm2(change[None])[0] / norm2(F[None])[0]
        return precision**0.75 <= ratio <= precision**0.25 and np.float32(value[largest]) != value[largest]


def in_single(value: Array, F: Array) -> HostArray:
    """Where all entries of `value` (b, N) that differ from F are numbers of float32, and there are some: on NumPy."""
    if not isinstance(value, np.ndarray) or value.dtype.char not in "dD":
        return np.zeros(value.shape[0], dtype=bool)
    moved = value != F
    with np.errstate(all="ignore"):
        fits = value.astype(np.float32 if value.dtype.char == "d" else np.complex64) == value
    return np.any(moved, axis=1) & np.all(fits | ~moved, axis=1)
