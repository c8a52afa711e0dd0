"""The error of x by a dense Jacobian, for small systems that were solved without one."""

from __future__ import annotations

import numpy as np

from implicitsolve._record import LimitReached
from implicitsolve._typing import HostArray, Indices
from implicitsolve.kernels._norms import norm_max
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._accuracy import LIMITED, plain_scales, scales, units_of
from implicitsolve.nonlinear._state import Solution
from implicitsolve.status import Status
from implicitsolve.structure import BlockBanded

MOST_UNKNOWNS = 20  # for which J is worth its evaluations
FAR = 10.0  # times x0, where F may vanish at infinity alone


def certify(evaluator: Evaluator, solution: Solution, rows: Indices, limit: float) -> None:
    """Note the errors of systems that have converged by products alone; those above the limit have stagnated.

    A dense J shows directions that no step has taken. It is assembled where it is cheap, and where F is not zero.
    """
    x, tally = solution.x, evaluator.tally
    is_small = x.shape[1] <= MOST_UNKNOWNS and type(x) is np.ndarray and x.dtype.char in "fd"
    if not is_small:
        return
    is_far = norm_max(x[rows]) / FAR > norm_max(solution.start[rows])
    rows = rows[(solution.status[rows] == Status.CONVERGED) & ((solution.norm[rows] > 0) | is_far)]
    problem = evaluator.problem
    if not rows.size or problem.blocks is not None or problem.fixed_point or tally.is_spent():
        return
    part = evaluator.take(rows, x)
    reference = np.maximum(np.abs(solution.start[rows]), np.abs(x[rows] - solution.start[rows]))
    try:
        errors = tally.enforced(certified_errors, part, x[rows], solution.F[rows], reference)
    except LimitReached:
        return
    is_right = errors <= max(LIMITED, limit)
    solution.error[rows] = np.where(is_right, errors, np.nan)
    solution.status[rows[~is_right]] = Status.STAGNATED


def certified_errors(evaluator: Evaluator, x: HostArray, F: HostArray, reference: HostArray) -> HostArray:
    """Estimated errors of x (b, N), relative to x, by J there; infinite where J is singular. N evaluations."""
    dense = BlockBanded(0, 0, block_size=x.shape[1])
    unit = float(np.finfo(x.dtype).eps)
    J = Assembler(evaluator, unit**0.5, certifies=False, structure=dense).assemble(evaluator, x, F).blocks[:, 0, 0]
    with np.errstate(all="ignore"):
        is_singular = ~(np.abs(J).max(axis=1) > 0).all(axis=1)
        scale = np.minimum(scales(units_of(J), x, x, reference), plain_scales(x, x, reference))
        rows = _sizes(np.abs(J).max(axis=2))[:, :, None]
        columns = _sizes(np.abs(J / rows).max(axis=1))[:, None, :]
        equilibrated, right = J / rows / columns, F / rows[:, :, 0]
        is_singular |= ~(np.isfinite(equilibrated).all(axis=(1, 2)) & np.isfinite(right).all(axis=1))
        equilibrated[is_singular], right[is_singular] = 0.0, 0.0
        correction = np.stack([np.linalg.lstsq(A, f)[0] for A, f in zip(equilibrated, right)]) / columns[:, 0]
        errors = np.abs(correction / scale).max(axis=1) + unit
    return np.where(is_singular | ~np.isfinite(errors), np.inf, errors)


def _sizes(largest: HostArray) -> HostArray:
    """Positive sizes, 1 for those that are zero."""
    return np.where(largest > 0, largest, 1.0)
