"""The stiffness is the derivative of the forces, which balance, and are linear elasticity's where strains are small."""

from types import ModuleType

import numpy as np


def test_stiffness_and_balance(main: ModuleType, rng: np.random.Generator) -> None:
    block = main.Block(4)
    u, d = rng.normal(size=(2, *block.nodes.shape))
    slope = (block.equations(u + 1e-5 * d, 1, 1) - block.equations(u - 1e-5 * d, 1, 1)).ravel() / 2e-5
    np.testing.assert_allclose(block.jacobian(u) @ d.ravel(), slope, atol=1e-6 * np.abs(slope).max())
    state = block.load(1)[-1]
    np.testing.assert_allclose(block.forces(state.u).sum(0), 0, atol=1e-6)
    assert state.force[0] > 0 > state.force[2]


def test_a_uniform_strain_has_the_force_of_hooke(main: ModuleType) -> None:
    block = main.Block(2)
    strain = 1e-5
    force = block.forces(block.nodes * [0, 0, strain])[block.held[1], 2].sum()
    np.testing.assert_allclose(force, (main.LAME + 2 * main.SHEAR_MODULUS) * strain * 60**2, rtol=1e-4)
