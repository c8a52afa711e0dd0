"""Races of several starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import array_namespace, as_inexact
from implicitsolve._root import NonlinearMethod, check_settings, solve_root
from implicitsolve._typing import Array
from implicitsolve.drivers._batch import concatenate, select
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.monitor import Monitor
from implicitsolve.nonlinear._state import Scheduler
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult, per_system
from implicitsolve.status import CUT, Status
from implicitsolve.stopping import NonlinearStop, check_generator


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class RaceResult(NonlinearResult):
    """Result of `race`: that of `root`, with the values of the winners.

    Attributes
    ----------
    winner : int or ndarray of int
        Position in `starts` of the start that converged first; -1 where none did. There the other fields are those of
        the start that ended with the smallest residual.
    initial_norm : float or ndarray
        Norm of F at the first start where it is finite: the reference of the relative tolerance.
    counts : Counts
        Calls for all starts; one call evaluates all active systems of the race.
    steps : tuple of NewtonStep
        `systems` counts the systems start by start: system b of start s is ``s * B + b``.
    """

    winner: Any


def race(
    problem: Problem | Any,
    starts: Sequence[Any],
    *,
    method: NonlinearMethod | str = "auto",
    stop: NonlinearStop | None = None,
    monitor: Monitor | None = None,
    rng: np.random.Generator | None = None,
) -> RaceResult:
    """Solve F(x) = 0 from several initial values at once; for each system of a batch the first to converge wins.

    Parameters
    ----------
    problem : Problem or callable
        As in `root`. Its `take` must accept repeated indices, as that of every adapter does.
    starts : sequence of array_like or str
        Initial values of one shape, or names of the problem's own guesses ("one-step", "random", ...). A name may occur
        more than once, and an array may be an earlier solution.
    method : optional
        As in `root`.
    stop : NonlinearStop, optional
        As in `root`. All starts of a system have one target, relative to the norm of F at the first of them where it is
        finite: a bad start does not loosen it, and a good one does not tighten it unless it is the first.
    monitor : callable, optional
        Called with the steps of the batch of S B systems, start by start.
    rng : numpy.random.Generator, optional
        For the guess "random".

    Returns
    -------
    RaceResult
        As in `root`, and the `winner` of each system. If several starts converge in the same step, the first in
        `starts` wins.

    See Also
    --------
    root : one initial value.

    Notes
    -----
    S starts of B systems are one batch of S B systems, so that all share their GEMMs. A start that is beaten leaves at
    once: S starts cost at most S times the winner's products, and S times its vectors.

    Where systems cannot be repeated (one system with ``batch_ndim=0``, or a problem without `take`), the starts are
    tried one at a time instead until one has converged, each relative to its own norm of F.

    References
    ----------
    .. [1] Kazi & Thompson, "Implicitly-Defined Neural Networks for Sequence Labeling", ACL 2017, section 2.6.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.gru_parameters(2, 4, rng=rng)
    >>> layer = ims.adapters.implicit_gru(params, rng.standard_normal((3, 5, 2)), lengths=[5, 1, 3])
    >>> result = ims.drivers.race(layer, ["one-step", "random"], rng=rng)
    >>> result.success, result.winner
    (array([ True,  True,  True]), array([0, 0, 0]))
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    solver, stop, monitor = check_settings("race", method, stop, monitor)
    values = _values(problem, starts, None if rng is None else check_generator("race", rng))
    evaluator = Evaluator(problem, values[0])
    if problem.batch_ndim and problem.take is not None and 0 not in values[0].shape:
        result = _together(evaluator, values, solver, stop, monitor)
        return _decide(result, evaluator, len(values))
    results = _in_turn(problem, values, solver, stop, monitor)
    return _decide(concatenate(results, problem.batch_ndim), evaluator, len(results))


def _values(problem: Problem, starts: Any, rng: np.random.Generator | None) -> list[Array]:
    if isinstance(starts, str) or not isinstance(starts, Sequence):
        raise TypeError(f"race: `starts` must be a list of arrays or names, got {type(starts).__name__}")
    if not starts:
        raise ValueError("race: `starts` must hold at least one initial value, got none")
    values: list[Array] = []
    for start in starts:
        if isinstance(start, str):
            if problem.initial_guess is None:
                raise TypeError(f"race: `starts` names {start!r}, but the problem offers no initial guess")
            start = problem.initial_guess(start, rng)
        values.append(as_inexact(start, "starts"))
        if tuple(values[-1].shape) != tuple(values[0].shape):
            shapes = " and ".join(str(tuple(value.shape)) for value in (values[0], values[-1]))
            raise ValueError(f"race: `starts` must have one shape, got {shapes}")
    xp = array_namespace(*values)
    dtype = xp.result_type(*values)
    return [xp.astype(value, dtype) for value in values]


def _together(
    evaluator: Evaluator, values: list[Array], solver: NonlinearMethod, stop: NonlinearStop, monitor: Monitor
) -> NonlinearResult:
    """Solve from all starts as one batch, start by start, in which the starts of a system are rivals."""
    xp, groups = evaluator.xp, np.tile(evaluator.rows, len(values))
    flat = xp.concat([evaluator.flatten(value) for value in values], axis=0)
    repeated = evaluator.chosen(groups)
    x0 = repeated.unflatten(flat)
    result = solve_root(repeated.problem, x0, solver, stop, monitor, Scheduler(groups=groups))
    norms = np.reshape(result.initial_norm, (len(values), -1))
    first = norms[np.isfinite(norms).argmax(axis=0), evaluator.rows]
    return replace(result, initial_norm=np.tile(first, len(values)))


def _in_turn(
    problem: Problem, values: list[Array], solver: NonlinearMethod, stop: NonlinearStop, monitor: Monitor
) -> list[NonlinearResult]:
    """Try one start after the other, until each system has converged from one of them."""
    results: list[NonlinearResult] = []
    won: Any = False
    begin = time.monotonic()
    for value in values:
        left = stop.rest(sum(result.counts.evaluations for result in results), time.monotonic() - begin)
        results.append(solve_root(problem, value, solver, left, monitor))
        won = won | np.asarray(results[-1].success)
        if np.all(won) or np.isin(results[-1].status, CUT).any():
            break
    return results


def _decide(result: NonlinearResult, evaluator: Evaluator, starts: int) -> RaceResult:
    """The winners' part of a result whose batch holds the systems start by start."""
    systems, batch_shape = evaluator.rows, evaluator.batch_shape
    ends, norms = (np.reshape(part, (starts, systems.size)) for part in (result.status, result.residual_norm))
    converged = ends == Status.CONVERGED
    is_won = converged.any(axis=0)
    norms = np.where(np.isfinite(norms), norms, np.inf)
    chosen = np.where(is_won, converged.argmax(axis=0), norms.argmin(axis=0))  # both prefer the earlier of equals
    return RaceResult(
        **select(result, chosen * systems.size + systems, batch_shape),
        counts=result.counts,
        steps=result.steps,
        winner=per_system(np.where(is_won, chosen, -1), batch_shape),
    )
