"""Evaluations of F for the branch of Bratu's equation up to max u = 6, by `continuation` and by other packages.

    python benchmarks/continuation.py [--points 15 31 63]

pycont-lite follows the branch with F alone; it is given the steps and the tolerance with which it takes fewest
evaluations, and ends at the same height. pacopy asks for the derivatives and for linear solves with J; implicitsolve is
then given J and dF/dlam too, and both count residuals, derivatives and assembled Jacobians alike. A package that is not
installed is left out. For docs/how_to/continuation.md.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

import implicitsolve as ims

Array = NDArray[Any]
HEIGHT = 6.0


class Reached(Exception):  # noqa: N818
    """The branch has the height at which the comparison ends."""


class Bratu:
    """h^2 u'' + lam h^2 e^u on a line, and the calls of its functions."""

    def __init__(self, points: int) -> None:
        self.points, self.h2 = points, 1 / (points + 1) ** 2
        self.calls = {"F": 0, "J": 0, "dF/dlam": 0}
        self.folds: list[float] = []

    def residual(self, u: Array, lam: float) -> Array:
        """F."""
        self.calls["F"] += 1
        return np.diff(u, 2, prepend=0, append=0) + lam * self.h2 * np.exp(u)

    def jac(self, u: Array, lam: float) -> Any:
        """J, a tridiagonal matrix."""
        self.calls["J"] += 1
        ones = np.ones(u.size - 1)
        return scipy.sparse.diags_array([ones, lam * self.h2 * np.exp(u) - 2, ones], offsets=[-1, 0, 1], format="csc")

    def by_parameter(self, u: Array, lam: float) -> Array:
        """dF/dlam."""
        self.calls["dF/dlam"] += 1
        return self.h2 * np.exp(u)


def top(u: Array, lam: float) -> float:
    """Ends the branch."""
    return float(u.max()) - HEIGHT


top.terminal = True  # type: ignore[attr-defined]


def ours(problem: Bratu) -> int:
    """F alone."""
    branch = ims.continuation(problem.residual, np.zeros(problem.points), 0, 4, events={"top": top})
    problem.folds = [fold.lam for fold in branch.of_kind("fold")]
    return len(branch)


def ours_with_derivatives(problem: Bratu) -> int:
    """F, J and dF/dlam."""
    family = ims.Problem(
        problem.residual,
        jac=problem.jac,
        parameter_jvp=lambda u, tangents, lam: problem.by_parameter(u, lam) * tangents["lam"],
    )
    branch = ims.continuation(family, np.zeros(problem.points), 0, 4, events={"top": top})
    problem.folds = [fold.lam for fold in branch.of_kind("fold")]
    return len(branch)


def pycont_lite(problem: Bratu) -> int:
    """F alone, without stability; branch points are sought as by implicitsolve."""
    import pycont

    best: tuple[int, int, list[float]] | None = None
    for longest in (0.25, 0.5, 1.0, 2.0):
        trial = Bratu(problem.points)
        heights: list[float] = []

        def residual(u: Array, lam: float, trial: Bratu = trial, heights: list[float] = heights) -> Array:
            heights.append(float(u.max()))
            if heights[-1] >= HEIGHT:
                raise Reached
            return trial.residual(u, lam)

        settings = {"tolerance": 1e-8, "analyze_stability": False, "initial_directions": "increase_p"}
        try:
            pycont.arclengthContinuation(
                residual, np.zeros(problem.points), 0.0, 1e-4, longest, 0.1, 1000, settings, verbosity="off"
            )
        except Reached:
            if best is None or trial.calls["F"] < best[0]:
                best = trial.calls["F"], 0, []
        except Exception as error:  # noqa: BLE001 (a rival's failure is a line of the table)
            print(f"  pycont-lite, steps to {longest}: {type(error).__name__}: {str(error)[:60]}")
    if best is None:
        raise RuntimeError("the branch was not reached")
    problem.calls["F"] = best[0]
    return 0


def pacopy(problem: Bratu) -> int:
    """F, dF/dlam, and solves with J."""
    import pacopy as package

    class Adapter:
        """What pacopy calls."""

        def inner(self, a: Array, b: Array) -> float:
            """The inner product of two states."""
            return float(a @ b) / problem.points

        def norm2_r(self, a: Array) -> float:
            """The square of the norm of F."""
            return float(a @ a)

        def f(self, u: Array, lam: float) -> Array:
            """F."""
            return problem.residual(u, lam)

        def df_dlmbda(self, u: Array, lam: float) -> Array:
            """dF/dlam."""
            return problem.by_parameter(u, lam)

        def jacobian_solver(self, u: Array, lam: float, rhs: Array) -> Array:
            """J^-1 times a vector."""
            return scipy.sparse.linalg.spsolve(problem.jac(u, lam), rhs)

    count = 0

    def callback(k: int, lam: float, u: Array) -> None:
        nonlocal count
        count = k + 1
        if u.max() >= HEIGHT:
            raise Reached

    with contextlib.suppress(Reached):
        package.euler_newton(Adapter(), np.zeros(problem.points), 0.0, callback, max_steps=1000, newton_tol=1e-9)
    return count


RUNS: dict[str, tuple[str | None, Callable[[Bratu], int]]] = {
    "implicitsolve, F alone": (None, ours),
    "pycont-lite, F alone": ("pycont", pycont_lite),
    "implicitsolve, with derivatives": (None, ours_with_derivatives),
    "pacopy, with derivatives": ("pacopy", pacopy),
}


def main() -> None:
    """Print a line for each package and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs="+", default=[15, 31, 63])
    for points in parser.parse_args().points:
        for name, (package, run) in RUNS.items():
            if package is not None and find_spec(package) is None:
                print(f"{points:4d} points  {name}: {package} is not installed")
                continue
            problem = Bratu(points)
            try:
                count = run(problem)
            except Exception as error:  # noqa: BLE001
                print(f"{points:4d} points  {name}: {type(error).__name__}: {str(error)[:90]}")
                continue
            calls = ", ".join(f"{number} {kind}" for kind, number in problem.calls.items() if number)
            known = f", {count} points" if count else ""
            folds = "".join(f", fold at {fold:.6f}" for fold in problem.folds)
            print(f"{points:4d} points  {name}: {calls}{known}{folds}")


if __name__ == "__main__":
    main()
