# pyright: basic
# Numba infers the types of kernels.
"""Parts of the Newton method for several systems at once, as `_newton_pieces` are for one.

The vectors are rows of V, an array of Lanes, and `numbers` is the same memory as a matrix of numbers. Where all
lanes do the same, what idle ones compute is never used.
"""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba._jit import inner, row_pointer
from implicitsolve.backends.numba._lanes import LANES, bits, mask_of, select
from implicitsolve.backends.numba._lanes_arithmetic import multiply_add
from implicitsolve.backends.numba._lanes_elimination import substitute
from implicitsolve.backends.numba._newton_pieces import HIGH, LOW

X, F, TRIAL, TRIAL_F, STEP, SCRATCH, PAIRS = np.arange(7)  # PAIRS: where those of the updates begin

SCALE, GUESS, INVERSE = np.arange(3)  # rows of `lengths`
TARGET, UNIT, NORM, MEASURE, FIRST, RATE, STEPS, EVALUATIONS = np.arange(8)  # rows of the lanes' states S


@inner
def evaluate(call, user, numbers, x, out, running):
    """Evaluate F at row x into row `out`, at least for the lanes in `running`; NaN where that raised."""
    is_wide, shape, given, p, who, pair = user
    if is_wide:
        if call(row_pointer(numbers, x), given.ctypes, row_pointer(numbers, out), shape[0], shape[1], p.shape[1]) == 0:
            numbers[out, :LANES] = np.nan
        return
    for lane in range(LANES):
        if running >> lane & 1:
            for i in range(pair.shape[1]):
                pair[0, i] = numbers[x, i * LANES + lane]
            row = row_pointer(p, who[lane])
            ok = call(row_pointer(pair, 0), row, row_pointer(pair, 1), shape[0], shape[1], p.shape[1])
            for i in range(pair.shape[1]):
                numbers[out, i * LANES + lane] = pair[1, i] if ok != 0 else np.nan


@inner
def measure(V, row, unit):
    """Largest magnitude of a row, and the sum of squares in units of 1 / `unit`, which is NaN where one number is."""
    largest = abs(V[row, 0])
    total = largest * 0
    for i in range(V.shape[1]):
        v = abs(V[row, i])
        largest = select(v > largest, v, largest)
        v *= unit
        total = multiply_add(v, v, total)
    return largest, total


@inner
def mean(V, row, c, k):
    """Mean magnitude of unknown c of the blocks."""
    total = abs(V[row, c])
    for i in range(c + k, V.shape[1], k):
        total += abs(V[row, i])
    return total * (k / V.shape[1])


@inner
def follow(V, lengths):
    """See a new x: differences are as long as a fraction of the size of each unknown, a guess where that is 0."""
    k = lengths.shape[1]
    whole = V[X, 0] * 0
    for c in range(k):
        size, scale = mean(V, X, c, k), lengths[SCALE, c]
        is_known = size > 0
        lengths[SCALE, c] = select(is_known & (size > 0.1 * scale), size, select(is_known, 0.1 * scale, scale))
        lengths[GUESS, c] = select(is_known, size * 0, lengths[GUESS, c])
        whole += size / k
    whole = select(whole > 0, whole, whole * 0 + 1)
    for c in range(k):
        scale = lengths[SCALE, c]
        lengths[SCALE, c] = select(scale > 0, scale, whole)


@inner
def assemble(call, user, numbers, V, J, lengths, lower, size, relative, running):
    """Fill the blocks of J(x) by colored differences of `relative` length; return the evaluations spent."""
    T, m = J.shape[:2]
    k = len(size) if len(size) > 0 else J.shape[2]
    N = V.shape[1]
    for i in range(N):
        V[TRIAL, i] = V[X, i]
    for c in range(k):
        lengths[INVERSE, c] = 1 / (relative * lengths[SCALE, c])
    colors = min(m, T)
    for color in range(colors):
        for c in range(k):
            h, d = relative * lengths[SCALE, c], lengths[INVERSE, c]
            for i in range(color * k + c, N, m * k):
                V[TRIAL, i] = V[X, i] + h
            evaluate(call, user, numbers, TRIAL, TRIAL_F, running)
            for i in range(color * k + c, N, m * k):
                V[TRIAL, i] = V[X, i]
            j = (color + lower) % m  # the block of row t that has the color
            for t in range(T):
                if 0 <= t + j - lower < T:
                    for r in range(k):
                        J[t, j, r, c] = (V[TRIAL_F, t * k + r] - V[F, t * k + r]) * d
                j = j - 1 if j > 0 else m - 1
    return colors * k


@inner
def learn(V, lengths, relative, running):
    """Compare guessed lengths with the Newton step; return the lanes whose J is good, and those where it is singular.

    The others have learned their lengths, and need another J.
    """
    k = lengths.shape[1]
    again = failed = running & 0
    for c in range(k):
        guessed = running & bits(lengths[GUESS, c] > 0)
        if guessed != 0:
            size, h = mean(V, STEP, c, k), relative * lengths[SCALE, c]
            failed |= guessed & ~bits(size < np.inf)
            wrong = guessed & bits((size > 0) & ((h < LOW * size) | (h > HIGH * size)))
            lengths[SCALE, c] = select(mask_of(wrong), size, lengths[SCALE, c])
            lengths[GUESS, c] = select(mask_of(guessed), size * 0, lengths[GUESS, c])
            again |= wrong
    return running & ~(again | failed), failed


@inner
def direction(V, J, pivots, lower, size, updates):
    """Put -J^-1 F into row STEP, which holds the last step, after which it adds an update: see `_newton_pieces`."""
    for i in range(V.shape[1]):
        V[SCRATCH, i] = -V[F, i]
    substitute(J, pivots, lower, size, V[SCRATCH])
    for u in range(updates - 1):
        product = _dot(V, PAIRS + 2 * u)
        for i in range(V.shape[1]):
            V[SCRATCH, i] = multiply_add(V[PAIRS + 2 * u + 1, i], product, V[SCRATCH, i])
    if updates == 0:
        for i in range(V.shape[1]):
            V[STEP, i] = V[SCRATCH, i]
        return
    s = PAIRS + 2 * (updates - 1)
    product = _dot(V, s)
    below = product * 0
    for i in range(V.shape[1]):
        below = multiply_add(V[s, i], V[STEP, i] - V[SCRATCH, i], below)
    d = select((below > 0) | (below < 0), 1 / below, below * 0)
    for i in range(V.shape[1]):
        w = V[SCRATCH, i] * d
        V[s + 1, i] = w
        V[STEP, i] = multiply_add(w, product, V[SCRATCH, i])


@inner
def _dot(V, s):
    """Product of row s with row SCRATCH."""
    a = V[s, 0] * V[SCRATCH, 0]
    for i in range(1, V.shape[1]):
        a = multiply_add(V[s, i], V[SCRATCH, i], a)
    return a


@inner
def accept(V, S, mask, largest, norm):
    """Take over the trial points of the lanes in `mask`."""
    for i in range(V.shape[1]):
        V[X, i] = select(mask, V[TRIAL, i], V[X, i])
        V[F, i] = select(mask, V[TRIAL_F, i], V[F, i])
    S[NORM], S[MEASURE] = select(mask, norm, S[NORM]), select(mask, largest, S[MEASURE])
    S[STEPS] = select(mask, S[STEPS] + 1, S[STEPS])


@inner
def count(S, running):
    """Count one evaluation of the lanes in `running`."""
    S[EVALUATIONS] = select(mask_of(running), S[EVALUATIONS] + 1, S[EVALUATIONS])
