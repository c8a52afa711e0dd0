# pyright: basic
# Numba infers the types of kernels.
"""Parts of the compiled Newton method, each for one system.

All vectors of a system are rows of one array V, so that a call passes one array and not a dozen: the names in capitals
are their numbers. `lengths` holds, for each unknown of a block, the length on which it lives, whether that is a guess,
and whether F felt a difference of that length.
"""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba import _substitution
from implicitsolve.backends.numba._jit import fma, inner, magnitude, row_pointer

# As NumPy's integers: for each value of a Python integer Numba would compile a callee of its own.
X, F, TRIAL, TRIAL_F, STEP, SCRATCH, PAIRS = np.arange(7)  # PAIRS: where the updates' pairs of vectors begin
OLDEST = 20  # updates of a factorized Jacobian at most
VECTORS = 6 + 2 * OLDEST
SCALE, GUESS, FELT = np.arange(3)  # rows of `lengths`

TINY, HUGE = 1e-20, 1e20  # squares of numbers between are safe in float32, and so in float64
FARTHER = 1e4  # how much longer a difference gets that F did not feel, or shorter where F was not finite
ADJUSTMENTS = 8  # at most, of one difference
LOW, HIGH = 1e-9, 1e-2  # a guessed difference over the Newton step: within these bounds it was good enough
DECREASE = 1e-4  # of a step that is accepted: Dennis and Schnabel (1996), section 6.3
TRIALS = 20  # shortenings of one step
GROWTH = 1e3  # of ||F|| that the natural monotonicity test may accept


@inner
def evaluate(call, V, x, F, p, shape):
    """Evaluate F at row x into row F; NaN where that raised."""
    if call(row_pointer(V, x), p.ctypes, row_pointer(V, F), shape[0], shape[1], p.size) == 0:
        V[F, 0] = np.nan


@inner
def measure(V, row):
    """Largest magnitude and Euclidean norm of a row: infinity where it is not finite."""
    N = V.shape[1]
    a, b = abs(V[row, 0]), abs(V[row, N - 1])
    zero = a * 0
    total = other = zero
    for i in range(0, N - 1, 2):  # two chains of dependent operations take half the time of one
        a, b = max(a, abs(V[row, i])), max(b, abs(V[row, i + 1]))
        total, other = _add_square(total, V[row, i]), _add_square(other, V[row, i + 1])
    if N % 2 == 1:
        total = _add_square(total, V[row, N - 1])
    largest, total = max(a, b), total + other
    if TINY < total < HUGE:
        return largest, np.sqrt(total)
    if total != total or largest == np.inf:
        return zero + np.inf, zero + np.inf
    scale, jump = zero + 1, zero + 2**30  # squares over- or underflowed: a power of two makes them harmless
    while 0 < largest * scale * jump < 1 and scale * jump < np.inf:
        scale *= jump
    while largest * scale > jump:
        scale /= jump
    total = zero
    for i in range(N):
        total = _add_square(total, V[row, i] * scale)
    return largest, np.sqrt(total) / scale


@inner
def _add_square(total, v):
    return fma(v.real, v.real, fma(v.imag, v.imag, total))


@inner
def rms(V, row, c, k):
    """Root mean square of unknown c of the blocks."""
    N = V.shape[1]
    largest = abs(V[row, c])
    total = largest * 0
    for i in range(c, N, k):
        total = _add_square(total, V[row, i])
    if not TINY < total < HUGE:
        for i in range(c, N, k):
            largest = max(largest, abs(V[row, i]))
        if not 0 < largest < np.inf:
            return largest
        total = largest * 0
        for i in range(c, N, k):
            total = _add_square(total, V[row, i] / largest)
        return largest * np.sqrt(total * k / N)
    return np.sqrt(total * k / N)


@inner
def follow(V, lengths, k):
    """See a new x: differences are as long as a fraction of the size of each unknown, a guess where that is 0."""
    unknown = False
    whole = 0.0
    for c in range(k):
        size = rms(V, X, c, k)
        if size > 0:
            lengths[SCALE, c] = max(size, 0.1 * lengths[SCALE, c])
            lengths[GUESS, c] = 0
            whole += size * size
        elif lengths[SCALE, c] == 0:
            unknown = True
    if unknown:
        for c in range(k):
            if lengths[SCALE, c] == 0:
                lengths[SCALE, c] = np.sqrt(whole / k) if whole > 0 else 1.0


