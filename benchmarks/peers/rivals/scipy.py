"""SciPy: newton_krylov, and Newton's method written by hand on solve_banded and on the sparse LU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.integrate import solve_bvp
from scipy.linalg import solve_banded
from scipy.optimize import NoConvergence, anderson, newton_krylov, root
from scipy.sparse import dia_array
from scipy.sparse.linalg import LinearOperator, splu

from benchmarks.benchmarks.workloads import Banded, Bratu, Brusselators, Burgers, ImplicitGRU, Workload
from benchmarks.peers._layers import NumpyGRU
from benchmarks.peers._measure import Answer, Solver

STEPS = 60


class Counted:
    """A residual that counts its calls."""

    def __init__(self, residual: Callable[[Any], Any]) -> None:
        self.residual, self.calls = residual, 0

    def __call__(self, x: Any) -> Any:
        """F(x)."""
        self.calls += 1
        return self.residual(x)


def nonlinear(solve: Callable[..., Any], residual: Callable[[Any], Any], x0: Any, tol: float, **options: Any) -> Answer:
    """One of SciPy's solvers for large systems; what it had where it gives up."""
    counted = Counted(residual)
    try:
        x = solve(counted, x0, f_tol=tol, **options)
    except NoConvergence as error:
        return Answer(error.args[0], counted.calls, "no convergence")
    return Answer(x, counted.calls)


def newton(workload: Banded, tol: float, solve: Callable[[Any, Any], Any]) -> Answer:
    """Newton's method as one writes it: full steps, exact Jacobian; ``solve(x, b)`` returns J(x)^-1 b."""
    x = workload.x0.copy()
    for step in range(STEPS):
        F = workload.residual(x)
        if np.abs(F).max() <= tol:
            return Answer(x, step + 1, f"{step} LU")
        x -= solve(x, F.ravel()).reshape(x.shape)
    return Answer(x, STEPS, "no convergence")


def newton_on_band(workload: Banded, tol: float) -> Answer:
    """By LAPACK through solve_banded."""

    def solve(x: Any, b: Any) -> Any:
        return solve_banded(workload.widths, workload.band(x), b, overwrite_ab=True, check_finite=False)

    return newton(workload, tol, solve)


def sparse(workload: Banded, x: Any) -> Any:
    """The Jacobian as a sparse matrix."""
    lower, upper = workload.widths
    ab = workload.band(x)
    return dia_array((ab, np.arange(upper, -lower - 1, -1)), shape=(x.size, x.size)).tocsc()


def newton_on_sparse_lu(workload: Banded, tol: float) -> Answer:
    """By SuperLU, in natural order, which a band needs."""
    return newton(workload, tol, lambda x, b: splu(sparse(workload, x), permc_spec="NATURAL").solve(b))


def preconditioned(workload: Banded, method: str, tol: float) -> Answer:
    """newton_krylov, preconditioned by the LU of the exact Jacobian at the start, as its documentation shows.

    The difference step is tuned: with the default one it fails on most of these workloads.
    """
    lu = splu(sparse(workload, workload.x0), permc_spec="NATURAL")
    M = LinearOperator((workload.x0.size,) * 2, lu.solve, dtype=workload.x0.dtype)
    options = {"method": method, "inner_M": M, "rdiff": 1e-4, "maxiter": STEPS}
    return nonlinear(newton_krylov, workload.residual, workload.x0, tol, **options)


def boundary_value_problem(workload: Bratu | Burgers, tol: float) -> Answer:
    """solve_bvp on the workload's points: it solves the same differential equation by another discretization."""
    if isinstance(workload, Bratu):
        a, b, left, right = 0.0, 1.0, 0.0, 0.0
        second = lambda u, du: -workload.constant * np.exp(u)  # noqa: E731
    else:
        a, b, left, right = -1.0, 1.0, 1.0, -1.0
        second = lambda u, du: u * du / workload.constant  # noqa: E731
    mesh = np.linspace(a, b, workload.x0.size + 2)
    start = np.r_[left, workload.x0, right]
    solution = solve_bvp(
        lambda t, y: np.stack([y[1], second(y[0], y[1])]),
        lambda at_a, at_b: np.array([at_a[0] - left, at_b[0] - right]),
        mesh,
        np.stack([start, np.gradient(start, mesh)]),
        tol=1e-6,
        max_nodes=4 * mesh.size,
    )
    return Answer(solution.sol(mesh[1:-1])[0], None, f"another discretization; {solution.message}")


def one_by_one(workload: Brusselators, tol: float) -> Answer:
    """MINPACK's hybrid method for one system after the other."""
    x, calls = np.empty_like(workload.x0), 0
    for i, start in enumerate(workload.x0):
        B = workload.B[i : i + 1]
        result = root(
            lambda u, B=B, shape=start.shape: workload.residual_of(u.reshape(1, *shape), B).ravel(),
            start.ravel(),
            method="hybr",
            options={"band": workload.widths, "xtol": 1e-10},
        )
        x[i] = result.x.reshape(start.shape)
        calls += result.nfev
    return Answer(x, calls / len(x), "residuals of each system")


def solvers(workload: Workload) -> list[Solver]:
    """What SciPy has for a workload."""
    named = partial(Solver, "SciPy")
    if isinstance(workload, ImplicitGRU):
        G = NumpyGRU(workload.params, workload.inputs, workload.x0.shape)
        krylov = partial(nonlinear, newton_krylov, lambda x: x - G(x), workload.x0, maxiter=100)
        acceleration = partial(nonlinear, anderson, lambda x: x - G(x), workload.x0, alpha=-1.0, M=10, maxiter=100)
        return [
            *(
                named(f"newton_krylov, {method}", lambda tol, method=method: krylov(tol, method=method))
                for method in ("gmres", "lgmres", "bicgstab")
            ),
            named("anderson", acceleration),
        ]
    if not isinstance(workload, Banded):
        return []
    found = [
        named("Newton by hand, solve_banded", partial(newton_on_band, workload)),
        named("Newton by hand, sparse LU", partial(newton_on_sparse_lu, workload)),
        *(
            named(f"newton_krylov, {method}, LU at x0", partial(preconditioned, workload, method))
            for method in ("gmres", "bicgstab")
        ),
    ]
    if isinstance(workload, Bratu | Burgers):
        found.append(named("solve_bvp", partial(boundary_value_problem, workload)))
    if isinstance(workload, Brusselators):
        found.append(named("root in a loop", partial(one_by_one, workload)))
    return found
