"""`solve_batch`: a batch in chunks, each solved by a worker: a process, a thread, another machine."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from implicitsolve._chunk import Chunk, Task
from implicitsolve._dispatch import Dispatch, Pool
from implicitsolve._namespace import array_namespace, as_inexact, gather
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.problem import Problem
from implicitsolve.result import Counts, NonlinearResult
from implicitsolve.solve import NonlinearMethod, check_settings, root
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_limit

PER_WORKER = 4  # chunks: with one for each, all wait for the slowest
HOST = "residual_norm", "initial_norm", "target", "iterations", "krylov_iterations"  # beside the status


@dataclass(frozen=True, kw_only=True)
class LostChunk:
    """Systems that no worker brought back.

    Attributes
    ----------
    systems : ndarray of int
        Their positions in the flattened batch.
    error : Exception
        What the executor said, or the MemoryError.
    """

    systems: Indices
    error: Exception


@dataclass(frozen=True, kw_only=True)
class BatchResult(NonlinearResult):
    """Result of `solve_batch`: that of `root` for the whole batch.

    Systems that were not solved have the status LOST or CANCELLED, their start as x (NaN where it is not known here),
    and NaN as `fun` and norms.

    Attributes
    ----------
    counts : Counts
        Calls in all workers; one call serves what is left of a chunk.
    steps : tuple of NewtonStep
        Chunk by chunk.
    lost : tuple of LostChunk
        The chunks behind the status LOST.
    """

    lost: tuple[LostChunk, ...] = field(default=())


def solve_batch(
    problem: Problem | Callable[[Indices], Problem],
    x0: Any = None,
    *,
    count: int | None = None,
    executor: Executor | int | None = None,
    chunks: int | None = None,
    method: NonlinearMethod | str = "auto",
    stop: NonlinearStop | None = None,
    progress: Callable[[int, int], object] | None = None,
    cancel: threading.Event | None = None,
) -> BatchResult:
    """Solve a batch of independent systems in chunks, by processes, threads, or the workers of any executor.

    Each chunk is a `root` of its own, so that each system ends as in `root` up to rounding: systems share matrix
    products, whose order of sums may depend on their number. A system at the edge of convergence may then end
    otherwise. With the same chunks the result is the same to the last bit, whoever works.

    Parameters
    ----------
    problem : Problem or callable
        A batch, with `take`; or a function that makes the problem of some systems, ``problem(indices)``, with
        batch_ndim 1. It is called by the worker, for what is too large to send, or is read from a file.
    x0 : array_like, optional
        As of `root`. By default the problem's own initial guess, which is computed here for the whole batch; where
        `problem` is a function, each worker computes those of its systems.
    count : int, optional
        Number of systems, where `problem` is a function and there is no `x0`.
    executor : concurrent.futures.Executor or int, optional
        Who works: a `ThreadPoolExecutor`, a `ProcessPoolExecutor`, that of mpi4py.futures, Dask's
        ``client.get_executor()``, or a number of processes, which are started ("spawn") and ended by this call.
        Default: as many processes as there are CPUs for this one, since threads of Python wait for each other.
    chunks : int, optional
        Into how many parts of about equal size the batch is cut, in its order. Default: 4 for each worker. More of them
        balance better; the systems of larger ones share more of their matrix products.
    method, stop : optional
        As of `root`.
    progress : callable, optional
        ``progress(done, total)`` is called after each chunk, with numbers of systems. What it raises ends the solve and
        is raised.
    cancel : threading.Event, optional
        When it is set, the chunks that are not done are given up: their systems are CANCELLED. Looked at ten times a
        second.

    Returns
    -------
    BatchResult
        As of `root`, in the order of the batch, and which chunks were `lost`.

    Raises
    ------
    TypeError
        If an argument is not usable, or cannot be pickled for processes: before anything is sent.
    ValueError
        If the problem is no batch, or has no `take`.
    RuntimeError
        If processes cannot start; or if no chunk was solved, and nothing tells the shape of the states.

    See Also
    --------
    root : one call for the whole batch, in this thread.
    checkpointed : a solve that survives the death of its own process.

    Notes
    -----
    An exception of the problem's functions ends the solve: it is raised here, with the worker's traceback as a note,
    and no further chunk begins. A worker that dies (killed, or ended by a fault of compiled code) or runs out of memory
    loses its chunk alone. With processes such a chunk is tried once more, after all others, in a fresh process, before
    its systems are LOST. A `ProcessPoolExecutor` breaks as a whole: its chunks go to processes of this call, started in
    the same way, and it cannot be used again. Other executors have their own rules for a second attempt; what they give
    up is LOST.

    Chunks of processes are pickled; a `Problem` pickles if its functions do: those of a module, bound methods and
    `functools.partial` of them, but no lambdas. All adapters' do. A script that starts processes needs
    ``if __name__ == "__main__":``.

    Each process uses as many BLAS threads as it likes, which are too many for all together: set OMP_NUM_THREADS=1 in
    the environment, unless there are fewer workers than CPUs.

    A process takes about as long to start as Python and the imports of the problem's module take, and sending costs two
    copies of a chunk; x0, x and F of the whole batch are held here. A chunk that runs cannot be stopped in somebody
    else's executor: after an exception or `cancel` its end is not waited for.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.gru_parameters(2, 4, rng=rng)
    >>> layer = ims.adapters.implicit_gru(params, rng.standard_normal((100, 5, 2)))
    >>> with ThreadPoolExecutor(2) as executor:
    ...     result = ims.solve_batch(layer, executor=executor)
    >>> result.x.shape, bool(result.success.all())
    ((100, 5, 4), True)
    """
    solver, stop, _ = check_settings("solve_batch", method, stop, None)
    _check_callbacks(progress, cancel)
    if chunks is not None:
        check_limit("solve_batch", "chunks", chunks, least=1)
    pool = Pool.of(executor)
    batch = _Batch.of(problem, x0, count)
    if not batch.size:
        return BatchResult(**vars(root(batch.problem, batch.x0, method=solver, stop=stop)))
    parts = min(PER_WORKER * pool.workers if chunks is None else int(chunks), batch.size)
    tasks = [Task(systems) for systems in np.array_split(np.arange(batch.size), parts)]
    Dispatch(tasks, lambda systems: batch.chunk(systems, solver, stop), pool, progress, cancel).run()
    return batch.joined(tasks)


def _check_callbacks(progress: Any, cancel: Any) -> None:
    if progress is not None and not callable(progress):
        raise TypeError(f"solve_batch: `progress` must be callable, got {type(progress).__name__}")
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise TypeError(f"solve_batch: `cancel` must be a threading.Event, got {type(cancel).__name__}")


@dataclass(frozen=True)
class _Batch:
    """The systems, and where they begin."""

    problem: Problem | Callable[[Indices], Problem]
    x0: Array | None
    batch_shape: tuple[int, ...]

    @classmethod
    def of(cls, problem: Any, x0: Any, count: Any) -> _Batch:
        """Check what the caller gave."""
        if not isinstance(problem, Problem):
            return cls._made(problem, x0, count)
        if not problem.batch_ndim or problem.take is None:
            raise ValueError("solve_batch: `problem` must be a batch (`batch_ndim` > 0) and offer `take`")
        if count is not None:
            raise TypeError("solve_batch: `count` is for a `problem` that is a function of the systems")
        if x0 is None:
            if problem.initial_guess is None:
                raise TypeError("solve_batch: `x0` is needed, since the problem offers no initial guess")
            x0 = problem.initial_guess("default", None)
        x0 = as_inexact(x0, "x0")
        if problem.batch_ndim > x0.ndim:
            raise ValueError(f"solve_batch: `batch_ndim` is {problem.batch_ndim}, but x0 has only {x0.ndim} axes")
        return cls(problem, x0, tuple(x0.shape[: problem.batch_ndim]))

    @classmethod
    def _made(cls, problem: Any, x0: Any, count: Any) -> _Batch:
        """Of a function of the systems."""
        if not callable(problem):
            raise TypeError(
                f"solve_batch: `problem` must be a Problem, or a function of systems that returns one, "
                f"got {type(problem).__name__}"
            )
        if (x0 is None) == (count is None):
            given = "neither" if x0 is None else "both"
            raise TypeError(f"solve_batch: a function as `problem` needs either `x0` or `count`, got {given}")
        build: Any = problem
        if x0 is None:
            check_limit("solve_batch", "count", count, least=1)
            return cls(build, None, (int(count),))
        x0 = as_inexact(x0, "x0")
        if not x0.ndim or not x0.shape[0]:
            raise ValueError(f"solve_batch: `x0` must have a row for each system, got shape {tuple(x0.shape)}")
        return cls(build, x0, (x0.shape[0],))

    @property
    def size(self) -> int:
        """Systems."""
        return math.prod(self.batch_shape)

    def start(self, systems: Indices) -> Array | None:
        """Where some of them begin."""
        if self.x0 is None:
            return None
        event_shape = tuple(self.x0.shape[len(self.batch_shape) :])
        return gather(array_namespace(self.x0).reshape(self.x0, (self.size, *event_shape)), systems)

    def chunk(self, systems: Indices, method: NonlinearMethod, stop: NonlinearStop) -> Chunk:
        """Some of them as a task."""
        problem = self.problem.take(systems) if isinstance(self.problem, Problem) else self.problem  # type: ignore[misc]
        return Chunk(systems, problem, self.start(systems), method, stop)

    def joined(self, tasks: list[Task]) -> BatchResult:
        """The results of all chunks as one."""
        like = next((task.result for task in tasks if task.result is not None), None)
        results = [self._unsolved(task, like) if task.result is None else task.result for task in tasks]
        x, fun = (self._states([getattr(result, name) for result in results]) for name in ("x", "fun"))
        host = {name: self._numbers([getattr(result, name) for result in results]) for name in ("status", *HOST)}
        steps = tuple(
            replace(step, systems=task.systems[step.systems])
            for task, result in zip(tasks, results)
            for step in result.steps
        )
        return BatchResult(
            x=x,
            fun=fun,
            **host,
            counts=sum((result.counts for result in results), Counts()),
            steps=steps,
            lost=tuple(LostChunk(systems=task.systems, error=task.error) for task in tasks if task.error is not None),
        )

    def _states(self, parts: list[Array]) -> Array:
        xp = array_namespace(*parts)
        return xp.reshape(xp.concat(parts, axis=0), (*self.batch_shape, *parts[0].shape[1:]))

    def _numbers(self, parts: list[HostArray]) -> HostArray:
        return np.concatenate(parts).reshape(self.batch_shape)

    def _unsolved(self, task: Task, like: NonlinearResult | None) -> NonlinearResult:
        """What is known of systems that nobody solved."""
        size, start = task.systems.size, self.start(task.systems)
        if start is None:
            if like is None:
                raise RuntimeError("solve_batch: no chunk was solved, and without `x0` nothing tells the states' shape")
            xp = array_namespace(like.x)
            start = xp.full((size, *like.x.shape[1:]), np.nan, dtype=like.x.dtype)
        unknown, none = np.full(size, np.nan), np.zeros(size, dtype=int)
        return NonlinearResult(
            x=start,
            fun=array_namespace(start).full_like(start, np.nan),
            status=np.full(size, int(Status.CANCELLED if task.error is None else Status.LOST)),
            residual_norm=unknown,
            initial_norm=unknown,
            target=unknown,
            iterations=none,
            krylov_iterations=none,
            counts=Counts(),
        )
