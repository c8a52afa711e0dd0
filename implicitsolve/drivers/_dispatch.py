"""Dispatch of the chunks of a batch to the workers of an executor, and recovery from the loss of workers."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, fields
from multiprocessing import get_context, parent_process
from typing import Any

import numpy as np

from implicitsolve._root import NonlinearMethod, root
from implicitsolve._typing import Array, Indices
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import NonlinearStop, check_limit

POLL = 0.1  # seconds between two looks at `cancel`, as documented there
UNPICKLABLE = pickle.PicklingError, AttributeError, TypeError  # what pickle raises, depending on the object
MUST_BE = "solve_batch: `problem` must be a Problem, or a function of systems that returns one"
WHAT_TO_DO = (
    "Define functions at the top level of a module, as methods of a class defined there, or as functools.partial of "
    "these, not as lambdas or inside other functions; or use an executor of threads."
)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some systems of a batch, with all that a worker needs to solve them."""

    systems: Indices  # of the flattened batch
    problem: Problem | Callable[[Indices], Problem]
    x0: Array | None
    method: NonlinearMethod
    stop: NonlinearStop

    def solve(self) -> NonlinearResult:
        problem: Any = self.problem if isinstance(self.problem, Problem) else self.problem(self.systems)
        if not isinstance(problem, Problem):
            raise TypeError(f"{MUST_BE}, but it returned {type(problem).__name__}")
        if problem.batch_ndim != 1:
            raise ValueError(f"solve_batch: a chunk's problem must have batch_ndim=1, got {problem.batch_ndim}")
        result = root(problem, self.x0, method=self.method, stop=self.stop)
        if result.x.shape[0] != self.systems.size:
            raise ValueError(
                f"solve_batch: the problem of {self.systems.size} systems must begin at as many states, "
                f"got {result.x.shape[0]}"
            )
        return result

    def pickle_or_raise(self) -> bytes:
        """The chunk as bytes; a TypeError that names the argument which cannot be pickled."""
        try:
            return pickle.dumps(self)
        except UNPICKLABLE as error:
            parts = {"x0": self.x0, "method": self.method, "stop": self.stop}
            if isinstance(self.problem, Problem):
                parts |= {f"problem.{part.name}": getattr(self.problem, part.name) for part in fields(Problem)}
            culprit = next((name for name, value in parts.items() if not _is_picklable(value)), "problem")
            message = f"solve_batch: `{culprit}` cannot be sent to other processes: {error}. {WHAT_TO_DO}"
            raise TypeError(message) from error


def _is_picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except UNPICKLABLE:
        return False
    return True


@dataclass(frozen=True, eq=False)
class Failure:
    """An exception of the problem's functions, and its traceback in the worker."""

    error: Exception
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        trace = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 (an exception's own methods run here)
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error, trace)


def work(chunk: Chunk | bytes) -> NonlinearResult | Failure:
    """Solve a chunk in a worker. Exceptions are returned, so that any that is raised comes from the executor."""
    try:
        if isinstance(chunk, bytes):
            try:
                chunk = pickle.loads(chunk)
            except (pickle.UnpicklingError, AttributeError, ImportError) as error:
                raise TypeError(f"solve_batch: a worker cannot load the problem: {error}. {WHAT_TO_DO}") from error
        return chunk.solve()  # type: ignore[union-attr]
    except Exception as error:  # noqa: BLE001 (the caller raises it)
        return Failure.of(error)


