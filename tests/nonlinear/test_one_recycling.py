"""Recycling GMRES of one system beside that of a batch: the same directions, spaces, statuses and counts."""

from __future__ import annotations

import numpy as np
import pytest

from implicitsolve import NewtonKrylov, NonlinearStop, Status, aslinearoperator, root
from implicitsolve.krylov import _recycling
from implicitsolve.krylov._recycling import RecyclingGMRES
from implicitsolve.nonlinear import _direction
from implicitsolve.nonlinear._direction import OneRecyclingGMRES


def both(one, batch, J, F, eta, limit=None):
    """Directions of both for J s = -F, and whether J s is as far from -F as the first one tells."""
    norm = float(np.linalg.norm(F))
    found = one.direction(J.dot, F, norm, eta, limit)
    A = aslinearoperator(J[None])
    at = np.asarray([norm]), np.asarray([eta])
    outcome = batch.direction(A, F[None], *at, None, None if limit is None else np.asarray([limit]))
    np.testing.assert_allclose(np.linalg.norm(F + J @ found[0]), found[1], rtol=1e-2, atol=1e-6 * norm)
    assert found[2:] == (outcome.status[0], outcome.iterations[0])
    assert one.grew == batch.grew[0]
    return found[0], outcome.x[0]


def assert_near(found, expected):
    """As vectors: rounding errors grow by the condition of J, which small entries feel most."""
    rtol = 1e-6 if expected.dtype == np.float64 else 0.05
    assert np.linalg.norm(found - expected) <= rtol * np.linalg.norm(expected)


@pytest.mark.rounding
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("size", "recycle"), [(30, 200), (30, 10), (30, 0), (300, 200)])
def test_directions_and_spaces_are_those_of_a_batch(size, recycle, dtype, rng, monkeypatch):
    """Over several changes of J, with memory for 25 pairs of the larger system."""
    for module in (_recycling, _direction):
        monkeypatch.setattr(module, "RECYCLED_MEMORY", 25 * 300)
    J = np.diag(np.geomspace(0.1, 10, size)) + rng.standard_normal((size, size)) / size
    one, batch = OneRecyclingGMRES(60, recycle, None), RecyclingGMRES(60, recycle, 1)
    for change in (0.0, 0.01, 0.02, 0.3):
        F, v = rng.standard_normal((2, size)).astype(dtype)
        steps = both(one, batch, (J + change * np.eye(size)).astype(dtype), F, 1e-3)
        assert_near(*steps)
        assert (one.correction is None) == (batch.correction is None)
        assert (one.space is None) == (batch.space is None)
        if one.space is not None:
            assert one.space.held.sum() == batch.space.held.sum()
            assert_near(one.correction(v[None]), batch.space.matvec(v[None]))
            assert_near(one.space.matvec(v[None]), one.correction(v[None]))
            one = OneRecyclingGMRES(60, recycle, one.space)  # as a later solve begins
            batch.sizes[:] = 60


def test_a_cyclic_shift_needs_its_whole_space():
    """The residual stays until the last vector: the next one is then the image itself."""
    one, batch, shift = OneRecyclingGMRES(20, 200, None), RecyclingGMRES(20, 200, 1), np.roll(np.eye(70), 1, axis=0)
    for limit in (None, None, 10, None):
        steps = both(one, batch, shift, np.eye(70)[0], 0.1, limit)
    np.testing.assert_allclose(*steps, atol=1e-12)
    assert one.size == 80
    np.testing.assert_allclose(shift @ steps[0], -np.eye(70)[0], atol=1e-12)


def test_a_singular_system_breaks_down_and_what_is_not_finite_says_so():
    F, J = np.ones(4), np.diag([1.0, 2.0, 3.0, 0.0])
    assert OneRecyclingGMRES(20, 200, None).direction(J.dot, F, 2.0, 1e-3)[2] == Status.BREAKDOWN
    assert OneRecyclingGMRES(20, 200, None).direction(lambda v: np.full(4, np.nan), F, 2.0, 1e-3)[2] == Status.NONFINITE


def test_pairs_of_another_jacobian_that_make_the_system_singular_are_dropped():
    one, batch, F = OneRecyclingGMRES(20, 200, None), RecyclingGMRES(20, 200, 1), np.array([1.0, 1.0, 1.0])
    both(one, batch, np.diag([1.0, 2.0, 3.0]), F, 1e-8)
    for J in (np.diag([1e-20, 2.0, 3.0]), np.roll(np.diag([1.0, 2.0, 3.0]), 1, axis=0)):
        both(one, batch, J, F, 1e-8)


@pytest.mark.parametrize("scale", [2.0**-900, 2.0**900])
def test_sizes_whose_squares_leave_the_range(scale):
    """Neither a warning nor another course: scaling F by a power of two changes no decision."""

    def residual(x):
        return x - 0.5 * np.cos(np.roll(x, 1)) + 0.1 * x**3

    stop, x0, method = NonlinearStop(rtol=1e-9), np.linspace(0, 1, 50), NewtonKrylov()
    plain = root(residual, x0, method=method, stop=stop)
    scaled = root(lambda x: scale * residual(x), x0, method=method, stop=stop)
    assert plain.success
    np.testing.assert_allclose(scaled.x, plain.x, rtol=1e-12)
    assert scaled.counts == plain.counts
