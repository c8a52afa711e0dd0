"""Chemical equilibria with amounts from 0.1 to 1e-29: complexes, acids, a gas; by quotients or by logarithms."""

from collections.abc import Callable
from typing import Any

import numpy as np

System = tuple[Callable[[Any], Any], Any]  # F and x0


def equilibrium(powers: Any, constants: Any, content: Any, totals: Any, *, by_logarithms: bool) -> Callable[[Any], Any]:
    """F: mass action, prod x^powers = 10^constants, and the totals of what the species contain."""
    powers, content, totals = (np.asarray(part, dtype=float) for part in (powers, content, totals))

    def F(x: Any) -> Any:
        with np.errstate(all="ignore"):
            if by_logarithms:
                action = powers @ np.log(x) - np.log(10.0) * np.asarray(constants)
            else:
                above, below = (np.prod(x ** np.maximum(sign * powers, 0), axis=1) for sign in (1, -1))
                action = above / below / 10.0 ** np.asarray(constants) - 1
            return np.concatenate([action, content @ x / totals - 1])

    return F


def complexes(constants: Any, metal: float, ligand: float) -> Any:
    """Complexes of a metal with 1 to n ligands: M, L, ML, ..., MLn."""
    n = len(constants)
    count = np.arange(1.0, n + 1)
    powers = np.column_stack([-np.ones(n), -count, np.eye(n)])
    content = np.array([[1.0, 0.0, *np.ones(n)], [0.0, 1.0, *count]])
    return powers, constants, content, [metal, ligand]


def nickel_ammonia() -> Any:
    """Nickel with up to six ammonia, which is a base in water: NH4, H, OH."""
    powers, constants, content, totals = complexes([2.72, 4.89, 6.55, 7.67, 8.34, 8.31], 1e-3, 0.1)
    acid = [[0, 1, *np.zeros(6), -1, 1, 0], [*np.zeros(8), 0, 1, 1]]
    powers = np.vstack([np.hstack([powers, np.zeros((6, 3))]), acid])
    charges = [2, 0, *np.full(6, 2), 1, 1, -1]
    content = np.vstack([np.hstack([content, [[0, 0, 0], [1, 0, 0]]]), charges])
    return powers, [*constants, -9.26, -14.0], content, [*totals, 2e-3]


def acids(constants: Any, total: float, charge: float) -> Any:
    """An acid in n steps, with H and OH: HnA, ..., A, H, OH."""
    n = len(constants)
    powers = np.zeros((n + 1, n + 3))
    powers[:n, :n], powers[np.arange(n), np.arange(n) + 1] = -np.eye(n), 1
    powers[:, n + 1] = powers[n, n + 2] = 1
    content = np.array([[*np.ones(n + 1), 0, 0], [*np.arange(n + 1.0), -1, 1]])
    return powers, [*constants, -14.0], content, [total, charge]


def titration() -> Any:
    """Calcium and magnesium with EDTA: Ca, Mg, Y, HY, H2Y, CaY, MgY, H, OH."""
    powers = [[-1, 0, -1, 0, 0, 1, 0, 0, 0], [0, -1, -1, 0, 0, 0, 1, 0, 0], [0, 0, -1, 1, 0, 0, 0, -1, 0],
              [0, 0, 0, -1, 1, 0, 0, -1, 0], [0, 0, 0, 0, 0, 0, 0, 1, 1]]  # fmt: skip
    content = [[1, 0, 0, 0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1, 0, 0],
               [0, 0, 0, 1, 2, 0, 0, 1, -1]]  # fmt: skip
    return powers, [10.7, 8.7, 10.2, 6.2, -14.0], content, [1e-3, 1e-3, 1.5e-3, 1e-3]


def flame() -> Any:
    """Methane in air: CO2, CO, H2O, H2, O2, OH, O, H."""
    powers = [[-1, 1, 0, 0, 0.5, 0, 0, 0], [0, 0, -1, 1, 0.5, 0, 0, 0], [0, 0, 0, -0.5, -0.5, 1, 0, 0],
              [0, 0, 0, 0, -0.5, 0, 1, 0], [0, 0, 0, -0.5, 0, 0, 0, 1]]  # fmt: skip
    content = [[1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 2, 2, 0, 1, 0, 1], [2, 1, 1, 0, 2, 1, 1, 0]]
    return powers, [-3.0, -3.6, -0.9, -3.4, -3.0], content, [1.0, 4.0, 4.2]


SYSTEMS = {
    "nickel and ammonia": (nickel_ammonia(), 1e-3),
    "copper and ammonia": (complexes([4.04, 7.47, 10.27, 11.75], 1e-3, 0.1), 1e-2),
    "cadmium and cyanide": (complexes([6.0, 11.1, 15.7, 17.9], 1e-2, 2e-2), 1e-2),
    "mercury and chloride": (complexes([6.7, 13.2, 14.1, 15.1], 1e-3, 0.1), 1e-3),
    "iron and cyanide": (complexes([10, 18, 24, 29, 33, 37], 1e-4, 1e-2), 1e-3),
    "carbonate": (acids([-6.35, -10.33], 1e-2, 1.2e-2), 1e-3),
    "phosphate": (acids([-2.15, -7.2, -12.35], 1e-2, 1.5e-2), 1e-3),
    "citrate": (acids([-3.13, -4.76, -6.4], 2e-2, 3e-2), 1e-3),
    "flame": (flame(), 1.0),
    "titration": (titration(), 1e-4),
}


def equilibria() -> dict[str, System]:
    """All of them, in both forms."""
    return {
        f"{name}, {form}": (equilibrium(*parts, by_logarithms=form == "logarithms"), np.full(len(parts[0][0]), x0))
        for name, (parts, x0) in SYSTEMS.items()
        for form in ("quotients", "logarithms")
    }
