"""Recurrences along ragged sequences, one position of all of them at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from implicitsolve.adapters._common import Array, HostIndices, array_namespace, from_host, zeros
from implicitsolve.adapters._rows import Rows, part_of

Step = Callable[[tuple[Array, ...], tuple[Array, ...]], Array]


def sweep(
    step: Step,
    x: tuple[Array, ...],
    rows: Rows,
    lags: tuple[int, ...],
    starts: dict[int, Array],
) -> dict[int, Array]:
    """Run a recurrence from one end of every sequence, or from both at once, as one batch.

    Parameters
    ----------
    step : callable
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
    directions = list(starts)
    begin = array_namespace(x[0]).concat([starts[direction] for direction in directions], axis=0)
    plan = _Plan(rows, directions)
    order = from_host(plan.order, begin)
    xp = array_namespace(begin)
    begin = xp.take(begin, order, axis=0)
    at = from_host(plan.at, begin)
    x = tuple(xp.take(block, at, axis=-2) for block in x)
    states: list[Array] = []
    for t in range(len(plan.active)):
        m = int(plan.active[t])
        previous = tuple(states[t - lag][:m, :] if lag <= t else begin[:m, lag - t - 1, :] for lag in lags)
        states.append(step(part_of(x, slice(int(plan.start[t]), int(plan.start[t]) + m)), previous))
    table = xp.concat([*states, zeros((1, begin.shape[-1]), begin)], axis=0)
    results = {}
    for i, direction in enumerate(directions):
        padded = xp.take(table, from_host(plan.places[i], begin), axis=0)
        results[direction] = xp.reshape(padded, (rows.systems, rows.blocks, begin.shape[-1]))
    return results


class _Plan:
    """The order of computation: step by step, in each the runs that have not ended, the longest first.

    Attributes
    ----------
    order : numpy.ndarray
        Runs (direction by direction, sequence by sequence), the longest first: those that go on are always the first.
    active, start : numpy.ndarray
        Runs that take part in each step, and the row of its first in the table of all steps.
    at : numpy.ndarray
        For each row of the table the row of its position in the layout.
    places : list of numpy.ndarray
        For each direction the row of each position (B T,) in the table; padding has the row behind the last.
    """

    def __init__(self, rows: Rows, directions: list[int]) -> None:
        runs = len(directions)
        lengths = np.tile(rows.lengths, runs)
        self.order = np.argsort(-lengths, kind="stable")
        steps = np.arange(int(lengths.max()))
        self.active: HostIndices = (lengths[:, None] > steps).sum(axis=0)
        self.start: HostIndices = np.cumsum(self.active) - self.active
        step = np.repeat(steps, self.active)
        run = self.order[np.arange(len(step)) - self.start[step]]
        system = run % rows.systems
        forwards = np.repeat(np.asarray(directions) > 0, rows.systems)[run]
        position = np.where(forwards, step, rows.lengths[system] - 1 - step)
        self.at = rows.first[system] + position
        self.places = []
        for i in range(runs):
            own = run // rows.systems == i
            place = np.full((rows.systems, rows.blocks), len(step))
            place[system[own], position[own]] = np.flatnonzero(own)
            self.places.append(place.ravel())
