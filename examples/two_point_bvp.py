"""Two-point boundary value problems y' = f(x, y) by collocation, and by scipy.integrate.solve_bvp on the same mesh.

    python examples/two_point_bvp.py --figure bvp.png

Two problems u'' = g(u, u') on 0 <= x <= 1 with closed-form solutions: Bratu's, which has two, and steady Burgers with a
boundary layer of width epsilon at x = 1. Both solvers use the collocation of order 4 (Lobatto IIIA, three points) that
solve_bvp uses, so that on one mesh their solutions agree up to rounding, and only the times differ.
See docs/examples/two_point_bvp.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_bvp
from scipy.optimize import brentq

import implicitsolve as ims
from _timing import median_times

Array = NDArray[Any]
STOP = ims.NonlinearStop(atol=1e-13, rtol=0.0)


@dataclass(frozen=True)
class BVP:
    """The problem u'' = g(u, u') for y = (u, u'), with u given at both ends and its exact solution known."""

    name: str
    second_derivative: Callable[[Array, Array], Array]
    derivatives: Callable[[Array, Array], tuple[Array, Array]]  # of g with respect to u and u': used only by solve_bvp
    exact: Callable[[Array], Array]
    guess: Callable[[Array], Array]
    mesh: Callable[[int], Array]

    @property
    def ends(self) -> Array:
        """u(0) and u(1)."""
        return self.exact(np.array([0.0, 1.0]))

    def f(self, y: Array) -> Array:
        """y' for y of shape (T, 2)."""
        return np.stack([y[:, 1], self.second_derivative(y[:, 0], y[:, 1])], axis=1)

    def start(self, x: Array) -> Array:
        """The initial guess of u and its slope, (T, 2)."""
        u = self.guess(x)
        return np.stack([u, np.gradient(u, x)], axis=1)

    def error(self, x: Array, y: Array) -> float:
        """Largest error of u at the mesh points."""
        return float(np.max(np.abs(y[:, 0] - self.exact(x))))


def collocation(bvp: BVP, x: Array) -> ims.Problem:
    """The collocation equations on the mesh x, for y of shape (T, 2).

    Rows: u(0), the two defects of every interval, u(1). In blocks of two, block t is the second defect of the interval
    left of node t and the first defect of the one right of it: it couples to the nodes t - 1, t and t + 1.
    """
    h = np.diff(x)[:, None]
    left, right = bvp.ends

    def residual(y: Array) -> Array:
        f = bvp.f(y)
        middle = 0.5 * (y[1:] + y[:-1]) - h / 8 * (f[1:] - f[:-1])
        defects = np.diff(y, axis=0) - h / 6 * (f[1:] + 4 * bvp.f(middle) + f[:-1])
        return np.concatenate([[y[0, 0] - left], defects.ravel(), [y[-1, 0] - right]]).reshape(y.shape)

    return ims.Problem(residual, structure=ims.BlockBanded(lower=1, upper=1, block_size=2), name=bvp.name)


def solve(bvp: BVP, x: Array) -> ims.NonlinearResult:
    """Solve on the mesh x."""
    return ims.root(collocation(bvp, x), bvp.start(x), stop=STOP)


def solve_scipy(
    bvp: BVP, x: Array, tol: float = 1e-9, refine: bool = False, exact: bool = False, calls: int = 1
) -> Any:
    """Solve with solve_bvp: on the mesh x alone unless `refine`; with analytic derivatives if `exact`.

    Newton's method in solve_bvp ends after four Jacobians, since it expects to refine the mesh. More `calls`, each from
    the answer of the last, let it converge on the mesh given.
    """
    left, right = bvp.ends

    def jacobian(x: Array, y: Array) -> Array:
        J = np.zeros((2, 2, x.size))
        J[0, 1] = 1.0
        J[1] = bvp.derivatives(y[0], y[1])
        return J

    def boundary_jacobian(ya: Array, yb: Array) -> tuple[Array, Array]:
        return np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])

    y, answer = bvp.start(x).T, None
    for _ in range(calls):
        answer = solve_bvp(
            lambda x, y: np.stack([y[1], bvp.second_derivative(y[0], y[1])]),
            lambda ya, yb: np.array([ya[0] - left, yb[0] - right]),
            x,
            y,
            fun_jac=jacobian if exact else None,
            bc_jac=boundary_jacobian if exact else None,
            tol=1e-9,
            max_nodes=10**6 if refine else x.size,
        )
        x, y = answer.x, answer.y
    return answer


# ------------------------------------------------------------------------------------------------------------ problems


def bratu(branch: str, parameter: float = 2.0) -> BVP:
    """u'' + lambda exp(u) = 0, u = 0 at both ends; the branch is "lower" or "upper"."""
    bracket = (0.0, 4.7987) if branch == "lower" else (4.7987, 30.0)  # the branches meet at theta = 4.7987
    theta: float = brentq(lambda t: t - np.sqrt(2 * parameter) * np.cosh(t / 4), *bracket, xtol=1e-14)
    height = 2 * np.log(np.cosh(theta / 4))
    return BVP(
        name=f"Bratu, {branch}",
        second_derivative=lambda u, slope: -parameter * np.exp(u),
        derivatives=lambda u, slope: (-parameter * np.exp(u), np.zeros_like(u)),
        exact=lambda x: -2 * np.log(np.cosh((x - 0.5) * theta / 2) / np.cosh(theta / 4)),
        guess=lambda x: 4 * round(height) * x * (1 - x),
        mesh=lambda intervals: np.linspace(0.0, 1.0, intervals + 1),
    )


