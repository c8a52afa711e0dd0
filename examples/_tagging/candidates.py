"""Solving a layer from several starts, sequence by sequence ([K17] 2.6).

Newton's method from one start can stall far from any solution, in a local minimum of the residual's norm,
on a sequence that is solved in a few steps from another start. [K17] runs two candidates and keeps the
first that converges; here the second is only run for the sequences that the first has left unsolved.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import implicitsolve as ims
from implicitsolve import adapters

__all__ = ["Solution", "solve_layer"]

RETRY_SWEEPS = 100
"""Steps H <- (H + F(H)) / 2 from a random state: slow, but they come near a solution where Newton's method has not."""


@dataclass(frozen=True)
class Solution:
    """A solved layer and what it took.

    Attributes
    ----------
    result : NonlinearResult
        State, residual and status of every sequence, those of its last attempt.
    newton_steps : int
        Of the slowest sequence, summed over attempts.
    products : int
        Calls of the residual (sweeps included) and of J v in all attempts; those after the first attempt are for a few
        sequences only.
    retried, unsolved : int
        Sequences that the first start did not solve, and those that none did.
    """

    result: ims.NonlinearResult
    newton_steps: int
    products: int
    retried: int
    unsolved: int


def solve_layer(
    problem: ims.Problem,
    stop: ims.NonlinearStop,
    rng: np.random.Generator,
    *,
    start: str | NDArray[Any] = "one-step",
    sweeps: int = 0,
    random_starts: int = 2,
) -> Solution:
    """Solve from `start`, then what is unsolved from random states in [-1, 1], after damped sweeps.

    Parameters
    ----------
    problem : Problem
        A batch of sequences, from `adapters.implicit_gru`.
    stop : NonlinearStop
        Used for each attempt.
    rng : numpy.random.Generator
        For the random starts; not touched where the first start solves everything.
    start : {"one-step", "zeros"} or (B, T, k) array, optional
        The one-step guess is a little work for states that are often near the solution.
    sweeps : int, optional
        Applications H <- F(H) before Newton's method begins. Most sequences contract: for them a few sweeps are cheaper
        than a Krylov space. The rest starts nearer to a solution.
    random_starts : int, optional
        How many further attempts there may be.

    Returns
    -------
    Solution
        Never raises for a sequence that stays unsolved: `unsolved` counts them, `result.status` names them.
    """
    x0 = adapters.initial_guess(problem, start) if isinstance(start, str) else start
    for _ in range(sweeps):
        x0 = x0 - problem.residual(x0)
    result = ims.root(problem, x0, stop=stop)
    newton_steps, products = _cost(result)
    products += sweeps
    unsolved = first_unsolved = np.flatnonzero(~result.success)
    for _ in range(random_starts):
        if not unsolved.size or problem.take is None:
            break
        rest = problem.take(unsolved)
        x0 = adapters.initial_guess(rest, "random", rng)
        for _ in range(RETRY_SWEEPS):
            x0 = x0 - 0.5 * rest.residual(x0)
        attempt = ims.root(rest, x0, stop=stop)
        result = _merged(result, unsolved, attempt)
        steps, calls = _cost(attempt)
        newton_steps, products = newton_steps + steps, products + calls + RETRY_SWEEPS
        unsolved = unsolved[~attempt.success]
    return Solution(result, newton_steps, products, first_unsolved.size, unsolved.size)


def _cost(result: ims.NonlinearResult) -> tuple[int, int]:
    return int(np.max(result.iterations)), result.counts.residuals + result.counts.jvps


def _merged(result: ims.NonlinearResult, rows: NDArray[np.intp], part: ims.NonlinearResult) -> ims.NonlinearResult:
    """`result` with the systems `rows` taken from `part`."""
    changed = {}
    for name in ("x", "fun", "status", "residual_norm"):
        whole = np.array(getattr(result, name))
        whole[rows] = getattr(part, name)
        changed[name] = whole
    return dataclasses.replace(result, **changed)
