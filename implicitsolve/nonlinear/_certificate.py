"""The error of x by a dense Jacobian, for small systems that were solved without one."""

from __future__ import annotations

from functools import partial

import numpy as np

from implicitsolve._arrays.namespace import near_reciprocals
from implicitsolve._record import LimitReached
from implicitsolve._typing import HostArray, Indices
from implicitsolve.kernels._norms import norm_max
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._accuracy import (
    FADED,
    FALLEN,
    LIMITED,
    agrees,
    is_far_from,
    plain_scales,
    scales,
    units_of,
)
from implicitsolve.nonlinear._state import Solution, is_rounding
from implicitsolve.status import Status
from implicitsolve.structure import BlockBanded

MOST_UNKNOWNS = 20  # for which J is worth its evaluations
LARGER = 2.0  # ... where x, or F, is so many times as large as at x0
CONTRACTED = 0.25  # part of a correction that the next one by the same J may have
SLIGHT = 1e-3  # part of F that is left, by rounding alone, of equations that were solved from the start
MISSED = 0.1  # part of F that J does not reach, above which F has no root near x


def certify(evaluator: Evaluator, solution: Solution, rows: Indices, limit: float) -> None:
    """Note the errors of systems that have converged by products alone; those above the limit have stagnated.

    A dense J shows directions that no step has taken. It is assembled where it is cheap, and where F is not zero.
    """
    x, tally = solution.x, evaluator.tally
    unknowns, is_host = x.shape[1], type(x) is np.ndarray and x.dtype.char in "fd"
    rows = rows[solution.status[rows] == Status.CONVERGED]
    if not is_host or not rows.size:
        return
    if unknowns > MOST_UNKNOWNS and not tally.is_spent():
        with np.errstate(all="ignore"):
            rows = rows[~_is_ignored(evaluator, solution, rows)]
    size, first = norm_max(x[rows]), norm_max(solution.start[rows])
    is_lost = (size * FADED > first) & (first > 0) & (solution.norm[rows] > FADED * solution.first_norm[rows])
    solution.status[rows[is_lost]] = Status.STAGNATED  # far away F has hardly fallen
    rows, size, first = (part[~is_lost] for part in (rows, size, first))
    rows = rows[((solution.norm[rows] > 0) | (size / LARGER > first)) & (unknowns <= MOST_UNKNOWNS)]
    if not rows.size or evaluator.problem.blocks is not None or evaluator.problem.fixed_point or tally.is_spent():
        return
    try:
        points = x[rows], solution.F[rows], solution.start[rows]
        errors = tally.enforced(certified_errors, evaluator.take(rows, x), *points, limit)
    except LimitReached:
        return
    is_right = errors <= max(LIMITED, limit)
    solution.error[rows] = np.where(is_right, errors, np.nan)
    solution.status[rows[~is_right]] = Status.STAGNATED


def _is_ignored(evaluator: Evaluator, solution: Solution, rows: Indices) -> HostArray:
    """Where most equations have hardly changed since x0, beside one that is far larger: they have stagnated."""
    x, F = solution.x[rows], solution.F[rows]
    moved = norm_max(x - solution.start[rows]) > FADED * norm_max(x)  # from nearer, F need not have fallen so far
    change = np.abs(F) / np.abs(F if solution.first_F is None else solution.first_F[rows])
    ignored = (change > FALLEN) & (change <= LARGER) & moved[:, None] & (solution.first_F is not None)
    doubtful = 2 * np.count_nonzero(ignored, axis=1) > x.shape[1]
    if doubtful.any():
        doubtful &= ~is_rounding(evaluator.take(rows, solution.x), x, F, SLIGHT, ignored)
        solution.status[rows[doubtful]] = Status.STAGNATED
    return doubtful


def certified_errors(evaluator: Evaluator, x: HostArray, F: HostArray, start: HostArray, limit: float) -> HostArray:
    """Estimated errors of x (b, N), relative to x, by J there, infinite where F is not in its range; N evaluations."""
    dense = BlockBanded(0, 0, block_size=x.shape[1])
    unit = float(np.finfo(x.dtype).eps)
    J = Assembler(evaluator, unit**0.5, certifies=False, structure=dense).assemble(evaluator, x, F).blocks[:, 0, 0]
    with np.errstate(all="ignore"):
        reference = np.maximum(np.abs(start), np.abs(x - start))
        scale = np.minimum(scales(units_of(J), x, x, reference), plain_scales(x, x, reference))
        rows = near_reciprocals(np.abs(J).max(axis=2))
        columns = near_reciprocals(np.abs(J * rows[:, :, None]).max(axis=1))
        A, right = J * rows[:, :, None] * columns[:, None], F * rows
        is_seen = (np.abs(J).max(axis=1) > 0) | (x == start)  # an unknown that no step has moved may have no effect
        is_singular = ~(is_seen.all(axis=1) & np.isfinite(A).all(axis=(1, 2)))
        is_singular |= ~np.isfinite(right).all(axis=1)
        A[is_singular], right[is_singular] = 0.0, 0.0
        found = least_squares(A, right)
        rest = np.abs(np.einsum("bij,bj->bi", A, found) - right).max(axis=1)
        errors = np.abs(found * columns / scale).max(axis=1) + unit
        is_singular |= (rest > MISSED * np.abs(right).max(axis=1)) | ~np.isfinite(errors)
        doubtful = (errors > limit) & (errors <= LIMITED) & ~is_singular
        if doubtful.any():  # J predicts F at the end of its step, or F is rounding error, or the error is another
            ahead = least_squares(A, evaluator.residual(evaluator.moved(x, -found * columns)) * rows)
            doubtful &= ~(np.abs(ahead * columns / scale).max(axis=1) <= CONTRACTED * errors)
        if doubtful.any():
            is_singular |= doubtful & ~is_rounding(evaluator, x, F)
        if is_far_from(start, x, scale).any():  # lengths of differences may have been chosen so that F changes
            seen = partial(least_squares, A, cut=unit**0.5)  # of J by differences smaller singular values are errors
            unseen = x - seen(np.einsum("bij,bj->bi", J, x) * rows) * columns
            is_singular |= ~agrees(evaluator, x, F, lambda v: seen(v * rows) * columns, scale, unseen)
    return np.where(is_singular, np.inf, errors)


def least_squares(A: HostArray, b: HostArray, cut: float | None = None) -> HostArray:
    """Least-squares solutions of A y = b for each system; NaN where b is not finite. `cut`: of singular values."""
    finite = np.isfinite(b).all(axis=1)
    return np.stack(
        [np.linalg.lstsq(a, f, cut)[0] if is_finite else f * np.nan for a, f, is_finite in zip(A, b, finite)]
    )
