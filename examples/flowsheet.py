"""An ammonia loop: a flowsheet with a recycle, a reactor in equilibrium and a heat exchanger between feed and product.

Fresh gas (N2, H2, argon) joins the recycle, is heated by the product in the exchanger, and reacts, N2 + 3 H2 = 2 NH3,
in a reactor that loses no heat, to the equilibrium of Gillespie and Beattie, Physical Review 36 (1930) 743-753. Ammonia
condenses at 5 °C, a part of the remaining gas is purged, and the rest returns. All 18 equations are solved at once, no
stream is torn; gases are ideal. One adjoint solve then gives the worth of each setting. See docs/examples/flowsheet.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims

NAMES = ("N2", "H2", "NH3", "Ar")
FEED = np.array([24.5, 74.0, 0.0, 0.5])  # kmol/h
ORDERS = np.array([-1.0, -3.0, 2.0, 0.0])
CAPACITY = np.array([30.5, 29.3, 48.0, 20.8])  # kJ/(kmol K), means from 300 to 800 K
HEAT = 92.2e3  # kJ per kmol of N2, at 298 K
FRESH, COLD = 300.0, 278.0  # K, before the exchanger and in the condenser
SETTINGS = {"purge": 0.04, "area": 45e3, "pressure": 200.0}  # -, UA in kJ/(h K), bar

# The unknowns: flows in kmol/h before the reactor, behind it, and of the gas from the condenser; liquid ammonia; N2
# that reacts; temperatures in K before and behind the reactor and behind the exchanger; its heat in GJ/h.
START = np.array([100.0, 300, 10, 10, 80, 240, 50, 10, 80, 240, 10, 10, 40, 20, 650, 750, 400, 1])


def equilibrium(T: Any) -> Any:
    """K of 1/2 N2 + 3/2 H2 = NH3, in 1/atm."""
    return 10 ** (-2.691122 * np.log10(T) - 5.519265e-5 * T + 1.848863e-7 * T**2 + 2001.6 / T + 2.6899)


def vapor_pressure(T: float) -> float:
    """The vapor pressure of ammonia, in bar: Antoine's equation with the constants of NIST."""
    return 10 ** (4.86886 - 1113.928 / (T - 10.409))


def loop(x: Any, purge: Any, area: Any, pressure: Any) -> Any:
    """F(x): balances of the mixer, the reactor, the exchanger and the condenser, each in its own size."""
    before, behind, gas = x[:4], x[4:8], x[8:12]
    liquid, reacts, T_in, T_out, T_end, heat = x[12:]
    part = behind / np.sum(behind)
    hot, cold = T_out - T_in, T_end - FRESH  # differences at the ends of the exchanger
    mean = (hot * cold * (hot + cold) / 2) ** (1 / 3)  # J. J. J. Chen's for the logarithmic mean
    warmer = np.sum(ORDERS * CAPACITY)
    condensed = np.array([0.0, 0.0, 1.0, 0.0]) * liquid
    others = np.array([
        part[2] / (equilibrium(T_out) * pressure / 1.01325 * (part[0] * part[1] ** 3) ** 0.5) - 1,
        1e-6 * (reacts * (HEAT - warmer * (T_in - 298)) - np.sum(CAPACITY * behind) * (T_out - T_in)),
        heat - 1e-6 * np.sum(CAPACITY * before) * (T_in - FRESH),
        heat - 1e-6 * np.sum(CAPACITY * behind) * (T_out - T_end),
        heat - 1e-6 * area * mean,
        gas[2] * pressure / (np.sum(gas) * vapor_pressure(COLD)) - 1,
    ])  # fmt: skip
    balances = [before - FEED - (1 - purge) * gas, behind - before - reacts * ORDERS, gas + condensed - behind]
    return np.concatenate([*(each / 100 for each in balances), others])


def solve(**changes: float) -> ims.NonlinearResult:
    """The state of the loop at the settings with some changed; flows and temperatures are positive."""
    return ims.root(loop, START, parameters=SETTINGS | changes, bounds=(0, None)).raise_for_status()


def main(arguments: list[str] | None = None) -> None:
    """Solve the loop, and print its streams and what each setting is worth."""
    parser = argparse.ArgumentParser(description="An ammonia loop: a flowsheet with a recycle.")
    parser.add_argument("--figure", type=Path, help="file for a picture")
    options = parser.parse_args(arguments)
    result = solve()
    print(f"{result.x.size} unknowns, {result.nfev} evaluations\nkmol/h    ", *(f"{name:>8}" for name in NAMES))
    for name, flows in zip(("before", "behind", "gas"), result.x[:12].reshape(3, 4), strict=True):
        print(f"{name:10}", *(f"{flow:8.2f}" for flow in flows))
    print(f"liquid ammonia {result.x[12]:.2f}; reactor {result.x[14]:.0f} to {result.x[15]:.0f} K")
    worth = ims.pull_back(result, np.eye(18)[12]).gradients
    for name, value in SETTINGS.items():
        print(f"1 % more {name}: {0.01 * value * float(worth[name]):+.4f} kmol/h of ammonia")
    if options.figure:
        draw(options.figure)


def draw(path: Path) -> None:
    """Ammonia, and argon in the loop, over the part of the gas that is purged."""
    import matplotlib.pyplot as plt

    purges = np.geomspace(0.005, 0.3, 20)
    states = np.array([solve(purge=purge).x for purge in purges])
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.semilogx(100 * purges, states[:, 12], "o-")
    left.set(xlabel="purged, %", ylabel="liquid ammonia, kmol/h", ylim=(0, None))
    for index, name in enumerate(NAMES):
        right.semilogx(100 * purges, 100 * states[:, index] / states[:, :4].sum(1), label=name)
    right.set(xlabel="purged, %", ylabel="share before the reactor, %", ylim=(0, 80))
    right.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
