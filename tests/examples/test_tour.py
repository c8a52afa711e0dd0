"""The tour: its residuals, and that it says what it solved."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.optimize


def test_the_line_is_a_column_of_the_plane(main: ModuleType) -> None:
    u = np.sin(np.pi * np.linspace(0, 1, 12)[1:-1])
    h = 1 / 11
    second = main.bratu_line(u) + h**2 * np.exp(u)  # -h^2 u''
    plane = main.bratu(np.tile(u, (10, 1)).T)[:, 4] + 5 * h**2 * np.exp(u)
    np.testing.assert_allclose(plane, second, atol=1e-12)


def test_small_tour(main: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "tour.png"
    main.main(["--cells", "12", "--nodes", "100", "--planets", "50", "--figure", str(figure)])
    out = capsys.readouterr().out
    assert "50 of 50 solved" in out
    assert out.count("time in ms") == 2
    by_adjoint, by_differences = (float(part.split()[-1]) for part in out.split(" by ")[:2])
    assert by_adjoint == pytest.approx(by_differences, rel=1e-6)
    assert figure.stat().st_size > 1000


def test_the_network_has_a_root(main: ModuleType) -> None:
    F = main.network(60)
    expected = scipy.optimize.root(F, np.zeros(60), method="hybr", options={"xtol": 1e-12}).x
    np.testing.assert_allclose(main.ims.newton_krylov(F, np.zeros(60), f_tol=1e-11), expected, atol=1e-8)
