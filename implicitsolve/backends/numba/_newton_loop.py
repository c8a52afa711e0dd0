# pyright: basic
# Numba infers the types of kernels.
"""Newton's method for a range of systems, compiled: one system after the other, in the same workspace."""

from __future__ import annotations

import numpy as np

from implicitsolve.backends.numba import _elimination, _substitution
from implicitsolve.backends.numba import _newton_pieces as pieces
from implicitsolve.backends.numba._jit import borrowed, inner, kernel
from implicitsolve.status import Status

CONVERGED, ITERATION_LIMIT, STAGNATED = int(Status.CONVERGED), int(Status.ITERATION_LIMIT), int(Status.STAGNATED)
DIVERGED, LINE_SEARCH_FAILED = int(Status.DIVERGED), int(Status.LINE_SEARCH_FAILED)
NONFINITE, SINGULAR, RUNNING = int(Status.NONFINITE), int(Status.SINGULAR), int(Status.RUNNING)

X, F, TRIAL, TRIAL_F, SCRATCH, PAIRS = (
    pieces.X, pieces.F, pieces.TRIAL, pieces.TRIAL_F, pieces.SCRATCH, pieces.PAIRS,
)  # fmt: skip
OLDEST, DECREASE, GUESS = pieces.OLDEST, pieces.DECREASE, pieces.GUESS
ZERO = np.int64(0)  # not a literal: see `_newton_pieces`
GROWTH_LIMIT = 16.0  # as for `BlockLU`
GUESSES = 3  # assemblies at most at one point, while the length of a difference is a guess
PATIENCE = 20  # accepted steps without a new best residual after which a system has stagnated
NEW_BEST = 0.99  # fraction of the best norm so far that counts as a new best
BLOWN_UP = 1e12  # growth of ||F|| over its start that is called divergence


def workspace(T, k, lower, upper, dtype):
    """Arrays for one call of `solve`. They belong to the caller, since `solve` keeps no count of references."""
    m = lower + upper + 1
    return (
        np.empty((pieces.VECTORS, T * k), dtype),
        np.zeros((T, m, k, k), dtype),
        np.empty((T, m, k, k), dtype),
        np.empty((T, m + lower, k, k), dtype),
        np.empty((T, k), np.int32),
        np.empty(T, np.int32),
        np.empty((3, k)),
    )


@kernel
def solve(call, x, p, F_out, shape, bands, size, tolerances, limit, work, status, norms, counts):
    """Solve the systems x (B, N), in place.

    `shape` is that of one system and the block size, `bands` the lower and the upper width, `size` the tuple of
    `static_size`. `tolerances` are atol, rtol, the rounding unit, the relative length of differences, and the slowest
    rate with an old Jacobian. `work` is from `workspace`. `norms` (B, 2) takes max|F| at x and at x0,
    `counts` (B, 2) the steps and the evaluations.
    """
    x, p, F_out = borrowed(x), borrowed(p), borrowed(F_out)
    N = x.shape[1]
    lower = bands[0]
    V, J, inside, over_band = borrowed(work[0]), borrowed(work[1]), borrowed(work[2]), borrowed(work[3])
    pivots, reach, lengths = borrowed(work[4]), borrowed(work[5]), borrowed(work[6])
    for b in range(x.shape[0]):
        for i in range(N):
            V[X, i] = x[b, i]
        status[b], norms[b, 0], norms[b, 1], counts[b, 0], counts[b, 1] = _solve_one(
            call, V, p[b], shape, J, inside, over_band, pivots, reach, lengths, lower, size, tolerances, limit
        )
        for i in range(N):
            x[b, i], F_out[b, i] = V[X, i], V[F, i]