def _begin() -> None:
    """Initialize a worker process: it ignores Ctrl-C, which the parent handles, and ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent: Any = parent_process()
    parent.join()
    os._exit(1)


@dataclass
class Pool:
    """An executor, with the properties that `Dispatch` uses."""

    executor: Executor  # of the caller, or processes of this call
    workers: int  # a guess for the caller's executor
    places: int | None  # for chunks: one more than workers, so that none is idle; None for all of them
    given: Executor | None = None  # the caller's executor, which is left running

    @classmethod
    def of(cls, executor: Any, workers: int | None) -> Pool:
        if workers is not None:
            check_limit("solve_batch", "workers", workers, least=1)
        if hasattr(executor, "submit"):
            # The default size of the standard pools is about the number of CPUs.
            count = os.cpu_count() or 1 if workers is None else workers
            is_open = workers is None and not isinstance(executor, ProcessPoolExecutor)
            return cls(executor, count, None if is_open else count + 1, given=executor)
        if executor is None:
            cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            executor = cpus if workers is None else workers
        elif isinstance(executor, bool) or not isinstance(executor, int | np.integer):
            raise TypeError(
                f"solve_batch: `executor` must be an executor of concurrent.futures or a number of processes, "
                f"got {type(executor).__name__}"
            )
        check_limit("solve_batch", "executor", int(executor), least=1)
        count = int(executor)
        return cls(ProcessPoolExecutor(count, get_context("spawn"), _begin), count, count + 1)

    @property
    def has_processes(self) -> bool:
        """Whether it is a standard pool of processes, which breaks as a whole when one of them dies."""
        return isinstance(self.executor, ProcessPoolExecutor)

    def renew(self) -> None:
        """Replace a broken process pool with a new one, and check that it works."""
        broken: Any = self.executor
        broken.shutdown()
        settings = broken._mp_context, broken._initializer, broken._initargs  # a pool offers no other access
        self.executor = ProcessPoolExecutor(self.workers, *settings)
        try:
            self.executor.submit(int).result()
        except BrokenExecutor as error:
            raise RuntimeError(
                "solve_batch: worker processes cannot start (the reason is on stderr). They import the main module "
                'again: a script that starts processes needs `if __name__ == "__main__":`'
            ) from error

    def end(self, *, kill: bool) -> None:
        """End the processes of this call, at once if `kill`: from Python 3.14 on the pool has a method for that."""
        pool: Any = self.executor
        if self.has_processes and pool is not self.given:
            for process in list((pool._processes or {}).values()) if kill else ():
                process.kill()
            pool.shutdown(cancel_futures=kill)


@dataclass(eq=False)
class Task:
    """The systems of a chunk, and their result, or why they are lost; neither if the solve was cancelled."""

    systems: Indices
    result: NonlinearResult | None = None
    error: Exception | None = None


class Dispatch:
    """Chunks on their way through a pool.

    `make` gives the chunk of some systems; `progress` and `cancel` are those of `solve_batch`. A pool of processes that
    breaks does not report which chunk it was: all chunks that had been submitted are retried at the end, one at a time
    in a pool of its own. One that breaks it again is lost.
    """

    def __init__(
        self,
        make: Callable[[Indices], Chunk],
        pool: Pool,
        progress: Callable[[int, int], object] | None,
        cancel: threading.Event | None,
    ) -> None:
        self.make, self.pool, self.progress, self.cancel = make, pool, progress, cancel
        self.running: dict[Future[Any], Task] = {}
        self.suspects: list[Task] = []
        self.done = self.total = 0  # systems

    def run(self, tasks: list[Task]) -> None:
        """Solve all chunks except those that are lost or cancelled."""
        self.total = sum(task.systems.size for task in tasks)
        try:
            self._pass(tasks, self.pool.places or len(tasks), is_last=not self.pool.has_processes)
            self._pass(self.suspects, 1, is_last=True)
        finally:
            for future in self.running:
                future.cancel()
            self.pool.end(kill=bool(self.running))

    def _pass(self, tasks: list[Task], places: int, *, is_last: bool) -> None:
        """Submit chunks, `places` at a time; those that fail are lost in the last pass, and suspected before it."""
        waiting = deque(tasks)
        while waiting or self.running:
            if self.cancel is not None and self.cancel.is_set():
                return
            while waiting and len(self.running) < places:
                task = waiting.popleft()
                self.running[self._submit(task)] = task
            ended, _ = wait(self.running, None if self.cancel is None else POLL, FIRST_COMPLETED)
            if self.pool.has_processes and any(isinstance(future.exception(), BrokenExecutor) for future in ended):
                ended, _ = wait(self.running)  # none of them runs any more
                self.pool.renew()
            for future in [future for future in self.running if future in ended]:  # in the order of submission
                task = self.running.pop(future)
                error = self._outcome(task, future)
                if error is None or is_last:
                    task.error = error
                    self._count(task)
                else:
                    self.suspects.append(task)

    def _submit(self, task: Task) -> Future[Any]:
        chunk = self.make(task.systems)
        try:
            return self.pool.executor.submit(work, chunk.pickle_or_raise() if self.pool.has_processes else chunk)
        except BrokenExecutor as error:
            broken = Future[Any]()
            broken.set_exception(error)
            return broken

    def _count(self, task: Task) -> None:
        self.done += task.systems.size
        if self.progress is not None:
            self.progress(self.done, self.total)

    def _outcome(self, task: Task, future: Future[Any]) -> Exception | None:
        """Keep the result of a chunk, or return why there is none; exceptions of the problem's functions are raised."""
        try:
            outcome = future.result()
        except UNPICKLABLE as error:
            raise TypeError(f"solve_batch: the executor cannot send the problem: {error}") from error
        except Exception as error:  # noqa: BLE001 (the executor's own: `work` returns those of the problem)
            return error
        if not isinstance(outcome, Failure):
            task.result = outcome
        elif isinstance(outcome.error, MemoryError):
            return outcome.error
        else:
            outcome.error.add_note(f"In a worker of solve_batch:\n{outcome.trace}")
            raise outcome.error
        return None
