"""Jacobian products by differences of the residual.

They are directional differences, with a step without units:

    J v = (F(x + h v) - F(x)) / h,        h = rdiff * sigma / ||v||,        rdiff = sqrt(eps)

`sigma` is the length on which x lives. It is ||x||, as in Knoll and Keyes [1]_ (section 2.3) without the absolute
terms that make the usual rules depend on units. Where x is zero, or so small that F does not feel the step, the first
product of a solve finds `sigma` from F itself: the step is right when it changes F by about sqrt(eps) ||F||.

References
----------
.. [1] D. A. Knoll and D. E. Keyes, "Jacobian-free Newton-Krylov methods: a survey of approaches and applications",
       J. Comput. Phys. 193 (2004) 357-397.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, eps, from_host, norm2, norm_max
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._vectors import vectors_like
from implicitsolve.linearize._box import Box

MAX_CALIBRATIONS = 20  # evaluations at most that one solve spends to find the length of x
SHORTEST, LONGEST = 1e-290, 1e290  # lengths beyond which a step or a difference would leave the range of float64
SINGLE = float(np.finfo(np.float32).eps)


class DifferenceLength:
    """The length sigma of each system's x, kept over the Newton steps of one solve.

    Parameters
    ----------
    systems : int
        Size of the batch.
    rdiff : float, optional
        Relative step. Default: sqrt(eps) of the dtype, which balances truncation against rounding.
    """

    def __init__(self, systems: int, rdiff: float | None = None) -> None:
        self.sigma: HostArray = np.zeros(systems)
        self.is_known: HostArray = np.zeros(systems, dtype=bool)
        self.is_guess: HostArray = np.ones(systems, dtype=bool)
        self.short: HostArray = np.zeros(systems)  # longest sigma that F did not feel, and shortest that was too long
        self.long: HostArray = np.full(systems, np.inf)
        self.origin: HostArray = np.zeros(systems)
        self.rdiff = rdiff
        self.precision: HostArray = np.zeros(systems)  # of a residual that is coarser than x

    def follow(self, rows: Indices, x_norm: HostArray) -> None:
        """See new iterates: sigma follows ||x|| at once upwards, by a factor 10 a step downwards."""
        sigma = np.maximum(x_norm, 0.1 * self.sigma[rows])
        self.is_guess[rows] = sigma == 0
        self.sigma[rows] = self.origin[rows] = np.where(sigma > 0, sigma, 1.0)

    def adjust(self, rows: Indices, change: HostArray, F_norm: HostArray, precision: HostArray, attempt: int) -> bool:
        """Judge the first steps by how much they changed F; return whether none must be taken again.

        A row that took no step, or has no residual, has `F_norm` 0 and learns nothing.
        A step that F does not feel grows. One that changes F by more than a fourth root of the precision, or makes it
        overflow, shrinks only where sigma was a guess: elsewhere a small F means that x is near the root. Steps that
        give no information on the right size first extrapolate, and then bisect the bracket in logarithms.
        """
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
    """Return ``v -> J(x) v`` for arrays (b, N), where `F` is F(x): one residual a product.

    The first product of a solve may take a few more to find the step, and `length` learns it for the systems `rows`. It
    also notices a residual that computes in float32 for x in float64, whose differences must be as long as float32's.
    Entries of v that lead out of `box` are taken backwards, by one more residual.
    """
    unit = eps(array_namespace(x), x.dtype)
    work: Any = vectors_like(x)
    sigma, reach = length.sigma[rows], None

    def matvec(v: Array) -> Array:
        nonlocal sigma, reach
        attempt = 0
        while True:
            with np.errstate(all="ignore"):
                if reach is None or (sigma != length.sigma[rows]).any():
                    sigma, precision = length.sigma[rows], np.maximum(unit, length.precision[rows])
                    reach = from_host((precision**0.5 if length.rdiff is None else length.rdiff) * sigma, x)
                shifted, scale = work.nearby(x, v, reach)
            value, outside = (residual(shifted), None) if box is None else _split(residual, box, x, shifted)
            change = value - F
            if outside is not None:
                change = change - (residual(outside) - F)
            if length.is_known[rows].all() or attempt > MAX_CALIBRATIONS:
                break
            precision = np.maximum(unit, length.precision[rows])
            coarse = in_single(value, F) & (precision < SINGLE)
            if coarse.any():
                length.precision[rows] = np.where(coarse, SINGLE, length.precision[rows])
                reach = None
                attempt += 1
                continue
            F_norm = norm2(F) * (norm_max(v) > 0)
            if length.adjust(rows, norm2(change), F_norm, precision, attempt):
                break
            attempt += 1
        with np.errstate(all="ignore"):
            return change * scale

    return matvec


def _split(residual: Callable[[Array], Array], box: Box, x: Array, shifted: Array) -> tuple[Array, Array | None]:
    """F after the displacements that stay in the box, and the point of the others, turned round."""
    xp = array_namespace(x)
    leaves = (shifted < box.lower) | (shifted > box.upper)
    if not bool(xp.any(leaves)):
        return residual(shifted), None
    return residual(xp.where(leaves, x, shifted)), xp.where(leaves, 2 * x - shifted, x)


def in_single(value: Array, F: Array) -> HostArray:
    """Where all entries of `value` (b, N) that differ from F are numbers of float32, and there are some: on NumPy."""
    if not isinstance(value, np.ndarray) or value.dtype.char not in "dD":
        return np.zeros(value.shape[0], dtype=bool)
    moved = value != F
    with np.errstate(all="ignore"):
        fits = value.astype(np.float32 if value.dtype.char == "d" else np.complex64) == value
    return np.any(moved, axis=1) & np.all(fits | ~moved, axis=1)
