"""Recurrences along ragged sequences, one position of all of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve import kernels
from implicitsolve.adapters._common import Array, HostIndices, array_namespace, from_host
from implicitsolve.adapters._rows import Rows

Step = Callable[[tuple[Array, ...], tuple[Array, ...]], Array]


@dataclass(frozen=True, eq=False)
class RNNStep:
    """One of the rules of `kernels.rnn` as a step, with weights (m, k, k) that multiply states from the right."""

    rule: str
    weights: Array


def sweep(
    step: Step | RNNStep,
    x: tuple[Array, ...],
    rows: Rows,
    lags: tuple[int, ...],
    starts: dict[int, Array],
) -> dict[int, Array]:
    """Run a recurrence from one end of every sequence, or from both at once, as one batch.

    Parameters
    ----------
    step : callable or RNNStep
        ``step(x, states)`` returns the next states (m, k) from rows of `x` and the states `lags` steps ago.
    x : tuple of Array
        Projections, with the rows of `rows` on axis -2.
    rows : Rows
        Where positions stand.
    lags : tuple of int
        How long ago, each at least 1.
    starts : dict of int to Array
        For the direction +1 (from the first position to the last) or -1, or both, the states (B, max(lags), k) that
        went before, the latest first.

    Returns
    -------
    dict of int to Array
        For each direction the states (B, T, k), zero where padded.
    """
    xp = array_namespace(x[0])
    begin = xp.concat(list(starts.values()), axis=0)
    order, plan = _plan(rows, list(starts))
    begin = xp.take(begin, from_host(order, begin), axis=0)
    if isinstance(step, RNNStep):
        kernel: Any = kernels.rnn.select(begin, size=begin.shape[-1])
        found = kernel.run(step.rule, step.weights, x, begin, lags, plan)
    else:
        found = kernels.recurrence(lambda *arguments: 2 * (step(*arguments),), x, begin, lags, plan)
    found = xp.reshape(found, (len(starts), rows.systems, rows.blocks, begin.shape[-1]))
    return {direction: found[i, ...] for i, direction in enumerate(starts)}


def _plan(rows: Rows, directions: list[int]) -> tuple[HostIndices, kernels.Plan]:
    """The order of runs (direction by direction, sequence by sequence), the longest first, and the steps of these."""
    lengths = np.tile(rows.lengths, len(directions))
    order = np.argsort(-lengths, kind="stable")
    steps = np.arange(int(lengths.max()))
    active = (lengths[:, None] > steps).sum(axis=0)
    step = np.repeat(steps, active)
    run = order[np.arange(len(step)) - (np.cumsum(active) - active)[step]]
    system = run % rows.systems
    is_forwards = np.repeat(np.asarray(directions) > 0, rows.systems)[run]
    position = np.where(is_forwards, step, rows.lengths[system] - 1 - step)
    plan = kernels.Plan(active, rows.first[system] + position, run * rows.blocks + position, lengths.size * rows.blocks)
    return order, plan
