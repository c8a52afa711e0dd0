# pyright: basic
# Numba infers the types of kernels.
"""Parts of the Newton method for several systems at once: residuals, differences, LU, directions, backtracking.

The vectors are rows of V, an array of Lanes, and `numbers` is the same memory as a matrix of numbers. Where all lanes
do the same, what idle ones compute is never used.
"""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba._elimination import eliminate, finish, substitute, update
from implicitsolve.backends.numba._jit import apart, fma, inner
from implicitsolve.backends.numba._lanes import bits, mask_of, select
from implicitsolve.backends.numba._views import smaller
from implicitsolve.globalize._line_search import Backtracking
from implicitsolve.globalize._rules import MAX_AGE, SUFFICIENT_DECREASE
from implicitsolve.linearize._difference_steps import TRUSTED

# As NumPy's integers: for each value of a Python integer Numba would compile a callee of its own.
# REFERENCE: the larger of |x0| and the first step; PAIRS: where those of the updates begin.
X, F, TRIAL, TRIAL_F, STEP, SCRATCH, ARGUMENT, REFERENCE, PAIRS = np.arange(9)
VECTORS = 8 + 2 * MAX_AGE
FLOOR, GUESS = np.arange(2)  # rows of `lengths`
# Rows of the lanes' states S; norms are squares of ||F|| in units of 1 / UNIT
# ANCHOR: max|x| where J was assembled; WAY: that of the steps since.
TARGET, UNIT, START, NORM, MEASURE, FIRST, BEST, SINCE, RATE, STEPS, EVALUATIONS, ERROR, ANCHOR, WAY = np.arange(14)
TRIALS, GROWTH = Backtracking().max_trials, Backtracking().growth_limit


@inner
def evaluate(call, user, numbers, x, out, running):
    """Evaluate F at row x into row `out`, at least for the lanes in `running`; NaN where that raised."""
    apart()
    shape, given = user
    for i in range(numbers.shape[1]):
        numbers[ARGUMENT, i] = numbers[x, i]  # a copy, which the residual may change
    call(numbers[ARGUMENT].data, given.data, numbers[out].data, shape[0], shape[1], given.shape[0], running)


@inner
def measure(V, row, unit):
    """Largest magnitude of a row, and the sum of squares in units of 1 / `unit`, which is NaN where one number is."""
    apart()
    largest = abs(V[row, 0])
    total = largest * 0
    for i in range(V.shape[1]):
        v = abs(V[row, i])
        largest = select(v > largest, v, largest)
        v *= unit
        total = fma(v, v, total)
    return largest, total


@inner
def mean(V, row, c, k):
    """Mean magnitude of unknown c of the blocks."""
    apart()
    total = abs(V[row, c])
    for i in range(c + k, V.shape[1], k):
        total += abs(V[row, i])
    return total * (k / V.shape[1])


# Differences: as `implicitsolve.linearize._difference_steps` takes them


@inner
def follow(V, lengths, least):
    """Set the floors for a new x: a fraction of the size of each unknown, a guess where that is 0."""
    apart()
    k = lengths.shape[1]
    whole = V[X, 0] * 0
    for c in range(k):
        size, floor = mean(V, X, c, k), lengths[FLOOR, c]
        is_known = size > 0
        lengths[FLOOR, c] = select(is_known, least * size, floor)
        lengths[GUESS, c] = select(is_known, size * 0, lengths[GUESS, c])
        whole += size / k
    whole = select(whole > 0, whole, whole * 0 + 1)
    for c in range(k):
        floor = lengths[FLOOR, c]
        lengths[FLOOR, c] = select(floor > 0, floor, whole)


@inner
def assemble(call, user, numbers, V, J, lengths, lower, relative, running):
    """Fill the blocks of J(x) by colored differences; return the evaluations spent."""
    apart()
    T, m = J.shape[:2]
    k = J.shape[2]
    N = V.shape[1]
    for i in range(N):
        a, floor = abs(V[X, i]), lengths[FLOOR, i % k]
        h = relative * select(a > floor, a, floor)
        V[TRIAL, i], V[STEP, i], V[SCRATCH, i] = V[X, i], h, 1 / h
    colors = smaller(m, T)
    for color in range(colors):
        for c in range(k):
            for i in range(color * k + c, N, m * k):
                V[TRIAL, i] = V[X, i] + V[STEP, i]
            evaluate(call, user, numbers, TRIAL, TRIAL_F, running)
            for i in range(color * k + c, N, m * k):
                V[TRIAL, i] = V[X, i]
            j = (color + lower) % m  # the block of row t that has the color
            for t in range(T):
                if 0 <= t + j - lower < T:
                    d = V[SCRATCH, (t + j - lower) * k + c]
                    for r in range(k):
                        J[t, j, r, c] = (V[TRIAL_F, t * k + r] - V[F, t * k + r]) * d
                j = j - 1 if j > 0 else m - 1
    return colors * k


@inner
def learn(V, lengths, relative, running):
    """Learn guessed lengths from the Newton step; return the lanes whose J is good, and those where it is singular."""
    apart()
    k = lengths.shape[1]
    again = failed = running & 0
    for c in range(k):
        guessed = running & bits(lengths[GUESS, c] > 0)
        if guessed != 0:
            size, h = mean(V, STEP, c, k), relative * lengths[FLOOR, c]
            failed |= guessed & ~bits(size < np.inf)
            wrong = guessed & bits((size > 0) & ((h < TRUSTED[0] * size) | (h > TRUSTED[1] * size)))
            lengths[FLOOR, c] = select(mask_of(wrong), size, lengths[FLOOR, c])
            lengths[GUESS, c] = select(mask_of(guessed), size * 0, lengths[GUESS, c])
            again |= wrong
    return running & ~(again | failed), failed


