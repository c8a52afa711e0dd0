"""The functions of one rank's points, and solves of a problem on a mesh by PETSc, whose ends are measured."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from implicitsolve._record import NOTHING, Counts, NewtonStep
from implicitsolve._typing import HostArray
from implicitsolve.nonlinear._state import ROUNDING
from implicitsolve.petsc._mesh_points import MeshPoints
from implicitsolve.petsc._parts import PETScLU, PETScPreconditioner
from implicitsolve.petsc._snes import PETSC_LIMIT, Course, PETScSNES, ending, linear_ending, step_of
from implicitsolve.petsc._system import empty_matrix, fill, from_rows, petsc, solve_with_options
from implicitsolve.result import LinearResult, NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop

NEWTON_STEPS = 100  # of Newton's method, where `stop` has no limit
MOST_SOLVES = 3  # Krylov solves, each followed by a product that measures the residual
EPS = float(np.finfo(np.float64).eps)
W_CYCLES = PETScPreconditioner(options={"pc_mg_cycle_type": "w"})


class MeshFunctions:
    """F, J and the inverse that PETSc uses with J."""

    def __init__(
        self,
        mesh: MeshPoints,
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
        self.mesh: MeshPoints = mesh
        self.inverse: PETScLU | PETScPreconditioner = inverse
        self.parameters: dict[str, Any] = dict(parameters or {})
        self.name: str = name
        self._functions: Mapping[str, Any] = functions

    def residual(self, x: HostArray) -> HostArray:
        """F(x). One message to each neighbour."""
        return self._call("residual", self.mesh.with_halo(x))

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
            return self.mesh.rows(with_halo, lambda v: self._check("linearize", lambda: product(v)))
        if self._functions["jvp"] is not None:
            return self.mesh.rows(with_halo, lambda v: self._call("jvp", with_halo.copy(), v))
        return self.mesh.difference_rows(with_halo, lambda y: self._call("residual", y))

    def _call(self, name: str, *arguments: Any) -> HostArray:
        return self._check(name, lambda: self._functions[name](self.mesh.patch, *arguments))

    def _check(self, name: str, function: Callable[[], Any]) -> HostArray:
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

    def linear_options(self) -> dict[str, Any]:
        """PETSc's options of linear solves: GMRES with the inverse from the right, whose residual is the true one."""
        right = {"ksp_type": "gmres", "ksp_pc_side": "right"}
        return right | self.inverse.pc_options(self.mesh.size)


