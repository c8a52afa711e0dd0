"""implicitsolve: `root` as it is, first; then settings that its documentation names for such problems."""

from __future__ import annotations

from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.benchmarks.workloads import Brusselators, Elman, ImplicitGRU, Workload
from benchmarks.peers._measure import Answer, Solver


def root(workload: Workload, method: Any) -> Any:
    """A call of `root` from x0, the problem being made beforehand as the rivals' are."""
    problem = workload.problem()

    def solve(tol: float) -> Answer:
        stop = ims.NonlinearStop(atol=tol, rtol=0.0)
        result = ims.root(problem, workload.x0, method=method, stop=stop)
        counts = result.counts
        failed = int(np.sum(~np.asarray(result.success)))
        note = f"{counts.residuals} residuals, {counts.jvps} JVPs" + (f"; {failed} systems failed" if failed else "")
        return Answer(result.x, products_of(result, problem), note)

    return solve


def products_of(result: Any, problem: ims.Problem) -> float:
    """Residuals and Jacobian products of a system, the mean over the batch: what has finished takes part no longer."""
    if not problem.batch_ndim:
        return result.counts.residuals + result.counts.jvps
    before, total = ims.Counts(), 0
    for step in result.steps:
        total += step.systems.size * (step.counts.residuals - before.residuals) + int(step.krylov_iterations.sum())
        before = step.counts
    last = 0 if problem.halves is None else 1  # the half that was eliminated is computed at the end
    return last + total / len(result.x)


def substitute(workload: Workload) -> Any:
    """The recurrence alone, without the residuals by which `root` judges it."""
    problem: Any = workload.problem()
    return lambda tol: Answer(problem.substitute())


def compiled(workload: Brusselators) -> Any:
    """A call of `newton_batch` with the residual of one system, compiled."""
    from implicitsolve.backends.numba import newton_batch

    residual, parameters = workload.compiled()

    def solve(tol: float) -> Answer:
        result = newton_batch(
            residual,
            workload.x0,
            parameters,
            structure=ims.BlockBanded(1, 1, 2),
            stop=ims.NonlinearStop(atol=tol, rtol=0.0),
        )
        return Answer(result.x, result.counts.residuals / len(result.x), "residuals of each system")

    return solve


def solvers(workload: Workload) -> list[Solver]:
    """The default first, which the rivals are compared with."""
    found = [Solver("implicitsolve", "root", root(workload, "auto"), is_ours=True)]
    if isinstance(workload, ImplicitGRU):
        single = ims.NewtonKrylov(krylov_dtype="float32")
        found.append(Solver("implicitsolve", "root, newton-krylov", root(workload, "newton-krylov"), is_ours=True))
        if workload.x0.dtype == np.float64:
            found.append(
                Solver("implicitsolve", "root, newton-krylov, float32 products", root(workload, single), is_ours=True)
            )
    if isinstance(workload, Elman):
        found.append(Solver("implicitsolve", "substitute, not measured", substitute(workload), is_ours=True))
    if isinstance(workload, Brusselators):
        found.append(Solver("implicitsolve", "newton_batch, compiled residual", compiled(workload), is_ours=True))
    return found