# Steps


@inner
def direction(V, factors, updates):
    """Put -J^-1 F into row STEP, which holds the last step; from that step it adds an update, as `_broyden` does."""
    apart()
    for i in range(V.shape[1]):
        V[SCRATCH, i] = -V[F, i]
    invert(V, factors, updates - 1)
    if updates == 0:
        for i in range(V.shape[1]):
            V[STEP, i] = V[SCRATCH, i]
        return
    s = PAIRS + 2 * (updates - 1)
    product = _dot(V, s)
    below = product * 0
    for i in range(V.shape[1]):
        below = fma(V[s, i], V[STEP, i] - V[SCRATCH, i], below)
    d = select((below > 0) | (below < 0), 1 / below, below * 0)
    for i in range(V.shape[1]):
        w = V[SCRATCH, i] * d
        V[s + 1, i] = w
        V[STEP, i] = fma(w, product, V[SCRATCH, i])


@inner
def invert(V, factors, updates):
    """Multiply row SCRATCH by J^-1, with that number of updates."""
    apart()
    divide(factors, V[SCRATCH])
    for u in range(updates):
        product = _dot(V, PAIRS + 2 * u)
        for i in range(V.shape[1]):
            V[SCRATCH, i] = fma(V[PAIRS + 2 * u + 1, i], product, V[SCRATCH, i])


@inner
def _dot(V, s):
    a = V[s, 0] * V[SCRATCH, 0]
    for i in range(1, V.shape[1]):
        a = fma(V[s, i], V[SCRATCH, i], a)
    return a


@inner
def accept(V, S, mask, largest, norm):
    for i in range(V.shape[1]):
        V[X, i] = select(mask, V[TRIAL, i], V[X, i])
        V[F, i] = select(mask, V[TRIAL_F, i], V[F, i])
    S[NORM], S[MEASURE] = select(mask, norm, S[NORM]), select(mask, largest, S[MEASURE])
    S[STEPS] = select(mask, S[STEPS] + 1, S[STEPS])


@inner
def backtrack(call, user, numbers, V, S, factors, rejected):
    """Shorten the Newton steps of the lanes `rejected`; return the lanes that accepted a step.

    By the tests of `implicitsolve.Backtracking`, and its quadratic model of ||F||^2 / ||F(x)||^2 along a Newton step,
    whose slope is -2.
    """
    apart()
    unit = 1 / measure(V, STEP, V[STEP, 0] * 0 + 1)[0]
    step = measure(V, STEP, unit)[1]
    active, length = rejected & bits(step < np.inf), step * 0 + 1
    for trial in range(TRIALS + 1):
        if active == 0:
            break
        if trial > 0:
            for i in range(V.shape[1]):
                V[TRIAL, i] = fma(length, V[STEP, i], V[X, i])
            evaluate(call, user, numbers, TRIAL, TRIAL_F, active)
            S[EVALUATIONS] = select(mask_of(active), S[EVALUATIONS] + 1, S[EVALUATIONS])
        largest, now = measure(V, TRIAL_F, S[UNIT])
        ratio, enough, natural = now / S[NORM], 1 - SUFFICIENT_DECREASE * length, 1 - length / 4
        for i in range(V.shape[1]):
            V[SCRATCH, i] = V[TRIAL_F, i]
        divide(factors, V[SCRATCH])
        correction = measure(V, SCRATCH, unit)[1]
        is_shorter = (correction <= natural * natural * step) & (ratio < GROWTH**2)
        good = active & bits((ratio <= enough * enough) | is_shorter)
        accept(V, S, mask_of(good), largest, now)
        active &= ~good
        shorter = length * length / (ratio - 1 + 2 * length)
        shorter = select(shorter < 0.5 * length, shorter, 0.5 * length)
        length = select((shorter > 0.1 * length) & (ratio < np.inf), shorter, 0.1 * length)
    return rejected & ~active & bits(step < np.inf)


# Block LU of the matrices in all lanes, with row interchanges inside the diagonal blocks, in place. ``pivots[t, r]`` is
# the row of block t that was exchanged with row r, for each lane. A singular matrix ends in Inf or NaN.


@inner
def factor(A, pivots, reach, lower):
    """Overwrite A (T, m, k, k) with its factors; block row t has blocks up to block column ``reach[t]``."""
    apart()
    T, k = A.shape[0], A.shape[2]
    for t in range(T):
        below, right = smaller(lower, T - 1 - t), reach[t] - t
        for r in range(k):
            _interchange(A, pivots, t, r, lower, right, k)
            d = 1 / A[t, lower, r, r]
            A[t, lower, r, r] = d
            eliminate(A, t, r, d, lower, below, k)
        for j in range(lower + 1, lower + right + 1):
            finish(A, t, j, lower, k)
            for s in range(1, below + 1):
                update(A, t, j, s, lower, k)


@inner
def _interchange(A, pivots, t, r, lower, right, k):
    """Bring the largest number of a column to row r of block t."""
    apart()
    best = abs(A[t, lower, r, r])
    pivot = best * 0 + r
    for i in range(r + 1, k):
        v = abs(A[t, lower, i, r])
        larger = v > best
        best = select(larger, v, best)
        pivot = select(larger, v * 0 + i, pivot)
    pivots[t, r] = pivot
    for i in range(r + 1, k):
        mask = pivot == i
        if bits(mask) != 0:
            for j in range(lower, lower + right + 1):
                for c in range(k):
                    a, b = A[t, j, r, c], A[t, j, i, c]
                    A[t, j, r, c], A[t, j, i, c] = select(mask, b, a), select(mask, a, b)


@inner
def divide(factors, x):
    apart()
    A, pivots, reach, lower = factors
    substitute(A, pivots, reach, lower, (), x)
