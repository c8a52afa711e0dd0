"""The gradient of the misfit, and a few steps of the calibration."""

from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("jax", exc_type=ImportError)


def test_the_gradient_is_that_of_the_misfit(main: ModuleType, rng: np.random.Generator) -> None:
    model = main.Calibration(6, 10, 0.01, rng)
    x, d = 0.3 * rng.standard_normal(36), rng.standard_normal(36)
    slope = (model(x + 1e-4 * d)[0] - model(x - 1e-4 * d)[0]) / 2e-4
    np.testing.assert_allclose(model(x)[1] @ d, slope, rtol=1e-5)


def test_the_misfit_falls(main: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["--cells", "8", "--boreholes", "20", "--steps", "5"])
    before, after = capsys.readouterr().out.split("misfit ")[1].split(" in ")[0].split(" -> ")
    assert float(after) < 0.3 * float(before)
