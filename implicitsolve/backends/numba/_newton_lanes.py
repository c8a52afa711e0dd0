# pyright: basic
# Numba infers the types of kernels.
"""Newton's method for several systems at once, one in each lane, compiled.

All lanes factorize together. Then each takes steps, with Broyden's updates of that Jacobian, until it has converged or
become slow, and waits for the others; the next Jacobian is for all that are left, and for new systems in the place of
those that are done. What a lane does depends on its own numbers only. A system of which no step with a new Jacobian
shrinks ||F|| is left as it was, for `_newton_loop`, which finds out why.
"""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba import _newton_lanes_pieces as pieces
from implicitsolve.backends.numba._jit import borrowed, inner, kernel
from implicitsolve.backends.numba._lanes import LANES, aligned, bits, lanes, mask_of, select
from implicitsolve.backends.numba._lanes_elimination import factor
from implicitsolve.backends.numba._newton_lanes_search import backtrack
from implicitsolve.backends.numba._newton_pieces import DECREASE, OLDEST, VECTORS
from implicitsolve.status import Status

CONVERGED = int(Status.CONVERGED)
X, F, TRIAL, TRIAL_F, STEP, PAIRS = pieces.X, pieces.F, pieces.TRIAL, pieces.TRIAL_F, pieces.STEP, pieces.PAIRS
SCALE, GUESS = pieces.SCALE, pieces.GUESS
TARGET, UNIT, NORM, MEASURE, FIRST = pieces.TARGET, pieces.UNIT, pieces.NORM, pieces.MEASURE, pieces.FIRST
RATE, STEPS, EVALUATIONS = pieces.RATE, pieces.STEPS, pieces.EVALUATIONS
MOST_STEPS = 50  # of a system here
ALL = np.int64(2**LANES - 1)
ZERO = np.int64(0)  # not a literal: Numba would compile a callee of its own for it


def workspace(T, k, m, parameters, dtype):
    """Arrays for one call of `solve`. They belong to the caller."""
    V = aligned((VECTORS, T * k), dtype)
    sizes = (T, m, k, k), (T, k), (3, k), (8,), (parameters,)
    others = tuple(aligned(size, dtype) for size in sizes)
    return (V, V.reshape((len(V), -1)), *others, np.empty((2, T * k), dtype), np.zeros(LANES, np.int64))


def nbytes(T, k, m, itemsize):
    """Bytes of `workspace`, nearly."""
    return LANES * itemsize * (VECTORS * T * k + T * m * k * k)


@kernel
def solve(call, is_wide, x, p, F_out, shape, lower, size, tolerances, limit, work, status, norms, counts):
    """Solve the systems x (B, N), in place, as `_newton_loop.solve` does; what that must solve keeps its status.

    With `is_wide`, `call` evaluates all lanes at once, else one system.
    """
    x, p, F_out = borrowed(x), borrowed(p), borrowed(F_out)
    numbers, lengths, state, given = borrowed(work[1]), borrowed(work[4]), borrowed(work[5]), borrowed(work[6])
    pair, who = borrowed(work[7]), borrowed(work[8])
    V, J, pivots = lanes(borrowed(work[0])), lanes(borrowed(work[2])), lanes(borrowed(work[3]))
    scales, S = lanes(lengths), lanes(state)
    atol, rtol, _, relative, slowest = tolerances
    user = is_wide, shape, given, p, who, pair
    outputs = x, F_out, status, norms, counts
    waiting, idle = ZERO, ALL
    while True:
        while idle != 0 and waiting < x.shape[0]:
            new = ZERO
            for lane in range(LANES):
                if idle >> lane & 1 and waiting < x.shape[0]:
                    _load(numbers, given, lengths, x, p, who, lane, waiting)
                    waiting += 1
                    new |= 1 << lane
            done, failed = _begin(call, user, numbers, V, S, new, atol, rtol)
            idle = idle & ~new | failed | _finish(outputs, numbers, state, who, done)
        if idle == ALL:
            return
        running = ALL & ~idle
        pieces.follow(V, scales)
        S[EVALUATIONS] += pieces.assemble(call, user, numbers, V, J, scales, lower, size, relative, running)
        factor(J, pivots, lower, size)
        updates = ZERO
        while running != 0 and updates < OLDEST:
            pieces.direction(V, J, pivots, lower, size, updates)
            if updates == 0:
                running, failed = pieces.learn(V, scales, relative, running)
                idle |= failed
            good, fast = _step(call, user, numbers, V, S, updates, running, slowest)
            if updates == 0 and running & ~good != 0:
                taken = backtrack(call, user, numbers, V, S, J, pivots, lower, size, running & ~good)
                idle |= running & ~good & ~taken
                good |= taken
                fast &= ~taken
            done = _finish(outputs, numbers, state, who, good & bits(S[MEASURE] <= S[TARGET]))
            idle |= done | good & bits(S[STEPS] >= min(limit, MOST_STEPS))
            running = good & fast & ~idle
            updates += 1


