"""jaxopt: Picard's iteration, Anderson acceleration and Broyden's method, jitted, one norm for the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jaxopt

from benchmarks.benchmarks.workloads import ImplicitGRU, Workload
from benchmarks.peers._jax import solver
from benchmarks.peers._layers import jax_gru
from benchmarks.peers._measure import Solver

TOLERANCES = (50.0, 20.0, 10.0, 5.0, 2.0)  # 2-norms of the whole batch
METHODS: dict[str, Callable[..., Any]] = {
    "FixedPointIteration": lambda G, tol: jaxopt.FixedPointIteration(G, maxiter=300, tol=tol, implicit_diff=False),
    "AndersonAcceleration": lambda G, tol: jaxopt.AndersonAcceleration(
        G, history_size=5, ridge=1e-5, maxiter=150, tol=tol, implicit_diff=False
    ),
    "AndersonAcceleration, little regularization": lambda G, tol: jaxopt.AndersonAcceleration(
        G, history_size=10, ridge=1e-14, maxiter=150, tol=tol, implicit_diff=False
    ),
    "Broyden": lambda G, tol: jaxopt.Broyden(lambda x: x - G(x), maxiter=60, tol=tol, implicit_diff=False),
}


def solvers(workload: Workload) -> list[Solver]:
    """Its solvers for fixed points."""
    if not isinstance(workload, ImplicitGRU):
        return []

    def made(name: str) -> Callable[[], Any]:
        def make() -> Any:
            G = jax_gru(workload.params, workload.inputs)

            def solve(x0: Any, tol: Any) -> tuple[Any, Any]:
                x, state = METHODS[name](G, tol).run(x0)
                return x, state.iter_num

            return solve

        return make

    return [solver("jaxopt", name, made(name), workload.x0, TOLERANCES) for name in METHODS]
