"""Newton steps that stay within bounds: the unknowns that would cross one stop short of it.

Iterates stay inside [1]_: a step leaves the part ``min(0.1, ||F|| / ||F(x0)||)`` of the distance to a bound, so that a
root on a bound is approached as fast as ||F|| falls, and functions that exist inside alone are not called on it. Where
the shortened step gains too little, ||F + J s|| is minimized within the bounds: exactly with a dense matrix; without
one in a Krylov space of the unknowns that were not stopped.

References
----------
.. [1] S. Bellavia, M. Macconi and B. Morini, "An affine scaling trust-region approach to bound-constrained nonlinear
       systems", Appl. Numer. Math. 44 (2003) 257-280.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import lsq_linear

from implicitsolve._namespace import array_namespace, from_host, gather, near_reciprocals, norm2, to_host
from implicitsolve._typing import Array, HostArray
from implicitsolve.krylov import GMRES
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.operators import LinearOperator

KEPT = 0.1  # of the distance to a bound, at most
POOR = 0.9  # of ||F|| that a shortened step may leave in the linear model
ROUNDS = 3  # times that further unknowns are left out


def kept_part(norms: HostArray, first: HostArray) -> HostArray:
    """The part of the distance to a bound that a step leaves, where ||F|| has fallen from `first` to `norms`."""
    with np.errstate(all="ignore"):
        return np.fmin(KEPT, norms / first)


def least_squares_step(J: HostArray, F: HostArray, low: HostArray, high: HostArray, step: HostArray) -> HostArray:
    """The minimizer of ||R (F + J s)|| with low <= s <= high, for one system; `step` within them where there is none.

    R brings the rows of J to one size.
    """
    shortened = np.clip(step, low, high)
    with np.errstate(all="ignore"):
        rows = near_reciprocals(np.max(np.abs(J), axis=1))  # as Newton's step, it depends on no unit
        scaled = J * rows[:, None]
        columns = near_reciprocals(np.max(np.abs(scaled), axis=0))
        try:
            within = low / columns, high / columns
            found = lsq_linear(scaled * columns, -F * rows, within, method="bvls").x * columns
        except (ValueError, np.linalg.LinAlgError):  # J is not finite
            return shortened
    return np.clip(found, low, high)


def bounded_direction(
    evaluator: Evaluator,
    J: LinearOperator,
    x: Array,
    F: Array,
    norms: HostArray,
    kept: HostArray,
    step: Array,
    linear_residual: HostArray,
    max_iterations: int,
) -> tuple[Array, HostArray]:
    """A direction d (b, N) to a point within the bounds, and ||F + J d|| / ||F||, given Newton's.

    Where the step leaves the box it costs a residual: the shortened step is taken if that is small, whatever the linear
    model. Otherwise come the part of the step up to the first bound, and steps of the unknowns that are not stopped,
    each by a Krylov solve.
    """
    xp, box = array_namespace(x), evaluator.box
    if box is None:
        return step, linear_residual
    low, high = box.room(x, kept)
    clipped = xp.minimum(xp.maximum(step, low), high)
    free = clipped == step
    leaves = to_host(~xp.all(free, axis=1))
    if not leaves.any():
        return step, linear_residual
    with np.errstate(all="ignore"):
        quotient = xp.where(free, 1.0, xp.where(step < 0, low, high) / step)
        length = np.minimum(to_host(xp.min(quotient, axis=1)), 1.0)
        best, value = step * from_host(length, x)[:, None], 1 - length * (1 - linear_residual)
        left = norm2(evaluator.residual(evaluator.moved(x, clipped), keep=False)) / norms
        for _ in range(ROUNDS):
            better = left < value
            best = xp.where(from_host(better, x)[:, None], clipped, best)
            value = np.where(better, left, value)
            poor = leaves & (value > POOR)
            if not poor.any():
                break
            b = xp.where(from_host(poor, x)[:, None], -F, 0.0)
            most = min(max_iterations, x.shape[1])
            rest = GMRES(restart=most).solve(_restricted(J, free), b, target=0.1 * norms, max_iterations=most)
            solved = xp.where(free, rest.x, 0.0)
            clipped = xp.minimum(xp.maximum(solved, low), high)
            free = free & (clipped == solved)
            left = norm2(F + J.matvec(clipped)) / norms
        better = left < value
        best = xp.where(from_host(better, x)[:, None], clipped, best)
    return best, np.where(better, left, value)


def _restricted(J: LinearOperator, free: Array) -> LinearOperator:
    """J without the columns of the unknowns that are not free."""
    xp = array_namespace(free)
    return LinearOperator(
        lambda v: J.matvec(xp.where(free, v, 0.0)),
        in_shape=J.in_shape,
        batch_shape=J.batch_shape,
        dtype=J.dtype,
        take=lambda rows: _restricted(J.take(rows), gather(free, rows)),
    )
