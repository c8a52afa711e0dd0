"""Calibrate a flow model by gradients through its solver: permeabilities of the ground from pressures in boreholes.

Fluid of a density that grows with the pressure, exp(c p), flows through n x n cells from wells to the open left side:

    div(k exp(c p) grad p) + q = 0.

The logarithm of k in every cell is unknown; the pressure is measured in some cells. The model is a NumPy function
without derivatives: ``derivatives="trace"`` gives exact products with J for the solves, and the gradient of the misfit
by all permeabilities for one adjoint solve each. SciPy's L-BFGS-B does the rest. See docs/examples/calibration.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

import implicitsolve as ims

COMPRESSIBILITY = 0.2


def flow(p: Any, logk: Any, q: Any) -> Any:
    """What flows out of each cell, less what its well brings."""
    k, out = np.exp(logk), -q
    for axis in (0, 1):
        here, there = (
            (slice(None, -1), slice(1, None)) if axis == 0 else ((..., slice(None, -1)), (..., slice(1, None)))
        )
        between = 2 * k[here] * k[there] / (k[here] + k[there])
        flux = between * np.exp(0.5 * COMPRESSIBILITY * (p[here] + p[there])) * (p[here] - p[there])
        out[here] += flux
        out[there] -= flux
    out[:, 0] += 2 * k[:, 0] * p[:, 0]  # the open side, where p = 0
    return out


def ground(n: int, rng: np.random.Generator) -> Any:
    """The logarithm of the permeability: a few waves and a channel."""
    y, x = np.indices((n, n)) / n
    waves = sum(0.5 * np.sin(2 * np.pi * (i * x + j * y + s)) for i, j, s in rng.uniform(-1.5, 1.5, (4, 3)))
    return waves + 1.5 * (np.abs(y - 0.5 - 0.2 * np.sin(5 * x)) < 0.1)


class Calibration:
    """The misfit of the pressures in the boreholes, and how rough the permeability is."""

    def __init__(self, n: int, boreholes: int, noise: float, rng: np.random.Generator) -> None:
        self.n, self.solves = n, 0
        self.q = np.zeros((n, n))
        self.q[n // 4, 3 * n // 4] = self.q[3 * n // 4, n // 2] = self.q[n // 2, n - 2] = 0.5
        self.truth = ground(n, rng)
        self.places = rng.choice(n * n, boreholes, replace=False)
        self.last: ims.NonlinearResult | None = None
        p = self.solve(self.truth).x
        self.measured = p.ravel()[self.places] + noise * p.max() * rng.standard_normal(boreholes)
        self.noise = noise * p.max()

    def solve(self, logk: Any) -> ims.NonlinearResult:
        """The pressures for a permeability."""
        start = np.zeros((self.n, self.n))
        parameters = {"logk": logk, "q": self.q}
        result = ims.root(flow, start, parameters=parameters, derivatives="trace", previous=self.last)
        self.last = result.raise_for_status()
        self.solves += 1
        return self.last

    def __call__(self, vector: Any) -> tuple[float, Any]:
        """The misfit, and its gradient."""
        logk = vector.reshape(self.n, self.n)
        result = self.solve(logk)
        error = (result.x.ravel()[self.places] - self.measured) / self.noise
        cotangent = np.zeros(self.n**2)
        cotangent[self.places] = error / self.noise
        gradient = ims.pull_back(result, cotangent.reshape(self.n, self.n), wrt=["logk"]).gradients["logk"]
        loss = 0.5 * error @ error
        for axis in (0, 1):
            step = np.diff(logk, axis=axis)
            loss += 2.0 * np.sum(step**2)
            gradient = gradient - 4.0 * np.diff(step, axis=axis, prepend=0, append=0)
        return float(loss), gradient.ravel()


def main(arguments: list[str] | None = None) -> None:
    """Calibrate, and print what was found."""
    parser = argparse.ArgumentParser(description="Calibrate a flow model by gradients.")
    parser.add_argument("--cells", type=int, default=32, help="cells along each side")
    parser.add_argument("--boreholes", type=int, default=150)
    parser.add_argument("--steps", type=int, default=60, help="iterations of L-BFGS-B at most")
    parser.add_argument("--figure", type=Path, help="file for a picture")
    options = parser.parse_args(arguments)
    model = Calibration(options.cells, options.boreholes, 0.01, np.random.default_rng(3))
    start = np.zeros(options.cells**2)
    before = model(start)[0]
    settings = {"maxiter": options.steps, "maxcor": 20}
    bounds = scipy.optimize.Bounds(-2.0, 4.0)
    found = scipy.optimize.minimize(model, start, jac=True, method="L-BFGS-B", bounds=bounds, options=settings)
    logk = found.x.reshape(model.truth.shape)
    fit = np.corrcoef(logk.ravel(), model.truth.ravel())[0, 1]
    print(f"{options.cells**2} permeabilities from {options.boreholes} pressures")
    print(f"misfit {before:.3g} -> {found.fun:.3g} in {found.nit} iterations, {model.solves} solves")
    print(f"correlation of log k with the truth: {fit:.2f}")
    if options.figure:
        draw(options.figure, model, logk)


def draw(path: Path, model: Calibration, logk: Any) -> None:
    """The permeability that was to be found, and what was found."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
    limits: Any = {"vmin": model.truth.min(), "vmax": model.truth.max()}
    for ax, values, title in zip(
        axes, (model.truth, logk), ("truth, and the boreholes", "from the pressures"), strict=True
    ):
        ax.imshow(values, cmap="viridis", **limits)
        ax.set(title=title, xlabel="x, cells", ylabel="y, cells")
    y, x = np.divmod(model.places, model.n)
    axes[0].plot(x, y, "w.", markersize=3)
    figure.colorbar(axes[0].images[0], ax=axes, label="log k")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
