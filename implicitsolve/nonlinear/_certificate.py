"""The error of x by a dense Jacobian, for small systems that were solved without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace, eps, near_reciprocals
from implicitsolve._record import LimitReached
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.globalize._rules import may_be_root
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._accuracy import (
    FADED,
    LIMITED,
    MOST_LEFT,
    agrees,
    far_part,
    plain_scales,
    scales,
    units_of,
)
from implicitsolve.nonlinear._state import Solution, is_rounding
from implicitsolve.status import Status
from implicitsolve.structure import BlockBanded

MOST_UNKNOWNS = 20  # for which a dense J is worth its evaluations: with more, Krylov methods take fewer
LARGER = 2.0  # ... where x, or F, is so many times as large as at x0
CONTRACTED = 0.25  # part of a correction that the next one by the same J may have
SLIGHT = 1e-3  # part of F that is left, by rounding alone, of equations that were solved from the start
VISIBLE = 100.0  # times F(x), which may be the smallest of many rounding errors
MISSED = 0.1  # part of F that J does not reach, above which F has no root near x


def certify(evaluator: Evaluator, solution: Solution, rows: Indices, limit: float) -> None:
    """Note the errors of systems that have converged by products alone; those above the limit have stagnated.

    A dense J shows directions that no step has taken. It is assembled where it is cheap, and where F is not zero. Of
    more unknowns those have stagnated most of whose equations have hardly changed since x0, beside one far larger.
    """
    tally, unknowns = evaluator.tally, solution.x.shape[1]
    rows, problem = rows[solution.status[rows] == Status.CONVERGED], evaluator.problem
    is_layer = problem.blocks is not None or problem.fixed_point  # on a device its few launches are its time
    if not rows.size or (is_layer and not isinstance(solution.x, np.ndarray)):
        return
    xp, first_F = evaluator.xp, solution.F if solution.first_F is None else solution.first_F
    x, F, start, first = (gather(part, rows) for part in (solution.x, solution.F, solution.start, first_F))
    with np.errstate(all="ignore"):
        change = xp.abs(F) / xp.abs(first)
    ignored = xp.astype((change > MOST_LEFT) & (change <= LARGER), F.dtype)
    sizes = [xp.max(xp.abs(part), axis=1) for part in (x, start, x - start)]
    size, begin, moved, count = to_host(xp.stack([*sizes, xp.sum(xp.abs(ignored), axis=1)]))
    is_lost = (size * FADED > begin) & (begin > 0) & (solution.norm[rows] > FADED * solution.first_norm[rows])
    doubtful = (2 * count > unknowns) & (moved > FADED * size)  # from nearer, F need not have fallen so far
    doubtful &= unknowns > MOST_UNKNOWNS and solution.first_F is not None and not tally.is_spent()
    if doubtful.any():
        doubtful &= ~is_rounding(evaluator.take(rows, solution.x), x, F, SLIGHT, ignored)
    solution.status[rows[is_lost | doubtful]] = Status.STAGNATED  # far away F has hardly fallen
    is_open = ~is_lost & ((solution.norm[rows] > 0) | (size / LARGER > begin)) & (unknowns <= MOST_UNKNOWNS)
    if not is_open.any() or is_layer or tally.is_spent():
        return
    points = [gather(part, np.flatnonzero(is_open)) for part in (x, F, start)]
    _note_errors(evaluator, solution, rows[is_open], points, limit)


def refute(evaluator: Evaluator, solution: Solution) -> None:
    """Withdraw successes far from x0 at which F is not small: see `is_unproved` and `is_determined`."""
    rows = np.flatnonzero((solution.status == Status.CONVERGED) & (solution.norm > 0))
    unit, first = eps(array_namespace(solution.x), solution.x.dtype), solution.first_norm
    rows = rows[~may_be_root(solution.norm[rows], first[rows], np.inf, 0.0, unit)]  # x is not read on a device
    if not rows.size or evaluator.tally.is_spent():
        return
    x, start = gather(solution.x, rows), gather(solution.start, rows)
    rows = rows[is_unproved(x, start, solution.norm[rows], first[rows], unit)]
    if rows.size:
        x, F, part = gather(solution.x, rows), gather(solution.F, rows), evaluator.take(rows, solution.x)
        rows = rows[~is_determined(lambda y: part.residual(y, keep=False), x, F, unit)]
        solution.status[rows], solution.target[rows] = Status.STAGNATED, unit**0.25 * first[rows]


def is_unproved(x: Array, start: Array, norm: HostArray, first: HostArray, unit: float) -> HostArray:
    """Where x (b, N) is far from x0, and ||F|| not small beside that there: see `may_be_root`."""
    with np.errstate(all="ignore"):
        return ~may_be_root(norm, first, norm2(x - start), np.maximum(norm2(x), norm2(start)), unit)


def is_determined(residual: Callable[[Array], Array], x: Array, F: Array, unit: float) -> HostArray:
    """Whether F(x) is small beside the terms that cancel in it: beside the change from x (b, N) to (1 + t) x.

    Along a null vector F changes by rounding errors alone. An evaluation.
    """
    with np.errstate(all="ignore"):
        return ~(norm2(residual(x + unit**0.25 * x) - F) <= VISIBLE * norm2(F))


def _note_errors(
    evaluator: Evaluator, solution: Solution, rows: Indices, points: Sequence[Array], limit: float
) -> None:
    """Note the errors of some systems by a dense J, unless a limit of evaluations is reached before."""
    try:
        errors = evaluator.tally.enforce(certified_errors, evaluator.take(rows, solution.x), *points, limit)
    except LimitReached:
        return
    is_right = errors <= max(LIMITED, limit)
    solution.error[rows] = np.where(is_right, errors, np.nan)
    solution.status[rows[~is_right]] = Status.STAGNATED


def certified_errors(evaluator: Evaluator, x: Array, F: Array, start: Array, limit: float) -> HostArray:
    """Estimated errors of x (b, N), relative to x, by J there, infinite where F is not in its range; N evaluations."""
    dense, unit, point = BlockBanded(0, 0, block_size=x.shape[1]), eps(evaluator.xp, x.dtype), (x, F)
    J = Assembler(evaluator, unit**0.5, certifies=False, structure=dense).assemble(evaluator, x, F).blocks
    J, x, F, start = (to_host(part) for part in (J[:, 0, 0, ...], x, F, start))
    with np.errstate(all="ignore"):
        reference = np.maximum(np.abs(start), np.abs(x - start))
        scale = np.minimum(scales(units_of(J), x, x, reference), plain_scales(x, x, reference))
        rows = near_reciprocals(np.abs(J).max(axis=2))
        columns = near_reciprocals(np.abs(J * rows[:, :, None]).max(axis=1))
        A = J * rows[:, :, None] * columns[:, None]

        def inverse(v: Array, cut: float | None = None) -> HostArray:
            return least_squares(A, to_host(v) * rows, cut) * columns

        is_seen = (np.abs(J).max(axis=1) > 0) | (x == start)  # an unknown that no step has moved may have no effect
        is_singular = ~(is_seen.all(axis=1) & np.isfinite(A).all(axis=(1, 2)) & np.isfinite(F * rows).all(axis=1))
        A[is_singular] = 0.0
        found = inverse(np.where(is_singular[:, None], 0, F))
        rest = np.abs(np.einsum("bij,bj->bi", J, found) - F) * rows
        errors = np.abs(found / scale).max(axis=1) + unit
        is_singular |= (rest.max(axis=1) > MISSED * np.abs(F * rows).max(axis=1)) | ~np.isfinite(errors)
        doubtful = (errors > limit) & (errors <= LIMITED) & ~is_singular
        if doubtful.any():  # J predicts F at the end of its step, or F is rounding error, or the error is another
            ahead = inverse(evaluator.residual(evaluator.move(point[0], from_host(-found, point[0]))))
            doubtful &= ~(np.abs(ahead / scale).max(axis=1) <= CONTRACTED * errors)
        if doubtful.any():
            is_singular |= doubtful & ~is_rounding(evaluator, *point)
        far = far_part(start, x, x, scale)
        if far.any():  # lengths of differences may have been chosen so that F changes
            cut = unit**0.5  # of J by differences smaller singular values are errors

            def unseen(v: Array) -> Array:
                v = to_host(v)
                return from_host(v - inverse(np.einsum("bij,bj->bi", J, v), cut), point[0])

            is_far = (far != 0).any(axis=1)
            scale, far = (from_host(part, point[0]) for part in (scale, far))
            has_agreed = agrees(evaluator, *point, lambda v: from_host(inverse(v, cut), v), scale, far, unseen)
            is_singular |= is_far & ~has_agreed
    return np.where(is_singular, np.inf, errors)


def least_squares(A: HostArray, b: HostArray, cut: float | None = None) -> HostArray:
    """Least-squares solutions of A y = b for each system; NaN where b is not finite. `cut`: of singular values."""
    finite = np.isfinite(b).all(axis=1)
    return np.stack([np.linalg.lstsq(a, f, cut)[0] if ok else f * np.nan for a, f, ok in zip(A, b, finite)])
