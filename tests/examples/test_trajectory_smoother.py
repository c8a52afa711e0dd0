"""The smoother: its gradient, the same minimum as least squares, and a covariance that the errors bear out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


def smoothed(main: ModuleType, flight: Any) -> np.ndarray:
    return main.ims.root(flight.problem(), flight.start(), stop=main.STOP).raise_for_status().x


@pytest.fixture(scope="module")
def solved(main: ModuleType) -> tuple[Any, np.ndarray]:
    """A short flight and its smoothed states."""
    flight = main.Flight.draw(100, np.random.default_rng(3))
    return flight, smoothed(main, flight)


def test_gradient_is_that_of_the_cost(main: ModuleType) -> None:
    flight = main.Flight.draw(30, np.random.default_rng(0))
    x, h = flight.start(), 1e-5
    expected = np.empty_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = h
        expected[index] = (flight.cost(x + step) - flight.cost(x - step)) / (2 * h)
    np.testing.assert_allclose(flight.gradient(x), expected, atol=1e-7 * np.max(np.abs(expected)))


def test_bearings_wrap(main: ModuleType, solved: tuple[Any, np.ndarray]) -> None:
    flight, x = solved
    turned = dataclasses.replace(flight, radar=flight.radar + np.array([0, 2 * np.pi]))
    assert turned.cost(x) == pytest.approx(flight.cost(x))


def test_steps_couple_to_their_neighbours_only(main: ModuleType, solved: tuple[Any, np.ndarray]) -> None:
    flight, x = solved
    for t in (0, 1, 50, 98, 99):
        changed = x.copy()
        changed[t] += 0.1
        touched = np.flatnonzero(np.any(flight.gradient(changed) != flight.gradient(x), axis=1))
        assert np.all(np.abs(touched - t) <= 1)


def test_solution_is_the_minimum_that_least_squares_finds(main: ModuleType, solved: tuple[Any, np.ndarray]) -> None:
    flight, x = solved
    answer = main.least_squares(flight, flight.start(), tight=True)
    assert answer.success
    assert flight.cost(x) == pytest.approx(answer.cost, rel=1e-9)
    np.testing.assert_allclose(x, answer.x.reshape(x.shape), atol=1e-3)


def test_covariance_is_the_inverse_of_the_hessian(main: ModuleType, solved: tuple[Any, np.ndarray]) -> None:
    flight, x = solved
    h, hessian = 1e-4, np.empty((400, 400))
    for i in range(400):
        step = np.zeros(400)
        step[i] = h
        difference = flight.gradient(x + step.reshape(x.shape)) - flight.gradient(x - step.reshape(x.shape))
        hessian[:, i] = difference.ravel() / (2 * h)
    np.testing.assert_allclose(flight.precision(x).todense(), hessian, atol=1e-6)
    assert np.linalg.eigvalsh(0.5 * (hessian + hessian.T))[0] > 0  # a minimum
    expected = np.linalg.inv(hessian).reshape(100, 4, 100, 4)
    steps = np.array([0, 40, 99])
    covariance = flight.covariance(x, steps)
    for i, t in enumerate(steps):
        np.testing.assert_allclose(covariance[i], expected[t, :, t], atol=1e-6 * np.max(np.abs(expected)))


def test_errors_are_as_large_as_the_covariance_says(main: ModuleType) -> None:
    """The squared error of a state in units of its covariance has the mean 4; neighbours in time are correlated."""
    squares = []
    for seed in range(12):
        flight = main.Flight.draw(150, np.random.default_rng(seed))
        x, steps = smoothed(main, flight), np.arange(10, 150, 35)
        errors = (x - flight.truth)[steps]
        squares.append(np.einsum("ni,nij,nj->n", errors, np.linalg.inv(flight.covariance(x, steps)), errors))
    assert np.mean(squares) == pytest.approx(4.0, abs=4 * np.sqrt(8 / np.size(squares)))


def test_smoothing_beats_thrust_and_radar_alone(main: ModuleType) -> None:
    flight = main.Flight.draw(300, np.random.default_rng(1))
    error = main.rms((smoothed(main, flight) - flight.truth)[flight.seen])
    assert error < 0.5 * main.rms((flight.fixes() - flight.truth[:, :2])[flight.seen])
    assert error < 0.1 * main.rms(flight.dead_reckoning() - flight.truth)


def test_command_line_repeats_itself(main: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "trajectory.png"
    assert main.main(["--steps", "100", "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "implicitsolve" in out
    assert "CONVERGED" in out
    assert figure.read_bytes().startswith(b"\x89PNG")
    again, first = (main.Flight.draw(20, np.random.default_rng(5)).truth for _ in range(2))
    np.testing.assert_array_equal(again, first)
