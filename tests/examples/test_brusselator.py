"""The Brusselator: its Jacobian, its bifurcations by formula, and three solvers that agree."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def branches(main: ModuleType) -> tuple[Any, Any]:
    """A coarse model, and its branches of 8 and 10 half waves."""
    model = main.Brusselator(cells=60)
    return model, main.sweep(model, (8, 10), np.linspace(3.5, 2.8, 36))


def dense_jacobian(main: ModuleType, model: Any, x: np.ndarray, B: float) -> np.ndarray:
    ab, N = main.band_jacobian(model, x, B), x.size
    return sum(np.diag(ab[2 - d, max(d, 0) : N + min(d, 0)], d) for d in range(-2, 3))


def test_diffusion_is_that_of_a_cosine(main: ModuleType) -> None:
    errors = []
    for cells in (100, 200):
        model = main.Brusselator(cells=cells)
        z = (np.arange(cells) + 0.5) * model.length / cells
        q = 3 * np.pi / model.length
        u, v = 1 + 0.3 * np.cos(q * z), 2 + 0.4 * np.cos(q * z)
        F = model.residual(np.stack([u, v], axis=1), 3.0)
        exact = model.A - 4 * u + u**2 * v - model.Du * q**2 * (u - 1)
        errors.append(np.max(np.abs(F[:, 0] - exact)))
        exact = 3 * u - u**2 * v - model.Dv * q**2 * (v - 2)
        errors.append(np.max(np.abs(F[:, 1] - exact)))
    np.testing.assert_allclose([errors[0] / errors[2], errors[1] / errors[3]], 4.0, rtol=0.05)  # second order


def test_jacobian_by_hand_is_that_of_the_residual(main: ModuleType, rng: np.random.Generator) -> None:
    model = main.Brusselator(cells=6, length=3.0)
    x, h = rng.uniform(0.5, 2.0, (6, 2)), 1e-6
    J = np.empty((12, 12))
    for j in range(12):
        step = np.zeros(12)
        step[j] = h
        difference = model.residual(x + step.reshape(6, 2), 3.0) - model.residual(x - step.reshape(6, 2), 3.0)
        J[:, j] = difference.ravel() / (2 * h)
    np.testing.assert_allclose(dense_jacobian(main, model, x, 3.0), J, atol=1e-7)


@pytest.mark.parametrize("mode", [6, 8, 11])
def test_jacobian_is_singular_along_the_mode_at_its_bifurcation(main: ModuleType, mode: int) -> None:
    model = main.Brusselator(cells=40)
    B = model.bifurcation(mode)
    threshold = (1 + model.A * np.sqrt(model.Du / model.Dv)) ** 2  # Turing's, on an endless line
    assert threshold <= B
    J = dense_jacobian(main, model, model.stripes(mode, B, amplitude=0.0), B)
    _, singular, V = np.linalg.svd(J)
    assert singular[-1] < 1e-12 * singular[0]
    wave = np.cos(np.pi * mode * (np.arange(40) + 0.5) / 40)
    u = V[-1].reshape(40, 2)[:, 0]
    assert abs(u @ wave) == pytest.approx(np.linalg.norm(u) * np.linalg.norm(wave))


def test_sweep_follows_every_branch_to_its_bifurcation(branches: tuple[Any, Any]) -> None:
    model, found = branches
    assert found.converged.all()
    for j, mode in enumerate((8, 10)):
        amplitude, beyond = found.amplitude[:, j], found.B - model.bifurcation(mode)
        assert np.all(amplitude[beyond > 0.01] > 0.1)
        assert np.all(amplitude[beyond < -0.01] < 1e-5)
        near = (beyond > 0.005) & (beyond < 0.15)  # amplitude^2 is nearly linear here
        curve = np.polyfit(amplitude[near] ** 2, beyond[near], 2)
        assert abs(curve[-1]) < 2e-3


def test_warm_starts_stay_on_their_branches_and_the_secant_is_cheapest(
    main: ModuleType, branches: tuple[Any, Any]
) -> None:
    model, _ = branches
    B = np.linspace(3.5, 3.1, 21)
    none, last, secant = (main.sweep(model, (8, 10), B, predictor) for predictor in ("none", "last", "secant"))
    np.testing.assert_allclose(last.states, secant.states, atol=1e-4)
    assert secant.newton_steps < last.newton_steps < none.newton_steps


def test_all_solvers_agree(main: ModuleType) -> None:
    model, B = main.Brusselator(cells=50), 3.5
    x0 = model.stripes(8, B)
    ours = main.ims.root(model.problem(B), x0, stop=main.ims.NonlinearStop(atol=1e-10, rtol=0.0)).raise_for_status().x
    by_hand, outcome = main.newton_by_hand(model, x0, B)
    assert outcome.startswith("converged")
    np.testing.assert_allclose(ours, by_hand, atol=1e-6)
    for factorized in (True, False):
        scipys, outcome = main.newton_krylov(model, x0, B, 10.0, factorized)
        assert outcome.startswith("converged")
        np.testing.assert_allclose(ours, scipys, atol=1e-6)


def test_command_line(main: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "turing.png"
    small = ["--cells", "100", "--points", "13", "--fine-cells", "100"]
    assert main.main([*small, "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert re.search("start secant .* 65 of 65 solved", out)
    assert "one steady state, 100 cells" in out
    residuals = [float(value) for value in re.findall(r"max\|F\| (\S+)   converged", out)]
    assert len(residuals) >= 3
    assert max(residuals) <= main.ATOL
    assert figure.read_bytes().startswith(b"\x89PNG")
