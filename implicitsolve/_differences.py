"""J v by directional differences of the residual, with a step that has no units.

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
from typing import TYPE_CHECKING

import numpy as np

from implicitsolve._namespace import eps, from_host, norm2, norm_max
from implicitsolve._typing import Array, HostArray, Indices

if TYPE_CHECKING:
    from implicitsolve._evaluate import Evaluator

MAX_CALIBRATIONS = 20  # evaluations at most that one solve spends to find the length of x
SHORTEST, LONGEST = 1e-290, 1e290  # lengths beyond which a step or a difference would leave the range of float64


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

    def follow(self, rows: Indices, x_norm: HostArray) -> None:
        """See new iterates: sigma follows ||x|| at once upwards, by a factor 10 a step downwards."""
        sigma = np.maximum(x_norm, 0.1 * self.sigma[rows])
        self.is_guess[rows] = sigma == 0
        self.sigma[rows] = self.origin[rows] = np.where(sigma > 0, sigma, 1.0)

    def adjust(self, rows: Indices, change: HostArray, F_norm: HostArray, precision: float, attempt: int) -> bool:
        """Judge the first steps by how much they changed F; return whether none must be taken again.

        A row that took no step, or has no residual, has `F_norm` 0 and learns nothing.
        A step that F does not feel grows. One that changes F by more than a fourth root of the precision, or makes it
        overflow, shrinks only where sigma was a guess: elsewhere a small F means that x is near the root. Steps that
        tell nothing of the size they should have go farther and farther, and then halve the bracket in logarithms.
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
            is_felt = np.isfinite(ratio) & (ratio > 10 * precision)
            factor = np.where(is_felt, precision**0.5 / ratio, np.where(ratio <= 10 * precision, far, 1 / far))
            middle = np.sqrt(self.short[rows]) * np.sqrt(self.long[rows])
            wanted = np.clip(sigma * factor, SHORTEST, LONGEST)
            is_inside = (self.short[rows] < wanted) & (wanted < self.long[rows])
        wanted = np.where(is_inside, wanted, middle)
        again = ~self.is_known[rows] & (too_small | too_large)
        can_move = (wanted != sigma) & np.isfinite(wanted) & (wanted > 0) & (attempt < MAX_CALIBRATIONS)
        self.sigma[rows] = np.where(again, np.where(can_move, wanted, self.origin[rows]), sigma)
        again &= can_move  # where no step tells anything, F does not depend on that direction
        self.is_known[rows] |= ~again & (F_norm > 0)
        return not again.any()


def difference_product(evaluator: Evaluator, x: Array, F: Array) -> Callable[[Array], Array]:
    """Return ``v -> J(x) v`` for arrays (b, N), where `F` is F(x): one residual a product.

    The first product of a solve may take a few more to find the step.
    """
    xp, length, rows = evaluator.xp, evaluator.length, evaluator.rows
    precision = eps(xp, evaluator.dtype)
    relative = precision**0.5 if length.rdiff is None else length.rdiff

    def matvec(v: Array) -> Array:
        with np.errstate(all="ignore"):
            size = positive(xp.max(xp.abs(v), axis=1, keepdims=True))
            direction = v / size
            norm = positive(xp.linalg.vector_norm(direction, axis=1, keepdims=True))
        change, h = difference(direction, norm)
        for attempt in range(MAX_CALIBRATIONS + 1):
            if length.is_known[rows].all():
                break
            F_norm = norm2(F) * (norm_max(v) > 0)
            if length.adjust(rows, norm2(change), F_norm, precision, attempt):
                break
            change, h = difference(direction, norm)
        with np.errstate(all="ignore"):
            return change * (size / h)

    def difference(direction: Array, norm: Array) -> tuple[Array, Array]:
        """F(x + h direction) - F(x), and h."""
        with np.errstate(all="ignore"):
            h = from_host(relative * length.sigma[rows], x)[:, None] / norm
            shifted = x + h * direction
        return evaluator.residual(shifted, keep=False) - F, h

    def positive(numbers: Array) -> Array:
        return xp.where(numbers > 0, numbers, xp.ones_like(numbers))

    return matvec
