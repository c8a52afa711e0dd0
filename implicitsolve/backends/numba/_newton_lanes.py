# pyright: basic
# Numba infers the types of kernels.
"""Newton's method for several systems at once, one in each lane, compiled.

All lanes factorize together. Then each takes steps, with Broyden's updates of that Jacobian, until it has converged or
converges slowly, and waits for the others. The next Jacobian is for all that are left, and for new systems in place of
those that have ended. The steps of a lane depend on its own numbers only. A system whose Jacobian is singular without
interchanges between blocks, for which no shorter step is good, or which stagnates, is left as it was: `BlockNewton` on
arrays has more to try.
"""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba import _newton_steps as steps
from implicitsolve.backends.numba._jit import ZERO, apart, inner, kernel
from implicitsolve.backends.numba._lanes import LANES, aligned_zeros, bits, lanes, mask_of, select
from implicitsolve.backends.numba._newton_steps import factor
from implicitsolve.backends.numba._views import smaller, view
from implicitsolve.globalize import _rules
from implicitsolve.globalize._rules import BLOWN_UP, MAX_AGE, NEW_BEST, PATIENCE
from implicitsolve.nonlinear._accuracy import CONFIRMED, CURVED, LONG, MODEL, MOST_LEFT, NEAR_ROOT
from implicitsolve.status import Status

RUNNING, CONVERGED, NONFINITE, ITERATION_LIMIT, DIVERGED = np.asarray(
    [Status.RUNNING, Status.CONVERGED, Status.NONFINITE, Status.ITERATION_LIMIT, Status.DIVERGED]
)  # as NumPy's integers, as in `_newton_steps`
X, F, TRIAL, TRIAL_F, STEP, PAIRS = steps.X, steps.F, steps.TRIAL, steps.TRIAL_F, steps.STEP, steps.PAIRS
REFERENCE, FLOOR, GUESS, STEPS, EVALUATIONS = (
    steps.REFERENCE, steps.FLOOR, steps.GUESS, steps.STEPS, steps.EVALUATIONS,
)  # fmt: skip
TARGET, UNIT, START, NORM, MEASURE, FIRST = (
    steps.TARGET, steps.UNIT, steps.START, steps.NORM, steps.MEASURE, steps.FIRST,
)  # fmt: skip
BEST, SINCE, RATE, ERROR, ANCHOR, WAY = steps.BEST, steps.SINCE, steps.RATE, steps.ERROR, steps.ANCHOR, steps.WAY
SCRATCH, ARGUMENT = steps.SCRATCH, steps.ARGUMENT
FAR_OUT = 2.0  # times x0 and the first step, where F may vanish at infinity alone
ALL = np.int64(2**LANES - 1)
is_fast, largest_ratio = inner(_rules.is_fast), inner(_rules.largest_ratio)


def workspace(T, k, lower, upper, parameters, dtype):
    """Arrays for one call of `solve`. The caller owns them."""
    V = aligned_zeros((steps.VECTORS, T * k), dtype)
    V[steps.F] = np.nan  # not zero where a residual writes nothing
    sizes = (T, lower + upper + 1, k, k), (T, k), (2, k), (int(steps.WAY) + 1,), (parameters,)
    reach = np.minimum(np.arange(T) + upper, T - 1)  # last block column of each block row
    others = tuple(aligned_zeros(size, dtype) for size in sizes)
    return (V, V.reshape((len(V), -1)), *others, np.zeros(LANES, np.int64), reach)


def nbytes(T, k, m, itemsize):
    """Bytes of `workspace`, nearly."""
    return LANES * itemsize * (steps.VECTORS * T * k + T * m * k * k)


@kernel
def evaluate_each(call, x, p, F_out, shape):
    """Evaluate F for each of the systems x (b, N), at copies; it stays NaN where the residual writes nothing."""
    x, p, F_out = view(x), view(p), view(F_out)
    for b in range(x.shape[0]):
        call(x[b].data, p[b].data, F_out[b].data, shape[0], shape[1], p.shape[1], 1)


@kernel
def evaluate(call, x, p, F_out, norms, shape, work):
    """Evaluate F by the lanes' `call`; `norms` are max|F|, NaN where an entry of F is."""
    x, p, F_out, norms = view(x), view(p), view(F_out), view(norms)
    numbers, given = view(work[1]), view(work[6])
    for first in range(0, x.shape[0], LANES):
        count = smaller(LANES, x.shape[0] - first)
        for lane in range(count):
            for i in range(x.shape[1]):
                numbers[X, i * LANES + lane] = x[first + lane, i]
            for q in range(p.shape[1]):
                given[q, lane] = p[first + lane, q]
        for i in range(numbers.shape[1]):
            numbers[F, i] = np.nan
        running = (1 << count) - 1
        call(numbers[X].data, given.data, numbers[F].data, shape[0], shape[1], p.shape[1], running)
        for lane in range(count):
            b = first + lane
            largest = abs(numbers[F, lane])
            for i in range(x.shape[1]):
                v = numbers[F, i * LANES + lane]
                F_out[b, i] = v
                if not abs(v) <= largest and largest == largest:
                    largest = abs(v)
            norms[b] = largest