@inner
def assemble(call, V, p, shape, J, lengths, norm, lower, k, relative, is_careful):
    """Fill the blocks of J(x) by colored differences of `relative` length; return the evaluations spent.

    Lengths that F has felt before are used as they are, unless `is_careful`.
    """
    T, m = J.shape[:2]
    evaluations = 0
    for i in range(V.shape[1]):
        V[TRIAL, i] = V[X, i]
    for color in range(min(m, T)):
        for c in range(k):
            if is_careful or lengths[FELT, c] == 0:
                evaluations += _adjust(call, V, p, shape, lengths, color, m, c, norm, k, relative)
            else:
                _displace(call, V, p, shape, relative * lengths[SCALE, c], color, m, c, k)
                evaluations += 1
            d = V.real.dtype.type(1 / (relative * lengths[SCALE, c]))
            j = (color + lower) % m  # the block of row t that has the color
            for t in range(T):
                if 0 <= t + j - lower < T:
                    for r in range(k):
                        J[t, j, r, c] = (V[TRIAL_F, t * k + r] - V[F, t * k + r]) * d
                j = j - 1 if j > 0 else m - 1
    return evaluations


@inner
def _displace(call, V, p, shape, length, color, m, c, k):
    """Evaluate F with unknown c of the blocks of a color displaced; row TRIAL is x before and after."""
    N = V.shape[1]
    h = V.real.dtype.type(length)
    for i in range(color * k + c, N, m * k):
        V[TRIAL, i] = V[X, i] + h
    evaluate(call, V, TRIAL, TRIAL_F, p, shape)
    for i in range(color * k + c, N, m * k):
        V[TRIAL, i] = V[X, i]


@inner
def _adjust(call, V, p, shape, lengths, color, m, c, norm, k, relative):
    """The same, with a length that F feels and at which it is finite; return the evaluations spent."""
    for attempt in range(ADJUSTMENTS + 1):
        _displace(call, V, p, shape, relative * lengths[SCALE, c], color, m, c, k)
        if attempt == ADJUSTMENTS:
            break
        change = 0.0
        for i in range(V.shape[1]):
            change += abs(V[TRIAL_F, i] - V[F, i])
        if not change < np.inf:
            lengths[SCALE, c] /= FARTHER
            continue
        if change > relative**3 * norm:
            lengths[FELT, c] = 1
        if lengths[FELT, c] != 0:
            break
        lengths[SCALE, c] *= FARTHER
    return attempt + 1


@inner
def has_guess(lengths, k):
    """Whether the length of a difference is a guess."""
    count = 0
    for c in range(k):
        count += lengths[GUESS, c] != 0
    return count > 0


@inner
def learn(V, lengths, is_singular, k, relative):
    """Compare guessed lengths with the Newton step in row SCRATCH; return whether J must be assembled again."""
    again = False
    for c in range(k):
        if lengths[GUESS, c] != 0:
            size = np.inf if is_singular else rms(V, SCRATCH, c, k)
            h = relative * lengths[SCALE, c]
            lengths[GUESS, c] = 0
            if size > 0 and not LOW * size <= h <= HIGH * size:
                lengths[SCALE, c] = size if size < np.inf else lengths[SCALE, c] / FARTHER
                again = True
    return again


@inner
def direction(V, LU, pivots, reach, lower, size, updates, length):
    """Put -J^-1 F into row STEP, which holds the last direction; return the number of updates.

    The updates are those of `implicitsolve.newton._broyden`. A `length` (of the last step) of 0 adds none.
    """
    for i in range(V.shape[1]):
        V[SCRATCH, i] = -V[F, i]
    _substitution.solve_one(LU, pivots, reach, lower, size, V[SCRATCH])
    for u in range(updates):
        _correct(V, PAIRS + 2 * u)
    if length > 0:
        s = PAIRS + 2 * updates
        below = product = V[s, 0] * 0
        for i in range(V.shape[1]):
            below = fma(np.conj(V[s, i]), V[STEP, i] - V[SCRATCH, i], below)
            product = fma(np.conj(V[s, i]), V[SCRATCH, i], product)
        if 0 < magnitude(below) < np.inf:
            d = 1 / below
            for i in range(V.shape[1]):
                w = (V[SCRATCH, i] - (1 - length) * V[STEP, i]) * d
                V[s + 1, i] = w
                V[STEP, i] = fma(w, product, V[SCRATCH, i])
            return updates + 1
    for i in range(V.shape[1]):
        V[STEP, i] = V[SCRATCH, i]
    return updates


