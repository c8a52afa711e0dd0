"""Handing the chunks of a batch over to an executor, and taking them back, whatever happens to its workers."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any

import numpy as np

from implicitsolve._chunk import Chunk, Failure, Task, work
from implicitsolve._processes import Processes, StartError
from implicitsolve._typing import Indices
from implicitsolve.stopping import check_limit

ATTEMPTS = 2  # at a chunk whose process died: it may have been killed for what another one did
POLL = 0.1  # seconds after which `cancel` is looked at again


@dataclass
class Pool:
    """An executor, and how to deal with it."""

    executor: Executor
    workers: int  # a guess where it does not tell
    places: int | None  # chunks to hand over at a time: one more than workers, so that none waits. None: all
    is_ours: bool

    @classmethod
    def of(cls, executor: Any) -> Pool:
        """What the caller means by an executor, a number of processes, or None."""
        if isinstance(executor, Executor):
            known = _known_workers(executor)
            return cls(executor, known or os.cpu_count() or 1, None if known is None else known + 1, is_ours=False)
        if executor is None:
            executor = _available()
        elif isinstance(executor, bool) or not isinstance(executor, int | np.integer):
            raise TypeError(
                f"solve_batch: `executor` must be an executor of concurrent.futures or a number of processes, "
                f"got {type(executor).__name__}"
            )
        count = int(executor)
        check_limit("solve_batch", "executor", count, least=1)
        return cls(Processes(count), count, count + 1, is_ours=True)

    @property
    def has_processes(self) -> bool:
        """Whether it works in processes of this machine: they need bytes, may die, and can be started again."""
        return self.is_ours or isinstance(self.executor, ProcessPoolExecutor)

    def replace(self) -> None:
        """Go on with processes of ours, started in the way of an executor that broke."""
        if not self.is_ours:
            broken: Any = self.executor
            context, initializer = getattr(broken, "_mp_context", None), getattr(broken, "_initializer", None)
            self.executor = Processes(self.workers, context, initializer, getattr(broken, "_initargs", ()))
            self.is_ours = True

    def end(self, *, kill: bool) -> None:
        """End processes of ours; somebody else's executor stays as it is."""
        if isinstance(self.executor, Processes) and self.is_ours:
            if kill:
                self.executor.kill()
            else:
                self.executor.shutdown()


def _known_workers(executor: Executor) -> int | None:
    """Workers of an executor that tells: those of the standard library, and mpi4py's."""
    for name in ("_max_workers", "num_workers"):
        workers = getattr(executor, name, None)
        if isinstance(workers, int) and workers > 0:
            return workers
    return None


def _available() -> int:
    """CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


class Dispatch:
    """Chunks that wait, run, or are done.

    `make` gives the chunk of some systems; `progress` and `cancel` are those of `solve_batch`.
    """

    def __init__(
        self,
        tasks: list[Task],
        make: Callable[[Indices], Chunk],
        pool: Pool,
        progress: Callable[[int, int], object] | None,
        cancel: threading.Event | None,
    ) -> None:
        self.waiting, self.running = deque(tasks), dict[Future[Any], Task]()
        self.make, self.pool, self.progress, self.cancel = make, pool, progress, cancel
        self.done, self.total = 0, sum(task.systems.size for task in tasks)  # systems
        self.places = len(tasks) if pool.places is None else pool.places

    def run(self) -> None:
        """Until all chunks are done or lost, or the solve was cancelled."""
        try:
            while self.waiting or self.running:
                if self.cancel is not None and self.cancel.is_set():
                    break
                while self.waiting and len(self.running) < self.places:
                    task = self.waiting.popleft()
                    self.running[self._submitted(task)] = task
                ended, _ = wait(self.running, None if self.cancel is None else POLL, FIRST_COMPLETED)
                for future in [future for future in self.running if future in ended]:  # in their order
                    self._settle(self.running.pop(future), future)
        finally:
            for future in self.running:
                future.cancel()
            self.pool.end(kill=bool(self.running))

    def _submitted(self, task: Task) -> Future[Any]:
        chunk = self.make(task.systems)
        sent = chunk.packed() if self.pool.has_processes else chunk
        try:
            return self.pool.executor.submit(work, sent)
        except BrokenExecutor as error:
            if self.pool.has_processes:
                self.pool.replace()
                return self.pool.executor.submit(work, sent)
            broken = Future[Any]()
            broken.set_exception(error)
            return broken

    def _settle(self, task: Task, future: Future[Any]) -> None:
        try:
            outcome = future.result()
        except StartError:
            raise
        except (PicklingError, TypeError, AttributeError) as error:
            raise TypeError(f"solve_batch: the executor cannot send the problem: {error}") from error
        except Exception as error:  # noqa: BLE001 (a worker returns what it catches: this is the executor's own)
            self._miss(task, error)
            return
        if not isinstance(outcome, Failure):
            task.result = outcome
            self._count(task)
        elif isinstance(outcome.error, MemoryError):
            self._miss(task, outcome.error)
        else:
            outcome.reraise()

    def _miss(self, task: Task, error: Exception) -> None:
        """Put a chunk behind all others for another attempt, or give it up."""
        task.attempts += 1
        if isinstance(error, BrokenExecutor) and self.pool.has_processes:
            self.pool.replace()
        if self.pool.has_processes and task.attempts < ATTEMPTS:
            self.waiting.append(task)
        else:
            task.error = error
            self._count(task)

    def _count(self, task: Task) -> None:
        self.done += task.systems.size
        if self.progress is not None:
            self.progress(self.done, self.total)
