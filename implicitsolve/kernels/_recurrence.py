"""Recurrences along sequences of different lengths, one step of all of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from implicitsolve._namespace import array_namespace, from_host
from implicitsolve._typing import Array, Indices

Step = Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Array, Array]]


class Plan(NamedTuple):
    """The order of computation: step by step, in each the runs that have not ended, which are the first ones.

    Attributes
    ----------
    active : numpy.ndarray
        Runs that take part in each step.
    at : numpy.ndarray
        The row of its arguments for each run of the first step, then of the second, and so on.
    targets : numpy.ndarray
        In the same order, the row of its result.
    rows : int
        Rows of the result; those that are no target are zero.
    """

    active: Indices
    at: Indices
    targets: Indices
    rows: int


def recurrence(step: Step, x: tuple[Array, ...], begin: Array, lags: tuple[int, ...], plan: Plan) -> Array:
    """Run a recurrence, and return the results (plan.rows, k).

    Parameters
    ----------
    step : callable
        ``step(x, states)`` returns the results of one step (m, k), and the states that later steps get, for rows of `x`
        and the states `lags` steps ago.
    x : tuple of Array
        Arguments, with the rows on axis -2.
    begin : Array
        States (runs, max(lags), k) before the first step, the latest first.
    lags : tuple of int
        How long ago, each at least 1.
    plan : Plan
        Which runs take which rows.
    """
    xp, start = array_namespace(begin), 0
    x = tuple(xp.take(part, from_host(plan.at, begin), axis=-2) for part in x)
    results: list[Array] = []
    states: list[Array] = []
    for t, m in enumerate(plan.active.tolist()):
        rows = tuple(part[..., start : start + m, :] for part in x)
        previous = tuple(states[t - lag][:m, :] if lag <= t else begin[:m, lag - t - 1, :] for lag in lags)
        for found, new in zip((results, states), step(rows, previous)):
            found.append(new)
        start += m
    results.append(xp.zeros((1, begin.shape[-1]), dtype=begin.dtype, device=begin.device))
    source = np.full(plan.rows, start)
    source[plan.targets] = np.arange(start)
    return xp.take(xp.concat(results, axis=0), from_host(source, begin), axis=0)
