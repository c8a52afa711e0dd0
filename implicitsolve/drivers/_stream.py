"""Streams, in which waiting systems take the places of those that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from implicitsolve._root import NonlinearMethod, check_settings
from implicitsolve._summary import Representation
from implicitsolve._typing import Array, HostArray
from implicitsolve.monitor import Monitor
from implicitsolve.nonlinear._solve import solve_root
from implicitsolve.nonlinear._state import Scheduler
from implicitsolve.problem import Problem, own_start
from implicitsolve.result import NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop, check_limit

SHORTEST_SEQUENCE = 0.8  # of the longest sequence of a bucket, as documented: at most a fifth of its vectors is padding

Sample = TypeVar("Sample")  # a sequence, of any kind


def solve_stream(
    problem: Problem,
    x0: Any = None,
    *,
    batch_size: int,
    method: NonlinearMethod | str = "auto",
    stop: NonlinearStop | None = None,
    monitor: Monitor | None = None,
) -> NonlinearResult:
    """Solve a batch of which at most `batch_size` systems iterate at a time.

    Waiting systems take the places of those that have ended: while any wait, at least 0.95 of the places are in use on
    average (0.9 with `NewtonKrylov`). Each system takes the same steps as in `root`, up to rounding; only small layers,
    for which "auto" in `root` tries whole steps of `BlockNewton`, keep to `Anderson` here.

    Parameters
    ----------
    problem : Problem
        A batch, with `take`.
    x0 : array_like, optional
        As in `root`.
    batch_size : int
        Systems that iterate at a time.
    method : optional
        As in `root`. `Anderson`, `Picard` and `NewtonKrylov` admit systems between steps; `BlockNewton`, `Broyden`,
        `Homotopy` and others begin with the next ones when all have ended.
    stop : NonlinearStop, optional
        As in `root`; its `max_iterations` counts each system's own steps. If the solve reaches another limit, the
        waiting systems take one residual for each `batch_size` of them.
    monitor : callable, optional
        As in `root`; a step's `running` includes the systems that wait.

    Returns
    -------
    NonlinearResult
        In the order of the batch, as in `root`.

    See Also
    --------
    solve_sequences : sequences of different lengths, from any iterable.

    Notes
    -----
    A stream with a fixed-point method takes one residual call per step, of running and starting systems together.
    The steps of `NewtonKrylov` take as many products as the slowest of their linear solves: full places save fewer
    calls there, and none where all systems take about as many steps. Systems that have ended cost nothing in
    `root` either: the products of a system are the same. Krylov spaces, histories and linearizations are held for
    `batch_size` systems (x0, x and F for all). Systems begin in the order of the batch.

    The fraction of places in use while systems wait is the mean of ``(step.systems.size + step.started) /
    batch_size`` over the steps of ``result.steps`` with ``step.waiting > 0``.

    Examples
    --------
    >>> def cubes(c):
    ...     return ims.Problem(lambda x: x**3 - c, batch_ndim=1, take=lambda rows: cubes(c[rows]))
    >>> numbers = np.arange(1.0, 1001.0)[:, None]
    >>> result = ims.drivers.solve_stream(cubes(numbers), np.ones((1000, 1)), batch_size=100)
    >>> bool(result.success.all()), float(result.x[728, 0].round(6))
    (True, 9.0)
    """
    solver, stop, monitor = check_settings("solve_stream", method, stop, monitor)
    check_limit("solve_stream", "batch_size", batch_size, least=1)
    if not isinstance(problem, Problem):
        raise TypeError(f"solve_stream: `problem` must be a Problem, got {type(problem).__name__}")
    if not problem.batch_ndim or problem.take is None:
        raise ValueError("solve_stream: `problem` must be a batch (`batch_ndim` > 0) and offer `take`")
    x0 = own_start("solve_stream", problem) if x0 is None else x0
    return solve_root(problem, x0, solver, stop, monitor, Scheduler(capacity=int(batch_size)))


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Solved(Representation):
    """One sequence of `solve_sequences`.

    Attributes
    ----------
    index : int
        Its position in the stream, from 0.
    x : Array
        Its solution, without padding: one block for each of its positions.
    status : Status
        How its solve ended.
    residual_norm : float
        Norm of F at x.
    iterations : int
        Accepted Newton steps.
    """

    index: int
    x: Array
    status: Status
    residual_norm: float
    iterations: int


def solve_sequences(
    build: Callable[[list[Sample]], Problem],
    sequences: Iterable[Sample],
    *,
    batch_size: int,
    window: int = 32,
    method: NonlinearMethod | str = "auto",
    stop: NonlinearStop | None = None,
    monitor: Monitor | None = None,
) -> Iterator[Solved]:
    """Solve the systems of a stream of sequences, by lengths, and yield each solution when its bucket is done.

    Parameters
    ----------
    build : callable
        ``build(sequences)`` returns the problem of a list of sequences, the longest first, as `adapters` build it: a
        batch with `take` and an initial guess, whose states have one block for each position and are padded to the
        longest.
    sequences : iterable
        Objects with a ``len``; read as needed.
    batch_size : int
        Sequences that iterate at a time.
    window : int, optional
        Number of batches that are read ahead and sorted. Default 32: fewer mean more padding, and more buckets at whose
        end few sequences are left.
    method, stop, monitor : optional
        As in `solve_stream`, for each bucket.

    Returns
    -------
    iterator of Solved
        Every sequence once, in another order: those of a window come longest first.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable. Exceptions of `build` and of the iterable pass unchanged.

    See Also
    --------
    solve_stream : solves each bucket.

    Notes
    -----
    The sequences of a window are sorted, and cut into buckets of complete batches: a batch begins a new bucket
    where its longest sequence has less than 0.8 of the length of the bucket's longest. `build` is called once for each
    bucket, and memory is that of `solve_stream` for one.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.gru_parameters(2, 4, rng=rng)
    >>> sentences = [rng.standard_normal((length, 2)) for length in (3, 9, 1, 8, 5)]
    >>> def build(batch):
    ...     inputs = np.zeros((len(batch), len(batch[0]), 2))
    ...     for row, sentence in zip(inputs, batch):
    ...         row[: len(sentence)] = sentence
    ...     return ims.adapters.implicit_gru(params, inputs, lengths=[len(sentence) for sentence in batch])
    >>> [(one.index, one.x.shape) for one in ims.drivers.solve_sequences(build, sentences, batch_size=2)]
    [(1, (9, 4)), (3, (8, 4)), (4, (5, 4)), (0, (3, 4)), (2, (1, 4))]
    """
    check_settings("solve_sequences", method, stop, monitor)
    check_limit("solve_sequences", "batch_size", batch_size, least=1)
    check_limit("solve_sequences", "window", window, least=1)
    if not callable(build):
        raise TypeError(f"solve_sequences: `build` must be callable, got {type(build).__name__}")
    if not isinstance(sequences, Iterable):
        raise TypeError(f"solve_sequences: `sequences` must be iterable, got {type(sequences).__name__}")
    options: Any = {"batch_size": batch_size, "method": method, "stop": stop, "monitor": monitor}
    numbered: Any = enumerate(sequences)

    def solutions() -> Iterator[Solved]:
        while read := list(islice(numbered, window * batch_size)):
            if not all(isinstance(sequence, Sized) for _, sequence in read):
                raise TypeError("solve_sequences: each of the `sequences` must have a length")
            lengths = np.asarray([len(sequence) for _, sequence in read])
            for bucket in _buckets(lengths, batch_size):
                result = solve_stream(build([read[i][1] for i in bucket]), **options)
                for row, i in enumerate(bucket):
                    yield Solved(
                        index=read[i][0],
                        x=result.x[row, : int(lengths[i]), ...],
                        status=Status(int(result.status[row])),
                        residual_norm=float(result.residual_norm[row]),
                        iterations=int(result.iterations[row]),
                    )

    return solutions()


def _buckets(lengths: HostArray, size: int) -> list[list[int]]:
    """Positions of sequences of about equal length, longest first; whole batches of `size`, but for the last bucket."""
    buckets: list[list[int]] = []
    for i in np.argsort(-lengths, kind="stable").tolist():
        if not buckets or (len(buckets[-1]) % size == 0 and lengths[i] < SHORTEST_SEQUENCE * lengths[buckets[-1][0]]):
            buckets.append([])
        buckets[-1].append(i)
    return buckets