@inner
def _correct(V, s):
    """``y += w (s^H y)`` for y in row SCRATCH, s and w in rows s and s + 1."""
    product = V[s, 0] * 0
    for i in range(V.shape[1]):
        product = fma(np.conj(V[s, i]), V[SCRATCH, i], product)
    for i in range(V.shape[1]):
        V[SCRATCH, i] = fma(V[s + 1, i], product, V[SCRATCH, i])


@inner
def move(call, V, p, shape, length):
    """Evaluate at x plus `length` times the step; return max|F| and ||F||."""
    factor = V.real.dtype.type(length)
    for i in range(V.shape[1]):
        V[TRIAL, i] = V[X, i] + factor * V[STEP, i]
    evaluate(call, V, TRIAL, TRIAL_F, p, shape)
    return measure(V, TRIAL_F)


@inner
def is_rounding(call, V, p, shape, precision, norm):
    """Whether F(x) is no larger than its change between neighbouring floating-point numbers."""
    for i in range(V.shape[1]):
        V[TRIAL, i] = V[X, i] + (V[X, i] * precision if i % 2 == 0 else -V[X, i] * precision)
    evaluate(call, V, TRIAL, TRIAL_F, p, shape)
    for i in range(V.shape[1]):
        V[TRIAL_F, i] -= V[F, i]
    return measure(V, TRIAL_F)[1] >= 0.5 * norm


@inner
def backtrack(call, V, p, shape, LU, pivots, reach, lower, size, norm, first):
    """Shorten a Newton step whose whole length gave the norm `first`.

    Returns (length, max|F|, ||F||, evaluations, whether a trial was finite); length 0 where none was accepted. As in
    `implicitsolve.Backtracking`: quadratic, then cubic models; a decrease of ||F||, or of J^-1 F.
    """
    step = measure(V, STEP)[1]
    length, ratio = 1.0, (first / norm) ** 2
    older_length, older_ratio = 0.0, 0.0
    finite = first < np.inf
    for trial in range(TRIALS):
        if ratio < np.inf:
            shorter = min(max(_minimum(length, ratio, older_length, older_ratio), 0.1 * length), 0.5 * length)
            older_length, older_ratio, length = length, ratio, shorter
        else:
            length *= 0.1
        largest, now = move(call, V, p, shape, length)
        ratio = (now / norm) ** 2
        finite |= now < np.inf
        accepted = now <= (1 - DECREASE * length) * norm
        if not accepted and now < GROWTH * norm:
            for i in range(V.shape[1]):
                V[SCRATCH, i] = V[TRIAL_F, i]
            _substitution.solve_one(LU, pivots, reach, lower, size, V[SCRATCH])
            accepted = measure(V, SCRATCH)[1] <= (1 - length / 4) * step
        if accepted:
            return length, largest, now, trial + 1, finite
    return 0.0, largest, norm, TRIALS, finite


@inner
def _minimum(length, ratio, older_length, older_ratio):
    """Minimum of the model of ||F||^2 / ||F(x)||^2 along a Newton step, whose slope is -2."""
    if older_length == 0:
        below = ratio - 1 + 2 * length
        return length * length / below if below > 0 else length
    a = (ratio - 1 + 2 * length) / length**2
    b = (older_ratio - 1 + 2 * older_length) / older_length**2
    cubic = (a - b) / (length - older_length)
    quadratic = (length * b - older_length * a) / (length - older_length)
    if cubic == 0:
        return 1 / quadratic if quadratic > 0 else length
    below = quadratic * quadratic + 6 * cubic
    return (np.sqrt(below) - quadratic) / (3 * cubic) if below >= 0 else 0.5 * length
