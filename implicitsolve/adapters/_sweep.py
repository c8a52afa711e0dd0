"""Recurrences along ragged sequences, one position of all of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from implicitsolve.adapters import kernels
from implicitsolve.adapters._common import Array, array_namespace
from implicitsolve.adapters._rows import Rows

FEW = 32  # numbers in a state up to which a device passes over memory once, where matrix products take several passes

Run: TypeAlias = Callable[..., Array]
"""``run(x, begin, lags, plan, given=None)``, a whole recurrence, as `kernels.recurrence` with its step."""


def stepwise(step: Callable[[tuple[Array, ...], tuple[Array, ...]], Array]) -> Run:
    """The recurrence of ``step(x, states)``, which returns the next states (m, k) from those `lags` steps ago."""
    return partial(kernels.recurrence, lambda *arguments: 2 * (step(*arguments),))


def sweep(
    run: Run,
    x: tuple[Array, ...],
    rows: Rows,
    lags: tuple[int, ...],
    starts: dict[int, Array],
) -> dict[int, Array]:
    """Run a recurrence from one end of every sequence, or from both at once, as one batch.

    Parameters
    ----------
    run : callable
        The recurrence.
    x : tuple of Array
        Projections, with the rows of `rows` on axis -2.
    rows : Rows
        Location of the positions.
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
    begins, plan = list(starts.values()), _plan(rows, list(starts))
    begin = begins[0] if len(begins) == 1 else array_namespace(x[0]).concat(begins, axis=0)
    found = run(x, begin, lags, plan)
    found = array_namespace(found).reshape(found, (len(starts), rows.systems, rows.blocks, begin.shape[-1]))
    return {direction: found[i, ...] for i, direction in enumerate(starts)}


def sweep_residual(
    run: Run, x: tuple[Array, ...], rows: Rows, lags: tuple[int, ...], starts: dict[int, Array], given: Array
) -> Array:
    """States (B, T, k) minus the step of each position, in one direction, from those before it."""
    ((direction, start),) = starts.items()
    flat = array_namespace(given).reshape(given, (rows.systems * rows.blocks, start.shape[-1]))
    return array_namespace(given).reshape(run(x, start, lags, _plan(rows, [direction]), flat), given.shape)


def _plan(rows: Rows, directions: list[int]) -> kernels.Plan:
    """Runs direction by direction, sequence by sequence; the plan stays with the rows."""
    plans: dict[tuple[int, ...], kernels.Plan] = rows.__dict__.setdefault("_plans", {})
    if tuple(directions) not in plans:
        plans[tuple(directions)] = _planned(rows, directions)
    return plans[tuple(directions)]


def _planned(rows: Rows, directions: list[int]) -> kernels.Plan:
    count = len(directions) * rows.systems
    lengths, firsts = (np.tile(part, len(directions)) for part in (rows.lengths, rows.first))
    ways = np.repeat(np.sign(directions), rows.systems)
    begins = np.where(ways > 0, 0, lengths - 1)
    return kernels.Plan(lengths, firsts + begins, rows.blocks * np.arange(count) + begins, ways, count * rows.blocks)
