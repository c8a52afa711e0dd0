"""The error of x by a dense Jacobian, for small systems that were solved without one."""

from __future__ import annotations

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._accuracy import plain_scales, scales
from implicitsolve.structure import BlockBanded

MOST_UNKNOWNS = 20  # for which J is worth its evaluations


def suits_certificate(evaluator: Evaluator, x: HostArray) -> bool:
    """Whether J of so many unknowns, in real NumPy numbers, is worth its evaluations."""
    is_small = 1 < x.shape[1] <= MOST_UNKNOWNS and type(x) is np.ndarray and x.dtype.char in "fd"
    return is_small and not evaluator.problem.fixed_point


def certified_errors(evaluator: Evaluator, x: HostArray, F: HostArray, reference: HostArray) -> HostArray:
    """Estimated errors of x (b, N), relative to x, by J there; infinite where J is singular. N evaluations."""
    dense = BlockBanded(0, 0, block_size=x.shape[1])
    unit = float(np.finfo(x.dtype).eps)
    J = Assembler(evaluator, unit**0.5, certifies=False, structure=dense).assemble(evaluator, x, F).blocks[:, 0, 0]
    with np.errstate(all="ignore"):
        is_singular = ~(np.abs(J).max(axis=1) > 0).all(axis=1)
        scale = np.minimum(scales(J, x, x, reference), plain_scales(x, x, reference))
        rows = np.where(np.abs(J).max(axis=2) > 0, np.abs(J).max(axis=2), 1.0)
        correction = np.stack([np.linalg.lstsq(A / r[:, None], f / r)[0] for A, f, r in zip(J, F, rows)])
        errors = np.abs(correction / scale).max(axis=1) + unit
    return np.where(is_singular | ~np.isfinite(errors), np.inf, errors)
