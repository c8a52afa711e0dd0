# pyright: basic
# Numba infers the types of kernels.
"""Shorter steps for several systems at once: `backtrack` of `_newton_pieces`, for the lanes that need it."""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba import _newton_lanes_pieces as pieces
from implicitsolve.backends.numba._jit import inner
from implicitsolve.backends.numba._lanes import bits, mask_of, select
from implicitsolve.backends.numba._lanes_arithmetic import multiply_add
from implicitsolve.backends.numba._lanes_elimination import substitute
from implicitsolve.backends.numba._newton_pieces import DECREASE, GROWTH

X, F, TRIAL, TRIAL_F, STEP, SCRATCH = pieces.X, pieces.F, pieces.TRIAL, pieces.TRIAL_F, pieces.STEP, pieces.SCRATCH
UNIT, NORM = pieces.UNIT, pieces.NORM
TRIALS = 8  # of a step in lanes: one that needs more is rare, or F(x) is rounding error


@inner
def backtrack(call, user, numbers, V, S, J, pivots, lower, size, short):
    """Shorten the Newton steps of the lanes `short`, whose whole steps are in TRIAL; return those that took one."""
    unit = 1 / pieces.measure(V, STEP, V[STEP, 0] * 0 + 1)[0]
    step = pieces.measure(V, STEP, unit)[1]
    ratio = pieces.measure(V, TRIAL_F, S[UNIT])[1] / S[NORM]
    older = older_ratio = ratio * 0
    length = older + 1
    active = short
    for _ in range(TRIALS):
        finite = ratio < np.inf
        minimum = _minimum(length, ratio, older, older_ratio)
        shorter = select(minimum < 0.5 * length, minimum, 0.5 * length)
        shorter = select((shorter > 0.1 * length) & finite, shorter, 0.1 * length)
        older, older_ratio = select(finite, length, older), select(finite, ratio, older_ratio)
        length = shorter
        for i in range(V.shape[1]):
            V[TRIAL, i] = multiply_add(length, V[STEP, i], V[X, i])
        pieces.evaluate(call, user, numbers, TRIAL, TRIAL_F, active)
        largest, now = pieces.measure(V, TRIAL_F, S[UNIT])
        ratio = now / S[NORM]
        enough = 1 - DECREASE * length
        good = active & bits(ratio <= enough * enough)
        if active & ~good & bits(ratio < GROWTH**2) != 0:
            for i in range(V.shape[1]):
                V[SCRATCH, i] = V[TRIAL_F, i]
            substitute(J, pivots, lower, size, V[SCRATCH])
            enough = 1 - length / 4
            natural = pieces.measure(V, SCRATCH, unit)[1] <= enough * enough * step
            good |= active & bits(natural & (ratio < GROWTH**2))
        pieces.count(S, active)
        pieces.accept(V, S, mask_of(good), largest, now)
        active &= ~good
        if active == 0:
            break
    return short & ~active


@inner
def _minimum(length, ratio, older, older_ratio):
    """Minimum of the model of ||F||^2 / ||F(x)||^2 along a Newton step, whose slope is -2; see `_newton_pieces`."""
    below = ratio - 1 + 2 * length
    parabola = select(below > 0, length * length / below, length)
    a = below / (length * length)
    b = (older_ratio - 1 + 2 * older) / (older * older)
    cubic = (a - b) / (length - older)
    quadratic = (length * b - older * a) / (length - older)
    root = quadratic * quadratic + 6 * cubic
    curve = select(root >= 0, (np.sqrt(root) - quadratic) / (3 * cubic), 0.5 * length)
    flat = select(quadratic > 0, 1 / quadratic, length)
    return select(older > 0, select((cubic < 0) | (cubic > 0), curve, flat), parabola)