class MeshSolve:
    """One solve by `SNES`, and what is known of the iterates."""

    def __init__(self, problem: MeshFunctions, method: PETScSNES, stop: NonlinearStop) -> None:
        if callable(stop.norm) or stop.max_evaluations is not None or stop.max_seconds is not None:
            raise ValueError(
                "Mesh: `stop` may have atol, rtol, max_iterations and the norm 'max' or '2', for all ranks"
            )
        self.problem, self.mesh, self.method, self.stop = problem, problem.mesh, method, stop
        self.residuals = self.linearizations = self.krylov = self.iterations = 0
        self.first = self.target = np.nan
        self.course = Course(stop, EPS)
        self.before: Any = None  # the last iterate
        self.ended: Status | None = None  # by this library's own rules
        self.steps: list[NewtonStep] = []

    def run(self, x0: Any) -> NonlinearResult:
        mesh, library = self.mesh, petsc()
        library.garbage_cleanup(mesh.comm)
        x = mesh.da.createGlobalVec()
        x.setArray(mesh.flat("root", x0))
        F, snes = x.duplicate(), library.SNES().create(comm=mesh.comm)
        J = empty_matrix((x.getLocalSize(), x.getSize()), mesh.comm, mesh.fields)
        snes.setFunction(self._function, F)
        snes.setJacobian(self._jacobian, J)
        most = NEWTON_STEPS if self.stop.max_iterations is None else self.stop.max_iterations
        snes.setTolerances(max_it=most)
        snes.setMaxFunctionEvaluations(PETSC_LIMIT)
        snes.setConvergenceTest(self._test)
        options = self.problem.linear_options() | dict(self.method.options)
        solve_with_options("Mesh", options, snes, partial(snes.solve, None, x), snes.getLinearSolveIterations)
        self._function(snes, x, F)  # what PETSc returns may be no point at which it evaluated F
        measure = self._measure(F)
        status = self._ending(snes, measure, x, F)
        return NonlinearResult(
            x=self._state(x),
            fun=self._state(F),
            status=status,
            residual_norm=measure,
            initial_norm=self.first,
            target=self.target,
            error=self.course.error if status is Status.CONVERGED else None,
            iterations=self.iterations,
            krylov_iterations=self.krylov,
            counts=self._counts(),
            steps=tuple(self.steps),
        )

    def _function(self, snes: Any, x: Any, F: Any) -> None:
        self.residuals += 1
        F.setArray(self.problem.residual(self._state(x)).reshape(-1))

    def _jacobian(self, snes: Any, x: Any, J: Any, P: Any) -> None:
        fill(P, self.problem.rows(self._state(x)))
        self.linearizations += 1

    def _state(self, vec: Any) -> HostArray:
        return vec.getArray(readonly=True).copy().reshape(self.mesh.state_shape)

    def _measure(self, F: Any) -> float:
        two = F.norm()  # PETSc's maximum may leave out NaN
        if not np.isfinite(two) or self.stop.norm == "2":
            return float(two)
        return float(F.norm(petsc().NormType.NORM_INFINITY))

    def _note(self, snes: Any) -> None:
        x = snes.getSolution()
        step = 0.0
        if self.before is None:
            self.before = x.duplicate()
        else:
            self.before.aypx(-1.0, x)
            step = self.before.norm()
        x.copy(self.before)
        self.course.note(step, x.norm(), snes.getFunction()[0].norm())

    def _holds(self, measure: float) -> bool:
        return self.course.holds(measure, np.asarray([self.target]), NOTHING, None)

    def _ending(self, snes: Any, measure: float, x: Any, F: Any) -> Status:
        """How the solve has ended at x; where PETSc is stuck, this tests whether F is rounding error."""
        if self._holds(measure):
            return Status.CONVERGED
        status = self.ended or ending(snes)
        if self.course.may_settle(status):
            size, state = F.norm(), self._state(x)
            signs = 1 - 2 * (np.arange(state.size) % 2).reshape(state.shape)
            self.residuals += 1
            change = F.duplicate()
            change.setArray(self.problem.residual(state * (1 + EPS * signs)).reshape(-1))
            change.axpy(-1.0, F)
            if change.norm() >= ROUNDING * size:
                self.course.settle()
                return Status.CONVERGED
        return status

    def _counts(self) -> Counts:
        return Counts(residuals=self.residuals, linearizations=self.linearizations)

    def _test(self, snes: Any, iteration: int, norms: tuple[float, float, float]) -> Any:
        """Decide by the stopping rule whether the solve ends; PETSc's convergence test, called once in every step."""
        reasons = petsc().SNES.ConvergedReason
        measure = self._measure(snes.getFunction()[0])
        if iteration == 0:
            self.first = measure
            relative = self.stop.relative(EPS) * measure if np.isfinite(measure) else 0.0
            self.target = max(self.stop.atol, relative)
        self._note(snes)
        self.target = self.course.aim(measure, self.target)
        target = np.asarray([self.target])
        self.steps.append(step_of(snes, iteration, measure, target, self.krylov, self._counts()))
        self.iterations, self.krylov = iteration, snes.getLinearSolveIterations()
        if self._holds(measure):
            return reasons.CONVERGED_FNORM_ABS
        size, moved, _ = norms
        if not np.isfinite(measure):
            self.ended = Status.NONFINITE
        elif iteration and moved <= EPS * size:
            self.ended = Status.STAGNATED
        return reasons.ITERATING if self.ended is None else reasons.DIVERGED_LOCAL_MIN


def linear_solve(
    problem: MeshFunctions, x: HostArray, b: Any, name: str, stop: LinearStop, *, adjoint: bool
) -> LinearResult:
    """Solve J(x) y = b, or J(x)^H y = b, at the points of this rank."""
    mesh, library = problem.mesh, petsc()
    right = np.array(mesh.flat(name, b), dtype=library.ScalarType)
    library.garbage_cleanup(mesh.comm)
    J = problem.jacobian(x)
    ksp = library.KSP().create(comm=mesh.comm)
    ksp.setOperators(J)
    y, rhs = J.createVecs()
    rhs.setArray(np.conj(right) if adjoint else right)
    target = float(stop.target(np.asarray([rhs.norm()]), right)[0])
    ksp.setTolerances(rtol=0.0, atol=target, max_it=stop.max_iterations)
    apply, solve = (J.multTranspose, ksp.solveTranspose) if adjoint else (J.mult, ksp.solve)
    residual, iterations, rounds, left = rhs.duplicate(), 0, 0, np.inf
    solve_with_options("Mesh", problem.linear_options(), ksp, partial(solve, rhs, y), ksp.getIterationNumber)
    for rounds in range(1, MOST_SOLVES + 1):
        iterations += ksp.getIterationNumber()
        apply(y, residual)
        residual.aypx(-1.0, rhs)
        left = float(residual.norm())
        if left <= target or linear_ending(ksp) is not Status.CONVERGED or rounds == MOST_SOLVES:
            break
        ksp.setInitialGuessNonzero(True)
        solve(rhs, y)
    failure = linear_ending(ksp)
    if failure is Status.CONVERGED:
        failure = Status.STAGNATED
    values = y.getArray().copy().reshape(mesh.state_shape)
    return LinearResult(
        x=np.conj(values) if adjoint else values,
        status=Status.CONVERGED if left <= target else failure,
        residual_norm=left,
        target=target,
        iterations=iterations,
        matvecs=iterations + rounds,
    )