@kernel
def solve(call, x, p, F_out, shape, lower, tolerances, limit, work, status, norms, counts):
    """Solve the systems x (B, N), in place; one for which this method is not enough keeps its x and its status.

    `call` evaluates all lanes. `shape` is that of one system.
    `tolerances` are atol, rtol, xtol (0 where F decides; else atol is negative), errors of rounding, the relative
    length of differences, that of the floor below it, and the slowest rate with a stale J. `work` is from `workspace`.
    `norms` (B, 3) takes max|F| at x and at x0, and the estimated error, `counts` (B, 2) the steps and the evaluations.
    """
    x, p, F_out = view(x), view(p), view(F_out)
    status, norms, counts = view(status), view(norms), view(counts)
    numbers, lengths, state, given = view(work[1]), view(work[4]), view(work[5]), view(work[6])
    who = view(work[7])
    V, J, pivots = lanes(view(work[0])), lanes(view(work[2])), lanes(view(work[3]))
    scales, S = lanes(lengths), lanes(state)
    factors = J, pivots, view(work[8]), lower
    atol, rtol, xtol, relative, least, slowest = tolerances
    user = shape, given
    outputs = x, F_out, status, norms, counts
    waiting, idle = ZERO, ALL
    while True:
        while idle != 0 and waiting < x.shape[0]:
            new = ZERO
            for lane in range(LANES):
                if idle >> lane & 1 and waiting < x.shape[0]:
                    _load(numbers, given, lengths, state, x, p, who, lane, waiting)
                    waiting += 1
                    new |= 1 << lane
            done, failed = _begin(call, user, numbers, V, S, new, atol, rtol)
            _finish(outputs, numbers, state, who, done, CONVERGED)
            _finish(outputs, numbers, state, who, failed, NONFINITE)
            idle = idle & ~new | done | failed
        if idle == ALL:
            return
        running = ALL & ~idle
        steps.follow(V, scales, least)
        S[EVALUATIONS] += steps.assemble(call, user, numbers, V, J, scales, lower, relative, running)
        factor(*factors)
        S[ANCHOR], S[WAY] = steps.measure(V, X, S[UNIT])[0], S[STEPS] * 0
        updates = ZERO
        while running != 0 and updates < MAX_AGE:
            steps.direction(V, factors, updates)
            if updates == 0:
                running, singular = steps.learn(V, scales, relative, running)
                _finish(outputs, numbers, state, who, singular, RUNNING)
                idle |= singular
            good, fast = _step(call, user, numbers, V, S, factors, updates, running, slowest)
            rejected = running & ~good
            if updates == 0 and rejected != 0:
                taken = steps.backtrack(call, user, numbers, V, S, factors, rejected)
                _finish(outputs, numbers, state, who, rejected & ~taken, RUNNING)
                idle |= rejected & ~taken
                S[ERROR] = select(mask_of(taken), S[ERROR] * 0 + np.inf, S[ERROR])
                good |= taken
                fast &= ~taken
            doubted = good & bits((S[ERROR] <= xtol) & (S[WAY] > S[ANCHOR]))  # by a J from far away
            if doubted != 0:
                S[EVALUATIONS] = select(mask_of(doubted), S[EVALUATIONS] + 1, S[EVALUATIONS])
                doubted &= ~agreeing(call, user, numbers, V, factors, updates, relative, doubted)
                S[ERROR] = select(mask_of(doubted), S[ERROR] * 0 + np.inf, S[ERROR])
                fast &= ~doubted
                vanished = doubted & bits(S[MEASURE] == 0)  # perhaps where no root is
                _finish(outputs, numbers, state, who, vanished, RUNNING)
                idle |= vanished
                good &= ~vanished
            idle |= _finish_steps(outputs, numbers, state, who, V, S, good, running & ~idle, limit, xtol)
            running = good & fast & ~idle
            updates += 1


@inner
def _load(numbers, given, lengths, state, x, p, who, lane, b):
    apart()
    who[lane] = b
    for i in range(x.shape[1]):
        numbers[X, i * LANES + lane], numbers[REFERENCE, i * LANES + lane] = x[b, i], abs(x[b, i])
    for q in range(p.shape[1]):
        given[q, lane] = p[b, q]
    for c in range(lengths.shape[1]):
        lengths[FLOOR, c, lane], lengths[GUESS, c, lane] = 0, 1
    state[SINCE, lane], state[STEPS, lane], state[EVALUATIONS, lane], state[ERROR, lane] = 0, 0, 1, np.inf


@inner
def _begin(call, user, numbers, V, S, new, atol, rtol):
    """Evaluate the new systems; return those that have converged, and those whose residual is not finite."""
    apart()
    steps.evaluate(call, user, numbers, X, F, new)
    largest, total = steps.measure(V, F, V[F, 0] * 0 + 1)
    unit = 1 / largest
    _, norm = steps.measure(V, F, unit)
    mask = mask_of(new)
    target = select(rtol * largest > atol, rtol * largest, largest * 0 + atol)
    S[TARGET], S[UNIT] = select(mask, target, S[TARGET]), select(mask, unit, S[UNIT])
    S[NORM], S[MEASURE] = select(mask, norm, S[NORM]), select(mask, largest, S[MEASURE])
    S[START], S[FIRST] = select(mask, norm, S[START]), select(mask, largest, S[FIRST])
    S[BEST] = select(mask, largest, S[BEST])
    done = new & bits((norm < np.inf) & (largest <= target) | (total == 0) & (largest == 0))
    return done, new & ~done & ~bits(norm < np.inf)


