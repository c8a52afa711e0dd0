"""Bifurcation diagrams: Bratu's equation in the line and in the plane, a shallow arch, and the Brusselator.

    python examples/continuation.py --figure continuation.png

Bratu's fold is compared with that of the continuous problem, the Brusselator's Hopf points with their closed form on
this grid. See docs/how_to/continuation.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import implicitsolve as ims

Array = NDArray[Any]


def bratu_line(u: Array, lam: float) -> Array:
    """u'' + lam e^u on (0, 1), zero at both ends."""
    return np.diff(u, 2, prepend=0, append=0) * (u.size + 1) ** 2 + lam * np.exp(u)


def bratu_plane(u: Array, lam: float) -> Array:
    """Bratu's problem on the unit square."""
    p = np.pad(u, 1)
    neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    return (neighbors - 4 * u) * (len(u) + 1) ** 2 + lam * np.exp(u)


class Arch:
    """A shallow elastic arch with pinned ends under a uniform load: D^4 y + N(y) D^2 (w0 + y) + load = 0.

    y is the deflection from the rest shape w0 = rise sin(pi s), and N the thrust of the shortened arch.
    """

    def __init__(self, points: int = 63, rise: float = 4.5) -> None:
        self.h = 1 / (points + 1)
        self.rest = rise * np.sin(np.pi * self.h * np.arange(1, points + 1))
        self.D2 = np.diff(np.eye(points), 2, axis=0, prepend=0, append=0) / self.h**2

    def thrust(self, y: Array) -> float:
        """Half of what the square of the slope has lost, integrated."""
        before, after = (np.sum(np.diff(w, prepend=0, append=0) ** 2) for w in (self.rest, self.rest + y))
        return float(before - after) / (2 * self.h)

    def residual(self, y: Array, load: float) -> Array:
        """The equation at the inner points."""
        return self.D2 @ (self.D2 @ y) + self.thrust(y) * (self.D2 @ (self.rest + y)) + load

    def jac(self, y: Array, load: float) -> Array:
        """The derivative of the forces: dense, since the thrust depends on all of y."""
        bent = self.D2 @ (self.rest + y)
        return self.D2 @ self.D2 + self.thrust(y) * self.D2 + self.h * np.outer(bent, bent)


class Brusselator:
    """The Brusselator on a line whose length is the parameter; both ends are kept at the steady state."""

    A, B, Dx, Dy = 2.0, 5.45, 0.008, 0.004

    def __init__(self, points: int = 63) -> None:
        self.h = 1 / (points + 1)
        self.steady = np.stack([np.full(points, self.A), np.full(points, self.B / self.A)])

    def residual(self, state: Array, length: float) -> Array:
        """The right-hand sides of X' and Y'."""
        X, Y = state
        reaction = X * X * Y
        dX, dY = (np.diff(v, 2, prepend=e, append=e) for v, e in zip(state, (self.A, self.B / self.A)))
        scale = 1 / (self.h * length) ** 2
        return np.stack(
            [
                self.Dx * scale * dX + reaction - (self.B + 1) * X + self.A,
                self.Dy * scale * dY - reaction + self.B * X,
            ]
        )

    def hopf(self, mode: int) -> float:
        """The length at which so many half waves become unstable: the trace of their matrix is zero."""
        mu = 4 / self.h**2 * np.sin(mode * np.pi * self.h / 2) ** 2
        return float(np.sqrt(mu * (self.Dx + self.Dy) / (self.B - 1 - self.A**2)))


def up_to(height: float) -> Any:
    """An event that ends a branch where max(u) reaches this height."""

    def top(u: Array, lam: float) -> float:
        return float(u.max()) - height

    top.terminal = True  # type: ignore[attr-defined]
    return top


def branches(points: int = 63) -> dict[str, ims.Branch]:
    """The four branches."""
    model, arch = Brusselator(points), Arch(points)
    snap = ims.Problem(arch.residual, jac=arch.jac)
    return {
        "Bratu, line": ims.continuation(bratu_line, np.zeros(points), 0, 4, events={"top": up_to(6)}),
        "Bratu, plane": ims.continuation(bratu_plane, np.zeros((points, points)), 0, 8, events={"top": up_to(6)}),
        "arch": ims.continuation(snap, np.zeros(points), 0, 1000, interval=(-1000, 1000)),
        "Brusselator": ims.continuation(model.residual, model.steady, 0.3, 1.7, eigenvalues=10),
    }


def main() -> None:
    """Print the special points, and draw the diagrams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=63, help="inner grid points along a line (default 63)")
    parser.add_argument("--figure", type=Path, help="where to write the diagrams")
    arguments = parser.parse_args()
    found = branches(arguments.points)
    for name, branch in found.items():
        print(f"{name}: {branch}")
    for name, limit in (("Bratu, line", 3.513830719), ("Bratu, plane", 6.808124423)):
        fold = found[name].of_kind("fold")[0].lam
        print(f"{name}: fold at {fold:.9f}, {fold - limit:+.2e} from that of the continuous problem")
    exact = Brusselator(arguments.points).hopf
    for mode, point in enumerate(found["Brusselator"].of_kind("hopf"), start=1):
        print(f"Brusselator: Hopf point {mode} at {point.lam:.9f}, {point.lam - exact(mode):+.1e} from the closed form")
    if arguments.figure is not None:
        draw(found, arguments.figure)


def draw(found: dict[str, ims.Branch], path: Path) -> None:
    """Four diagrams in one figure."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
    labels = {
        "Bratu, line": ("$\\lambda$", "max u"),
        "Bratu, plane": ("$\\lambda$", "max u"),
        "arch": ("load", "deflection at the crown"),
        "Brusselator": ("length", "X in the middle"),
    }
    for ax, (name, branch) in zip(axes.flat, found.items()):
        middle = branch.x.shape[-1] // 2
        branch.plot(np.max if name.startswith("Bratu") else lambda x, i=middle: x.reshape(-1)[i], ax=ax)
        ax.set_title(name)
        ax.set_xlabel(labels[name][0])
        ax.set_ylabel(labels[name][1])
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