@inner
def _load(numbers, given, lengths, x, p, who, lane, b):
    """Put system b into a lane."""
    who[lane] = b
    for i in range(x.shape[1]):
        numbers[X, i * LANES + lane] = x[b, i]
    for q in range(p.shape[1]):
        given[q, lane] = p[b, q]
    for c in range(lengths.shape[1]):
        lengths[SCALE, c, lane], lengths[GUESS, c, lane] = 0, 1


@inner
def _begin(call, user, numbers, V, S, new, atol, rtol):
    """Evaluate the new systems; return those that have converged, and those whose residual is not finite."""
    pieces.evaluate(call, user, numbers, X, F, new)
    largest, total = pieces.measure(V, F, V[F, 0] * 0 + 1)
    unit = 1 / largest
    _, norm = pieces.measure(V, F, unit)
    zero, mask = largest * 0, mask_of(new)
    target = select(rtol * largest > atol, rtol * largest, zero + atol)
    S[TARGET], S[UNIT] = select(mask, target, S[TARGET]), select(mask, unit, S[UNIT])
    S[NORM], S[MEASURE] = select(mask, norm, S[NORM]), select(mask, largest, S[MEASURE])
    S[FIRST], S[STEPS] = select(mask, largest, S[FIRST]), select(mask, zero, S[STEPS])
    S[EVALUATIONS] = select(mask, zero + 1, S[EVALUATIONS])
    done = new & bits((norm < np.inf) & (largest <= target) | (total == 0) & (largest == 0))
    return done, new & ~done & ~bits(norm < np.inf)


@inner
def _step(call, user, numbers, V, S, updates, running, slowest):
    """Try the step in the running lanes; return where it shrinks ||F|| and was taken, and which are not slow yet."""
    N = V.shape[1]
    for i in range(N):
        V[TRIAL, i] = V[X, i] + V[STEP, i]
    pieces.evaluate(call, user, numbers, TRIAL, TRIAL_F, running)
    largest, norm = pieces.measure(V, TRIAL_F, S[UNIT])
    is_good = mask_of(running) & (norm <= (1 - DECREASE) ** 2 * S[NORM])
    for i in range(N):
        V[PAIRS + 2 * updates, i] = V[TRIAL, i] - V[X, i]
    rate = norm / S[NORM]
    fast = rate * S[RATE] <= slowest**4 if updates > 1 else rate <= slowest**2
    S[RATE] = rate
    pieces.count(S, running)
    pieces.accept(V, S, is_good, largest, norm)
    return bits(is_good), bits(fast)


@inner
def _finish(outputs, numbers, state, who, done):
    """Write out the systems in the lanes `done`, and return these."""
    x, F_out, status, norms, counts = outputs
    for lane in range(LANES):
        if done >> lane & 1:
            b = who[lane]
            for i in range(x.shape[1]):
                x[b, i], F_out[b, i] = numbers[X, i * LANES + lane], numbers[F, i * LANES + lane]
            status[b], norms[b, 0], norms[b, 1] = CONVERGED, state[MEASURE, lane], state[FIRST, lane]
            counts[b, 0], counts[b, 1] = int(state[STEPS, lane]), int(state[EVALUATIONS, lane])
    return done
