"""The business cycle: steady state, closed form, linearized decay, and the same paths as a sparse Newton by hand."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def test_residual_is_the_model(main: ModuleType, rng: np.random.Generator) -> None:
    """The equations in levels, written again for one period."""
    e = main.Economy()
    x = e.steady_state + 0.1 * rng.standard_normal((4, 3))
    log_z = 0.1 * rng.standard_normal(4)
    (_, K1, _), (c1, K2, n1), (c2, _, n2) = np.exp(x[:3])
    z1, z2 = np.exp(log_z[1:3])
    y1, y2 = z1 * K1**e.alpha * n1 ** (1 - e.alpha), z2 * K2**e.alpha * n2 ** (1 - e.alpha)
    chi = np.exp(e.log_chi)
    euler = 1 - e.beta * (c2 / c1) ** -e.sigma * (e.alpha * y2 / K2 + 1 - e.delta)
    resources = (c1 + K2 - (1 - e.delta) * K1) / y1 - 1
    hours = np.log(chi * n1**e.phi / (c1**-e.sigma * (1 - e.alpha) * y1 / n1))
    np.testing.assert_allclose(e.residual(x, log_z)[1], [euler, resources, hours], atol=1e-13)


def test_blocks_are_the_whole_jacobian(main: ModuleType, rng: np.random.Generator) -> None:
    T, h = 6, 1e-6
    economy = main.Economy(capital=0.8)
    log_z = 0.1 * rng.standard_normal(T)
    x = economy.start(log_z) + 0.1 * rng.standard_normal((T, 3))
    J = np.empty((T, 3, T, 3))
    for index in np.ndindex(T, 3):
        step = np.zeros((T, 3))
        step[index] = h
        J[:, :, *index] = (economy.residual(x + step, log_z) - economy.residual(x - step, log_z)) / (2 * h)
    matrix = main.ims.BlockBandedMatrix(economy.blocks(x, log_z), lower=1, upper=1)
    np.testing.assert_allclose(matrix.todense(), J.reshape(3 * T, 3 * T), atol=1e-7)


def test_full_depreciation_and_log_utility_have_a_closed_form(main: ModuleType) -> None:
    economy = main.Economy(delta=1.0, sigma=1.0, capital=0.5)
    log_z = economy.productivity(0.2, 300)
    c, K_next, n = economy.solve(log_z).raise_for_status().x.T
    K = np.append(economy.steady_state[1] + np.log(0.5), K_next[:-1])
    log_y = log_z + economy.alpha * K + (1 - economy.alpha) * n
    inner = slice(0, 270)  # the last periods feel that z has not quite returned when the path ends
    ab = economy.alpha * economy.beta
    np.testing.assert_allclose(K_next[inner], (np.log(ab) + log_y)[inner], atol=1e-8)
    np.testing.assert_allclose(c[inner], (np.log(1 - ab) + log_y)[inner], atol=1e-8)
    np.testing.assert_allclose(n[inner], np.log(1 / 3), atol=1e-8)


def test_paths_do_not_depend_on_their_batch(main: ModuleType) -> None:
    economy = main.Economy()
    log_z = economy.productivity(np.array([-0.3, 0.0, 0.1, 0.3]), 150)
    batch = economy.solve(log_z)
    assert batch.success.all()
    assert batch.iterations[1] == 0  # the steady state, where it started
    for path, x in zip(log_z, batch.x, strict=True):
        np.testing.assert_allclose(economy.solve(path).x, x, atol=1e-8)
        by_hand, outcome = main.newton_sparse(economy, path)
        assert outcome.startswith("converged")
        np.testing.assert_allclose(x, by_hand, atol=1e-8)


def test_shown_responses_add_up(main: ModuleType) -> None:
    economy = main.Economy()
    log_z = economy.productivity(np.array([0.1]), 200)
    shown = main.responses(economy, economy.solve(log_z).x, log_z)
    c, K, _ = np.exp(economy.steady_state)
    y = c + economy.delta * K
    spent = c * (1 + shown["consumption"] / 100) + economy.delta * K * (1 + shown["investment"] / 100)
    np.testing.assert_allclose(spent, y * (1 + shown["output"] / 100))
    new = (1 - economy.delta) * (1 + shown["capital"] / 100) + economy.delta * (1 + shown["investment"] / 100)
    np.testing.assert_allclose(1 + shown["capital"][:, 1:] / 100, new[:, :-1], atol=1e-8)


def test_command_line(main: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "responses.png"
    assert main.main(["--periods", "200", "--shocks", "5", "--limit", "0.1", "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "one path of 200 periods" in out
    assert "200 periods each; 5 solved" in out
    assert figure.read_bytes().startswith(b"\x89PNG")
