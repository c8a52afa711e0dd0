"""`checkpointed`: a solve in legs, between which it stands in a file."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np

from implicitsolve._checkpoint_file import CheckpointFile, Record, described, digest
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import array_namespace, as_inexact, eps, gather, norm_max, scatter
from implicitsolve._typing import Array, Indices
from implicitsolve.fixed_point import Anderson, Broyden, Picard
from implicitsolve.monitor import Monitor, silent
from implicitsolve.newton import Auto, Homotopy, NewtonKrylov
from implicitsolve.problem import Problem
from implicitsolve.result import NewtonStep, NonlinearResult, per_system, status_per_system
from implicitsolve.solve import NonlinearMethod, check_settings, solve_root
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_limit

NEWTON_STEPS, FIXED_POINT_STEPS = 100, 500  # limits where the caller set none, as of the methods
SAME = 1e-3  # relative difference of F(x) that is no other problem
NOISE = 1e3  # times F's change between neighbouring numbers, which rounding explains


def checkpointed(
    problem: Problem | Any,
    x0: Any,
    path: str | os.PathLike[str],
    *,
    every: int = 10,
    method: NonlinearMethod | str = "auto",
    stop: NonlinearStop | None = None,
    monitor: Monitor | None = None,
) -> NonlinearResult:
    """Solve F(x) = 0 as `root` does, in legs of some steps, and keep a file from which another process goes on.

    Call it again, in the same way, after the process has died: it finds the file, goes on after the last leg that was
    finished, and ends with the bits of a run that nothing had interrupted. A solve that has ended is not repeated.

    Parameters
    ----------
    problem : Problem or callable
        As of `root`.
    x0 : array_like or None
        As of `root`, and the same at every call. None is the problem's own initial guess.
    path : str or path
        The file, in a folder that exists. With distributed arrays each rank writes its own, ``path.rank000-of-004``.
    every : int, optional
        Steps of a leg. Default 10, after which most solves have ended.
    method : optional
        As of `root`, but `Homotopy`, whose path a leg would begin anew. For fixed-point problems "auto" is
        `NewtonKrylov` here: `Anderson` lives on what it remembers.
    stop : NonlinearStop, optional
        As of `root`. The inequality refers to ||F(x0)|| of the first leg. `max_iterations` counts the steps of all
        legs; a later call may raise it.
    monitor : callable, optional
        As of `root`. It sees the steps of this process, numbered from the first leg on.

    Returns
    -------
    NonlinearResult
        As of `root`. `counts` are those of all legs, and of two residuals for each time that it went on from a
        file; `steps` are those of this process.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable; or if the file is of another solve: what differs is said. Compared are shapes,
        dtypes, settings, x0, the problem's `parameters`, and F(x).

    See Also
    --------
    root : without a file.
    solve_batch : many systems by many workers, which may die.

    Notes
    -----
    Each leg is a `root` from where the last one ended. What a method remembers (Krylov spaces kept for later steps, a
    factorized J and its updates, forcing terms, histories, how long nothing became better) begins anew, so that the
    solve takes other steps than without a file, mostly more. The driven cavity of `testing.get("driven-cavity",
    "medium")`, 1922 unknowns, takes `NewtonKrylov` to 1e-10 in 6 steps and 327 products or residuals; in legs of 5, 2
    and 1 steps it takes 8, 14 and 14 steps, and 436, 664 and 817 products.

    Systems of a batch that have ended stay as they are; with `take` they cost nothing. A file holds x and F(x) as they
    are in memory, and is written beside the old one, which it replaces when it is complete. Ranks keep the last two.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> problem = ims.Problem(lambda x: x**3 - 8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "cubes.npz"
    ...     brief, ample = (ims.NonlinearStop(rtol=1e-12, max_iterations=limit) for limit in (4, 100))
    ...     first = ims.checkpointed(problem, np.full(3, 100.0), file, stop=brief)
    ...     second = ims.checkpointed(problem, np.full(3, 100.0), file, stop=ample)
    >>> first.status.name, second.status.name, second.x.round(6)
    ('ITERATION_LIMIT', 'CONVERGED', array([2., 2., 2.]))
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    solver, stop, monitor = check_settings("checkpointed", method, stop, monitor)
    if not isinstance(stop, NonlinearStop):
        raise TypeError(f"checkpointed: `stop` must be a NonlinearStop, got {type(stop).__name__}")
    if isinstance(solver, Homotopy):
        raise ValueError("checkpointed: `method` must go on from any x; a Homotopy follows one path, from x0 on")
    check_limit("checkpointed", "every", every, least=1)
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise TypeError(f"checkpointed: `path` must be the name of a file, got {path!r}")
    if x0 is None:
        if problem.initial_guess is None:
            raise TypeError("checkpointed: `x0` is needed, since the problem offers no initial guess")
        x0 = problem.initial_guess("default", None)
    return _Legs(problem, as_inexact(x0, "x0"), path, int(every), solver, stop, monitor).run()


class _Legs:
    """A solve in legs. States are (B, *event_shape), whatever batch axes the problem has."""

    def __init__(
        self,
        problem: Problem,
        x0: Array,
        path: Any,
        every: int,
        solver: NonlinearMethod,
        stop: NonlinearStop,
        monitor: Monitor,
    ) -> None:
        settings = {
            "shape": str(tuple(x0.shape)),
            "dtype": str(x0.dtype),
            "batch_ndim": str(problem.batch_ndim),
            "every": str(every),
            "method": described(solver),
            "stop": described(replace(stop, max_iterations=None)),
            "x0": digest(x0),
            "parameters": described(problem.parameters),
            "layout": str(getattr(x0, "counts", None)),
        }
        evaluator = Evaluator(problem, x0)
        self.batch_shape, self.event_shape = evaluator.batch_shape, evaluator.event_shape
        self.limit = _limit(solver, stop)
        is_iterated = isinstance(solver, Auto) and problem.fixed_point and problem.substitute is None
        self.solver: NonlinearMethod = NewtonKrylov() if is_iterated else solver
        self.problem, self.every, self.stop, self.monitor = problem, every, stop, monitor
        self.x0 = array_namespace(x0).reshape(x0, (math.prod(self.batch_shape), *self.event_shape))
        self.file = CheckpointFile(path, self.x0, settings)
        self.steps: list[NewtonStep] = []

    def run(self) -> NonlinearResult:
        """Go on until every system has ended."""
        record = self.file.read()
        if record is None:
            record = Record.at(array_namespace(self.x0).asarray(self.x0, copy=True))
        else:
            self._check(record)
        while (running := self._running(record)).size:
            self._take_over(record, running, self._leg(record, running))
            self.file.write(record)
        return self._result(record)

    def _running(self, record: Record) -> Indices:
        """Systems that have not ended; those that met a lower limit go on."""
        is_open = (record.status == Status.RUNNING) | (record.status == Status.ITERATION_LIMIT)
        return np.flatnonzero(is_open & (record.steps < self.limit or record.legs == 0))

    def _leg(self, record: Record, running: Indices) -> NonlinearResult:
        """Some steps of the running systems; the others come along where they cannot be left out."""
        rows = running if self._is_taken(running) else np.arange(self.x0.shape[0])
        problem = self.problem.take(rows) if self._is_taken(running) else self.problem  # type: ignore[misc]
        x = gather(record.x, rows)
        if problem is self.problem:
            x = array_namespace(x).reshape(x, self.batch_shape + self.event_shape)
        stop = replace(self.stop, max_iterations=min(self.every, self.limit - record.steps))
        reference = None if record.legs == 0 else record.first_norm[rows]
        shown = silent if self.monitor is silent else self._shown(record, rows)
        result = solve_root(problem, x, self.solver, stop, shown, reference=reference)
        self.steps += [self._numbered(step, record, rows) for step in result.steps[self._skipped :]]
        return result

    def _is_taken(self, running: Indices) -> bool:
        """Whether a leg is solved by the problem of the running systems."""
        return self.problem.take is not None and self.problem.batch_ndim > 0 and running.size < self.x0.shape[0]

    def _take_over(self, record: Record, running: Indices, result: NonlinearResult) -> None:
        """Put what a leg found into the record."""
        size = running.size if self._is_taken(running) else self.x0.shape[0]
        part = np.arange(size) if size == running.size else running  # places of the running ones in the result
        for name in ("x", "fun"):
            value = getattr(result, name)
            rows = array_namespace(value).reshape(value, (size, *self.event_shape))
            if size == running.size == self.x0.shape[0]:
                setattr(record, name, rows)
            else:
                scatter(getattr(record, name), running, gather(rows, part))
        numbers = {name: np.reshape(np.asarray(getattr(result, name)), -1)[part] for name in _OF_A_LEG}
        record.status[running], record.residual_norm[running] = numbers["status"], numbers["residual_norm"]
        record.iterations[running] += numbers["iterations"]
        record.krylov_iterations[running] += numbers["krylov_iterations"]
        if record.legs == 0:
            record.first_norm[running] = numbers["initial_norm"]
        record.counts = record.counts + result.counts
        record.steps = min(record.steps + self.every, self.limit)
        record.legs += 1

    def _check(self, record: Record) -> None:
        """Raise unless the problem has the residual of the file, up to its change between neighbouring numbers."""
        xp = array_namespace(record.x)
        evaluator = Evaluator(self.problem, xp.reshape(record.x, self._shape))
        x, kept = evaluator.flatten(record.x), evaluator.flatten(record.fun)
        F = evaluator.residual(x)
        nearby = evaluator.residual(x * (1 + eps(xp, evaluator.dtype)))
        record.counts = record.counts + evaluator.tally.counts()
        with np.errstate(all="ignore"):
            change, noise = norm_max(F - kept), norm_max(nearby - F)
            wrong = np.flatnonzero(change > SAME * norm_max(kept) + NOISE * noise)  # nowhere for what is not finite
        if wrong.size:
            raise ValueError(
                f"checkpointed: the file {str(self.file.path)!r} is of another problem: max|F(x)| was "
                f"{norm_max(kept)[wrong[0]]:.6g} and is {norm_max(F)[wrong[0]]:.6g}. "
                "Delete it to begin anew, or give another `path`"
            )

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.batch_shape + self.event_shape

    def _result(self, record: Record) -> NonlinearResult:
        xp = array_namespace(record.x)
        return NonlinearResult(
            x=xp.reshape(record.x, self._shape),
            fun=xp.reshape(record.fun, self._shape),
            status=status_per_system(record.status, self.batch_shape),
            residual_norm=per_system(record.residual_norm, self.batch_shape),
            target=per_system(self.stop.target(record.first_norm, self.x0), self.batch_shape),
            initial_norm=per_system(record.first_norm, self.batch_shape),
            iterations=per_system(record.iterations, self.batch_shape),
            krylov_iterations=per_system(record.krylov_iterations, self.batch_shape),
            counts=record.counts,
            steps=tuple(self.steps),
        )

    # What the caller sees of a leg

    @property
    def _skipped(self) -> int:
        """Steps of a leg that were seen before: where the last leg ended, the next one begins."""
        return 1 if self.steps else 0

    def _numbered(self, step: NewtonStep, record: Record, rows: Indices) -> NewtonStep:
        """A step as one of the whole solve."""
        return replace(
            step,
            iteration=record.steps + step.iteration,
            systems=rows[step.systems],
            counts=record.counts + step.counts,
        )

    def _shown(self, record: Record, rows: Indices) -> Monitor:
        """The caller's monitor, for a leg."""
        skipped = self._skipped

        def shown(step: NewtonStep, x: Array, F: Array) -> None:
            if step.iteration < skipped:
                return
            xp = array_namespace(x)
            whole = [xp.asarray(part, copy=True) for part in (record.x, record.fun)]
            for part, own in zip(whole, (x, F)):
                scatter(part, rows, xp.reshape(own, (rows.size, *self.event_shape)))
            self.monitor(self._numbered(step, record, rows), *(xp.reshape(part, self._shape) for part in whole))

        return shown


_OF_A_LEG = "status", "residual_norm", "initial_norm", "iterations", "krylov_iterations"


def _limit(solver: Any, stop: NonlinearStop) -> int:
    """Steps in all legs."""
    if stop.max_iterations is not None:
        return stop.max_iterations
    return FIXED_POINT_STEPS if isinstance(solver, Anderson | Broyden | Picard) else NEWTON_STEPS
