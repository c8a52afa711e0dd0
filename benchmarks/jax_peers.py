"""`implicitsolve.jax.root` beside optimistix and jaxopt: ``python -m benchmarks.jax_peers``.

The residuals are written in JAX. Every solver begins with x0 in an array of NumPy and ends with x in one, so that
transfers count. Each is given the loosest of its tolerances with which max|F(x)|, measured by a residual in NumPy,
meets the target. Times are CPU seconds of one thread, medians of turns in one process, without compilation. Needs what
`benchmarks/peers/requirements.txt` lists of JAX.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import jaxopt
import lineax as lx
import numpy as np
import optimistix as optx

import implicitsolve as ims
import implicitsolve.jax as imj
from benchmarks.benchmarks.workloads import WORKLOADS, ImplicitGRU, Workload
from benchmarks.benchmarks.workloads._lines import Bratu, Burgers
from benchmarks.peers._jax import solver
from benchmarks.peers._layers import jax_gru
from benchmarks.peers._lines import jax_residual
from benchmarks.peers._measure import Answer, Race, Solver
from benchmarks.peers._table import workload as table

jax.config.update("jax_enable_x64", True)
STEPS = 200
LARGEST_DENSE = 3000  # unknowns up to which a rival is given a dense Jacobian
LOOSE = (1e4, 1e2, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class PlaneBratu(Workload):
    """Delta u + 5 exp(u) = 0 on the unit square, zero on its sides, times h^2, on n by n points."""

    constant: float = 5.0

    @classmethod
    def draw(cls, n: int) -> PlaneBratu:
        """It starts at zero."""
        return cls(name=f"Bratu in the plane, {n} by {n}", x0=np.zeros((n, n)), target=1e-8 / (n + 1) ** 2)

    def residual(self, x: Any) -> Any:
        """F(u)."""
        return self.on(np, x)

    def on(self, xp: Any, x: Any) -> Any:
        """The same in NumPy or JAX."""
        u = xp.pad(x, 1)
        laplacian = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * x
        return laplacian + self.constant / (len(x) + 1) ** 2 * xp.exp(x)

    def problem(self) -> ims.Problem:
        """The residual."""
        return ims.Problem(self.residual)


CASES: dict[str, Callable[[], Workload]] = {
    "W1-k200-s1": WORKLOADS["W1-k200-s1"],
    "W2-bratu-1e3": partial(Bratu.draw, 1000),
    "W2-bratu-1e4": WORKLOADS["W2-bratu-1e4"],
    "W2-burgers-1e3": partial(Burgers.draw, 1000),
    "W2-burgers-1e4": WORKLOADS["W2-burgers-1e4"],
    "plane-40": partial(PlaneBratu.draw, 40),
    "plane-100": partial(PlaneBratu.draw, 100),
}


def function(workload: Workload) -> Callable[[Any], Any]:
    """F in JAX."""
    if isinstance(workload, ImplicitGRU):
        G = jax_gru(workload.params, workload.inputs)
        return lambda x: x - G(x)
    return partial(workload.on, jnp) if isinstance(workload, PlaneBratu) else jax_residual(workload)


def ours(workload: Workload) -> list[Solver]:
    """As called, and inside a program."""
    F = function(workload)

    def called(options: dict[str, Any]) -> Callable[[float], Answer]:
        def solve(tol: float) -> Answer:
            result = imj.root(F, workload.x0, stop=ims.NonlinearStop(atol=tol), **options)
            return Answer(np.asarray(result.x), float(result.residuals + result.products))

        return solve

    def jitted(options: dict[str, Any]) -> Callable[[float], Answer]:
        @jax.jit
        def program(x0: Any) -> Any:
            return imj.root(F, x0, stop=ims.NonlinearStop(atol=workload.target), **options)

        def solve(tol: float) -> Answer:
            result = program(workload.x0)
            return Answer(np.asarray(result.x), float(result.residuals + result.products))

        return solve

    choices: dict[str, dict[str, Any]] = {"root": {}}
    if isinstance(workload, ImplicitGRU):
        choices = {"root, newton-krylov": {"method": "newton-krylov"}, "root, anderson": {"method": "anderson"}}
    elif isinstance(workload, PlaneBratu):
        choices["root, Grid"] = {"structure": ims.Grid(shape=workload.x0.shape)}
    else:
        choices["root, BlockBanded(1, 1)"] = {"structure": ims.BlockBanded(1, 1)}
    found = []
    for name, options in choices.items():
        found.append(Solver("implicitsolve.jax", name, called(options), is_ours=True))
        found.append(Solver("implicitsolve.jax", f"{name}, under jit", jitted(options), is_ours=True))
    return found


def rivals(workload: Workload) -> list[Solver]:
    """What optimistix and jaxopt have for the size; matrix-free where a dense Jacobian would be too large."""
    F, x0, n = function(workload), workload.x0, workload.x0.size
    gmres = partial(lx.GMRES, rtol=1e-3, atol=0.1 * workload.target, restart=20, max_steps=200)
    linear: dict[str, Any] = {"GMRES": gmres}
    if n <= LARGEST_DENSE:
        linear["dense LU"] = lx.LU

    def find(make: Callable[[float], Any], least: bool = False) -> Callable[[], Any]:
        call = optx.least_squares if least else optx.root_find
        return lambda: (
            lambda x0, tol: (call(lambda x, _: F(x), make(tol), x0, max_steps=STEPS, throw=False).value, None)
        )

    found = [
        solver(
            "optimistix", f"Newton, {name}", find(lambda tol, A=A: optx.Newton(0.0, tol, linear_solver=A())), x0, LOOSE
        )
        for name, A in linear.items()
    ]
    least: dict[str, Any] = {"CG on the normal equations": lambda: lx.Normal(lx.CG(rtol=1e-3, atol=0.0, max_steps=500))}
    if n <= LARGEST_DENSE:
        least["QR"] = lx.QR
    found += [
        solver(
            "optimistix",
            f"LevenbergMarquardt, {name}",
            find(lambda tol, A=A: optx.LevenbergMarquardt(0.0, tol, linear_solver=A()), least=True),
            x0,
            (1.0, 1e-2, 1e-4),
        )
        for name, A in least.items()
    ]

    def jaxopt_solver(make: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: lambda x0, tol: (make(tol).run(x0).params, None)

    options = {"implicit_diff": False, "jit": True}
    found.append(
        solver(
            "jaxopt",
            "Broyden",
            jaxopt_solver(lambda tol: jaxopt.Broyden(F, maxiter=STEPS, tol=tol, **options)),
            x0,
            (50.0, 5.0, 1.0),
        )
    )
    if isinstance(workload, ImplicitGRU):
        G = lambda x: x - F(x)  # noqa: E731

        def anderson(tol: Any) -> Any:
            return jaxopt.AndersonAcceleration(G, history_size=5, ridge=1e-5, maxiter=150, tol=tol, **options)

        found.append(solver("jaxopt", "AndersonAcceleration", jaxopt_solver(anderson), x0, (50.0, 20.0, 5.0)))
    if n <= LARGEST_DENSE:

        def least_squares(tol: Any) -> Any:
            flat = lambda x: F(x.reshape(x0.shape)).ravel()  # noqa: E731
            return jaxopt.LevenbergMarquardt(flat, maxiter=STEPS, tol=tol, implicit_diff=False)

        def made() -> Any:
            return lambda x0, tol: (least_squares(tol).run(x0.ravel()).params.reshape(x0.shape), None)

        found.append(solver("jaxopt", "LevenbergMarquardt", made, x0, (1.0, 1e-2, 1e-4)))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds for a solver and its compilation")
    arguments = parser.parse_args()
    race = Race(repeat=arguments.repeat, limit=arguments.limit)
    for key in arguments.cases:
        workload = CASES[key]()
        rows = race.run(workload, [*ours(workload), *rivals(workload)])
        record = {"name": workload.name, "key": key, "target": workload.target, "rows": [row.record() for row in rows]}
        print("\n".join(table(record, "CPU")), flush=True)


if __name__ == "__main__":
    main()
