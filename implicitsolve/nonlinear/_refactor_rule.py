"""When `BlockNewton` accepts a step with a stale Jacobian, and when it refactors: one set of rules.

They are written in plain arithmetic, so that the loop over arrays and the compiled loop of `newton_batch` (which
compiles them for numbers and for SIMD lanes) follow the same ones.
"""

from __future__ import annotations

from typing import Any

from implicitsolve.globalize._line_search import SUFFICIENT_DECREASE

DIGITS = 1.5  # decimal digits of ||F|| that a new Jacobian is expected to bring
STALE_DECREASE = 0.9  # of ||F||: a step with a stale Jacobian that brings less is rejected, it may lead astray
MAX_AGE = 20  # steps with one factorization: each update costs a vector and two passes over it
ROUNDING = 0.5  # F's change between neighbouring numbers, over F, from which on F is rounding error
MAX_ASSEMBLIES = 5  # at one point, while lengths of differences are guesses


def slowest_rate(cost: int) -> float:
    """Mean rate of ||F|| per step at which a stale Jacobian still pays, where assembling another takes `cost` products.

    A new one brings `DIGITS` for cost + 1 evaluations, a step with the stale one takes one evaluation.
    """
    return 0.1 ** (DIGITS / (cost + 1))


def is_fast(rate: Any, previous: Any, slowest: float) -> Any:
    """Whether the mean of the last two rates is at most the slowest; `previous` is `rate` where there was no other."""
    return rate * previous <= slowest * slowest


def largest_ratio(is_fresh: Any) -> Any:
    """||F|| after a whole step over that before, up to which it is accepted."""
    return STALE_DECREASE + (1 - SUFFICIENT_DECREASE - STALE_DECREASE) * is_fresh
