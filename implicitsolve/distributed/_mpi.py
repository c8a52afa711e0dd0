"""MPI: the communicator of processes that `mpiexec` has started, by mpi4py."""

from __future__ import annotations

import importlib
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.distributed._communicator import Operation, check_operation, check_shape, has_neighbours

TO_PREVIOUS, TO_NEXT = 1, 2  # tags: in a circle of two ranks both messages go to the same one
HEAD = 64  # bytes in front of the numbers of a message: their type and shape


class MPI:
    """The ranks of an MPI communicator, one process each.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        Default: ``MPI.COMM_WORLD``, all processes of the run. It is duplicated, so that messages of the program and
        of the library never meet.

    Raises
    ------
    ImportError
        If mpi4py, or an MPI library, is not installed: ``pip install 'implicitsolve[mpi]' mpich``.

    Notes
    -----
    Use it as a context manager around the program: an exception that leaves the block on one rank is printed with the
    rank's number, and ends all ranks at once with exit status 1. Otherwise the others would wait for it indefinitely.

    Numbers go as buffers, not pickled. A maximum keeps NaN, which MPI's own does not guarantee.

    Every rank bases its decisions on the same numbers. MPI's standard recommends that all ranks obtain the same bits
    from a sum, and implementations comply on machines of one kind. What ranks compute from these has the same bits if
    they have the same processors, libraries and numbers of threads.

    Programs are run as ``mpiexec -n 4 python program.py``.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import distributed
    >>> with distributed.MPI() as comm:  # doctest: +SKIP
    ...     ranks = int(comm.allreduce(np.asarray(1), "sum"))
    """

    def __init__(self, comm: Any = None) -> None:
        try:
            self._mpi: Any = importlib.import_module("mpi4py.MPI")
        except (ImportError, RuntimeError) as error:  # the latter where mpi4py finds no MPI library
            need = "mpi4py and an MPI library, of the system or by pip install 'implicitsolve[mpi]' mpich"
            raise ImportError(f"distributed.MPI needs {need}: {error}") from error
        self._comm: Any = (self._mpi.COMM_WORLD if comm is None else comm).Dup()
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()

    @property
    def mpi4py(self) -> Any:
        """The communicator of mpi4py, for other libraries: a duplicate of the one that was passed."""
        return self._comm

    def __reduce__(self) -> NoReturn:
        """Raise: what another process unpickles has no ranks."""
        raise TypeError("arrays on MPI's ranks cannot be pickled: pickle `x.local`, or `x.gathered()`")

    def __enter__(self) -> MPI:
        """Return the communicator."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all ranks if an exception leaves the block; a plain ``sys.exit()`` is none."""
        if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.abort(error)

    def abort(self, error: BaseException) -> NoReturn:
        """Print the error with the rank's number, and end all ranks with exit status 1."""
        text = "".join(traceback.format_exception(error))
        sys.stderr.write("".join(f"[rank {self.rank}] {line}\n" for line in text.splitlines()))
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(1)
        raise error  # in case Abort returns, which it should not

    def allreduce(self, values: HostArray, operation: Operation) -> HostArray:
        """Combine: one MPI_Allreduce, or for "sum-max" two at the same time."""
        check_operation(values, operation)
        if operation == "sum-max":
            pending = [self._sum(values[..., 0]), self._max(values[..., 1])]
        else:
            pending = [self._sum(values) if operation == "sum" else self._max(values)]
        self._mpi.Request.Waitall([request for request, *_ in pending])
        results = [result() for _, result, _ in pending]
        return results[0] if len(results) == 1 else np.stack(results, axis=-1)

    def _sum(self, values: HostArray) -> tuple[Any, Callable[[], HostArray], HostArray]:
        """A request for the sum, what returns it once it has arrived, and what must live as long as the request."""
        given = _in_one_piece(values)
        total = np.empty_like(given)
        return self._comm.Iallreduce(given, total, op=self._mpi.SUM), lambda: total, given

    def _max(self, values: HostArray) -> tuple[Any, Callable[[], HostArray], HostArray]:
        """The same for the maximum; the positions of NaN are sent too, since MPI does not specify their treatment."""
        has_nan = values.dtype.kind == "f"
        is_nan = np.isnan(values)
        given = np.stack([np.where(is_nan, -np.inf, values), is_nan]).astype(values.dtype) if has_nan else values[None]
        given = _in_one_piece(given)
        most = np.empty_like(given)

        def result() -> HostArray:
            if has_nan:
                np.copyto(most[:1], np.nan, where=most[1:] > 0)
            return most[0, ...]

        return self._comm.Iallreduce(given, most, op=self._mpi.MAX), result, given

    def allgather(self, values: HostArray, shapes: Sequence[tuple[int, ...]] | None = None) -> list[HostArray]:
        """Gather: one MPI_Allgather, or MPI_Allgatherv, and before it one of the shapes where they are not known."""
        given = _in_one_piece(values)
        check_shape(self, given, shapes)
        known: Sequence[tuple[int, ...]] = self._comm.allgather(given.shape) if shapes is None else shapes
        kind = self._mpi._typedict[given.dtype.char]
        if known.count(known[0]) == self.size:  # quickly, though there may be thousands
            room = np.empty((self.size, *known[0]), dtype=given.dtype)
            self._comm.Allgather([given, kind], [room, kind])
            return [room[rank, ...] for rank in range(self.size)]
        sizes = [math.prod(shape) for shape in known]
        ends = list(accumulate(sizes))
        room = np.empty(ends[-1], dtype=given.dtype)
        self._comm.Allgatherv([given, kind], [room, sizes, None, kind])
        parts = (room[end - size : end] for size, end in zip(sizes, ends))
        return [part if len(shape) == 1 else part.reshape(shape) for part, shape in zip(parts, known)]

    def exchange(
        self, to_previous: HostArray | None, to_next: HostArray | None, *, periodic: bool = False
    ) -> tuple[HostArray | None, HostArray | None]:
        """Exchange by messages of bytes that begin with the shape."""
        has_previous, has_next = has_neighbours(self, periodic)
        previous, following = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        requests: list[Any] = []
        messages = _packed(to_previous), _packed(to_next)  # which live as long as the requests
        if has_previous:
            requests.append(self._comm.Isend([messages[0], self._mpi.BYTE], previous, TO_PREVIOUS))
        if has_next:
            requests.append(self._comm.Isend([messages[1], self._mpi.BYTE], following, TO_NEXT))
        from_previous = self._received(previous, TO_NEXT) if has_previous else None
        from_next = self._received(following, TO_PREVIOUS) if has_next else None
        self._mpi.Request.Waitall(requests)
        return from_previous, from_next

    def _received(self, source: int, tag: int) -> HostArray | None:
        status = self._mpi.Status()
        message = self._comm.Mprobe(source, tag, status)
        data = np.empty(status.Get_count(self._mpi.BYTE), dtype=np.uint8)
        message.Recv([data, self._mpi.BYTE])
        return _unpacked(data)


def _in_one_piece(values: HostArray) -> HostArray:
    """The numbers as MPI takes them: contiguous, in the byte order of this machine."""
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("=")).reshape(values.shape)


def _packed(values: HostArray | None) -> HostArray:
    """Bytes of a message: nothing for None."""
    if values is None:
        return np.zeros(0, dtype=np.uint8)
    head = np.zeros(HEAD // 8, dtype=np.int64)
    head[0], head[1], head[2 : 2 + values.ndim] = ord(values.dtype.char), values.ndim, values.shape
    return np.concatenate([head.view(np.uint8), _in_one_piece(values).reshape(-1).view(np.uint8)])


def _unpacked(data: HostArray) -> HostArray | None:
    """The array of a message."""
    if not data.size:
        return None
    head = data[:HEAD].view(np.int64).tolist()
    return data[HEAD:].view(np.dtype(chr(head[0]))).reshape(head[2 : 2 + head[1]])
