"""DistributedArray: an array of which one axis is partitioned across ranks in contiguous runs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from implicitsolve._typing import HostArray
from implicitsolve.distributed._communicator import Communicator
from implicitsolve.distributed._layout import Runs

WHOLE = Runs(())  # of an array that is not split
COPY = partial(np.copyto, casting="unsafe")
Number = bool | int | float | complex | np.generic


class DistributedArray(NDArrayOperatorsMixin):
    """An array of which every rank holds a run of one axis, or, if it is small, the whole.

    `split`, `from_local` and `replicated` make one.

    Parameters
    ----------
    local : ndarray
        This rank's part.
    axis : int or None
        The split axis; None for an array that all ranks hold with the same bits.
    comm : Communicator or None
        The ranks; may be None for a replicated array.
    counts : tuple of int
        The length of the split axis on every rank; empty for a replicated array.

    Notes
    -----
    It has what the solvers call, and no more: arithmetic, NumPy's ufuncs (``np.tanh(x)``), views by indices, and the
    functions of ``x.__array_namespace__()``: `all`, `any`, `asarray`, `astype`, `broadcast_to`, `concat`, `empty_like`,
    `eye`, `imag`, `matmul`, `matrix_transpose`, `max`, `ones_like`, `permute_dims`, `real`, `reshape`, `result_type`,
    `stack`, `sum`, `take`, `vecdot`, `where`, `zeros_like`, and ``linalg.solve``. Any other name is a TypeError.

    Elementwise work is local. A sum or maximum over the split axis is one collective, after which all ranks hold the
    same bits. If an operand is split, every rank takes its run of the replicated ones. What would move numbers between
    ranks raises an error: an index into the split axis, a concatenation along it, conversion to a NumPy array.
    `gathered` moves them.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve import distributed
    >>> def program(comm):
    ...     x = distributed.split(comm, np.arange(5.0), axis=0)
    ...     xp = x.__array_namespace__()
    ...     return x.shape, x.local.shape, float(xp.sum(x**2))
    >>> distributed.threads(2, program)
    [((5,), (3,), 30.0), ((5,), (2,), 30.0)]
    """

    __slots__ = ("axis", "comm", "counts", "local")
    namespace: ClassVar[ModuleType]  # set by the module of functions, which imports this one

    def __init__(
        self, local: HostArray, axis: int | None, comm: Communicator | None, counts: tuple[int, ...] = WHOLE
    ) -> None:
        self.local: HostArray = local
        self.axis: int | None = axis
        self.comm: Communicator | None = comm
        self.counts: Runs = Runs(counts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        shape = self.local.shape
        if self.axis is None:
            return shape
        return (*shape[: self.axis], self.counts.total, *shape[self.axis + 1 :])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.local.ndim

    @property
    def size(self) -> int:
        """Number of entries of the whole."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""
        return self.local.dtype

    @property
    def device(self) -> str:
        """Device of this rank's part: always "cpu"."""
        return "cpu"

    @property
    def start(self) -> int:
        """First index of this rank's run of the split axis; 0 for a replicated array."""
        if self.axis is None or self.comm is None:
            return 0
        return self.counts.starts[self.comm.rank]

    def __repr__(self) -> str:
        """Shape, dtype, and how it is split."""
        where = "replicated" if self.axis is None else f"axis {self.axis} split by {self.counts}"
        return f"<DistributedArray {self.shape}, dtype={self.dtype}, {where}>"

    def like(self, local: Any) -> DistributedArray:
        """An array split as this one from each rank's part: axes up to the split one are those of this array."""
        return DistributedArray(np.asarray(local), self.axis, self.comm, self.counts)

    # Conversion

    def gathered(self) -> HostArray:
        """Return the whole array on every rank. One allgather, for a split array."""
        if self.axis is None or self.comm is None:
            return self.local.copy()
        shape = self.local.shape
        shapes = [(*shape[: self.axis], count, *shape[self.axis + 1 :]) for count in self.counts]
        return np.concatenate(self.comm.allgather(np.ascontiguousarray(self.local), shapes), axis=self.axis)

    def _whole(self, purpose: str) -> HostArray:
        """The entries of a replicated array."""
        if self.axis is not None:
            raise TypeError(
                f"{purpose} needs all of a DistributedArray, whose axis {self.axis} is partitioned across "
                f"{len(self.counts)} ranks: use `.gathered()` for the whole, or `.local` for this rank's part"
            )
        return self.local

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        """Return the entries of a replicated array."""
        return np.array(self._whole("a NumPy array"), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Export a replicated array."""
        whole = self._whole("DLPack")
        return (whole if whole.flags.writeable else whole.copy()).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Return the device of a replicated array."""
        return self._whole("DLPack").__dlpack_device__()

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return the module of functions on these arrays."""
        return self.namespace

    def __bool__(self) -> bool:
        return bool(self._whole("bool"))

    def __int__(self) -> int:
        return int(self._whole("int"))

    def __float__(self) -> float:
        return float(self._whole("float"))

    # Parts and elementwise functions

    def __getitem__(self, key: Any) -> DistributedArray:
        """Return a view: integers, slices, None and Ellipsis; of the split axis, all."""
        local_key, axis = index(self, key)
        return DistributedArray(self.local[local_key], axis, self.comm, WHOLE if axis is None else self.counts)

    def __iter__(self) -> Any:
        """Raise: Python would take the IndexError of a split axis for the end."""
        raise TypeError("a DistributedArray cannot be iterated over: its axes may be partitioned across ranks")

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write into such a part."""
        _write(COPY, self[key], value)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        """Apply an elementwise function of NumPy, into `out` if that is given; operators are such functions."""
        if ufunc is np.matmul and method == "__call__" and not out:
            return self.namespace.matmul(*inputs)
        if method != "__call__" or ufunc.signature is not None or ufunc.nout > 1:
            called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise TypeError(f"`{called}` is not available for DistributedArrays: it is not elementwise")
        if not out:
            return elementwise(ufunc, *inputs, **options)
        _write(lambda local, *parts: ufunc(*parts, out=local, **options), out[0], *inputs)
        return out[0]


def _write(function: Callable[..., Any], out: DistributedArray, *operands: Any) -> None:
    """Have ``function(out, *operands)`` write what it makes of the local parts into that of `out`."""
    parts, axis, _, _ = aligned((out, *operands))
    if axis is not None and out.axis is None:
        raise ValueError("DistributedArray: entries of a split array cannot be written into a replicated one")
    function(*parts)


def is_operand(x: Any) -> bool:
    """Whether `x` may be the other operand of a distributed array: another one, or a number."""
    return isinstance(x, DistributedArray | Number)


def aligned(operands: Sequence[Any]) -> tuple[list[Any], int | None, Communicator | None, Runs]:
    """What each rank computes with: the operands' local parts, and how the broadcast result is split.

    The split axis is counted from the last (-1). Raises unless the operands are numbers, or distributed arrays that are
    split alike.
    """
    split = [x for x in operands if isinstance(x, DistributedArray) and x.axis is not None]
    for x in operands:
        if not is_operand(x):
            raise TypeError(
                f"operands must be DistributedArrays or numbers, got {type(x).__name__}: "
                "use `distributed.replicated` for an array that all ranks hold"
            )
    if not split:
        return [x.local if isinstance(x, DistributedArray) else x for x in operands], None, None, WHOLE
    first = split[0]
    axis = first.axis - first.ndim  # type: ignore[operator]
    for x in split[1:]:
        is_alike = x.axis - x.ndim == axis and first.counts.is_same(x.counts)  # type: ignore[operator]
        if not is_alike and len(x.counts) > 1:
            raise ValueError(f"these arrays must be partitioned alike, got {first!r} and {x!r}")
    return [_run(x, axis, first) for x in operands], axis, first.comm, first.counts


def _run(x: Any, axis: int, like: DistributedArray) -> Any:
    """The part of an operand that matches the run of `like`."""
    if not isinstance(x, DistributedArray):
        return x
    if x.axis is not None or x.ndim < -axis or x.local.shape[axis] == 1:
        return x.local
    total = like.counts.total
    if x.local.shape[axis] != total:
        raise ValueError(f"{x!r} does not fit {like!r}: axis {axis} must have length 1 or {total}")
    return run_of(x.local, axis, like.start, like.local.shape[axis])


def run_of(x: HostArray, axis: int, start: int, count: int) -> HostArray:
    """A view of a run of entries along an axis, which is counted from the end."""
    place: Any = (..., slice(start, start + count), *(slice(None),) * (-axis - 1))
    return x[place]


def elementwise(function: Callable[..., Any], *operands: Any, **options: Any) -> DistributedArray:
    """Apply an elementwise function of NumPy to the local parts."""
    parts, axis, comm, counts = aligned(operands)
    result = np.asarray(function(*parts, **options))
    return DistributedArray(result, None if axis is None else result.ndim + axis, comm, counts)


def index(x: DistributedArray, key: Any) -> tuple[tuple[Any, ...], int | None]:
    """The index into the local part, and the split axis of the result."""
    keys = list(key) if isinstance(key, tuple) else [key]
    used = sum(part is not None and part is not Ellipsis for part in keys)
    if not any(part is Ellipsis for part in keys):
        keys.append(Ellipsis)
    place = next(i for i, part in enumerate(keys) if part is Ellipsis)
    keys[place : place + 1] = [slice(None)] * (x.ndim - used)
    local: list[Any] = []
    old = new = 0
    axis: int | None = None
    for part in keys:
        if part is None:
            local.append(None)
            new += 1
            continue
        if old == x.axis:
            _check_all(x, part)
            part, axis = slice(None), new
        elif not isinstance(part, slice):
            part = _place(part)
        local.append(part)
        old, new = old + 1, new + isinstance(part, slice)
    return (*local, Ellipsis), axis  # with an Ellipsis NumPy returns views of single numbers, too


def _check_all(x: DistributedArray, part: Any) -> None:
    """Raise unless an index names all of the split axis."""
    length = x.counts.total
    if not (isinstance(part, slice) and part.indices(length) == (0, length, 1)):
        raise IndexError(
            f"DistributedArray: axis {x.axis} is partitioned across {len(x.counts)} ranks, and its only index is `:`, "
            f"got {part!r}"
        )


def _place(part: Any) -> int:
    """An integer index."""
    try:
        return operator.index(part)
    except TypeError:
        raise IndexError(
            f"DistributedArray: an index must be an integer, a slice, None or Ellipsis, got {type(part).__name__}; "
            "for several indices use `take`"
        ) from None


def replicate(array: HostArray) -> DistributedArray:
    """An array that every rank holds, from NumPy's."""
    return DistributedArray(array, None, None)
