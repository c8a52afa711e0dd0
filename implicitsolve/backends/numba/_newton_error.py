# pyright: basic
# Numba infers the types of kernels.
"""The error of x in the Newton method for several systems at once; see `implicitsolve.nonlinear._accuracy`."""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba import _newton_steps as steps
from implicitsolve.backends.numba._jit import apart, inner
from implicitsolve.backends.numba._lanes import bits, select
from implicitsolve.backends.numba._newton_steps import divide, evaluate, invert
from implicitsolve.nonlinear._accuracy import CONFIRMED, CURVED, FALLEN, LONG, MODEL, NEAR

X, F, TRIAL, TRIAL_F = steps.X, steps.F, steps.TRIAL, steps.TRIAL_F
STEP, SCRATCH, ARGUMENT, REFERENCE = steps.STEP, steps.SCRATCH, steps.ARGUMENT, steps.REFERENCE


@inner
def error_of(V, factors, rate, running):
    """Estimated error at the trial point, relative to it, after a step that left `rate` of ||F||.

    As `implicitsolve.nonlinear._accuracy` has it: by the contraction of F, and near a root by the correction that the
    factors predict; relative to each component, or what `plain_scales` has near zero.
    """
    apart()
    k, step = factors[0].shape[2], rate * 0
    scales_of(V, TRIAL, k)
    for i in range(V.shape[1]):
        v = abs(V[STEP, i]) / V[ARGUMENT, i % k]
        step = select(v > step, v, step)
    correction = rate * step
    is_near = (correction <= NEAR) & (rate <= FALLEN)
    if running & bits(is_near) != 0:
        for i in range(V.shape[1]):
            V[SCRATCH, i] = V[TRIAL_F, i]
        divide(factors, V[SCRATCH])
        length = MODEL * correction
        for i in range(V.shape[1]):
            v = abs(V[SCRATCH, i]) / V[ARGUMENT, i % k]
            length = select(v > length, v, length)
        correction = select(is_near, length, correction)
    curved = select(step > LONG, (step / LONG) ** CURVED, rate * 0 + 1)
    return select(correction < step, curved * correction / (1 - correction / step), rate * 0 + np.inf)


@inner
def agreeing(call, user, numbers, V, factors, updates, part, running):
    """Lanes of `running` in which the inverse holds at x; as `implicitsolve.nonlinear._accuracy.agrees`."""
    apart()
    k = factors[0].shape[2]
    for i in range(V.shape[1]):
        V[TRIAL, i] = V[X, i] * (1 + part)
    evaluate(call, user, numbers, TRIAL, TRIAL_F, running)
    for i in range(V.shape[1]):
        V[SCRATCH, i] = V[TRIAL_F, i] - V[F, i]
    invert(V, factors, updates)
    scales_of(V, X, k)
    for i in range(V.shape[1]):
        missed = abs(V[SCRATCH, i] - (V[TRIAL, i] - V[X, i]))
        running &= bits(missed <= CONFIRMED * part * V[ARGUMENT, i % k])
    return running


@inner
def scales_of(V, row, k):
    """Put into row ARGUMENT what errors of the k components are relative to, which share their units."""
    apart()
    largest, most = largest_of(V, row)
    unit = largest / most
    for c in range(k):
        x = r = largest * 0
        for i in range(c, V.shape[1], k):
            a, b = abs(V[row, i]), V[REFERENCE, i]
            x, r = select(a > x, a, x), select(b > r, b, r)
        V[ARGUMENT, c] = select(x > r * unit, x, r * unit)


@inner
def largest_of(V, row):
    """Largest magnitudes in a row, and among x0 and the first step."""
    apart()
    most = largest = V[row, 0] * 0
    for i in range(V.shape[1]):
        x, r = abs(V[row, i]), V[REFERENCE, i]
        largest, most = select(x > largest, x, largest), select(r > most, r, most)
    return largest, most
