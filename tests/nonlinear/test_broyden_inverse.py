"""BroydenInverse against the dense inverse of Broyden's matrices, for each system of a batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve._arrays.host import to_host
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
        d = inverse.corrected(-times(H, F))
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_secant_equation(dtype):
    """The updated inverse maps y to s: from F at the new point it makes the direction that undoes the difference."""
    _, J, start, F = problem(1, 3, 5, dtype)
    H = np.linalg.inv(start)
    inverse = BroydenInverse()
    d = inverse.corrected(-times(H, F))
    s = 0.7 * d
    inverse.step(s, d, np.full(3, 0.7))
    y = times(J, s)
    new = inverse.corrected(-times(H, F + y))  # -H+ (F + y): stores the pair
    old = inverse.corrected(-times(H, F))  # -H+ F, no step between
    np.testing.assert_allclose(old - new, s, rtol=1e-3 if dtype == np.float32 else 1e-10)


def test_no_step_changes_nothing():
    _, _, start, F = problem(2, 3, 4, np.float64)
    H = np.linalg.inv(start)
    inverse = BroydenInverse()
    d = inverse.corrected(-times(H, F))
    inverse.step(np.zeros_like(d), d, np.zeros(3))
    with np.errstate(all="ignore"):
        for _ in range(2):
            np.testing.assert_array_equal(inverse.corrected(-times(H, F)), d)


def test_a_system_alone_is_the_same_to_the_last_bit():
    _, J, start, F = problem(3, 4, 6, np.float64)

    def directions(rows, resets):
        H, F_, J_ = np.linalg.inv(start)[rows], F[rows], J[rows]
        inverse, seen = BroydenInverse(), []
        for step in range(4):
            inverse.reset(np.asarray([step in resets.get(row, ()) for row in rows]))
            d = inverse.corrected(-np.stack([h @ f for h, f in zip(H, F_, strict=True)]))
            length = np.asarray([0.5 if (row + step) % 3 == 0 else 1.0 for row in rows])
            s = d * length[:, None]
            inverse.step(s, d, length)
            F_ = F_ + np.stack([j @ v for j, v in zip(J_, s, strict=True)])
            seen.append(d)
        return np.stack(seen, axis=1)

    resets = {0: (), 1: (2,), 2: (1, 3), 3: (1,)}
    whole = directions([0, 1, 2, 3], resets)
    for row in range(4):
        np.testing.assert_array_equal(directions([row], resets)[0], whole[row])


def test_a_neighbour_that_is_not_finite_does_no_harm():
    _, J, start, F = problem(4, 2, 5, np.float64)
    H = np.linalg.inv(start)
    H[1] = np.nan

    def run(rows):
        inverse, F_ = BroydenInverse(), F[rows]
        for step in range(4):
            inverse.reset(np.asarray([step == 2 and row == 1 for row in rows]))
            with np.errstate(all="ignore"):
                d = inverse.corrected(-np.stack([h @ f for h, f in zip(H[rows], F_, strict=True)]))
                inverse.step(d, d, np.ones(len(rows)))
                F_ = F_ + np.stack([j @ v for j, v in zip(J[rows], d, strict=True)])
        return d[0]

    np.testing.assert_array_equal(run([0, 1]), run([0]))


@pytest.mark.parametrize("length", [1.0, 0.5])
def test_an_update_that_cannot_be_formed_is_left_out(length):
    """s^H H y = 0: there is no such inverse."""
    inverse = BroydenInverse()
    F, other = np.asarray([[1.0, 0.0]]), np.asarray([[3.0, 2.0]])
    d = inverse.corrected(-F)
    inverse.step(length * d, d, np.full(1, length))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(inverse.corrected(-F), -F)  # y = 0
        np.testing.assert_array_equal(inverse.corrected(-other), -other)


@pytest.mark.parametrize("power", [-30, 30, -100, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_two_on_x(power, dtype):
    """The directions scale along, in float32 as well."""
    _, J, start, F = problem(5, 2, 4, dtype)
    H = np.linalg.inv(start).astype(dtype)
    unit = dtype(2.0**power)

    def run(unit):
        inverse, F_ = BroydenInverse(), F
        with np.errstate(all="ignore"):
            for _ in range(4):
                d = inverse.corrected(-times(H, F_) * unit)
                inverse.step(d, d, np.ones(2))
                F_ = F_ + times(J.astype(dtype), d / unit)
        return d

    np.testing.assert_array_equal(run(dtype(1)) * unit, run(unit))


def test_pairs_that_no_system_uses_are_dropped():
    """Two systems that are factorized in turn: no pair is used for more than two steps."""
    _, J, start, F = problem(6, 2, 4, np.float64)
    H = np.linalg.inv(start)
    kept, whole = BroydenInverse(), BroydenInverse()
    F_ = F
    for step in range(12):
        where = np.asarray([step % 2 == 0, step % 2 == 1])
        for inverse in (kept, whole):
            inverse.reset(where)
        d = kept.corrected(-times(H, F_))
        np.testing.assert_array_equal(d, whole.corrected(-times(H, F_)))
        for inverse in (kept, whole):
            inverse.step(d, d, np.ones(2))
        kept.forget(2)
        F_ = F_ + times(J, d)
        assert len(kept.pairs) <= 2
    assert len(whole.pairs) > 8


def test_every_library(xp, any_dtype):
    dtype = np.dtype(str(any_dtype).rsplit(".", maxsplit=1)[-1].strip("'>"))
    _, J, start, F = problem(7, 2, 3, dtype)
    H = np.linalg.inv(start).astype(dtype)

    def run(library):
        A, B = library.asarray(H), library.asarray(J.astype(dtype))
        inverse, F_ = BroydenInverse(), library.asarray(F)
        for step in range(4):
            inverse.reset(np.asarray([step == 2, False]))
            d = inverse.corrected(-library.matmul(A, F_[..., None])[..., 0])
            length = np.asarray([1.0, 0.5])
            s = d * library.asarray(length.astype(dtype))[:, None]
            inverse.step(s, d, length)
            F_ = F_ + library.matmul(B, s[..., None])[..., 0]
            assert d.dtype == F_.dtype
        return to_host(d)

    tolerance = 2e-4 if np.finfo(dtype).eps > 1e-10 else 1e-12
    np.testing.assert_allclose(run(xp), run(np), rtol=tolerance, atol=tolerance)


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
        direction = updates.corrected(-(H @ (A @ x)).astype(dtype))
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
        direction = updates.corrected(z.copy())
        np.testing.assert_array_equal(direction, z)  # s = z: no y at all
        updates.step(direction, direction, 1, 1.0)
