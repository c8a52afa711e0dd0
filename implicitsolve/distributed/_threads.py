"""Ranks that are threads of one process: for tests, for examples, and to try a program before it goes to a cluster."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.distributed._communicator import Communicator, Operation, check_operation, combined, copied
from implicitsolve.stopping import check_limit

Result = TypeVar("Result")


class RankFailed(RuntimeError):  # noqa: N818 (it says what is the case, as NoConvergence does)
    """Another rank has failed, and this one cannot go on: what ranks other than the one with the error see."""


def threads(size: int, function: Callable[[Communicator], Result]) -> list[Result]:
    """Run a program on ranks that are threads of this process.

    Parameters
    ----------
    size : int
        Number of ranks.
    function : callable
        ``function(comm)`` is the program; every rank runs it.

    Returns
    -------
    list
        What the ranks returned, in their order.

    Raises
    ------
    BaseException
        The first exception that a rank raised. The others end at their next communication, also those that wait in one.
    RuntimeError
        If the ranks do not call the same functions of their communicator, or one returns while others wait for it.

    Notes
    -----
    The ranks share the interpreter, so that this is no way to save time. Sums run in the order of ranks, so that every
    run has the same bits. A thread sees the context of the caller, for example NumPy's `numpy.errstate`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import distributed
    >>> distributed.threads(3, lambda comm: int(comm.allreduce(np.array(comm.rank), "sum")))
    [3, 3, 3]
    """
    check_limit("threads", "size", size, least=1)
    meeting = _Meeting(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = function(_ThreadRank(meeting, rank))
            meeting.leave(rank)
        except BaseException as error:  # noqa: BLE001 (raised again by the caller's thread)
            meeting.fail(error)

    workers = [
        threading.Thread(target=contextvars.copy_context().run, args=(run, rank), name=f"rank {rank}", daemon=True)
        for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except BaseException as error:  # an interrupt of the caller's thread
        meeting.fail(error)
        raise
    if meeting.failure is not None:
        raise meeting.failure
    return results


class _Meeting:
    """Where threads wait for each other: all give something, and then all get everything."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.failure: BaseException | None = None
        self._condition = threading.Condition()
        self._given: dict[int, tuple[str, Any]] = {}
        self._everything: list[Any] = []
        self._round = 0
        self._left: set[int] = set()

    def meet(self, rank: int, kind: str, value: Any) -> list[Any]:
        """Give `value` to all, and return what all have given; `kind` must be the same everywhere."""
        with self._condition:
            self._check(kind)
            self._given[rank] = kind, value
            if len(self._given) == self.size:
                self._close()
            else:
                arrived = self._round
                self._condition.wait_for(lambda: self._round > arrived or self.failure is not None)
                if self._round == arrived:
                    self._check(kind)
            return self._everything

    def _close(self) -> None:
        """Hand over, once the last has come."""
        kinds = {rank: kind for rank, (kind, _) in sorted(self._given.items())}
        if len(set(kinds.values())) > 1:
            calls = ", ".join(f"rank {rank} in {kind}" for rank, kind in kinds.items())
            self._break(RuntimeError(f"threads: all ranks must call the same functions, got {calls}"))
        # No round ends before all have come again, and have read this one.
        self._everything = [self._given[rank][1] for rank in range(self.size)]
        self._given = {}
        self._round += 1
        self._condition.notify_all()

    def _check(self, kind: str) -> None:
        """Raise where a rank has failed or gone, so that no meeting comes about."""
        if self.failure is not None:
            raise RankFailed("another rank has failed") from self.failure
        if self._left:
            gone = ", ".join(str(rank) for rank in sorted(self._left))
            self._break(RuntimeError(f"threads: rank {gone} has returned while another waits for it in {kind}"))

    def _break(self, error: RuntimeError) -> NoReturn:
        self.failure = error
        self._condition.notify_all()
        raise error

    def leave(self, rank: int) -> None:
        """Say that a rank has returned; those who wait for it fail."""
        with self._condition:
            self._left.add(rank)
            if self._given and self.failure is None:
                kind = next(iter(self._given.values()))[0]
                self.failure = RuntimeError(f"threads: rank {rank} has returned while another waits for it in {kind}")
                self._condition.notify_all()

    def fail(self, error: BaseException) -> None:
        """End all ranks at their next communication; the first error is the one that is raised."""
        with self._condition:
            if self.failure is None:
                self.failure = error
            self._condition.notify_all()


class _ThreadRank:
    """One rank's communicator."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting = meeting
        self.rank = rank
        self.size = meeting.size

    def allreduce(self, values: HostArray, operation: Operation) -> HostArray:
        """Combine in the order of ranks."""
        check_operation(values, operation)
        parts = self._meeting.meet(self.rank, f"allreduce {operation} {values.dtype}{values.shape}", np.array(values))
        return combined(parts, operation)

    def allgather(self, values: HostArray, shapes: Sequence[tuple[int, ...]] | None = None) -> list[HostArray]:
        """Gather copies."""
        if shapes is not None and tuple(shapes[self.rank]) != values.shape:
            raise ValueError(f"allgather: `shapes` says {shapes[self.rank]} for rank {self.rank}, got {values.shape}")
        parts = self._meeting.meet(self.rank, f"allgather {values.dtype}", np.array(values))
        return [np.array(part) for part in parts]

    def exchange(
        self, to_previous: HostArray | None, to_next: HostArray | None, *, periodic: bool = False
    ) -> tuple[HostArray | None, HostArray | None]:
        """Exchange copies."""
        given = copied(to_previous), copied(to_next)
        everything = self._meeting.meet(self.rank, f"exchange, periodic={periodic}", given)
        previous, following = self.rank - 1, self.rank + 1
        from_previous = everything[previous][1] if periodic or previous >= 0 else None
        from_next = everything[following % self.size][0] if periodic or following < self.size else None
        return copied(from_previous), copied(from_next)

    def abort(self, error: BaseException) -> NoReturn:
        """End all ranks."""
        self._meeting.fail(error)
        raise error
