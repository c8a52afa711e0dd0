"""PETScSNES: a whole solve by PETSc's nonlinear solvers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import eps
from implicitsolve._record import Counts, LimitReached, NewtonStep
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import Norms, norm2
from implicitsolve.monitor import ends_solve, silent
from implicitsolve.nonlinear._accuracy import LIMITED, NEGLIGIBLE, Progress, plain_scales
from implicitsolve.nonlinear._certificate import certify
from implicitsolve.nonlinear._convergence import UNMOVED
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._state import NonlinearMethod, Solution, SolveContext, is_rounding
from implicitsolve.petsc._system import PETScSystem, checked_options, petsc, solve_with_options
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_flag

PETSC_LIMIT = 2**31 - 2  # evaluations: PETSc's own limit, beside that of `stop`
TAKEN = ("snes_atol", "snes_rtol", "snes_stol", "snes_max_it", "snes_max_funcs", "snes_convergence_test")
FAILURES = {  # how a failed solve of PETSc ended, by the names of SNESConvergedReason and KSPConvergedReason
    "DIVERGED_FUNCTION_DOMAIN": Status.NONFINITE,
    "DIVERGED_FUNCTION_NANORINF": Status.NONFINITE,
    "DIVERGED_FNORM_NAN": Status.NONFINITE,
    "DIVERGED_JACOBIAN_DOMAIN": Status.NONFINITE,
    "DIVERGED_LINEAR_SOLVE": Status.LINEAR_SOLVE_FAILED,
    "DIVERGED_INNER": Status.LINEAR_SOLVE_FAILED,
    "DIVERGED_LINE_SEARCH": Status.LINE_SEARCH_FAILED,
    "DIVERGED_MAX_IT": Status.ITERATION_LIMIT,
    "DIVERGED_DTOL": Status.DIVERGED,
    "DIVERGED_BREAKDOWN": Status.BREAKDOWN,
    "DIVERGED_BREAKDOWN_BICG": Status.BREAKDOWN,
    "DIVERGED_NANORINF": Status.NONFINITE,
    "DIVERGED_PCSETUP_FAILED": Status.SINGULAR,
    "DIVERGED_PC_FAILED": Status.SINGULAR,
}


@dataclass(frozen=True)
class PETScSNES(NonlinearMethod):
    """A nonlinear method that passes one system to PETSc's `SNES`.

    ``root(problem, x0, method=PETScSNES(options))`` solves on one process, ``Mesh.problem(...).root(x0, method=...)``
    on many.

    Parameters
    ----------
    options : mapping, optional
        PETSc's options by their names, such as ``{"snes_type": "newtontr", "ksp_type": "bcgs", "pc_type": "gamg"}``.
        Default: none, which is Newton's method with a cubic line search, GMRES(30) to 1e-5, and incomplete LU; for a
        `Mesh` the `inverse` of its problem.
    assemble : bool, optional
        Whether J is assembled where the problem declares its structure or offers matrices. Without that J is a shell
        matrix with the problem's products, or differences, and the default has no preconditioner. Default True; the J
        of a `Mesh` is always assembled.

    Raises
    ------
    ValueError
        From `root`, if PETSc does not use one of the options, if one of them is a tolerance or limit, which `stop`
        sets, or if the problem is a batch of several systems.

    Notes
    -----
    The solve ends by `stop`, whatever norms PETSc uses, and is CONVERGED only where F, evaluated once more at the
    returned x, satisfies its inequality. Reasons of PETSc become statuses: DIVERGED_LINE_SEARCH is LINE_SEARCH_FAILED,
    DIVERGED_LINEAR_SOLVE is LINEAR_SOLVE_FAILED, or SINGULAR where the preconditioner could not be set up, and so on;
    a reason that says "converged" where the inequality does not hold is STAGNATED. Each step of the result has the
    linear iterations and the status of the linear solve.

    Examples
    --------
    >>> from implicitsolve.petsc import PETScSNES
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     return p[2:] - 2 * u + p[:-2] + 3 * np.exp(u) / 101**2
    >>> problem = ims.Problem(bratu, structure=ims.BlockBanded(1, 1))
    >>> result = ims.root(problem, np.zeros(100), method=PETScSNES({"pc_type": "lu"}))
    >>> result.success, float(result.x.max().round(4))
    (True, 0.6401)
    """

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    assemble: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_flag("PETScSNES", "assemble", self.assemble)
        taken = sorted(set(TAKEN) & {name.lstrip("-") for name in checked_options("PETScSNES", self.options)})
        if taken:
            raise ValueError(f"PETScSNES: `options` must leave {', '.join(taken)} to `stop`")

    def solve(self, context: SolveContext, start: Solution, rows: Indices | None = None) -> Solution:
        systems = context.evaluator.rows.size
        if systems != 1 or context.scheduler is not None:
            raise ValueError(f"PETScSNES: the problem must be one system, got a batch of {systems}")
        return _Solve(self, context, start).run()


class Course:
    """What PETSc's steps show of the error of x, and whether the stopping rule holds."""

    def __init__(self, stop: NonlinearStop, unit: float) -> None:
        self.stop, self.unit = stop, unit
        self.progress, self.first, self.norm = Progress(), np.nan, np.nan

    def note(self, step: float, size: float, norm: float, relative: float | None = None) -> None:
        """Note a step of that length (0 at x0) to an x of that size, ||F||_2 there, and the step in units of x."""
        progress, before, norm_before = self.progress, self.progress.size, self.norm
        self.norm = norm
        if np.isnan(self.first):
            self.first, progress.size = norm, size
        if 0 < step < np.inf and np.isfinite(norm):
            progress.note_step(step, size, norm, norm_before)
            scale = max(size, before, NEGLIGIBLE * progress.reference) if relative is None else step / relative
            progress.note_correction(progress.gain * norm, step, scale, scale, self.unit)

    def holds(self, measure: float, target: HostArray, x: Array, moved: Array | None) -> bool:
        """Whether the stopping rule holds at x, the end of the last step, where F has the norm `measure`."""
        progress, stop = self.progress, self.stop
        if measure == 0:
            return True
        is_small = bool(stop.holds(np.asarray([measure]), target, x, moved)[0])
        if not stop.judges_x:
            return is_small
        is_accurate = progress.error <= stop.error_limit(self.unit) and self.norm <= self.first
        return bool(is_accurate and (is_small or not stop.judges_F) and not progress.runs_away())

    def aim(self, measure: float, target: float) -> float:
        """What the norm of F has to fall to; where the error of x decides, the norm expected from its estimate."""
        stop, error = self.stop, self.progress.error
        is_expected = stop.judges_x and not stop.judges_F and 0 < error < np.inf
        return measure * (stop.error_limit(self.unit) / error) if is_expected else target

    def may_settle(self, status: Status) -> bool:
        """Whether x is as accurate as F allows, if F is rounding error."""
        is_stuck = status in UNMOVED and self.stop.judges_x and not self.stop.judges_F
        return is_stuck and bool(self.progress.may_settle(LIMITED))

    def settle(self) -> None:
        self.progress.error = 2 * self.progress.direction + self.unit

    @property
    def error(self) -> float | None:
        """The estimated error of x; None where it is not known."""
        return float(self.progress.error) if np.isfinite(self.progress.error) else None