def burgers(epsilon: float) -> BVP:
    """epsilon u'' = u u', u = tanh((1 - x) / (2 epsilon)); the mesh is graded so that the layer has half of it."""
    stretch = np.arcsinh(1 / epsilon)
    return BVP(
        name=f"Burgers, epsilon {epsilon:g}",
        second_derivative=lambda u, slope: u * slope / epsilon,
        derivatives=lambda u, slope: (slope / epsilon, u / epsilon),
        exact=lambda x: np.tanh((1 - x) / (2 * epsilon)),
        guess=lambda x: 1 - x,
        mesh=lambda intervals: 1 - np.sinh(stretch * np.linspace(1.0, 0.0, intervals + 1)) / np.sinh(stretch),
    )


# -------------------------------------------------------------------------------------------------------------- output


def compare(bvp: BVP, intervals: int) -> None:
    """Print a table: both solvers on one fine mesh, and on the mesh that solve_bvp chooses."""
    print(f"{bvp.name}\n  {'':39} {'nodes':>7} {'time':>10} {'max error':>10}  status")
    x = bvp.mesh(intervals)
    chosen = solve_scipy(bvp, bvp.mesh(50), refine=True, exact=True).x
    measured = median_times(
        {
            "implicitsolve, residual only": lambda: solve(bvp, x),
            "solve_bvp, right-hand side only": lambda: solve_scipy(bvp, x),
            "solve_bvp, derivatives given": lambda: solve_scipy(bvp, x, exact=True),
            "solve_bvp, called again from its answer": lambda: solve_scipy(bvp, x, exact=True, calls=2),
            "solve_bvp, its own mesh": lambda: solve_scipy(bvp, bvp.mesh(50), refine=True, exact=True),
            "implicitsolve, on that mesh": lambda: solve(bvp, chosen),
        }
    )
    for name, (answer, seconds) in measured.items():
        if isinstance(answer, ims.NonlinearResult):
            nodes, y, status = (chosen if "that mesh" in name else x), answer.x, answer.status.name
        else:
            nodes, y = answer.x, answer.y.T
            status = ("OK", "needs more nodes", "singular")[answer.status]
        print(f"  {name:39} {nodes.size:7} {1e3 * seconds:7.1f} ms {bvp.error(nodes, y):10.1e}  {status}", flush=True)


def save_figure(path: Path, problems: Sequence[BVP]) -> str:
    """Draw the solutions, and the error of both solvers against the mesh; return what was done, in words."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "figure skipped: matplotlib is not installed"
    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    uniform, graded, errors = figure.subplots(1, 3)
    sizes = 2 ** np.arange(4, 10)
    for i, bvp in enumerate(problems):
        axes = graded if bvp.name.startswith("Burgers") else uniform
        axes.plot(bvp.mesh(40), solve(bvp, bvp.mesh(40)).x[:, 0], f"C{i}.-", label=bvp.name)
        meshes = [bvp.mesh(int(n)) for n in sizes]
        errors.loglog(sizes, [bvp.error(x, solve(bvp, x).x) for x in meshes], f"C{i}.-", label=bvp.name)
        theirs = [bvp.error(x, solve_scipy(bvp, x, exact=True, calls=4).y.T) for x in meshes]
        errors.loglog(sizes, theirs, "ko", markersize=8, fillstyle="none", label=None if i < 2 else "solve_bvp")
    errors.loglog(sizes, 30.0 * sizes**-4.0, "k:", label="order 4")
    errors.set_xticks(sizes, labels=[str(n) for n in sizes])
    errors.minorticks_off()
    uniform.set(xlabel="x", ylabel="u", title="uniform mesh, 40 intervals")
    graded.set(xlabel="x", ylabel="u", title="graded mesh, 40 intervals")
    errors.set(
        xlabel="mesh intervals",
        ylabel="largest error of u at the nodes",
        title="error of both solvers",
        ylim=(None, 0.1),
    )
    for axes in (uniform, graded, errors):
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)
    return f"figure: {path}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse ends the program with status 2 if it is wrong."""
    parser = argparse.ArgumentParser(prog="two_point_bvp", description="Boundary value problems beside solve_bvp.")
    parser.add_argument("--intervals", type=int, default=10_000, help="of the timed mesh (default %(default)s)")
    parser.add_argument("--epsilon", type=float, default=0.01, help="width of the layer (default %(default)s)")
    parser.add_argument("--figure", type=Path, metavar="PNG", help="draw solutions and errors (needs matplotlib)")
    options = parser.parse_args(arguments)
    if options.intervals < 2:
        parser.error(f"--intervals: at least 2 expected, got {options.intervals}")
    if not 1e-4 <= options.epsilon <= 1:
        parser.error(f"--epsilon: a number from 1e-4 to 1 expected, got {options.epsilon}")
    if options.figure is not None and not options.figure.resolve().parent.is_dir():
        parser.error(f"--figure: the folder of {options.figure} does not exist")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parse(arguments)
    problems = [bratu("lower"), bratu("upper"), burgers(options.epsilon)]
    for bvp in problems:
        compare(bvp, options.intervals)
    if options.figure is not None:
        print(save_figure(options.figure, problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
