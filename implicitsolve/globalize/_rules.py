"""The rules by which Newton's methods decide, as functions of plain numbers.

Each is written once, for Python's numbers, of a single system; for NumPy arrays, with a number for each system of a
batch; and, where it is arithmetic and comparisons alone, for machine numbers and SIMD lanes that Numba compiles. A
comparison with NaN is false, so that each rule tests for the good case.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def select(where: Any, a: Any, b: Any) -> Any:
    """`a` where a condition holds, else `b`: of arrays element by element."""
    return np.where(where, a, b) if isinstance(where, np.ndarray) else a if where else b


# Progress

HALVED = 0.5  # part of ||F|| that a good step leaves: others may have met rounding errors, or a poor direction
MOST_GROWTH = 10.0**0.5  # of ||F|| in a step that shortens the Newton correction instead
BLOWN_UP = 1e12  # growth of ||F|| over its start that is called divergence
NEW_BEST, PATIENCE = 0.99, 20  # part of the least norm that counts as progress; steps without any that are allowed


def has_halved(norm: Any, previous: Any) -> Any:
    """Whether a step has halved ||F||: Newton's do near a root."""
    return norm < HALVED * previous


def has_diverged(norm: Any, start: Any) -> Any:
    return norm > BLOWN_UP * start


def is_still(step: Any, x: Any, unit: Any) -> Any:
    """Whether a step with the largest entry `step` changes an x with the largest entry `x` by no more than rounding."""
    return step <= unit * x


def may_be_root(norm: Any, first: Any, moved: Any, size: Any, unit: float) -> Any:
    """Whether ||F|| has fallen from `first` by a quarter of the digits, or x has moved by less than half of its size.

    A large x far from x0 may have an F that is rounding error, and no smaller than F(x0): where J is singular, steps
    lead there along its null vector.
    """
    return (norm <= unit**0.25 * first) | (moved <= 0.5 * size)


# Linear solves

LEAST_ETA = 1e-6  # that is requested where a direction did not help


def forcing_term(eta: Any, measure: Any, target: Any, largest: float) -> Any:
    """The relative linear residual of a step: eta, but never more accuracy than the stopping rule needs."""
    least = select(measure > target, 0.5 * target / (measure + (measure == 0)), 0.0)
    eta = select(eta > least, eta, least)
    return select(eta < largest, eta, largest)


def tighten(chosen: Any, eta: Any, unit: float) -> Any:
    """The next eta after a direction that was solved for to `eta` and did not help: ten times smaller."""
    smaller, least = 0.1 * select(eta < 0.1, eta, 0.1), max(LEAST_ETA, 100 * unit)
    smaller = select(smaller > least, smaller, least)
    return select(chosen < smaller, chosen, smaller)


# Acceptance, and how long a Jacobian is kept

SUFFICIENT_DECREASE = 1e-4  # of what a model predicts for ||F||, or its square: Dennis and Schnabel (1996), section 6.3
STALE_DECREASE = 0.9  # of ||F||: a step with a stale Jacobian that brings less is rejected, it may lead astray
EXPECTED_DIGITS = 1.5  # decimal digits of ||F|| that a new Jacobian is expected to bring
MAX_AGE = 20  # steps with one factorization: each update costs a vector and two passes over it


def armijo_ratio(length: Any, linear_residual: Any) -> Any:
    """Largest accepted ratio of ||F|| after that part of a step to ||F|| before; `linear_residual` is at most 1."""
    return 1 - SUFFICIENT_DECREASE * length * (1 - linear_residual)


def largest_ratio(is_fresh: Any) -> Any:
    """Largest accepted ratio of ||F|| after a whole step with a factored J to that before."""
    return STALE_DECREASE + (1 - SUFFICIENT_DECREASE - STALE_DECREASE) * is_fresh


def slowest_rate(cost: int) -> float:
    """Mean rate of ||F|| per step at which a stale J is worth keeping, where a new one takes `cost` products."""
    return 0.1 ** (EXPECTED_DIGITS / (cost + 1))


def is_fast(rate: Any, previous: Any, slowest: float) -> Any:
    """Whether the mean of the last two rates is at most the slowest; `previous` is `rate` where there was no other."""
    return rate * previous <= slowest * slowest


# Trust regions

FIRST_RADIUS = 100.0  # over ||x0||, at most: MINPACK's
GOOD = 0.2  # actual over predicted reduction of ||F||^2, from which on the next step may be longer; else it is shorter
IDLE = 1e-3  # reduction of ||F||^2 that is next to nothing


def first_radius(size: Any, x_norm: Any, part: float = FIRST_RADIUS) -> Any:
    """The first radius, where Newton's step has length `size` and x is `x_norm` long."""
    longest = part * x_norm
    return select((longest < size) & (longest > 0), longest, size)


def next_radius(radius: Any, length: Any, ratio: Any) -> Any:
    """The radius after a step of some length, which has reduced ||F||^2 by `ratio` times what the model predicts."""
    twice = 2 * length
    return select(ratio >= GOOD, select(twice > radius, twice, radius), 0.5 * radius)


def part_of_leg(square: Any, along: Any, room: Any) -> Any:
    """The part t of the dogleg's second leg r at which |p + t r| is the radius, for NumPy's numbers.

    `square` is <r, r>, `along` <p, r>, and `room` the square of the radius less <p, p>, for the first leg p.
    """
    root = np.sqrt(np.maximum(along * along + square * room, 0.0))
    return select(along > 0, room / (along + root), (root - along) / square)


def has_natural_decrease(size: Any, first: Any, length: Any) -> Any:
    """Whether the fall of ||J^-1 F|| from `first` to `size` suffices for that part of Newton's step: Deuflhard, 3.3."""
    return size <= (1 - length / 4) * first


def natural_reduction(quotient: Any, length: Any) -> tuple[Any, Any]:
    """Reduction of ||J^-1 F||^2, which has been multiplied by `quotient`, and its ratio to that of the linear model."""
    reduction = 1 - quotient * quotient
    return reduction, reduction / (length * (2 - length))
