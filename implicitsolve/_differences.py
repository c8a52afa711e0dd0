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

from implicitsolve._namespace import eps, from_host, norm2
from implicitsolve._typing import Array, HostArray, Indices

if TYPE_CHECKING:
    from implicitsolve._evaluate import Evaluator

MAX_CALIBRATIONS = 24  # evaluations at most that one solve spends to find the length of x


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
        self.rdiff = rdiff

    def follow(self, rows: Indices, x_norm: HostArray) -> None:
        """See new iterates: sigma follows ||x|| at once upwards, by a factor 10 a step downwards."""
        sigma = np.maximum(x_norm, 0.1 * self.sigma[rows])
        self.is_guess[rows] = sigma == 0
        self.sigma[rows] = np.where(sigma > 0, sigma, 1.0)

    def adjust(self, rows: Indices, change: HostArray, F_norm: HostArray, precision: float) -> bool:
        """Judge the first steps by how much they changed F; return whether none must be taken again.

        A step that F does not feel grows. One that changes F by more than a fourth root of the precision, or makes it
        overflow, shrinks only where sigma was a guess: elsewhere a small F means that x is near the root.
        """
        with np.errstate(all="ignore"):
            ratio = change / F_norm
            factor = np.where(ratio > 0, precision**0.5 / ratio, 1e4)
        factor = np.where(np.isfinite(ratio), np.clip(factor, 1e-8, 1e4), 1e-4)
        too_large = ~(ratio <= precision**0.25) & self.is_guess[rows]
        again = ~self.is_known[rows] & ((ratio < precision**0.75) | too_large) & (F_norm > 0)
        self.sigma[rows] = np.where(again, self.sigma[rows] * factor, self.sigma[rows])
        self.is_known[rows] = ~again
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
        for attempt in range(MAX_CALIBRATIONS + 1):
            with np.errstate(all="ignore"):
                h = from_host(relative * length.sigma[rows], x)[:, None] / norm
                shifted = x + h * direction
            change = evaluator.residual(shifted, keep=False) - F
            is_final = length.is_known[rows].all() or attempt == MAX_CALIBRATIONS
            if is_final or length.adjust(rows, norm2(change), norm2(F), precision):
                with np.errstate(all="ignore"):
                    return change * (size / h)
        raise AssertionError("unreachable")

    def positive(numbers: Array) -> Array:
        return xp.where(numbers > 0, numbers, xp.ones_like(numbers))

    return matvec
