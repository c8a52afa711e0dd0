"""The loop's elements are conserved, and what a setting is worth is what a change of it brings."""

from types import ModuleType

import numpy as np


def test_elements_are_conserved_and_gradients_are_those_of_solves(main: ModuleType) -> None:
    result = main.solve()
    gas, liquid = result.x[8:12], result.x[12]
    out = main.SETTINGS["purge"] * gas + np.array([0, 0, liquid, 0])
    atoms = np.array([[2, 0, 1, 0], [0, 2, 3, 0], [0, 0, 0, 1]])
    np.testing.assert_allclose(atoms @ out, atoms @ main.FEED, rtol=1e-6)
    worth = main.ims.pull_back(result, np.eye(18)[12]).gradients["purge"]
    change = main.solve(purge=0.0401).x[12] - main.solve(purge=0.0399).x[12]
    np.testing.assert_allclose(float(worth), change / 2e-4, rtol=1e-4)
