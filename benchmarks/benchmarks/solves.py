"""Forward and gradient solves of the workloads W1 to W5, by the defaults."""

from __future__ import annotations

from typing import Any

import numpy as np

import implicitsolve as ims

from .tools import CPU, peak_bytes, unit
from .workloads import WORKLOADS, Workload

Counts = dict[str, dict[str, float]]


def forward(workload: Workload, problem: ims.Problem) -> ims.NonlinearResult:
    """`root` from the workload's start to its target."""
    return ims.root(problem, workload.x0, stop=ims.NonlinearStop(atol=workload.target, rtol=0.0))


def loss_derivative(x: Any) -> Any:
    """Standard normal numbers."""
    return np.random.default_rng(1).standard_normal(x.shape).astype(x.dtype)


def products_of_each(result: ims.NonlinearResult) -> float:
    """Residuals and exact products with J, as the mean over the systems: those that have ended take none."""
    systems = np.size(result.status)
    before, total = ims.Counts(), 0
    for step in result.steps:
        spent = step.counts - before
        total += step.systems.size * spent.residuals + int(step.krylov_iterations.sum()) * (spent.jvps > 0)
        before = step.counts
    return total / systems + result.counts.residuals - before.residuals


class _Solves:
    """A table with a row for each workload."""

    params = tuple(WORKLOADS)
    param_names = ("workload",)
    timeout = 300


class Forward(_Solves):
    """What `root` takes, counted."""

    def setup_cache(self) -> Counts:
        """Solve each once."""
        return {key: self.count(WORKLOADS[key]()) for key in self.params}

    @staticmethod
    def count(workload: Workload) -> dict[str, float]:
        """Calls, iterations, bytes, and the residual measured from outside."""
        problem = workload.problem()
        result = forward(workload, problem)
        return {
            "residuals": result.counts.residuals,
            "jvps": result.counts.jvps,
            "each": products_of_each(result),
            "krylov iterations": int(np.max(result.krylov_iterations)),
            "bytes": peak_bytes(lambda: forward(workload, problem)),
            "residual": workload.size(result.x) / workload.target,
        }

    @unit("calls")
    def track_residuals(self, counts: Counts, key: str) -> float:
        """Calls of the residual, for all systems that still run."""
        return counts[key]["residuals"]

    @unit("products")
    def track_jvps(self, counts: Counts, key: str) -> float:
        """Exact products with J, for all systems that still run."""
        return counts[key]["jvps"]

    @unit("products")
    def track_products_of_each(self, counts: Counts, key: str) -> float:
        """Residuals and products with J of one system, on average."""
        return counts[key]["each"]

    @unit("iterations")
    def track_krylov_iterations(self, counts: Counts, key: str) -> float:
        """Krylov iterations of the system that takes most."""
        return counts[key]["krylov iterations"]

    @unit("bytes")
    def track_peak_bytes(self, counts: Counts, key: str) -> float:
        """Most bytes held at a time."""
        return counts[key]["bytes"]

    @unit("targets")
    def track_residual(self, counts: Counts, key: str) -> float:
        """max|F| at the end by the workload's own NumPy residual, over its target; at most 1 means solved."""
        return counts[key]["residual"]


class ForwardTime(_Solves):
    """What `root` takes, timed."""

    timer = CPU

    def setup(self, key: str) -> None:
        """Solve once: kernels are compiled, memory has been touched."""
        self.workload = WORKLOADS[key]()
        self.problem = self.workload.problem()
        forward(self.workload, self.problem)

    def time_solve(self, key: str) -> None:
        """The whole call."""
        forward(self.workload, self.problem)


Found = dict[str, dict[str, Any]]


class _Gradients(_Solves):
    """A table with a row for each workload, which is solved once."""

    def setup_cache(self) -> Found:
        """Solve each, and pull back through it."""
        return {key: self.count(WORKLOADS[key]()) for key in self.params}

    @staticmethod
    def count(workload: Workload) -> dict[str, Any]:
        """The solution; calls, products, bytes, and how many of the adjoint solves missed the tolerance."""
        problem = workload.problem()
        x = forward(workload, problem).x
        cotangent = loss_derivative(x)
        adjoint = ims.pull_back(problem, x, cotangent)
        return {
            "x": x,
            "residuals": adjoint.counts.residuals,
            "vjps": adjoint.counts.vjps,
            "products": adjoint.linear.matvecs,
            "bytes": peak_bytes(lambda: ims.pull_back(problem, x, cotangent)),
            "failures": int(np.sum(~np.asarray(adjoint.success))),
        }


class Gradient(_Gradients):
    """What `pull_back` takes at the solution, to its default tolerance of 1e-6, counted."""

    @unit("calls")
    def track_residuals(self, found: Found, key: str) -> float:
        """Calls of the residual: differences, where there are no exact products."""
        return found[key]["residuals"]

    @unit("products")
    def track_vjps(self, found: Found, key: str) -> float:
        """Exact products with the adjoint of J."""
        return found[key]["vjps"]

    @unit("products")
    def track_linear_products(self, found: Found, key: str) -> float:
        """Products of the adjoint solve, its check included."""
        return found[key]["products"]

    @unit("bytes")
    def track_peak_bytes(self, found: Found, key: str) -> float:
        """Most bytes held at a time."""
        return found[key]["bytes"]

    @unit("systems")
    def track_failures(self, found: Found, key: str) -> float:
        """Adjoint systems that missed the tolerance."""
        return found[key]["failures"]


class GradientTime(_Gradients):
    """What `pull_back` takes at the solution, timed."""

    timer = CPU

    def setup(self, found: Found, key: str) -> None:
        """Pull back once."""
        self.problem, self.x = WORKLOADS[key]().problem(), found[key]["x"]
        self.cotangent = loss_derivative(self.x)
        self.time_pull_back(found, key)

    def time_pull_back(self, found: Found, key: str) -> None:
        """The whole call: adjoint solve and the gradients of all parameters."""
        ims.pull_back(self.problem, self.x, self.cotangent)
