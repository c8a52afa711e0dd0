"""Dense Jacobians of a batch: solves, products and central differences."""

from __future__ import annotations

import numpy as np

from implicitsolve._arrays.namespace import eps, near_reciprocals, numpy_namespace
from implicitsolve._typing import HostArray
from implicitsolve.linearize._evaluator import Evaluator


def solve_each(J: HostArray, F: HostArray) -> HostArray:
    """J^-1 F for each system; the shortest least-squares solution where J is singular."""
    if J.shape[1] == 1:
        return F / J[:, :, 0]
    # Of equations, and then of unknowns: pivots are chosen among numbers of one size.
    rows = near_reciprocals(np.abs(J).max(axis=2, keepdims=True))
    columns = near_reciprocals(np.abs(J * rows).max(axis=1, keepdims=True))
    try:
        x = np.linalg.solve(J * rows * columns, F[:, :, None] * rows)[:, :, 0] * columns[:, 0]
        lost = ~np.isfinite(x).all(axis=1)
        if lost.any():  # an empty row or column, or a scale out of range
            x[lost] = np.linalg.solve(J[lost], F[lost][:, :, None])[:, :, 0]
        return x
    except np.linalg.LinAlgError:
        if len(J) > 1:  # each system's answer is its own
            return np.concatenate([solve_each(J[i : i + 1], F[i : i + 1]) for i in range(len(J))])
        finite = np.isfinite(J.reshape(J.shape[0], -1).sum(axis=1))
        J = np.where(finite[:, None, None], J, 0.0)
        return np.where(finite[:, None], times(np.linalg.pinv(J), F), np.nan)


def times(J: HostArray, v: HostArray) -> HostArray:
    return (J @ v[:, :, None])[:, :, 0]


def is_singular(J: HostArray) -> HostArray:
    """Where an unknown enters no equation."""
    return ~(np.abs(J).max(axis=1) > 0).all(axis=1)


def central_differences(part: Evaluator, x: HostArray) -> HostArray:
    part_of_size, size = eps(numpy_namespace, x.dtype) ** (1 / 3), np.abs(x).max(axis=1, keepdims=True)
    h = part_of_size * np.maximum(np.abs(x), part_of_size * np.where(size > 0, size, 1.0))
    J = np.empty((*x.shape, x.shape[1]), dtype=x.dtype)
    for j in range(x.shape[1]):
        step = np.zeros_like(x)
        step[:, j] = h[:, j]
        ahead, behind = part.move(x, step), part.move(x, -step)
        with np.errstate(all="ignore"):
            J[:, :, j] = (part.residual(ahead) - part.residual(behind)) / (ahead - behind)[:, j : j + 1]
    return J
