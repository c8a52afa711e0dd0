"""The diode's current: the same through every plane, and exponential in the voltage."""

from types import ModuleType

import numpy as np


def test_the_curve_is_that_of_a_diode(main: ModuleType) -> None:
    diode = main.Diode(1 / 8)
    voltages = np.array([0.4, 0.5, 0.6])
    currents, results = diode.curve(voltages)
    ideal = 0.1 / main.THERMAL
    np.testing.assert_allclose(np.diff(np.log(currents)), ideal, rtol=0.1)
    through = diode.density(results[-1].x, 1).sum(0)
    np.testing.assert_allclose(through, through[-1], rtol=1e-6)
