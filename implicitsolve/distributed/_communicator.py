"""How the ranks of a distributed solve talk to each other: the protocol, one rank alone, a count of what is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NoReturn, Protocol, TypeAlias

import numpy as np

from implicitsolve._typing import HostArray

Operation: TypeAlias = Literal["sum", "max", "sum-max"]
OPERATIONS: tuple[Operation, ...] = ("sum", "max", "sum-max")


class Communicator(Protocol):
    """What the distributed parts ask of a communicator: `size` ranks that run the same program, this one is `rank`.

    Every rank calls the same functions in the same order. An implementation for another transport needs only these.
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
            This rank's part. Left as it is.
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
            The shapes of all ranks' arrays, where the caller knows them. Without it they are gathered first, which is a
            collective more.
        """
        ...

    def exchange(
        self, to_previous: HostArray | None, to_next: HostArray | None, *, periodic: bool = False
    ) -> tuple[HostArray | None, HostArray | None]:
        """Send an array to the rank before and one to the rank after this one; return what these two send here.

        Parameters
        ----------
        to_previous, to_next : ndarray or None
            What is sent; None where there is nothing to tell. Any shape: it is sent along.
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


def combined(parts: Sequence[HostArray], operation: Operation) -> HostArray:
    """The arrays of all ranks combined in the order of ranks, as a new array."""
    total = np.array(parts[0])
    for part in parts[1:]:
        combine(total, part, operation)
    return total


def combine(total: HostArray, part: HostArray, operation: Operation) -> None:
    """Combine one rank's array with `total` in place."""
    with np.errstate(all="ignore"):
        if operation == "sum":
            np.add(total, part, out=total)
        elif operation == "max":
            np.maximum(total, part, out=total)  # of a number and NaN it is NaN
        else:
            total[..., 0] += part[..., 0]
            np.maximum(total[..., 1], part[..., 1], out=total[..., 1])


def check_operation(values: HostArray, operation: Operation) -> None:
    """Raise a ValueError unless `operation` is known and fits the array."""
    if operation not in OPERATIONS:
        raise ValueError(f"allreduce: `operation` must be one of {OPERATIONS}, got {operation!r}")
    if operation == "sum-max" and values.shape[-1:] != (2,):
        raise ValueError(f'allreduce: "sum-max" needs a last axis of length 2, got shape {values.shape}')


class Serial:
    """The communicator of one rank, for a program that runs on one process as it does on many.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.distributed import Serial
    >>> Serial().allreduce(np.array([1.0, 2.0]), "sum")
    array([1., 2.])
    """

    rank = 0
    size = 1

    def allreduce(self, values: HostArray, operation: Operation) -> HostArray:
        """Return a copy."""
        check_operation(values, operation)
        return np.array(values)

    def allgather(self, values: HostArray, shapes: Sequence[tuple[int, ...]] | None = None) -> list[HostArray]:
        """Return a copy."""
        return [np.array(values)]

    def exchange(
        self, to_previous: HostArray | None, to_next: HostArray | None, *, periodic: bool = False
    ) -> tuple[HostArray | None, HostArray | None]:
        """Nothing comes from beyond the ends; in a circle, what is sent one way arrives from the other."""
        if not periodic:
            return None, None
        return copied(to_next), copied(to_previous)

    def abort(self, error: BaseException) -> NoReturn:
        """Raise the error."""
        raise error


def copied(values: HostArray | None) -> HostArray | None:
    """A copy that the receiver may change."""
    return None if values is None else np.array(values)


class Counted:
    """A communicator that counts what this rank does with another one.

    Parameters
    ----------
    comm : Communicator
        Does the work.

    Attributes
    ----------
    calls : Counter
        Calls by kind: "allreduce", "allgather", "exchange".
    messages : Counter
        Messages by kind: one for each allreduce and allgather (two where the shapes have to be gathered first), one for
        each neighbour that an exchange sends numbers to.
    bytes : Counter
        Bytes of numbers that this rank gave, by kind.

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
        """Begin to count anew."""
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
