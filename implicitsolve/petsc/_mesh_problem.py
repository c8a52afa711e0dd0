"""A problem on a mesh: its solution and derivatives by PETSc."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from implicitsolve._record import Counts
from implicitsolve._typing import HostArray
from implicitsolve.derivatives import AdjointResult, TangentResult
from implicitsolve.derivatives._systems import gradients_of
from implicitsolve.petsc._mesh_functions import MeshFunctions
from implicitsolve.petsc._mesh_solve import MeshSolve, linear_solve
from implicitsolve.petsc._snes import PETScSNES
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult, NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop


class MeshProblem(MeshFunctions):
    """F(x) = 0 on a mesh whose points are partitioned across ranks; `Mesh.problem` makes one.

    Every rank calls the same methods in the same order. States are arrays of this rank's points, and all numbers of a
    result but those in states are those of the whole, the same on every rank.

    Attributes
    ----------
    mesh : Mesh
        The points.
    inverse : PETScLU or PETScPreconditioner
        What the Krylov method uses with J.
    parameters : dict of str to array
        As given.
    """

    def __repr__(self) -> str:
        """Name, and the size of the whole."""
        return f"<MeshProblem {self.name} on {self.mesh.patch.shape}, {self.mesh.fields} fields>"

    def root(self, x0: Any, *, method: PETScSNES | None = None, stop: NonlinearStop | None = None) -> NonlinearResult:
        """Solve F(x) = 0 by PETSc's `SNES`.

        Parameters
        ----------
        x0 : array_like
            Start: this rank's points, ``(*patch.own_shape, fields)``.
        method : PETScSNES, optional
            Options of PETSc. Default: Newton's method with a cubic line search, and GMRES, preconditioned from the
            right by `inverse`, to 1e-5.
        stop : NonlinearStop, optional
            `atol`, `rtol`, `max_iterations` (default 100), and the norm "max" or "2".

        Returns
        -------
        NonlinearResult
            `x` and `fun` are this rank's points. CONVERGED says that F, evaluated once more at x, satisfies `stop`.

        Raises
        ------
        ValueError
            If PETSc does not use one of the options, or `stop` has limits of evaluations or seconds, or its own norm.
        """
        return MeshSolve(self, method or PETScSNES(), stop or NonlinearStop()).run(x0)

    # Derivatives

    def pull_back(
        self, result: NonlinearResult | Any, cotangent: Any, *, stop: LinearStop | None = None
    ) -> AdjointResult:
        """Gradients of a loss through the solution, by PETSc's `KSPSolveTranspose`; see `implicitsolve.pull_back`.

        Parameters
        ----------
        result : NonlinearResult or array_like
            What `root` returned, or this rank's points of a solution.
        cotangent : array_like
            d loss / d x at this rank's points.
        stop : LinearStop, optional
            Of the adjoint solve.

        Returns
        -------
        AdjointResult
            The gradients by the parameters, summed over the ranks; `adjoint` are this rank's points.
        """
        if self.parameters and self._functions["parameter_vjp"] is None:
            raise TypeError("pull_back: the problem has parameters but no `parameter_vjp`")
        x = _solution(result)
        linear = linear_solve(self, x, cotangent, "cotangent", stop or LinearStop(), adjoint=True)
        raw: dict[str, Any] = {}
        if self._functions["parameter_vjp"] is not None:
            with_halo, w, problem = self.mesh.with_halo(x), np.array(linear.x), cast("Problem", self)  # its parameters
            with self._ends_all_ranks():
                parts = self._functions["parameter_vjp"](self.mesh.patch, with_halo, w)
                raw = gradients_of("pull_back", problem, parts)
            raw = {name: self.mesh.total(raw[name]) for name in sorted(raw)}
        counts = Counts(linearizations=1)
        status = _status(result, linear)
        return AdjointResult(gradients=raw, adjoint=linear.x, status=status, linear=linear, counts=counts)

    def push_forward(
        self, result: NonlinearResult | Any, tangents: Mapping[str, Any], *, stop: LinearStop | None = None
    ) -> TangentResult:
        """Derivative of the solution along tangents of the parameters; see `implicitsolve.push_forward`."""
        if self._functions["parameter_jvp"] is None:
            raise TypeError("push_forward: the problem has no `parameter_jvp`")
        x = _solution(result)
        right = self._call("parameter_jvp", self.mesh.with_halo(x), dict(tangents))
        linear = linear_solve(self, x, -right, "parameter_jvp", stop or LinearStop(), adjoint=False)
        counts = Counts(linearizations=1)
        return TangentResult(tangent=linear.x, status=_status(result, linear), linear=linear, counts=counts)


def _solution(result: NonlinearResult | Any) -> HostArray:
    """The solution at this rank's points."""
    return np.asarray(result.x if isinstance(result, NonlinearResult) else result)


def _status(result: NonlinearResult | Any, linear: LinearResult) -> Status:
    """The linear solve's status, or FORWARD_NOT_CONVERGED where it converged but the nonlinear solve had not."""
    failed = isinstance(result, NonlinearResult) and not result.success
    return Status.FORWARD_NOT_CONVERGED if failed and linear.success else linear.status
