"""PETSc's SNES through petsc4py: Anderson mixing and Newton–GMRES on W1, Newton with an assembled LU on W2 and W3."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import petsc4py

petsc4py.init([])

from petsc4py import PETSc

from benchmarks.benchmarks.workloads import Banded, Brusselators, ImplicitGRU, Workload
from benchmarks.peers._layers import NumpyGRU
from benchmarks.peers._measure import Answer, Solver

LAYERS: dict[str, dict[str, Any]] = {
    "anderson": {"snes_type": "anderson", "snes_anderson_m": 10, "snes_max_it": 200},
    "newtonls, matrix-free gmres": {
        "snes_type": "newtonls",
        "snes_mf": None,
        "ksp_type": "gmres",
        "ksp_gmres_restart": 40,
        "snes_ksp_ew": None,
        "pc_type": "none",
        "snes_max_it": 60,
    },
}
BAND = {"snes_type": "newtonls", "ksp_type": "preonly", "pc_type": "lu", "pc_factor_mat_ordering_type": "natural"}


class Snes:
    """A SNES that is set up once and started again for each call."""

    def __init__(self, residual: Callable[[Any], Any], x0: Any, options: dict[str, Any], jacobian: Any = None) -> None:
        self.residual, self.x0, self.calls = residual, x0, 0
        self.snes = PETSc.SNES().create(PETSc.COMM_SELF)
        self.x, F = (PETSc.Vec().createSeq(x0.size) for _ in range(2))
        self.snes.setFunction(self.evaluate, F)
        if jacobian is not None:
            jacobian(self.snes)
        store = PETSc.Options()
        for name, value in options.items():
            store.setValue(name, value)
        self.snes.setFromOptions()
        for name in options:
            store.delValue(name)

    def evaluate(self, snes: Any, x: Any, F: Any) -> None:
        """SNES asks for F(x)."""
        self.calls += 1
        F.setArray(self.residual(x.getArray(readonly=True).reshape(self.x0.shape)).ravel())

    def __call__(self, tol: float) -> Answer:
        """Solve."""
        self.calls = 0
        self.x.setArray(self.x0.ravel())
        self.snes.setTolerances(rtol=0.0, atol=tol, stol=0.0)
        self.snes.solve(None, self.x)
        reason = self.snes.getConvergedReason()
        return Answer(self.x.getArray().reshape(self.x0.shape).copy(), self.calls, f"reason {reason}")


def assembled(workload: Banded) -> Callable[[Any], None]:
    """Give a SNES the exact Jacobian in compressed rows."""
    n, (lower, upper) = workload.x0.size, workload.widths
    columns = np.arange(n)[:, None] + np.arange(-lower, upper + 1)
    inside = (columns >= 0) & (columns < n)
    indptr = np.r_[0, np.cumsum(inside.sum(axis=1))].astype(PETSc.IntType)
    indices = columns[inside].astype(PETSc.IntType)
    diagonals = np.broadcast_to(np.arange(lower + upper, -1, -1), columns.shape)[inside]

    def values(x: Any) -> Any:
        return workload.band(x.reshape(workload.x0.shape))[diagonals, indices]

    def update(snes: Any, x: Any, J: Any, P: Any) -> None:
        P.setValuesCSR(indptr, indices, values(x.getArray(readonly=True)))
        P.assemble()

    def install(snes: Any) -> None:
        matrix = PETSc.Mat().createAIJ((n, n), csr=(indptr, indices, values(workload.x0)), comm=PETSc.COMM_SELF)
        snes.setJacobian(update, matrix)

    return install


def solvers(workload: Workload) -> list[Solver]:
    """SNES in its best settings; PETSc is compiled for double precision."""
    named, factors = partial(Solver, "PETSc"), (100.0, 30.0, 10.0, 3.0, 1.0)  # 2-norms
    if isinstance(workload, ImplicitGRU) and workload.x0.dtype == np.float64:
        G = NumpyGRU(workload.params, workload.inputs, workload.x0.shape)
        return [
            named(f"SNES {name}", Snes(lambda x: x - G(x), workload.x0, options), factors)
            for name, options in LAYERS.items()
        ]
    if isinstance(workload, Banded) and not isinstance(workload, Brusselators):
        snes = Snes(workload.residual, workload.x0, BAND, assembled(workload))
        return [named("SNES newtonls, assembled LU", snes, factors)]
    return []
