"""Circuits from zero, drift and diffusion, stiff kinetics, acids and bases, a battery: from rough starts."""

import numpy as np
import pytest

import implicitsolve as ims
from tests.helpers.physical import GALLERY

pytestmark = pytest.mark.rounding

DEFAULTS_SUFFICE = {
    "diode and resistor",
    "common emitter amplifier",
    "Schmitt trigger",
    "flip-flop",
    "drift and diffusion",
    "oregonator",
}


@pytest.mark.parametrize("case", GALLERY, ids=lambda case: case.name)
def test_all_are_solved_with_what_an_engineer_declares(case):
    units = 1.0 if "f_scale" in case.declared else float(np.min(case.sizes))
    stop = ims.NonlinearStop(atol=1e-8 * units)
    for declared in [case.declared, {}] if case.name in DEFAULTS_SUFFICE else [case.declared]:
        with np.errstate(all="ignore"):
            result = ims.root(case.residual, np.array(case.x0, dtype=float), stop=stop, **declared)
        assert result.success
        assert np.max(np.abs(case.residual(result.x) / case.sizes)) < 1e-6
        lower, upper = declared.get("bounds", (-np.inf, np.inf))
        assert ((result.x >= lower) & (result.x <= upper)).all()


def test_the_last_digit_of_a_start_decides_nothing_within_bounds(rng):
    """Of 30 starts that differ by rounding errors, 6 were solved: the equations' sizes change by many powers of ten."""
    (case,) = (case for case in GALLERY if case.name == "phosphate buffer")
    for _ in range(5):
        x0 = case.x0 * (1 + 1e-15 * rng.uniform(-1, 1, 6))
        with np.errstate(all="ignore"):
            result = ims.root(case.residual, x0, stop=ims.NonlinearStop(atol=1e-8), **case.declared)
        assert result.success
        assert result.x.min() >= 0
