"""How the ranks of a distributed solve communicate: the protocol, a single rank, counts, and threads as ranks."""

from __future__ import annotations

import contextvars
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.stopping import check_limit

Operation: TypeAlias = Literal["sum", "max", "sum-max"]
Result = TypeVar("Result")
OPERATIONS: tuple[Operation, ...] = ("sum", "max", "sum-max")


@runtime_checkable
class Communicator(Protocol):
    """`size` ranks that run the same program, of which this one is `rank`.

    Every rank calls the same functions in the same order. Another transport has to implement these methods only.
    """

    @property
    def rank(self) -> int:
        """Number of this one, 0 to size - 1."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def allreduce(self, values: HostArray, operation: Operation) -> HostArray:
        """Combine arrays of one shape and dtype elementwise; every rank gets the same bits.

        Parameters
        ----------
        values : ndarray
            This rank's part. Not modified.
        operation : {"sum", "max", "sum-max"}
            "max" is NaN where one rank has NaN. "sum-max" is for a last axis of two: the sum of the first numbers and
            the largest of the second ones, in the time of one message.
        """
        ...

    def allgather(self, values: HostArray, shapes: Sequence[tuple[int, ...]] | None = None) -> list[HostArray]:
        """Return the arrays of all ranks, in the order of ranks; they may differ in shape, not in dtype.

        Parameters
        ----------
        values : ndarray
            This rank's part.
        shapes : sequence of tuples, optional
            The shapes of all ranks' arrays, if known. Otherwise they are gathered first, by one more
            collective.
        """
        ...

    def exchange(
        self, to_previous: HostArray | None, to_next: HostArray | None, *, periodic: bool = False
    ) -> tuple[HostArray | None, HostArray | None]:
        """Send an array to the rank before and one to the rank after this one; return what these two send.

        Parameters
        ----------
        to_previous, to_next : ndarray or None
            What is sent, of any shape; None for nothing.
        periodic : bool, optional
            Whether the last rank is followed by the first. Default False: what is sent beyond the ends is dropped.

        Returns
        -------
        from_previous, from_next : ndarray or None
            What the neighbours sent; None beyond the ends.
        """
        ...

    def abort(self, error: BaseException) -> NoReturn:
        """End all ranks with an error that has happened on this one."""
        ...


def check_operation(values: HostArray, operation: Operation) -> None:
    """Raise a ValueError unless `operation` is known and fits the array."""
    if operation not in OPERATIONS:
        raise ValueError(f"allreduce: `operation` must be one of {OPERATIONS}, got {operation!r}")
    if operation == "sum-max" and values.shape[-1:] != (2,):
        raise ValueError(f'allreduce: "sum-max" needs a last axis of length 2, got shape {values.shape}')


class _Meeting(ABC):
    """Collectives of which every rank learns what all ranks give."""

    rank: int
    size: int

    @abstractmethod
    def _together(self, kind: tuple[Any, ...], value: Any) -> list[Any]:
        """What all ranks give, in their order; `kind` must be the same on each."""

    def abort(self, error: BaseException) -> NoReturn:
        """End all ranks with an error that has happened on this one."""
        raise error

    def allreduce(self, values: HostArray, operation: Operation) -> HostArray:
        """Combine in the order of ranks."""
        check_operation(values, operation)
        own = np.array(values)
        parts = self._together(("allreduce", operation, own.dtype, own.shape), own)
        total = np.array(parts[0])
        with np.errstate(all="ignore"):
            for part in parts[1:]:
                if operation != "sum-max":
                    (np.add if operation == "sum" else np.maximum)(total, part, out=total)  # NaN stays the maximum
                else:
                    total[..., 0] += part[..., 0]
                    np.maximum(total[..., 1], part[..., 1], out=total[..., 1])
        return total

    def allgather(self, values: HostArray, shapes: Sequence[tuple[int, ...]] | None = None) -> list[HostArray]:
        """Gather copies."""
        check_shape(self, values, shapes)
        return [np.array(part) for part in self._together(("allgather", values.dtype), np.array(values))]

    def exchange(
        self, to_previous: HostArray | None, to_next: HostArray | None, *, periodic: bool = False
    ) -> tuple[HostArray | None, HostArray | None]:
        """Exchange copies."""
        given = self._together(("exchange", f"periodic={periodic}"), (_copied(to_previous), _copied(to_next)))
        has_previous, has_next = has_neighbours(self, periodic)
        from_previous = given[self.rank - 1][1] if has_previous else None
        from_next = given[(self.rank + 1) % self.size][0] if has_next else None
        return _copied(from_previous), _copied(from_next)


def check_shape(comm: Communicator, values: HostArray, shapes: Sequence[tuple[int, ...]] | None) -> None:
    """Raise a ValueError unless `shapes` has the shape of this rank's array."""
    if shapes is not None and tuple(shapes[comm.rank]) != values.shape:
        raise ValueError(f"allgather: `shapes` says {shapes[comm.rank]} for rank {comm.rank}, got {values.shape}")


def _copied(values: HostArray | None) -> HostArray | None:
    return None if values is None else np.array(values)


def check_communicator(owner: str, comm: Any) -> None:
    """Raise unless `comm` is one: mpi4py's are not."""
    if not isinstance(comm, Communicator):
        raise TypeError(f"{owner}: `comm` must be Serial(), MPI() or another Communicator, got {type(comm).__name__}")


class Serial(_Meeting):
    """The communicator of a single rank.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.distributed import Serial
    >>> Serial().allreduce(np.array([1.0, 2.0]), "sum")
    array([1., 2.])
    """

    rank: int = 0
    size: int = 1

    def _together(self, kind: tuple[Any, ...], value: Any) -> list[Any]:
        """Return what this rank gives."""
        return [value]


