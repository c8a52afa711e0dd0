"""One chunk of a batch as a task for a worker: what is sent, what it does there, and what comes back."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from implicitsolve._typing import Array, Indices
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.solve import NonlinearMethod, root
from implicitsolve.stopping import NonlinearStop

WHAT_TO_DO = (
    "Define functions at the top level of a module, as methods of a class defined there, or by functools.partial of "
    "such, rather than as lambdas or inside other functions; or use an executor of threads."
)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some systems of a batch, and how to solve them."""

    systems: Indices  # of the flattened batch
    problem: Problem | Callable[[Indices], Problem]
    x0: Array | None
    method: NonlinearMethod
    stop: NonlinearStop

    def solve(self) -> NonlinearResult:
        """Solve them here."""
        problem: Any = self.problem if isinstance(self.problem, Problem) else self.problem(self.systems)
        if not isinstance(problem, Problem):
            raise TypeError(
                f"solve_batch: `problem` must be a Problem, or a function of systems that returns one, but it returned "
                f"{type(problem).__name__}"
            )
        if problem.batch_ndim != 1:
            raise ValueError(f"solve_batch: a chunk's problem must have batch_ndim=1, got {problem.batch_ndim}")
        result = root(problem, self.x0, method=self.method, stop=self.stop)
        if result.x.shape[0] != self.systems.size:
            raise ValueError(
                f"solve_batch: the problem of {self.systems.size} systems must begin at as many states, "
                f"got {result.x.shape[0]}"
            )
        return result

    def packed(self) -> bytes:
        """The chunk as bytes; a TypeError where it cannot be sent, which says what is to blame."""
        try:
            return pickle.dumps(self)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"solve_batch: {self._culprit()} cannot be sent to other processes: {error}. {WHAT_TO_DO}"
            ) from error

    def _culprit(self) -> str:
        for name, value in self._parts():
            try:
                pickle.dumps(value)
            except (pickle.PicklingError, AttributeError, TypeError):
                return f"`{name}`"
        return "`problem`"

    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield from (("x0", self.x0), ("method", self.method), ("stop", self.stop))
        if isinstance(self.problem, Problem):
            yield from ((f"problem.{part.name}", getattr(self.problem, part.name)) for part in fields(Problem))


@dataclass(eq=False)
class Task:
    """What has become of a chunk."""

    systems: Indices
    attempts: int = 0
    result: NonlinearResult | None = None
    error: Exception | None = None  # what lost it


@dataclass(frozen=True, eq=False)
class Failure:
    """An exception that a worker caught, and its traceback there."""

    error: Exception
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """In a form that can be sent."""
        trace = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 (an exception's own methods run here)
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error, trace)

    def reraise(self) -> None:
        """Raise the exception here."""
        self.error.add_note(f"In a worker of solve_batch:\n{self.trace}")
        raise self.error


def work(task: Chunk | bytes) -> NonlinearResult | Failure:
    """Solve a chunk in a worker. Exceptions are returned: what an executor raises is its own trouble."""
    try:
        chunk: Chunk = _unpacked(task) if isinstance(task, bytes) else task
        return chunk.solve()
    except Exception as error:  # noqa: BLE001 (the caller decides)
        return Failure.of(error)


def _unpacked(task: bytes) -> Chunk:
    try:
        return pickle.loads(task)
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        raise TypeError(f"solve_batch: a worker cannot load the problem: {error}. {WHAT_TO_DO}") from error