class _Solve:
    """One solve: the system, PETSc's solver, and what is known of the iterates."""

    def __init__(self, method: PETScSNES, context: SolveContext, solution: Solution) -> None:
        self.method, self.context, self.solution = method, context, solution
        self.evaluator, self.stop = context.evaluator, context.stop
        self.x, self.F = solution.x, solution.F  # the last iterate
        self.best: tuple[float, Array, Array] = np.inf, solution.x, solution.F
        self.ended: Status | None = None  # by this library's own rules
        self.moved: Array | None = None
        self.measured = np.inf  # norm of F there
        self.reference: HostArray | None = None  # the larger of x0 and the first step, for each unknown
        self.course = Course(self.stop, eps(self.evaluator.xp, self.x.dtype))

    def run(self) -> Solution:
        tally, solution = self.evaluator.tally, self.solution
        status = Status.ITERATION_LIMIT
        with suppress(LimitReached):
            status = tally.enforce(self._solve)
        status = tally.ended or self.ended or status
        if tally.ended is None:  # what PETSc returns may be no point at which it evaluated F
            self._measure(self.x, self.evaluator.residual(self.x))
        target, moved = solution.target, self.moved
        is_last = self.course.holds(self.measured, target, self.x, moved)
        measure, solution.x, solution.F = (self.measured, self.x, self.F) if is_last else self.best
        held = is_last or self.course.holds(measure, target, solution.x, moved)
        if not held and self.course.may_settle(status) and is_rounding(self.evaluator, solution.x, solution.F)[0]:
            self.course.settle()
            held = True
        solution.norm[0] = measure
        solution.status[0] = Status.CONVERGED if held else status
        solution.error[0] = self.course.progress.error if held and self.course.error is not None else np.nan
        if self.stop.judges_x and self.context.truth is None:
            certify(self.evaluator, solution, self.evaluator.rows, self.stop.error_limit(self.course.unit))
        return solution

    def _solve(self) -> Status:
        """Have PETSc solve; return how it ended where the stopping rule does not hold."""
        system = self.system = PETScSystem(self.evaluator, self.solution.x, assemble=self.method.assemble)
        snes = petsc().SNES().create(comm=system.comm)
        system.attach(snes)
        limit = int(self.stop.remaining(IterationLoop.STEPS, self.solution.iterations)[0])
        snes.setTolerances(max_it=max(limit, 0))
        snes.setMaxFunctionEvaluations(PETSC_LIMIT)
        snes.setConvergenceTest(self._test)
        if not system.is_assembled:
            snes.ksp.pc.setType("none")
        x = system.x.copy()
        solve, iterations = partial(snes.solve, None, x), snes.getLinearSolveIterations
        solve_with_options("PETScSNES", self.method.options, snes, solve, iterations)
        self.x = system.array(x)
        return ending(snes)

    def _test(self, snes: Any, iteration: int, norms: tuple[float, float, float]) -> Any:
        solution = self.solution
        reasons = petsc().SNES.ConvergedReason
        x, F = self.system.array(snes.getSolution()), self.system.array(snes.getFunction()[0])
        self.moved = x - self.x if iteration else None
        measure = self._measure(x, F)
        if iteration == 0:
            first = solution.first_norm[0]
            solution.first_norm[0] = first = measure if np.isnan(first) else first
            solution.target[0] = self.stop.target(np.asarray([first]), F)[0]
        step, size, norm = (0.0 if part is None else float(norm2(part)[0]) for part in (self.moved, x, F))
        relative = None
        if self.moved is not None and (moved := np.abs(to_host(self.moved))).any():
            before = np.abs(to_host(x - self.moved))
            first = np.maximum(before, moved) if self.reference is None else self.reference
            self.reference = reference = first * self.course.progress.shrink
            relative = float(np.max(moved / plain_scales(np.abs(to_host(x)), before, reference)))
        self.course.note(step, size, norm, relative)
        solution.target[0] = self.course.aim(measure, solution.target[0])
        self._record(snes, iteration, measure)
        if self.course.holds(measure, solution.target, x, self.moved):
            return reasons.CONVERGED_FNORM_ABS
        if not np.isfinite(measure):
            self.ended = Status.NONFINITE
        elif self.moved is not None:
            moved, size = (Norms(part).largest(0)[0] for part in (self.moved, x))
            if moved <= eps(self.evaluator.xp, x.dtype) * size:
                self.ended = Status.STAGNATED
        return reasons.ITERATING if self.ended is None else reasons.DIVERGED_LOCAL_MIN

    def _measure(self, x: Array, F: Array) -> float:
        self.x, self.F = x, F
        truth, rows = self.context.truth, self.evaluator.rows
        norms = self.stop.measure(F, self.evaluator.event_shape) if truth is None else truth(x, rows)
        if norms[0] < self.best[0] or not np.isfinite(self.best[0]):
            self.best = float(norms[0]), x, F
        self.measured = float(norms[0])
        return self.measured

    def _record(self, snes: Any, iteration: int, measure: float) -> None:
        solution, context = self.solution, self.context
        before, counts = int(solution.krylov_iterations[0]), self.evaluator.tally.counts()
        step = step_of(snes, iteration, measure, solution.target, before, counts)
        solution.iterations[0], solution.krylov_iterations[0] = iteration, snes.getLinearSolveIterations()
        solution.steps.append(step)
        if context.monitor is not silent:
            unflatten = self.evaluator.unflatten
            answer = context.monitor(step, unflatten(self.x), unflatten(self.F))
            if ends_solve(answer):
                self.ended = Status.STOPPED_BY_MONITOR


