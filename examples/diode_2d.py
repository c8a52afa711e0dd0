"""A silicon diode in the plane: a p-doped well in n-doped ground, and its current over the voltage.

The van Roosbroeck equations for the potential psi and the quasi-Fermi potentials phi_n and phi_p, in units of kT/q,
with the densities n = n_i exp(psi - phi_n) and p = n_i exp(phi_p - psi):

    div(eps grad psi) = q (n - p - doping),    div J_n = q R,    div J_p = -q R,

with recombination R by traps (Shockley, Read and Hall), on finite volumes with the currents of Scharfetter and Gummel,
IEEE Transactions on Electron Devices 16 (1969) 64-77. See docs/examples/diode.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims

CHARGE, PERMITTIVITY = 1.602e-19, 11.7 * 8.854e-14  # C, F/cm
THERMAL = 0.02585  # V, at 300 K
INTRINSIC = 1e10  # 1/cm^3, of silicon
MOBILITY_N, MOBILITY_P = 1400.0, 450.0  # cm^2/(V s)
LIFETIME = 1e-7  # s
DONORS, ACCEPTORS = 1e16, 1e17  # 1/cm^3
UNIT = CHARGE * THERMAL * INTRINSIC  # of a current per mobility


def bernoulli(x: Any) -> Any:
    """x / (exp(x) - 1)."""
    small = np.abs(x) < 1e-4
    safe = np.where(small, 1.0, np.clip(x, -500, 500))
    return np.where(small, 1 - x / 2 + x**2 / 12, safe / np.expm1(safe))


def differences(values: Any, axis: int) -> Any:
    """Differences of neighbors along an axis, halved along the outer boundary, where faces are half as wide."""
    steps = np.diff(np.moveaxis(values, axis, 0), axis=0)
    steps[:, [0, -1]] *= 0.5
    return np.moveaxis(steps, 0, axis)


def divergence(flux: Any, axis: int) -> Any:
    """What leaves each volume along an axis."""
    return np.diff(np.pad(flux, [(1, 1) if each == axis else (0, 0) for each in range(2)]), axis=axis)


@dataclass(frozen=True)
class Diode:
    """A device of 2 by 1 micrometers with squares of `step` micrometers: unknowns (psi, phi_n, phi_p) at each point."""

    step: float = 1 / 24

    @cached_property
    def places(self) -> Any:
        """The coordinates of the points in micrometers, y downwards."""
        rows = round(1 / self.step)
        return np.meshgrid(np.linspace(0, 2, 2 * rows + 1), np.linspace(0, 1, rows + 1), indexing="ij")

    @cached_property
    def doping(self) -> Any:
        """Donors less acceptors, over the intrinsic density."""
        x, y = self.places
        return np.where((x < 1.0) & (y < 0.35), -ACCEPTORS, DONORS) / INTRINSIC

    @cached_property
    def contacts(self) -> tuple[Any, Any]:
        """Points of the anode, on top of the well, and of the cathode, the whole bottom."""
        x, y = self.places
        return (y == 0) & (x < 0.6), y == 1

    @cached_property
    def area(self) -> Any:
        """The area of each volume, in cm^2: halved at a side, and once more at a corner."""
        sides = [np.where(np.isin(np.arange(size), (0, size - 1)), 0.5, 1.0) for size in self.doping.shape]
        return (1e-4 * self.step) ** 2 * np.outer(*sides)

    @cached_property
    def neutral(self) -> Any:
        """The potential where no charge is."""
        return np.arcsinh(self.doping / 2)

    @cached_property
    def equilibrium(self) -> Any:
        """The potential without a voltage."""

        def F(psi: Any) -> Any:
            ends = self.contacts[0] | self.contacts[1]
            return np.where(ends, psi - self.neutral, self.poisson(psi, np.exp(psi), np.exp(-psi)))

        return ims.root(F, self.neutral).raise_for_status().x

    def poisson(self, psi: Any, n: Any, p: Any) -> Any:
        """Charge that is missing in each volume, over that of the donors."""
        charge = (p - n + self.doping) * self.area
        for axis in (0, 1):
            charge += PERMITTIVITY * THERMAL / (CHARGE * INTRINSIC) * divergence(differences(psi, axis), axis)
        return charge / (self.area * (DONORS / INTRINSIC))

    def currents(self, u: Any, axis: int) -> tuple[Any, Any]:
        """Currents of electrons and holes along an axis, in A per cm of depth and unit of mobility."""
        psi = u[0]
        rise, end = np.diff(psi, axis=axis), psi.shape[axis]
        faces = UNIT * differences(self.places[axis] / self.step, axis)
        here, there = (np.take(u, places, axis=axis + 1) for places in (range(end - 1), range(1, end)))
        n = bernoulli(rise) * np.exp(there[0] - there[1]) - bernoulli(-rise) * np.exp(here[0] - here[1])
        p = bernoulli(rise) * np.exp(here[2] - here[0]) - bernoulli(-rise) * np.exp(there[2] - there[0])
        return faces * n, faces * p

    def equations(self, u: Any, voltage: float) -> Any:
        """F(u): charge, electrons and holes missing in each volume, and the potentials at the contacts."""
        with np.errstate(over="ignore", invalid="ignore"):  # where a step leads too far, which F tells
            return self.balances(u, voltage)

    def balances(self, u: Any, voltage: float) -> Any:
        """Charge, electrons and holes missing in each volume, with warnings where exponentials overflow."""
        n, p = np.exp(u[0] - u[1]), np.exp(u[2] - u[0])
        lost = CHARGE * INTRINSIC / LIFETIME * (n * p - 1) / (n + p + 2) * self.area
        electrons, holes = -lost / MOBILITY_N, lost / MOBILITY_P
        for axis in (0, 1):
            of_n, of_p = self.currents(u, axis)
            electrons, holes = electrons + divergence(of_n, axis), holes + divergence(of_p, axis)
        at_rest = np.exp(self.equilibrium)
        F = np.stack([self.poisson(u[0], n, p), electrons / (UNIT * at_rest), holes / (UNIT / at_rest)])
        for points, level in zip(self.contacts, (voltage / THERMAL, 0.0), strict=True):
            F[:, points] = u[:, points] - level
            F[0, points] -= self.neutral[points]
        return F

    def density(self, u: Any, axis: int) -> Any:
        """The whole current through each face, in A per cm of depth; positive along the axis."""
        of_n, of_p = self.currents(u, axis)
        return MOBILITY_N * of_n + MOBILITY_P * of_p

    def curve(self, voltages: Any) -> tuple[Any, list[ims.NonlinearResult]]:
        """Currents from the anode to the cathode at rising voltages, each solve from the one before."""
        u, results = np.stack([self.equilibrium, 0 * self.neutral, 0 * self.neutral]), []
        for voltage in voltages:
            last = results[-1] if results else None
            results.append(ims.root(self.equations, u, args=(voltage,), previous=last).raise_for_status())
            u = results[-1].x
        return np.array([self.density(result.x, 1)[:, -1].sum() for result in results]), results


def main(arguments: list[str] | None = None) -> None:
    """Compute the curve, and print it."""
    parser = argparse.ArgumentParser(description="The current of a silicon diode in the plane.")
    parser.add_argument("--rows", type=int, default=24, help="squares along the short side")
    parser.add_argument("--figure", type=Path, help="file for a picture")
    options = parser.parse_args(arguments)
    diode = Diode(1 / options.rows)
    voltages = np.linspace(0.05, 0.8, 16)
    currents, results = diode.curve(voltages)
    print(f"{results[0].x.size} unknowns; J: {results[0].detection}")
    for voltage, current, result in zip(voltages, currents, results, strict=True):
        print(f"{voltage:.2f} V  {current:9.3g} A/cm  {result.nfev:4} evaluations")
    slope = 1e3 * np.diff(voltages) / np.diff(np.log10(currents))
    print(f"steepest: {slope.min():.1f} mV for each factor of ten; ideal: {1e3 * THERMAL * np.log(10):.1f} mV")
    if options.figure:
        draw(options.figure, diode, voltages, currents, results[-3].x)


def draw(path: Path, diode: Diode, voltages: Any, currents: Any, u: Any) -> None:
    """Where the current flows at 0.7 V, and the curve beside the ideal one."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    x, y = diode.places
    along = [diode.density(u, axis) / (1e-4 * diode.step) for axis in (0, 1)]
    along = 0.5 * (along[0][:, :-1] + along[0][:, 1:]), 0.5 * (along[1][:-1] + along[1][1:])
    image = left.pcolormesh(x, y, np.hypot(*along), cmap="viridis")
    middle = (x[1:, 1:] + x[:-1, :-1]) / 2, (y[1:, 1:] + y[:-1, :-1]) / 2
    left.streamplot(middle[0][:, 0], middle[1][0], along[0].T, along[1].T, color="w", density=0.7, linewidth=0.6)
    left.contour(x, y, diode.doping, [0], colors="tab:red")
    left.set(xlabel="x, µm", ylabel="depth, µm", title="0.7 V; red: the junction", aspect="equal", ylim=(1, 0))
    figure.colorbar(image, ax=left, label="current density, A/cm²")
    k = np.argmin(np.diff(voltages) / np.diff(np.log10(currents)))
    right.semilogy(voltages, currents, "o-", label="computed")
    right.semilogy(voltages, currents[k] * np.exp((voltages - voltages[k]) / THERMAL), "--", label="exp(qV/kT)")
    right.set(xlabel="voltage, V", ylabel="current, A per cm of depth", ylim=(currents[0] / 3, 10 * currents[-1]))
    right.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
