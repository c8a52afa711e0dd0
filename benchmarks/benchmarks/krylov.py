"""Krylov methods on fixed linear systems."""

from __future__ import annotations

from typing import Any

import numpy as np

import implicitsolve as ims

from .problems import get
from .tools import CPU, transfers, unit
from .workloads import ImplicitGRU

METHODS: dict[str, Any] = {
    "GMRES(30)": ims.GMRES(restart=30),
    "LGMRES": ims.LGMRES(),
    "BiCGSTAB": ims.BiCGSTAB(),
    "SciPy gmres": ims.ScipyKrylov(function="gmres"),
}
STOP = ims.LinearStop(rtol=1e-8)


def convection_diffusion() -> tuple[Any, Any]:
    """One system of 961 unknowns, not symmetric: the Jacobian of the gallery's problem at its root."""
    problem = get("convection-diffusion-2d", "medium")
    root = problem.root
    A = ims.LinearOperator(lambda v: problem.jvp(root, v), in_shape=root.shape, dtype=root.dtype)
    return A, np.random.default_rng(0).standard_normal(root.shape)


def layer() -> tuple[Any, Any]:
    """20 systems of 2000 unknowns: I - dF/dH of an implicit GRU at zero, recurrent weights times 3."""
    workload = ImplicitGRU.draw(20, 40, 50, 3.0)
    A = workload.problem().linearize(workload.x0)[1]
    return A, np.random.default_rng(0).standard_normal(workload.x0.shape)


def spread() -> tuple[Any, Any]:
    """64 diagonal systems of 200 unknowns, each with a wider spectrum than the one before: they end one by one."""
    diagonal = np.linspace(1.0, 1.0 + np.arange(64)[:, None], 200, axis=-1).reshape(64, 200)
    A = ims.LinearOperator(lambda v: diagonal * v, in_shape=(200,), batch_shape=(64,), dtype=diagonal.dtype)
    return A, np.random.default_rng(0).standard_normal(diagonal.shape)


SYSTEMS = {"convection-diffusion": convection_diffusion, "implicit GRU": layer, "spread spectra": spread}
Counts = dict[tuple[str, str], dict[str, float]]


class Krylov:
    """Every method on every system, counted."""

    params = (tuple(SYSTEMS), tuple(METHODS))
    param_names = ("system", "method")

    def setup_cache(self) -> Counts:
        """Solve each once."""
        counts = {}
        for name, make in SYSTEMS.items():
            A, b = make()
            for key, method in METHODS.items():
                result = ims.linear_solve(A, b, method=method, stop=STOP)
                counts[name, key] = {
                    "products": result.matvecs,
                    "iterations": int(np.max(result.iterations)),
                    "failures": int(np.sum(~np.asarray(result.success))),
                }
        return counts

    @unit("products")
    def track_products(self, counts: Counts, system: str, method: str) -> float:
        """Products with A, for all systems that still run."""
        return counts[system, method]["products"]

    @unit("iterations")
    def track_iterations(self, counts: Counts, system: str, method: str) -> float:
        """Iterations of the system that takes most."""
        return counts[system, method]["iterations"]

    @unit("systems")
    def track_failures(self, counts: Counts, system: str, method: str) -> float:
        """Systems that missed the tolerance."""
        return counts[system, method]["failures"]


class KrylovTime:
    """Every method on every system, timed."""

    timer = CPU
    params = Krylov.params
    param_names = Krylov.param_names

    def setup(self, system: str, method: str) -> None:
        """Solve once."""
        self.A, self.b = SYSTEMS[system]()
        self.time_solve(system, method)

    def time_solve(self, system: str, method: str) -> None:
        """The whole call."""
        ims.linear_solve(self.A, self.b, method=METHODS[method], stop=STOP)


class Transfers:
    """Reads by the host, which on a GPU wait for the device; counted on array-api-strict's arrays."""

    params = ("GMRES(30)", "LGMRES", "BiCGSTAB")
    param_names = ("method",)

    @unit("reads per iteration")
    def track_transfers(self, method: str) -> float:
        """All reads of a solve of 8 diagonal systems, over the iterations of the one that takes most."""
        import array_api_strict as xp

        diagonal = xp.asarray(1.0 + np.arange(8)[:, None] * np.linspace(0.0, 1.0, 50))
        b = xp.asarray(np.random.default_rng(0).standard_normal((8, 50)))
        A = ims.LinearOperator(lambda v: diagonal * v, in_shape=(50,), batch_shape=(8,), dtype=b.dtype)
        with transfers() as reads:
            result = ims.linear_solve(A, b, method=METHODS[method], stop=STOP)
        return reads.count / int(np.max(result.iterations))