@inner
def _step(call, user, numbers, V, S, factors, updates, running, slowest):
    """Try the step in the running lanes; return where it reduces ||F|| and was taken, and which are not slow yet."""
    apart()
    N, excess = V.shape[1], V[STEP, 0] * 0
    first = running & bits(S[STEPS] == 0)
    if first != 0:
        for i in range(N):
            size, mask = abs(V[STEP, i]), mask_of(first)
            V[REFERENCE, i] = select(mask & (size > V[REFERENCE, i]), size, V[REFERENCE, i])
    for i in range(N):
        V[TRIAL, i] = V[X, i] + V[STEP, i]
        excess += V[TRIAL, i] * 0  # NaN where a trial point is not finite
    steps.evaluate(call, user, numbers, TRIAL, TRIAL_F, running)
    largest, norm = steps.measure(V, TRIAL_F, S[UNIT])
    rate = np.sqrt(norm / S[NORM])
    is_good = mask_of(running) & (rate <= largest_ratio(updates == 0)) & (excess == 0)
    for i in range(N):
        V[PAIRS + 2 * updates, i] = V[TRIAL, i] - V[X, i]
    fast = is_fast(rate, S[RATE] if updates > 1 else rate, slowest)
    S[RATE] = rate
    S[WAY] += steps.measure(V, STEP, S[UNIT])[0]
    S[EVALUATIONS] = select(mask_of(running), S[EVALUATIONS] + 1, S[EVALUATIONS])
    S[ERROR] = select(is_good, error_of(V, factors, rate, running), S[ERROR])
    steps.accept(V, S, is_good, largest, norm)
    return bits(is_good), bits(fast)


@inner
def _finish_steps(outputs, numbers, state, who, V, S, good, running, limit, xtol):
    """Write out the systems that have ended by the step, which was accepted in the lanes `good`; return these."""
    apart()
    mask = mask_of(running)
    is_best = mask & (S[MEASURE] < NEW_BEST * S[BEST])
    S[BEST] = select(is_best, S[MEASURE], S[BEST])
    S[SINCE] = select(is_best, S[SINCE] * 0, select(mask, S[SINCE] + 1, S[SINCE]))
    ended = good & bits((S[MEASURE] <= S[TARGET]) | (S[MEASURE] == 0) | (S[ERROR] <= xtol))
    largest, most = largest_of(V, X)
    far = running & bits(largest > FAR_OUT * most) if xtol > 0 else running & 0
    lost = ended & far  # perhaps to where F vanishes at infinity
    _finish(outputs, numbers, state, who, lost, RUNNING)
    _finish(outputs, numbers, state, who, ended & ~lost, CONVERGED)
    diverged = running & ~ended & bits(S[NORM] > BLOWN_UP**2 * S[START])
    _finish(outputs, numbers, state, who, diverged, DIVERGED)
    ended |= diverged
    stagnated = running & ~ended & bits(S[SINCE] >= PATIENCE)
    _finish(outputs, numbers, state, who, stagnated, RUNNING)
    ended |= stagnated
    last = good & ~ended & bits(S[STEPS] >= limit)
    _finish(outputs, numbers, state, who, last, ITERATION_LIMIT)
    return ended | last


@inner
def _finish(outputs, numbers, state, who, ended, code):
    """Write out the systems in the lanes `ended`; with the code RUNNING only their cost, not x and F."""
    apart()
    if ended == 0:
        return
    x, F_out, status, norms, counts = outputs
    for lane in range(LANES):
        if ended >> lane & 1:
            b = who[lane]
            counts[b, 1] = int(state[EVALUATIONS, lane])
            if code == RUNNING:
                continue
            for i in range(x.shape[1]):
                x[b, i], F_out[b, i] = numbers[X, i * LANES + lane], numbers[F, i * LANES + lane]
            status[b], norms[b, 0], norms[b, 1] = code, state[MEASURE, lane], state[FIRST, lane]
            norms[b, 2], counts[b, 0] = state[ERROR, lane], int(state[STEPS, lane])


# The error of x; see `implicitsolve.nonlinear._accuracy`


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
    is_near = (correction <= NEAR_ROOT) & (rate <= MOST_LEFT)
    if running & bits(is_near) != 0:
        for i in range(V.shape[1]):
            V[SCRATCH, i] = V[TRIAL_F, i]
        steps.divide(factors, V[SCRATCH])
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
    steps.evaluate(call, user, numbers, TRIAL, TRIAL_F, running)
    for i in range(V.shape[1]):
        V[SCRATCH, i] = V[TRIAL_F, i] - V[F, i]
    steps.invert(V, factors, updates)
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
