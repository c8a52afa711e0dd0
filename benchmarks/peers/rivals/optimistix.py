"""optimistix with lineax: fixed points, and Newton's and the chord method on matrix-free GMRES or dense LU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx

from benchmarks.benchmarks.workloads import Brusselators, ImplicitGRU, Workload
from benchmarks.peers._jax import solver
from benchmarks.peers._layers import jax_gru
from benchmarks.peers._lines import jax_residual
from benchmarks.peers._measure import Solver

STEPS = 100


def gmres(target: float) -> Any:
    """Lineax's, as inexact as Newton's method allows."""
    return lx.GMRES(rtol=1e-3, atol=0.1 * target, restart=10, max_steps=20)


ROOTS: dict[str, Callable[[Any, float], Any]] = {
    "Newton, GMRES": lambda tol, target: optx.Newton(rtol=0.0, atol=tol, linear_solver=gmres(target)),
    "Chord, GMRES": lambda tol, target: optx.Chord(rtol=0.0, atol=tol, linear_solver=gmres(target)),
}
DENSE: dict[str, Callable[[Any], Any]] = {
    "Newton, dense LU": lambda tol: optx.Newton(rtol=0.0, atol=tol, linear_solver=lx.LU()),
    "Dogleg": lambda tol: optx.Dogleg(rtol=0.0, atol=tol),
}


def find_root(F: Callable[[Any, Any], Any], method: Any, x0: Any, args: Any = None) -> tuple[Any, Any]:
    """The solution and the number of steps."""
    found = optx.root_find(F, method, x0, args, max_steps=STEPS, throw=False)
    return found.value, found.stats["num_steps"]


def of_layer(workload: ImplicitGRU) -> list[Solver]:
    """For W1."""

    def picard() -> Any:
        G = jax_gru(workload.params, workload.inputs)

        def solve(x0: Any, tol: Any) -> tuple[Any, Any]:
            method = optx.FixedPointIteration(rtol=0.0, atol=tol)
            found = optx.fixed_point(lambda x, _: G(x), method, x0, max_steps=300, throw=False)
            return found.value, found.stats["num_steps"]

        return solve

    def newton(name: str) -> Callable[[], Any]:
        def make() -> Any:
            G = jax_gru(workload.params, workload.inputs)
            return lambda x0, tol: (find_root(lambda x, _: x - G(x), ROOTS[name](tol, workload.target), x0)[0], None)

        return make

    return [
        solver("optimistix", "FixedPointIteration", picard, workload.x0, (2.0, 1.0)),
        *(solver("optimistix", name, newton(name), workload.x0, (3e4, 1e3, 1.0)) for name in ROOTS),
    ]


def of_batch(workload: Brusselators) -> list[Solver]:
    """For W4: a dense Jacobian for each system."""

    def made(name: str) -> Callable[[], Any]:
        def make() -> Any:
            F = jax_residual(workload)
            B = jnp.asarray(workload.B)

            def solve(x0: Any, tol: Any) -> tuple[Any, Any]:
                one = lambda x, b: find_root(F, DENSE[name](tol), x, b)  # noqa: E731
                x, steps = jax.vmap(one)(x0, B)
                return x, steps.mean()

            return solve

        return make

    return [solver("optimistix", f"vmap of {name}", made(name), workload.x0, (1e4, 1e2, 1.0)) for name in DENSE]


def solvers(workload: Workload) -> list[Solver]:
    """What it has for a workload; the Jacobians of W2 and W3 would be dense."""
    if isinstance(workload, ImplicitGRU):
        return of_layer(workload)
    return of_batch(workload) if isinstance(workload, Brusselators) else []
