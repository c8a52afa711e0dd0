"""A grid whose points are partitioned across the ranks of MPI in all directions, and its problems, solved by PETSc."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from implicitsolve._record import Counts
from implicitsolve._typing import HostArray
from implicitsolve.derivatives import AdjointResult, TangentResult
from implicitsolve.derivatives._implicit import status_of
from implicitsolve.derivatives._systems import gradients_of
from implicitsolve.petsc._mesh_points import MeshPoints
from implicitsolve.petsc._mesh_solve import MeshFunctions, MeshSolve, linear_solve
from implicitsolve.petsc._snes import PETScSNES
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import LinearStop, NonlinearStop


class MeshProblem(MeshFunctions):
    """F(x) = 0 on a mesh whose points are partitioned across ranks; `Mesh.problem` makes one.

    Every rank calls the same methods in the same order. States are arrays of this rank's points; all other numbers of
    a result are those of the whole problem, the same on every rank.

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
            The gradients with respect to the parameters, summed over the ranks; `adjoint` are this rank's points.
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
        status = status_of("pull_back", result, linear)
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
        status, counts = status_of("push_forward", result, linear), Counts(linearizations=1)
        return TangentResult(tangent=linear.x, status=status, linear=linear, counts=counts)


def _solution(result: NonlinearResult | Any) -> HostArray:
    return np.asarray(result.x if isinstance(result, NonlinearResult) else result)


class Mesh(MeshPoints):
    """A grid of points with some unknowns at each, partitioned across ranks in all directions.

    Parameters
    ----------
    shape : tuple of int
        Points along each of one, two or three axes.
    fields : int, optional
        Unknowns at a point. Default 1.
    width : int, optional
        How far the equations at a point reach along an axis, in points. Default 1.
    periodic : bool or tuple of bool, optional
        Whether an axis is a circle. Default False.
    box : bool, optional
        Whether the equations reach to diagonal neighbours too; without that these are not exchanged. Default False.
    comm : petsc4py or mpi4py communicator, optional
        The ranks. Default: all processes of the run; without ``mpiexec`` that is one, and needs no mpi4py.

    Attributes
    ----------
    comm : petsc4py.PETSc.Comm
        The ranks; `rank` and `size` are this one's number and how many there are.
    patch : Patch
        This rank's points.
    colors : int
        Calls of a local function that an assembly of J takes.

    Raises
    ------
    BackendUnavailable
        If petsc4py is missing, or mpi4py where there are several ranks.

    Notes
    -----
    A state is a NumPy array ``(*patch.own_shape, fields)`` of this rank's points. PETSc's DMDA chooses the patches and
    exchanges halos, one message to each neighbour.

    Examples
    --------
    >>> from implicitsolve.petsc import Mesh
    >>> def bratu(patch, u):
    ...     p = np.pad(u[..., 0], [(1 - b, 1 - a) for b, a in zip(patch.before, patch.after)])
    ...     neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    ...     own = p[1:-1, 1:-1]
    ...     return (4 * own - neighbors - 5 * np.exp(own) / 65**2)[..., None]
    >>> mesh = Mesh((64, 64))
    >>> result = mesh.problem(bratu).root(mesh.zeros())
    >>> result.success, mesh.gathered(result.x).shape, float(mesh.gathered(result.x).max().round(4))
    (True, (64, 64, 1), 0.5566)
    """

    def problem(
        self,
        residual: Callable[..., Any],
        *,
        jvp: Callable[..., Any] | None = None,
        linearize: Callable[..., Any] | None = None,
        inverse: Any = None,
        parameters: Mapping[str, Any] | None = None,
        parameter_jvp: Callable[..., Any] | None = None,
        parameter_vjp: Callable[..., Any] | None = None,
        name: str = "",
    ) -> MeshProblem:
        """Make a problem on the grid, from functions that each rank calls on its own points.

        Parameters
        ----------
        residual : callable
            ``residual(patch, x)`` returns F at the own points, ``(*patch.own_shape, fields)``, for x at these and the
            points around them, ``(*patch.seen_shape, fields)``.
        jvp : callable, optional
            ``jvp(patch, x, v)`` returns J v at the own points; v has the shape of x. Without it J is assembled from
            differences of the residual.
        linearize : callable, optional
            ``linearize(patch, x)`` returns ``(F, product)`` with ``product(v)`` = J v: what all products at x share is
            computed once. It is preferred to `jvp`.
        inverse : PETScPreconditioner or PETScLU, optional
            What PETSc's Krylov method uses with the assembled J. Default: for one axis `PETScLU`, where PETSc has one
            for so many ranks. Else W-cycles of PETSc's algebraic multigrid, whose iterations grow less with the grid
            than those of V-cycles: for a Brusselator of 64^2 points 11 in place of 12, of 512^2 points 13 in place of
            17. hypre's multigrid takes 7 for both.
        parameters : mapping of str to array, optional
            What the residual depends on in addition to x, the same on all ranks.
        parameter_jvp : callable, optional
            ``parameter_jvp(patch, x, tangents)`` returns (dF/dtheta) dtheta at the own points.
        parameter_vjp : callable, optional
            ``parameter_vjp(patch, x, w)`` returns (dF/dtheta)^H w by what the own points contribute, as a mapping.
            These are summed over the ranks.
        name : str, optional
            What `repr` calls it.

        Returns
        -------
        MeshProblem
            Its `root`, `pull_back` and `push_forward` are those of the package, by PETSc.

        Raises
        ------
        TypeError
            If a function is not callable, or `inverse` is not one of PETSc's settings.

        Notes
        -----
        J is assembled at every Newton step, each rank its own rows by `colors` calls of its own function, without
        messages; `Counts` has them as one linearization.

        An exception that one of these functions raises on one of several ranks is printed, and ends all ranks.
        """
        functions = {
            "residual": residual,
            "jvp": jvp,
            "linearize": linearize,
            "parameter_jvp": parameter_jvp,
            "parameter_vjp": parameter_vjp,
        }
        return MeshProblem(self, functions, inverse, parameters, name)
