"""A thousand implicit time steps, each from the state before, to a state that no longer changes or to zero."""

import warnings

import numpy as np
import pytest

import implicitsolve as ims


def diffused(u):
    p = np.pad(u, 1)
    return p[2:] + p[:-2] - 2 * u


def heat(c, source=0.0):
    return lambda old: lambda u: u - old - c * diffused(u) - source


def allen_cahn(old):
    return lambda u: u - old - 0.3 * diffused(u) - 0.5 * (u - u**3)


def robertson(old):
    def F(y):
        slow, back, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
        return y - old - 10.0 * np.array([back - slow, slow - back - fast, fast])

    return F


START = np.random.default_rng(3).uniform(-1, 1, 30)
CASES = {
    "to-zero": (heat(200.0), START),  # after 400 steps below the smallest normal number
    "to-a-state": (heat(20.0, 0.01), START),
    "reaction": (allen_cahn, START),
    "stiff": (robertson, np.array([1.0, 0.0, 0.0])),
    "decay": (lambda old: lambda u: u - old + 0.1 * u**3, np.ones(1)),
    "growth": (lambda old: lambda u: u - old - 0.1 * u * (1 - u), np.full(1, 1e-6)),
}


@pytest.mark.parametrize(("name", "has_previous"), [("to-zero", True), *zip(CASES, [False, True] * 3)])
def test_a_thousand_steps_never_fail(name, has_previous):
    step_from, u = CASES[name]
    result = None
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(1000):
            previous = result if has_previous else None
            result = ims.root(step_from(u), u, previous=previous).raise_for_status()
            u = result.x


@pytest.mark.parametrize("starts", [(0.0,), (0.0, 0.5, 1.0, 1.5, 2.0)])
def test_a_pendulum_with_a_rigid_rod_starts_from_rest(starts):
    """Of x^2 + y^2 = 1 the derivative by a small y is lost in rounding where y alone sets a difference's length."""
    state, dt = np.zeros((len(starts), 5)), 1e-3
    state[:, 0], state[:, 1] = np.cos(starts), -np.sin(starts)

    def F(v):
        x, y, u, w, force = v.T
        x0, y0, u0, w0, _ = state.T
        falls = w - w0 + dt * (force * y + 9.81)
        return np.stack([x - x0 - dt * u, y - y0 - dt * w, u - u0 + dt * force * x, falls, x * x + y * y - 1], axis=1)

    for _ in range(60):
        state = ims.root(ims.Problem(F, batch_ndim=1), state).raise_for_status().x
    assert np.hypot(*state[:, :2].T) == pytest.approx(1)
    energy = 0.5 * (state[:, 2:4] ** 2).sum(axis=1) + 9.81 * (state[:, 1] + np.sin(starts))
    assert energy == pytest.approx(0, abs=0.05)
