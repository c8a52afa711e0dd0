"""The smoother: its gradient, the same minimum as least squares, and a covariance that the errors bear out."""

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


def test_command_line_repeats_itself(main: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "trajectory.png"
    assert main.main(["--steps", "100", "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "implicitsolve" in out
    assert "CONVERGED" in out
    assert figure.read_bytes().startswith(b"\x89PNG")
    again, first = (main.Flight.draw(20, np.random.default_rng(5)).truth for _ in range(2))
    np.testing.assert_array_equal(again, first)