@inner
def _solve_one(call, V, p, shape, J, inside, over_band, pivots, reach, lengths, lower, size, tolerances, limit):
    atol, rtol, precision, relative, slowest = tolerances
    k = len(size) if len(size) > 0 else J.shape[2]
    lengths[:] = 0
    lengths[GUESS] = 1
    pieces.evaluate(call, V, X, F, p, shape)
    measure, norm = pieces.measure(V, F)
    first, best, start_norm = measure, measure, norm
    evaluations, iterations, since, updates, age = ZERO + 1, ZERO, ZERO, ZERO, ZERO
    if not measure < np.inf:
        return NONFINITE, measure, first, iterations, evaluations
    target = max(atol, rtol * first)
    if measure <= target:
        return CONVERGED, measure, first, iterations, evaluations
    is_stale, length, last_rate, LU = True, 0.0, 1.0, inside
    for _ in range(limit):
        fresh = is_stale
        if fresh:
            age, updates, length = ZERO, ZERO, 0.0
            spent, is_regular, is_narrow = _factorize(
                call, V, p, shape, J, inside, over_band, pivots, reach, lengths, lower, size, norm, k, relative
            )
            evaluations += spent
            if not is_regular:
                return SINGULAR, measure, first, iterations, evaluations
            LU = inside if is_narrow else over_band
        updates = pieces.direction(V, LU, pivots, reach, lower, size, updates, length)
        length = 1.0
        new_measure, new_norm = pieces.move(call, V, p, shape, length)
        evaluations += 1
        if not new_norm <= (1 - DECREASE) * norm:
            is_stale = True
            if not fresh:
                continue
            if new_norm < np.inf:
                evaluations += 1
                if pieces.is_rounding(call, V, p, shape, precision, norm):
                    return STAGNATED, measure, first, iterations, evaluations
            length, new_measure, new_norm, spent, is_finite = pieces.backtrack(
                call, V, p, shape, LU, pivots, reach, lower, size, norm, new_norm
            )
            evaluations += spent
            if length == 0:
                code = LINE_SEARCH_FAILED if is_finite else NONFINITE
                return code, measure, first, iterations, evaluations
        is_still = _accept(V, PAIRS + 2 * updates, precision)
        iterations += 1
        rate = new_norm / norm
        measure, norm = new_measure, new_norm
        if measure <= target:
            return CONVERGED, measure, first, iterations, evaluations
        since = 0 if measure < NEW_BEST * best else since + 1
        best = min(best, measure)
        if norm > BLOWN_UP * start_norm:
            return DIVERGED, measure, first, iterations, evaluations
        if since >= PATIENCE or (is_still and fresh):
            return STAGNATED, measure, first, iterations, evaluations
        age += 1
        mean = np.sqrt(rate * last_rate) if age > 2 else rate
        is_stale = not mean <= slowest or age >= OLDEST
        last_rate = rate
    return ITERATION_LIMIT, measure, first, iterations, evaluations


@inner
def _factorize(call, V, p, shape, J, inside, over_band, pivots, reach, lengths, lower, size, norm, k, relative):
    """Assemble and factorize J; return the evaluations spent, whether J is regular, and where its factors are.

    Interchanges stay inside the blocks unless the entries grow: that takes half the time.
    """
    pieces.follow(V, lengths, k)
    evaluations = 0
    is_careful = lengths[GUESS, 0] > 1  # false, but no literal: Numba would compile `assemble` twice
    for _ in range(GUESSES):
        evaluations += pieces.assemble(call, V, p, shape, J, lengths, norm, lower, k, relative, is_careful)
        singular, growth = _elimination.factor_one(J, inside, pivots, reach, lower, size, True)
        LU, is_narrow, is_regular = inside, True, singular < 0
        if not growth <= GROWTH_LIMIT:
            LU, is_narrow = over_band, False
            is_regular = _elimination.factor_one(J, over_band, pivots, reach, lower, size, False)[0] < 0
        if not is_regular and not is_careful:
            is_careful = True  # a difference may not have been finite
            continue
        if not pieces.has_guess(lengths, k):
            break
        if is_regular:
            for i in range(V.shape[1]):
                V[SCRATCH, i] = V[F, i]
            _substitution.solve_one(LU, pivots, reach, lower, size, V[SCRATCH])
        if not pieces.learn(V, lengths, not is_regular, k, relative):
            break
    return evaluations, is_regular, is_narrow


@inner
def _accept(V, s, precision):
    """Take over the trial point, and keep the step in row s; return whether x has stopped moving."""
    moved = size = abs(V[X, 0]) * 0
    for i in range(V.shape[1]):
        step = V[TRIAL, i] - V[X, i]
        V[s, i] = step
        moved, size = max(moved, abs(step)), max(size, abs(V[TRIAL, i]))
        V[X, i] = V[TRIAL, i]
        V[F, i] = V[TRIAL_F, i]
    return moved <= precision * size