class Counted:
    """A communicator that counts the calls, messages and bytes of another one on this rank.

    Parameters
    ----------
    comm : Communicator
        The other one.

    Attributes
    ----------
    calls : Counter
        Calls by kind: "allreduce", "allgather", "exchange".
    messages : Counter
        Messages by kind: one for each allreduce and allgather (two if the shapes have to be gathered first), one
        for each neighbour that an exchange sends an array to.
    bytes : Counter
        Bytes that this rank contributed, by kind.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.distributed import Counted, Serial
    >>> comm = Counted(Serial())
    >>> total = comm.allreduce(np.ones(3), "sum")
    >>> comm.calls["allreduce"], comm.bytes["allreduce"]
    (1, 24)
    """

    def __init__(self, comm: Communicator) -> None:
        check_communicator("Counted", comm)
        self.comm = comm
        self.calls: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    @property
    def rank(self) -> int:
        """Number of this one."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.comm.size

    def reset(self) -> None:
        """Set all counts to zero."""
        for counter in (self.calls, self.messages, self.bytes):
            counter.clear()

    def allreduce(self, values: HostArray, operation: Operation) -> HostArray:
        """Combine, and count one message."""
        self._add("allreduce", 1, values.nbytes)
        return self.comm.allreduce(values, operation)

    def allgather(self, values: HostArray, shapes: Sequence[tuple[int, ...]] | None = None) -> list[HostArray]:
        """Gather, and count one message, or two."""
        self._add("allgather", 2 if shapes is None else 1, values.nbytes)
        return self.comm.allgather(values, shapes)

    def exchange(
        self, to_previous: HostArray | None, to_next: HostArray | None, *, periodic: bool = False
    ) -> tuple[HostArray | None, HostArray | None]:
        """Exchange, and count one message for each neighbour that gets one."""
        has_previous, has_next = has_neighbours(self, periodic)
        sent = [part for part, is_sent in ((to_previous, has_previous), (to_next, has_next)) if is_sent]
        given = [part.nbytes for part in sent if part is not None]
        self._add("exchange", len(given), sum(given))
        return self.comm.exchange(to_previous, to_next, periodic=periodic)

    def abort(self, error: BaseException) -> NoReturn:
        """End all ranks."""
        self.comm.abort(error)

    def _add(self, kind: str, messages: int, size: int) -> None:
        self.calls[kind] += 1
        self.messages[kind] += messages
        self.bytes[kind] += size


def has_neighbours(comm: Communicator, periodic: bool) -> tuple[bool, bool]:
    """Whether there is a rank before this one, and one after it."""
    return periodic or comm.rank > 0, periodic or comm.rank + 1 < comm.size


class RankFailed(RuntimeError):  # noqa: N818 (named as NoConvergence is)
    """Another rank has failed: raised on all ranks but that one."""


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
        The first exception that a rank raised. The others end at their next communication, or in the one they wait in.
    RuntimeError
        If the ranks do not call the same functions of their communicator in the same order.

    Notes
    -----
    The ranks share the interpreter: this saves no time. Sums run in the order of ranks, so that every run has the same
    bits. A thread has the context of the caller, for example `numpy.errstate`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import distributed
    >>> distributed.threads(3, lambda comm: int(comm.allreduce(np.array(comm.rank), "sum")))
    [3, 3, 3]
    """
    check_limit("threads", "size", size, least=1)
    room = _Room(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            comm = _ThreadRank(room, rank)
            results[rank] = function(comm)
            comm._together(("return",), None)
        except BaseException as error:  # noqa: BLE001 (raised again by the caller's thread)
            room.fail(error)

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
        room.fail(error)
        raise
    if room.failure is not None:
        raise room.failure
    return results


class _Room:
    """Where the threads exchange what they contribute to a collective."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.failure: BaseException | None = None
        self._lock, self._barrier = threading.Lock(), threading.Barrier(size)
        self._slots: list[list[Any]] = [[(0, None, None)] * size for _ in range(2)]  # of even and odd rounds

    def synchronize(self, rank: int, count: int, kind: tuple[Any, ...], value: Any) -> list[Any]:
        """Give `value` in round `count`, and return what all ranks have given; `kind` must be the same everywhere."""
        slots = self._slots[count % 2]  # written again two rounds later, when all ranks have read it
        slots[rank] = count, kind, value
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            if any(given[0] != count for given in slots):  # else the round was complete
                raise RankFailed("another rank has failed") from self.failure
        if len({kind for _, kind, _ in slots}) > 1:
            calls = ", ".join(f"rank {rank} in {' '.join(map(str, kind))}" for rank, (_, kind, _) in enumerate(slots))
            raise RuntimeError(f"threads: all ranks must call the same functions, got {calls}")
        return [value for _, _, value in slots]

    def fail(self, error: BaseException) -> None:
        """End all ranks at their next communication; the first error is the one that is raised."""
        with self._lock:
            self.failure = self.failure or error
        self._barrier.abort()


class _ThreadRank(_Meeting):
    """One rank's communicator."""

    def __init__(self, room: _Room, rank: int) -> None:
        self._room = room
        self._count = 0  # of meetings
        self.rank, self.size = rank, room.size

    def _together(self, kind: tuple[Any, ...], value: Any) -> list[Any]:
        """See `_Room.synchronize`."""
        self._count += 1
        return self._room.synchronize(self.rank, self._count, kind, value)

    def abort(self, error: BaseException) -> NoReturn:
        """End all ranks."""
        self._room.fail(error)
        raise error
