"""`solve_batch`: a batch in chunks, each solved by a worker of an executor: a process, a thread, another machine."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from implicitsolve._arrays.host import gather
from implicitsolve._arrays.namespace import array_namespace, as_inexact
from implicitsolve._record import Counts
from implicitsolve._root import NonlinearMethod, check_settings, root
from implicitsolve._summary import Representation
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.drivers._dispatch import MUST_BE, Chunk, Dispatch, Pool, Task
from implicitsolve.problem import Problem, chosen, own_start
from implicitsolve.result import NonlinearResult, fields_per_system
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_limit

PER_WORKER = 4  # chunks: the last ones to end then leave workers idle for at most about a quarter of the time

NORMS = "residual_norm", "initial_norm", "target", "error"
PER_SYSTEM = "status", *NORMS[:-1], "iterations", "krylov_iterations"  # in results


@dataclass(frozen=True, kw_only=True, repr=False)
class LostChunk(Representation):
    """Systems whose worker died.

    Attributes
    ----------
    systems : ndarray of int
        Their positions in the flattened batch.
    error : Exception
        The executor's exception, or the MemoryError.
    """

    systems: Indices
    error: Exception


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BatchResult(NonlinearResult):
    """Result of `solve_batch`: that of `root` for the whole batch.

    Systems that were not solved have the status LOST or CANCELLED, their start as x (NaN where only a worker had it),
    and NaN as `fun` and norms.

    Attributes
    ----------
    counts : Counts
        Calls in all workers; each call evaluates those systems of a chunk that are still running.
    steps : tuple of NewtonStep
        Chunk by chunk.
    lost : tuple of LostChunk
        The chunks whose systems are LOST.
    """

    lost: tuple[LostChunk, ...] = field(default=())


def solve_batch(
    problem: Problem | Callable[[Indices], Problem],
    x0: Any = None,
    *,
    count: int | None = None,
    executor: Executor | int | None = None,
    workers: int | None = None,
    chunks: int | None = None,
    method: NonlinearMethod | str = "auto",
    stop: NonlinearStop | None = None,
    progress: Callable[[int, int], object] | None = None,
    cancel: threading.Event | None = None,
    previous: BatchResult | None = None,
) -> BatchResult:
    """Solve a batch of independent systems in chunks, on processes, threads, or the workers of any executor.

    Each chunk is a separate call of `root`, so that each system ends as in `root` up to rounding: systems share matrix
    products, whose order of summation may depend on their number, and a system at the edge of convergence may then
    end otherwise. With the same chunks the result is bitwise the same on any workers of one kind.

    Parameters
    ----------
    problem : Problem or callable
        A batch, with `take`; or a function that returns the problem of some systems, ``problem(indices)``, with
        batch_ndim 1. Workers call it, for data that are too large to send or are read from a file.
    x0 : array_like, optional
        As in `root`. By default the problem's own initial guess, which is computed here for the whole batch; if
        `problem` is a function, each worker computes the guesses for its systems.
    count : int, optional
        Number of systems, if `problem` is a function and there is no `x0`.
    executor : concurrent.futures.Executor or int, optional
        A `ProcessPoolExecutor`, a `ThreadPoolExecutor`, mpi4py's `MPIPoolExecutor`, Dask's ``client.get_executor()``,
        or another object whose ``submit`` returns a future of concurrent.futures, such as one made of Ray's tasks; or a
        number of processes, which this call starts ("spawn") and ends. Default: one process for each CPU, since
        Python's threads share one interpreter.
    workers : int, optional
        Number of workers of `executor`, which does not report it. If given, one chunk more than this is submitted at a
        time; otherwise all are, but for a `ProcessPoolExecutor`, for which the default is the number of CPUs.
    chunks : int, optional
        Number of contiguous parts of about equal size into which the batch is divided. Default: 4 for each worker. More
        chunks balance the load better; the systems of a larger chunk share more of their matrix products.
    method, stop : optional
        As in `root`; `max_evaluations` and `max_seconds` limit each chunk, and `cancel` the whole solve.
    progress : callable, optional
        ``progress(done, total)`` is called after each chunk, with numbers of systems. An exception that it raises ends
        the solve.
    cancel : threading.Event, optional
        When it is set, unfinished chunks are abandoned, and their systems are CANCELLED. Tested ten times a second.
    previous : BatchResult, optional
        An earlier result for the same batch: its LOST and CANCELLED systems are solved, the others keep their results.

    Returns
    -------
    BatchResult
        As in `root`, in the order of the batch, with the chunks that were `lost`.

    Raises
    ------
    TypeError
        If an argument is not usable, or cannot be pickled for processes: before anything is sent.
    ValueError
        If the problem is not a batch, or has no `take`.
    RuntimeError
        If processes cannot start; or if no chunk was solved, so that the shape of the states is unknown.

    See Also
    --------
    root : one call for the whole batch, in this thread.
    checkpointed : a solve that survives the death of its process.

    Notes
    -----
    An exception of the problem's functions ends the solve: it is raised here, with the worker's traceback as a note,
    and no further chunk begins. A worker that dies (killed, or by a fault of compiled code) or runs out of memory loses
    its chunk alone. A process pool breaks as a whole when one of them dies, and does not report which chunk it was:
    it is replaced by a new one, started in the same way, and the chunks that had been handed over are tried again after
    all others, one at a time. Those that break the pool again are LOST. The caller's broken pool cannot be used again.
    Other executors have their own rules for a second attempt; chunks whose futures end with an exception are LOST.

    Chunks for processes are pickled. A `Problem` pickles if its functions do: functions of a module, bound methods and
    `functools.partial` of these, but no lambdas. Those of all adapters do. A script that starts processes needs
    ``if __name__ == "__main__":``.

    Each process uses as many BLAS threads as its BLAS chooses, together too many: set OMP_NUM_THREADS=1 in the
    environment, unless there are fewer workers than CPUs.

    A process takes about as long to start as Python and the imports of the problem's module take, and sending a chunk
    takes two copies of it; x0, x and F of the whole batch are held here. A chunk that is running on the caller's
    executor cannot be stopped: after an exception or `cancel` its end is not awaited.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.gru_parameters(2, 4, rng=rng)
    >>> layer = ims.adapters.implicit_gru(params, rng.standard_normal((100, 5, 2)))
    >>> with ThreadPoolExecutor(2) as executor:
    ...     result = ims.drivers.solve_batch(layer, executor=executor)
    >>> result.x.shape, bool(result.success.all())
    ((100, 5, 4), True)
    """
    solver, stop, _ = check_settings("solve_batch", method, stop, None)
    if progress is not None and not callable(progress):
        raise TypeError(f"solve_batch: `progress` must be callable, got {type(progress).__name__}")
    if cancel is not None and not hasattr(cancel, "is_set"):
        raise TypeError(f"solve_batch: `cancel` must be a threading.Event, got {type(cancel).__name__}")
    if chunks is not None:
        check_limit("solve_batch", "chunks", chunks, least=1)
    batch = _Batch.of(problem, x0, count)
    pool = Pool.of(executor, workers)
    if not batch.size:
        return BatchResult(**vars(root(batch.problem, batch.x0, method=solver, stop=stop)))
    solved = None if previous is None else batch.reuse(previous)
    pending = np.arange(batch.size) if solved is None else np.setdiff1d(np.arange(batch.size), solved.systems)
    parts = min(PER_WORKER * pool.workers if chunks is None else int(chunks), pending.size)
    tasks = [Task(systems) for systems in np.array_split(pending, parts)] if parts else []
    Dispatch(lambda systems: batch.chunk(systems, solver, stop), pool, progress, cancel).run(tasks)
    return batch.join(tasks if solved is None else [solved, *tasks])


@dataclass(frozen=True)
class _Batch:
    """The systems and their initial guesses; a function as `problem` determines its own batch axes."""

    problem: Problem | Callable[[Indices], Problem]
    x0: Array | None
    batch_shape: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem | Callable[[Indices], Problem], x0: Any, count: Any) -> _Batch:
        if isinstance(problem, Problem):
            if not problem.batch_ndim or problem.take is None:
                raise ValueError("solve_batch: `problem` must be a batch (`batch_ndim` > 0) and offer `take`")
            if count is not None:
                raise TypeError("solve_batch: `count` is for a `problem` that is a function of the systems")
            x0 = own_start("solve_batch", problem) if x0 is None else x0
        elif not callable(problem):
            raise TypeError(f"{MUST_BE}, got {type(problem).__name__}")
        elif (x0 is None) == (count is None):
            given = "neither" if x0 is None else "both"
            raise TypeError(f"solve_batch: a function as `problem` needs either `x0` or `count`, got {given}")
        elif x0 is None:
            check_limit("solve_batch", "count", count, least=1)
            return cls(problem, None, (int(count),))
        x0 = as_inexact(x0, "x0")
        batch_ndim = problem.batch_ndim if isinstance(problem, Problem) else 1
        if batch_ndim > x0.ndim:
            raise ValueError(f"solve_batch: `batch_ndim` is {batch_ndim}, but x0 has only {x0.ndim} axes")
        return cls(problem, x0, tuple(x0.shape[:batch_ndim]))

    @property
    def size(self) -> int:
        return math.prod(self.batch_shape)

    def start(self, systems: Indices) -> Array | None:
        """Initial values of some systems, if they are known in this process."""
        if self.x0 is None:
            return None
        event_shape = tuple(self.x0.shape[len(self.batch_shape) :])
        return gather(array_namespace(self.x0).reshape(self.x0, (self.size, *event_shape)), systems)

    def chunk(self, systems: Indices, method: NonlinearMethod, stop: NonlinearStop) -> Chunk:
        problem = self.problem
        if isinstance(problem, Problem):
            shape = self.batch_shape if self.x0 is None else tuple(self.x0.shape)
            problem = chosen(problem, systems, shape)
        return Chunk(systems, problem, self.start(systems), method, stop)

    def reuse(self, previous: BatchResult) -> Task:
        shape = np.shape(getattr(previous, "status", 0))
        if not hasattr(previous, "lost") or shape != self.batch_shape:
            raise TypeError(
                f"solve_batch: `previous` must be what solve_batch returned for this batch of shape "
                f"{self.batch_shape}, got {type(previous).__name__} of shape {shape}"
            )
        done = np.flatnonzero(~np.isin(previous.status, (Status.LOST, Status.CANCELLED)))
        whereabouts = np.full(self.size, -1)
        whereabouts[done] = np.arange(done.size)
        steps = tuple(replace(step, systems=whereabouts[step.systems]) for step in previous.steps)
        parts = select(previous, done, (done.size,), len(self.batch_shape))
        return Task(done, NonlinearResult(**parts, counts=previous.counts, steps=steps))

    def join(self, tasks: list[Task]) -> BatchResult:
        solved = [task.result for task in tasks if task.result is not None]
        results = [self._without_result(task, solved) if task.result is None else task.result for task in tasks]
        whole = concatenate(results)
        order = np.argsort(np.concatenate([task.systems for task in tasks]))
        return BatchResult(
            **select(whole, order, self.batch_shape),
            counts=whole.counts,
            steps=tuple(
                replace(step, systems=task.systems[step.systems])
                for task, result in zip(tasks, results)
                for step in result.steps
            ),
            lost=tuple(LostChunk(systems=task.systems, error=task.error) for task in tasks if task.error is not None),
        )

    def _without_result(self, task: Task, solved: list[NonlinearResult]) -> NonlinearResult:
        size, start = task.systems.size, self.start(task.systems)
        if start is None:
            if not solved:
                raise RuntimeError("solve_batch: no chunk was solved, and without `x0` the states' shape is unknown")
            like = solved[0].x
            start = array_namespace(like).full((size, *like.shape[1:]), np.nan, dtype=like.dtype)
        status = np.full(size, int(Status.CANCELLED if task.error is None else Status.LOST))
        return unknown(start, status)


def concatenate(results: Sequence[NonlinearResult], batch_ndim: int = 1) -> NonlinearResult:
    """The results of several solves, in their order, as one result of a batch (B,); steps keep their system numbers."""
    parts = [_flatten(result, batch_ndim) for result in results]
    xp = array_namespace(results[0].x)
    joined: dict[str, Any] = {
        name: (xp.concat if name in ("x", "fun") else np.concatenate)([part[name] for part in parts], axis=0)
        for name in parts[0]
    }
    counts = sum((result.counts for result in results), Counts())
    return NonlinearResult(**joined, counts=counts, steps=tuple(step for result in results for step in result.steps))


def select(result: NonlinearResult, rows: Indices, batch_shape: tuple[int, ...], batch_ndim: int = 1) -> dict[str, Any]:
    """The per-system fields of a result, for some systems of the flattened batch, in another batch shape."""
    xp, flat = array_namespace(result.x), _flatten(result, batch_ndim)
    arrays = {name: gather(flat.pop(name), rows) for name in ("x", "fun")}
    parts: dict[str, Any] = {name: xp.reshape(x, batch_shape + tuple(x.shape[1:])) for name, x in arrays.items()}
    return parts | fields_per_system({name: values[rows] for name, values in flat.items()}, batch_shape)


def _flatten(result: NonlinearResult, batch_ndim: int) -> dict[str, Any]:
    """The per-system fields of a result, over the flattened batch; unknown errors are NaN."""
    arrays = {"x": result.x, "fun": result.fun}
    found: dict[str, Any] = {
        name: array_namespace(x).reshape(x, (np.size(result.status), *x.shape[batch_ndim:]))
        for name, x in arrays.items()
    }
    errors = np.full(np.shape(result.status), np.nan) if result.error is None else result.error
    return found | {name: np.ravel(getattr(result, name)) for name in PER_SYSTEM} | {"error": np.ravel(errors)}


def unknown(x: Array, status: HostArray) -> NonlinearResult:
    """A result of systems (B,) for which only x is known."""
    numbers: dict[str, Any] = {name: np.full(status.size, np.nan) for name in NORMS}
    numbers |= {name: np.zeros(status.size, dtype=int) for name in ("iterations", "krylov_iterations")}
    F: Any = array_namespace(x).zeros_like(x) + np.nan
    return NonlinearResult(x=cast("HostArray", x), fun=F, status=status, **numbers, counts=Counts())
