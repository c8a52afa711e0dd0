"""BroydenInverse against the dense inverse of Broyden's matrices, for each system of a batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.nonlinear._broyden import BroydenInverse, WholeSteps


class Dense:
    """Broyden's matrix of one system, updated by its definition: B+ = B + (y - B s) s^H / (s^H s)."""

    def __init__(self, B):
        self.B = B.copy()

    def direction(self, F):
        return -np.linalg.solve(self.B, F)

    def update(self, s, y):
        self.B = self.B + np.outer(y - self.B @ s, s.conj()) / np.vdot(s, s)


def problem(seed, systems, n, dtype):
    rng = np.random.default_rng(seed)

    def random(*shape):
        values = rng.standard_normal(shape)
        return (values + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)

    J = 3 * np.eye(n) + random(systems, n, n) / np.sqrt(n)
    start = J + 0.3 * random(systems, n, n) / np.sqrt(n)  # what was factorized: not J
    return rng, J, start, random(systems, n)


def times(A, v):
    return np.einsum("bij,bj->bi", A, v)


@given(
    seed=st.integers(0, 10**6),
    systems=st.integers(1, 4),
    n=st.integers(1, 6),
    dtype=st.sampled_from([np.float64, np.complex128]),
    shortened=st.booleans(),
    resets=st.booleans(),
    leaves=st.booleans(),
)
def test_directions_are_those_of_the_dense_matrices(seed, systems, n, dtype, shortened, resets, leaves):
    rng, J, start, F = problem(seed, systems, n, dtype)
    inverse, dense = BroydenInverse(), [Dense(B) for B in start]
    H = np.linalg.inv(start)
    for step in range(5):
        if resets and step in (2, 3):
            where = rng.random(len(dense)) < 0.5
            inverse.reset(where)
            for i in np.flatnonzero(where):
                start[i] = start[i] + 0.1 * np.eye(n)
                dense[i] = Dense(start[i])
            H = np.linalg.inv(start)
        if leaves and step == 3 and len(dense) > 1:
            keep = np.arange(1, len(dense))
            inverse.take(keep)
            dense, H, J, F, start = dense[1:], H[keep], J[keep], F[keep], start[keep]
        d = inverse.correct(-times(H, F))
        expected = np.stack([B.direction(F[i]) for i, B in enumerate(dense)])
        np.testing.assert_allclose(d, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
        length = rng.choice([1.0, 0.5, 0.1], size=len(dense)) if shortened else np.ones(len(dense))
        s = d * length[:, None]
        new_F = F + times(J, s)
        for i, B in enumerate(dense):
            B.update(s[i], new_F[i] - F[i])
        inverse.step(s, d, length)
        F = new_F
        if min(np.abs(F).max(axis=1)) < 1e-6:  # found: the next step would be rounding error
            break


@pytest.mark.parametrize("length", [1.0, 0.5])
def test_an_update_that_cannot_be_formed_is_left_out(length):
    """s^H H y = 0: there is no such inverse."""
    inverse = BroydenInverse()
    F, other = np.asarray([[1.0, 0.0]]), np.asarray([[3.0, 2.0]])
    d = inverse.correct(-F)
    inverse.step(length * d, d, np.full(1, length))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(inverse.correct(-F), -F)  # y = 0
        np.testing.assert_array_equal(inverse.correct(-other), -other)


def broyden_inverse(H, steps, changes):
    """H by Broyden's rank-one updates, as a matrix."""
    for s, y in zip(steps, changes):
        H = H + np.outer(s - H @ y, s @ H) / (s @ H @ y)
    return H


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whole_steps_of_one_system_go_along_the_directions_of_the_updated_matrix(dtype, rng):
    """A linear problem, solved by whole steps from a poor inverse."""
    N = 20
    A, H, x = np.eye(N) + 0.1 * rng.normal(size=(N, N)) / N, np.eye(N), rng.normal(size=N)
    updates, steps, changes = WholeSteps(), [], []
    for j in range(6):
        expected = -broyden_inverse(H, steps, changes) @ (A @ x)
        direction = updates.correct(-(H @ (A @ x)).astype(dtype))
        tolerance = 200 * np.finfo(dtype).eps * np.abs(expected).max() * 10**j
        np.testing.assert_allclose(direction, expected, rtol=0, atol=tolerance)
        updates.step(direction, direction, 1, direction.dot(direction))
        steps.append(direction.astype(float))
        changes.append(A @ steps[-1])
        x = x + steps[-1]
    assert updates.general is None


def test_without_a_finite_update_the_direction_is_that_of_the_factorized_matrix():
    """s^T H y = 0."""
    updates, z = WholeSteps(), np.eye(1, 16)[0]
    for _ in range(2):
        direction = updates.correct(z.copy())
        np.testing.assert_array_equal(direction, z)  # s = z: no y at all
        updates.step(direction, direction, 1, 1.0)
