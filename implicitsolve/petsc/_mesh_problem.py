"""A problem on a mesh: the caller's functions of one rank's points, and its solution and derivatives by PETSc."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.derivatives import AdjointResult, TangentResult
from implicitsolve.derivatives._systems import gradients_of
from implicitsolve.petsc._library import from_rows, petsc
from implicitsolve.petsc._mesh_solve import MeshSolve, linear_solve
from implicitsolve.petsc._parts import PETScLU, PETScPreconditioner
from implicitsolve.petsc._snes import PETScSNES
from implicitsolve.result import LinearResult, NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import Counts, LinearStop, NonlinearStop

if TYPE_CHECKING:
    from implicitsolve.petsc._mesh import Mesh

W_CYCLES = PETScPreconditioner(options={"pc_mg_cycle_type": "w"})


class MeshProblem:
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

    def __init__(
        self,
        mesh: Mesh,
        functions: Mapping[str, Callable[..., Any] | None],
        inverse: Any,
        parameters: Mapping[str, Any] | None,
        name: str,
    ) -> None:
        for key, function in functions.items():
            if not callable(function) and (function is not None or key == "residual"):
                raise TypeError(f"Mesh.problem: `{key}` must be callable, got {type(function).__name__}")
        if inverse is None:
            is_line = len(mesh.patch.shape) == 1 and PETScLU().packages(mesh.size)
            inverse = PETScLU() if is_line else W_CYCLES
        if not isinstance(inverse, PETScLU | PETScPreconditioner):
            raise TypeError(f"Mesh.problem: `inverse` must be PETScPreconditioner() or PETScLU(), got {inverse!r}")
        self.mesh: Mesh = mesh
        self.inverse: PETScLU | PETScPreconditioner = inverse
        self.parameters: dict[str, Any] = dict(parameters or {})
        self.name: str = name
        self._functions: Mapping[str, Any] = functions

    def __repr__(self) -> str:
        """Name, and the size of the whole."""
        return f"<MeshProblem {self.name} on {self.mesh.patch.shape}, {self.mesh.fields} fields>"

    # The caller's functions on this rank's points

    def residual(self, x: HostArray) -> HostArray:
        """F(x). One message to each neighbour."""
        return self._called("residual", self.mesh.with_halo(x))

    def jacobian(self, x: HostArray) -> Any:
        """J(x) as a PETSc matrix. One message to each neighbour, and those that build it."""
        mesh = self.mesh
        return from_rows(self.rows(x), mesh.comm, mesh.fields)

    def rows(self, x: HostArray) -> Any:
        """Assemble this rank's rows of J(x), SciPy's CSR, by colors. One message to each neighbour."""
        with_halo = self.mesh.with_halo(x)
        if self._functions["linearize"] is not None:
            with self._ends_all_ranks():
                _, product = self._functions["linearize"](self.mesh.patch, with_halo.copy())
            return self.mesh.rows(with_halo, lambda v: self._checked("linearize", lambda: product(v)))
        if self._functions["jvp"] is not None:
            return self.mesh.rows(with_halo, lambda v: self._called("jvp", with_halo.copy(), v))
        return self.mesh.difference_rows(with_halo, lambda y: self._called("residual", y))

    def _called(self, name: str, *arguments: Any) -> HostArray:
        """What one of the functions returns at the own points."""
        return self._checked(name, lambda: self._functions[name](self.mesh.patch, *arguments))

    def _checked(self, name: str, function: Callable[[], Any]) -> HostArray:
        """The same of a function without arguments; its shape is checked."""
        expected = self.mesh.state_shape
        with self._ends_all_ranks():
            value = np.asarray(function())
            if value.shape != expected:
                raise ValueError(f"Mesh.problem: `{name}` must return an array of shape {expected}, got {value.shape}")
            if value.dtype.kind not in "biuf" and np.dtype(petsc().ScalarType).kind != "c":
                raise TypeError(f"Mesh.problem: `{name}` must return real numbers, got dtype {value.dtype}")
            return value.astype(petsc().ScalarType)

    @contextmanager
    def _ends_all_ranks(self) -> Generator[None]:
        """Print an exception of one of several ranks, and end all: the others would wait for it."""
        try:
            yield
        except Exception as error:
            if self.mesh.size > 1:
                text = "".join(traceback.format_exception(error))
                sys.stderr.write("".join(f"[rank {self.mesh.rank}] {line}\n" for line in text.splitlines()))
                sys.stderr.flush()
                self.mesh.comm.tompi4py().Abort(1)
            raise

    # The solution

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
        raw: dict[str, HostArray] = {}
        if self._functions["parameter_vjp"] is not None:
            with_halo, w = self.mesh.with_halo(x), linear.x.copy()
            with self._ends_all_ranks():
                parts = self._functions["parameter_vjp"](self.mesh.patch, with_halo, w)
                raw = gradients_of("pull_back", self, parts)
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
        right = self._called("parameter_jvp", self.mesh.with_halo(x), dict(tangents))
        linear = linear_solve(self, x, -right, "parameter_jvp", stop or LinearStop(), adjoint=False)
        counts = Counts(linearizations=1)
        return TangentResult(tangent=linear.x, status=_status(result, linear), linear=linear, counts=counts)

    def linear_options(self) -> dict[str, Any]:
        """PETSc's options of linear solves: GMRES with the inverse from the right, whose residual is the true one."""
        right = {"ksp_type": "gmres", "ksp_pc_side": "right"}
        return right | self.inverse.pc_options(self.mesh.size)


def _solution(result: NonlinearResult | Any) -> HostArray:
    """The solution at this rank's points."""
    return np.asarray(result.x if isinstance(result, NonlinearResult) else result)


def _status(result: NonlinearResult | Any, linear: LinearResult) -> Status:
    """The linear solve's status, or FORWARD_NOT_CONVERGED where it converged but the nonlinear solve had not."""
    failed = isinstance(result, NonlinearResult) and not result.success
    return Status.FORWARD_NOT_CONVERGED if failed and linear.success else linear.status
