"""The boundary value problems: their closed forms, the order of the collocation, and the same answer as solve_bvp."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture(params=["lower", "upper", "layer"])
def bvp(main: ModuleType, request: pytest.FixtureRequest) -> Any:
    return main.burgers(0.02) if request.param == "layer" else main.bratu(request.param)


def test_derivatives_are_those_of_the_equation(bvp: Any, rng: np.random.Generator) -> None:
    u, slope = rng.standard_normal((2, 20))
    h = 1e-6
    by_u, by_slope = bvp.derivatives(u, slope)
    g = bvp.second_derivative
    np.testing.assert_allclose(by_u, (g(u + h, slope) - g(u - h, slope)) / (2 * h), atol=1e-6)
    np.testing.assert_allclose(by_slope, (g(u, slope + h) - g(u, slope - h)) / (2 * h), atol=1e-6)


def test_rows_couple_to_neighbouring_nodes_only(main: ModuleType, bvp: Any, rng: np.random.Generator) -> None:
    T = 7
    residual = main.collocation(bvp, bvp.mesh(T - 1)).residual
    y = rng.standard_normal((T, 2))
    for t in range(T):
        for c in range(2):
            changed = y.copy()
            changed[t, c] += 0.1
            touched = np.flatnonzero(np.any(residual(changed) != residual(y), axis=1))
            assert np.all(np.abs(touched - t) <= 1)


def test_error_is_of_order_four(main: ModuleType, bvp: Any) -> None:
    errors = []
    for intervals in (32, 64, 128):
        x = bvp.mesh(intervals)
        errors.append(bvp.error(x, main.solve(bvp, x).raise_for_status().x))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(orders, 4.0, atol=0.15)


def test_answer_is_that_of_solve_bvp_on_the_same_mesh(main: ModuleType, bvp: Any) -> None:
    x = bvp.mesh(60)
    ours = main.solve(bvp, x).raise_for_status().x
    for exact in (False, True):
        theirs = main.solve_scipy(bvp, x, exact=exact, calls=4)
        assert theirs.x.size == x.size
        np.testing.assert_allclose(ours, theirs.y.T, atol=1e-9 * np.max(np.abs(ours)))


def test_command_line(main: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "bvp.png"
    assert main.main(["--intervals", "200", "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert out.count("CONVERGED") == 6
    assert "Burgers, epsilon 0.01" in out
    assert figure.read_bytes().startswith(b"\x89PNG")
