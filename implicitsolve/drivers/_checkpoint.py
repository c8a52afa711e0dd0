"""`checkpointed`: a solve in legs; after each, its state is saved in a file from which the solve can resume."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from implicitsolve._arrays import files
from implicitsolve._arrays.host import from_host, gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace, as_inexact, eps, is_array
from implicitsolve._record import Counts, NewtonStep
from implicitsolve._root import NonlinearMethod, check_settings
from implicitsolve._typing import Array, Indices
from implicitsolve.drivers._batch import select, unknown
from implicitsolve.kernels._norms import norm_max
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.monitor import Monitor, silent
from implicitsolve.nonlinear import Anderson, Auto, Broyden, Homotopy, NewtonKrylov, Picard
from implicitsolve.nonlinear._fixed_point import FixedPointLoop
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._solve import solve_root
from implicitsolve.nonlinear._state import Scheduler
from implicitsolve.problem import Problem, chosen, own_start, spread
from implicitsolve.result import NonlinearResult
from implicitsolve.status import CUT, Status
from implicitsolve.stopping import NonlinearStop, check_limit

FORMAT = "a checkpoint of format 5"


@dataclass(eq=False)
class Record:
    """A batch after some legs."""

    ends: NonlinearResult  # so far, of the flattened batch
    steps: int = 0  # of every system that is still running
    legs: int = 0


class CheckpointFile:
    """The file of a solve."""

    def __init__(self, path: str | os.PathLike[str], like: Any, settings: Mapping[str, str]) -> None:
        self.like, self.settings = like, settings
        self.path = Path(os.fspath(path))
        if not self.path.parent.is_dir():
            raise ValueError(f"checkpointed: `path` must be in a folder that exists, got {str(self.path)!r}")

    def write(self, record: Record) -> None:
        ends = {**vars(record.ends), "x": to_host(record.ends.x), "fun": to_host(record.ends.fun)}
        files.save(self.path, FORMAT, {**vars(record), "ends": ends, "settings": self.settings})

    def read(self) -> Record | None:
        """The record to resume from; None if there is none."""
        if not self.path.exists():
            return None
        record, settings = files.load(self.path, FORMAT, self._record)
        names = dict.fromkeys([*self.settings, *settings])
        pairs = [(name, settings.get(name), self.settings.get(name)) for name in names]
        wrong = [f"`{name}` was {old} and is {new}" for name, old, new in pairs if old != new]
        if wrong:
            raise self.error(f"a different solve: {'; '.join(wrong)}")
        return record

    def _record(self, parts: dict[str, Any]) -> tuple[Record, dict[str, str]]:
        settings, ends = parts.pop("settings"), parts.pop("ends")
        ends |= {name: from_host(ends[name], self.like) for name in ("x", "fun")}
        return Record(NonlinearResult(**ends | {"counts": Counts(**ends["counts"])}), **parts), settings

    def error(self, what: str) -> ValueError:
        advice = "Delete it to start over, or give another `path`"
        return ValueError(f"checkpointed: the file {str(self.path)!r} is from {what}. {advice}")


def digest(x: Any) -> str:
    values = np.ascontiguousarray(to_host(x))
    return f"{values.dtype}{list(values.shape)} {hashlib.sha256(values.data).hexdigest()[:16]}"


def describe(value: Any) -> str:
    """Settings as a text that is the same in every process."""
    if value is None or isinstance(value, str | bool | int | float | complex | np.generic):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{part.name}={describe(getattr(value, part.name))}" for part in fields(value))
        return f"{type(value).__name__}({inside})"
    if is_array(value):
        return digest(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {describe(part)}" for name, part in value.items()) + "}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(describe(part) for part in value)}]"
    name = getattr(value, "__qualname__", None)
    if name is None:
        return type(value).__qualname__
    code = getattr(value, "__code__", None)
    return f"{value.__module__}.{name}" + ("" if code is None else f" {content(code)}")


def content(code: CodeType) -> str:
    """Hash of the code of a function, with the names and numbers in it."""
    constants = [content(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names)).encode()).hexdigest()[:8]


# Differences of F(x) that other machines and libraries do not exceed:
SAME_NORM = 1e-3  # relative difference
RESTART_NOISE = 1e3  # times the change of F between adjacent floating-point numbers x


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
    """Solve F(x) = 0 as `root` does, in legs of some steps, and save a file from which another process can resume.

    Call it again, in the same way, after the process has died: it finds the file, resumes after the last complete leg,
    and ends with the same bits as an uninterrupted run. A solve that has ended is not repeated.

    Parameters
    ----------
    problem : Problem or callable
        As in `root`.
    x0 : array_like or None
        As in `root`, and the same at every call. None is the problem's own initial guess.
    path : str or path
        The file, in a folder that exists.
    every : int, optional
        Steps of a leg. Default 10, after which most solves have ended.
    method : optional
        As in `root`, except `Homotopy`, whose path every leg would restart. For fixed-point problems "auto" is
        `NewtonKrylov` here, since `Anderson` depends on its history; nor does it detect a structure, which every leg
        would repeat.
    stop : NonlinearStop, optional
        As in `root`. The inequality refers to ||F(x0)|| of the first leg. `max_iterations` counts the steps of all
        legs, and `max_evaluations` their calls; a later call may increase them. `max_seconds` limits each call.
    monitor : callable, optional
        As in `root`. It is called at the steps of this process, numbered from the first leg on.

    Returns
    -------
    NonlinearResult
        As in `root`. `counts` are those of all legs, plus two residuals for each time that a file was read; `steps`
        are those of this process.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable; if the file is damaged; or if it is from a different solve: the message names what
        differs. Shapes, dtypes, settings, x0, the code of functions and all else that the problem declares are
        compared; F(x), and the norms of F(x) and F(x0) by a `norm` that is a function, are measured again.

    See Also
    --------
    root : without a file.
    solve_batch : many systems by many workers, which may die.

    Notes
    -----
    Each leg is a `root` from the point where the last one ended. What a method carries from step to step (recycled
    Krylov spaces, a factored J and its updates, forcing terms, histories, counters of stagnation) is reset, so that the
    steps differ from those without a file, and are usually more. The flow in a driven cavity, with
    1922 unknowns, takes `NewtonKrylov` to 1e-10 in 6 steps and 327 products or residuals; in legs of 5, 2 and 1 steps
    it takes 8, 14 and 14 steps, and 436, 664 and 817 products.

    Systems of a batch that have ended do not change; with `take` they cost nothing. A file holds the bits of x and
    F(x); it is written under another name, of which each process has its own, and replaces the old one when it is
    complete.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> problem = ims.Problem(lambda x: x**3 - 8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "cubes.npz"
    ...     brief, ample = (ims.NonlinearStop(rtol=1e-12, max_iterations=limit) for limit in (4, 100))
    ...     first = ims.drivers.checkpointed(problem, np.full(3, 100.0), file, stop=brief)
    ...     second = ims.drivers.checkpointed(problem, np.full(3, 100.0), file, stop=ample)
    >>> first.status.name, second.status.name, second.x.round(6)
    ('ITERATION_LIMIT', 'CONVERGED', array([2., 2., 2.]))
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    solver, stop, monitor = check_settings("checkpointed", method, stop, monitor)
    if isinstance(solver, Homotopy):
        raise ValueError("checkpointed: `method` must be restartable from any x; a Homotopy follows one path from x0")
    check_limit("checkpointed", "every", every, least=1)
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise TypeError(f"checkpointed: `path` must be the name of a file, got {path!r}")
    x0 = own_start("checkpointed", problem) if x0 is None else x0
    return _Legs(problem, as_inexact(x0, "x0"), path, int(every), solver, stop).run(monitor)


class _Legs:
    """A solve in legs, on states (B, *event_shape)."""

    def __init__(
        self,
        problem: Problem,
        x0: Any,
        path: str | os.PathLike[str],
        every: int,
        solver: NonlinearMethod,
        stop: NonlinearStop,
    ) -> None:
        self.problem, self.every, self.stop = problem, every, stop
        is_iterated = isinstance(solver, Auto) and problem.fixed_point and problem.substitute is None
        self.solver: NonlinearMethod = NewtonKrylov() if is_iterated else solver
        loop = FixedPointLoop if isinstance(solver, Anderson | Broyden | Picard) else IterationLoop
        self.limit = loop.STEPS if stop.max_iterations is None else stop.max_iterations
        self.begin = time.monotonic()
        evaluator = Evaluator(problem, x0)
        self.shape, self.batch_shape = tuple(x0.shape), evaluator.batch_shape
        self.rows, self.event_shape = evaluator.rows, evaluator.event_shape
        self.x0 = array_namespace(x0).reshape(x0, (self.rows.size, *self.event_shape))
        self.steps: list[NewtonStep] = []
        settings = {
            "shape": str(self.shape),
            "dtype": str(x0.dtype),
            "every": str(every),
            "method": describe(solver),
            "stop": describe(replace(stop, max_iterations=None, max_evaluations=None, max_seconds=None)),
            "x0": digest(x0),
        }
        declared = {part.name: describe(getattr(problem, part.name)) for part in fields(problem)}
        settings |= {name: text for name, text in declared.items() if name != "residual"}  # that is measured again
        self.file = CheckpointFile(path, self.x0, settings)

    def run(self, monitor: Monitor) -> NonlinearResult:
        record = self.file.read()
        if record is None:
            x = array_namespace(self.x0).asarray(self.x0, copy=True)
            record = Record(unknown(x, np.full(self.rows.size, int(Status.RUNNING))))
        else:
            self._check(record)
        while (running := self._running(record)).size:
            self._solve_leg(record, running, monitor)
            self.file.write(record)
            if np.isin(record.ends.status[running], CUT).any():
                break
        ends = replace(record.ends, steps=tuple(self.steps))
        return replace(ends, **select(ends, self.rows, self.batch_shape))

    def _running(self, record: Record) -> Indices:
        is_open = np.isin(record.ends.status, (Status.RUNNING, Status.ITERATION_LIMIT, *CUT))
        return np.flatnonzero(is_open & (record.steps < self.limit or record.legs == 0))

    def _solve_leg(self, record: Record, running: Indices, monitor: Monitor) -> None:
        take = self.problem.take if self.problem.batch_ndim and running.size < self.rows.size else None
        rows = self.rows if take is None else running
        ends = record.ends
        x = gather(ends.x, rows)
        if take is None:
            x = array_namespace(x).reshape(x, self.shape)
        left = self.stop.rest(ends.counts.evaluations, time.monotonic() - self.begin)
        stop = replace(left, max_iterations=min(self.every, self.limit - record.steps))
        reference = None if record.legs == 0 else ends.initial_norm[rows]
        seen = 1 if self.steps else 0  # a leg begins at the last step of the one before
        show_step = silent if monitor is silent else self._text_of(record, rows, seen, monitor)
        problem = self.problem if take is None else chosen(self.problem, rows, self.shape)
        result = solve_root(problem, x, self.solver, stop, show_step, Scheduler(reference=reference))
        self.steps += [_number(step, record, rows) for step in result.steps[seen:]]
        places = np.flatnonzero(np.isin(rows, running))  # of the running systems in the result
        found = select(result, places, (running.size,), problem.batch_ndim)
        for name in ("x", "fun"):
            scatter(getattr(ends, name), running, found[name])
        for name in ("status", "residual_norm", "target", "error"):
            getattr(ends, name)[running] = found[name]
        ends.iterations[running] += found["iterations"]
        ends.krylov_iterations[running] += found["krylov_iterations"]
        if record.legs == 0:
            ends.initial_norm[running] = found["initial_norm"]
        record.ends = replace(ends, counts=ends.counts + result.counts)
        record.steps = min(record.steps + self.every, self.limit)
        record.legs += 1

    def _check(self, record: Record) -> None:
        """Raise unless F(x) agrees with the file, up to the change of F between adjacent floating-point numbers."""
        ends = record.ends
        xp = array_namespace(ends.x)
        evaluator = Evaluator(self.problem, xp.reshape(ends.x, self.shape))
        x, kept = evaluator.flatten(ends.x), evaluator.flatten(ends.fun)
        F = evaluator.residual(x)
        nearby = evaluator.residual(x * (1 + eps(xp, evaluator.dtype)))
        with np.errstate(all="ignore"):
            change, noise = norm_max(F - kept), norm_max(nearby - F)
            wrong = np.flatnonzero(change > SAME_NORM * norm_max(kept) + RESTART_NOISE * noise)  # False if not finite
        if wrong.size:
            was, now = (f"{norm_max(part)[wrong[0]]:.6g}" for part in (kept, F))
            raise self.file.error(f"a different problem: max|F(x)| was {was} and is {now}")
        if callable(self.stop.norm):
            self._compare_norms(record.ends, F, evaluator.residual(evaluator.flatten(self.x0)))
        record.ends = replace(ends, counts=ends.counts + evaluator.tally.counts())

    def _compare_norms(self, ends: NonlinearResult, F: Array, first: Array) -> None:
        """Raise unless the norms of F and F(x0) agree with the file: the name of a norm does not identify it."""
        declared = self.problem.f_scale
        scale = np.ones(F.shape) if declared is None else spread("f_scale", declared, self.shape).reshape(F.shape)
        for kept, value, where in ((ends.residual_norm, F, "x"), (ends.initial_norm, first, "x0")):
            now = self.stop.measure(value / from_host(scale, value), self.event_shape)
            wrong = np.flatnonzero(abs(now - kept) > SAME_NORM * kept)
            if wrong.size:
                changed = f"was {kept[wrong[0]]:.6g} and is {now[wrong[0]]:.6g}"
                raise self.file.error(f"another `norm`: that of F({where}) {changed}")

    def _text_of(self, record: Record, rows: Indices, seen: int, monitor: Monitor) -> Monitor:
        """The caller's monitor for a leg; it has already been called with the first `seen` steps."""

        def show_step(step: NewtonStep, x: Array, F: Array) -> Any:
            if step.iteration < seen:
                return None
            xp = array_namespace(x)
            whole = [xp.asarray(part, copy=True) for part in (record.ends.x, record.ends.fun)]
            for part, own in zip(whole, (x, F)):
                scatter(part, rows, xp.reshape(own, (rows.size, *self.event_shape)))
            return monitor(_number(step, record, rows), *(xp.reshape(part, self.shape) for part in whole))

        return show_step


def _number(step: NewtonStep, record: Record, rows: Indices) -> NewtonStep:
    iteration, counts = record.steps + step.iteration, record.ends.counts + step.counts
    return replace(step, iteration=iteration, systems=rows[step.systems], counts=counts)