def ending(snes: Any) -> Status:
    reason = _name(petsc().SNES.ConvergedReason, snes.getConvergedReason())
    is_singular = reason == "DIVERGED_LINEAR_SOLVE" and linear_ending(snes.ksp) is Status.SINGULAR
    return Status.SINGULAR if is_singular else FAILURES.get(reason, Status.STAGNATED)


def linear_ending(ksp: Any) -> Status:
    reason = _name(petsc().KSP.ConvergedReason, ksp.getConvergedReason())
    return FAILURES.get(reason, Status.CONVERGED)


def step_of(snes: Any, iteration: int, measure: float, target: HostArray, before: int, counts: Counts) -> NewtonStep:
    """The step that PETSc has just taken; `before` are the Krylov iterations until then."""
    details: dict[str, Any] = {
        "krylov_iterations": np.asarray([snes.getLinearSolveIterations() - before]),
        "linear_status": np.asarray([int(linear_ending(snes.ksp))]),
    }
    return NewtonStep(
        iteration=iteration,
        systems=np.zeros(1, dtype=np.intp),
        residual_norm=np.asarray([measure]),
        target=target.copy(),
        running=1,
        counts=counts,
        **details if iteration else {},
    )


def _name(reasons: Any, code: int) -> str:
    """Name of a reason; if several have one code, the one that is known here."""
    names = [name for name in dir(reasons) if not name.startswith("_") and getattr(reasons, name) == code]
    return next((name for name in names if name in FAILURES), names[0] if names else "")
