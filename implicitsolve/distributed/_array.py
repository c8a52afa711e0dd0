"""DistributedArray: an array of the array API standard whose one axis is split over ranks by contiguous runs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from implicitsolve._namespace import is_array, library
from implicitsolve._typing import HostArray
from implicitsolve.distributed._communicator import Communicator
from implicitsolve.distributed._layout import Runs

WHOLE = Runs(())  # of an array that is not split
Number = bool | int | float | complex | np.generic


class DistributedArray:
    """An array of which every rank holds a run of one axis, or, if it is small, the whole.

    `split`, `from_local` and `replicated` make one. Functions of the array API standard are those of
    ``x.__array_namespace__()``; solvers need nothing else.

    Parameters
    ----------
    local : ndarray
        What this rank holds.
    axis : int or None
        The split axis; None for an array that all ranks hold with the same bits.
    comm : Communicator or None
        Talks to the other ranks; None will do for a replicated array.
    counts : tuple of int
        The length of the split axis on every rank; empty for a replicated array.

    Notes
    -----
    Elementwise work is local. A sum, a maximum or a product over the split axis is one collective, after which all
    ranks hold the same bits. Of a replicated operand beside a split one every rank takes its run. What would move
    numbers between ranks raises an error: an index into the split axis, a concatenation along it, a NumPy array of a
    split one. `gathered` moves them.

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
    namespace: ClassVar[Any] = None  # of functions, which stand on this module, and tell it where they are
    __array_ufunc__ = None  # NumPy's scalars leave arithmetic to the operators below
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(
        self, local: HostArray, axis: int | None, comm: Communicator | None, counts: tuple[int, ...] = WHOLE
    ) -> None:
        self.local: HostArray = local
        self.axis: int | None = axis
        self.comm: Communicator | None = comm
        self.counts: Runs = Runs(counts)

    # What it is

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
        """Numbers in the whole."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self.local.dtype

    @property
    def device(self) -> str:
        """Where the numbers of this rank are: always "cpu"."""
        return "cpu"

    @property
    def start(self) -> int:
        """Where this rank's run of the split axis begins; 0 for a replicated array."""
        if self.axis is None or self.comm is None:
            return 0
        return self.counts.starts[self.comm.rank]

    @property
    def T(self) -> DistributedArray:
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ValueError(f"DistributedArray.T: the array must have 2 axes, got {self.ndim}")
        return self.mT

    @property
    def mT(self) -> DistributedArray:
        """The transposes of a stack of matrices."""
        return self.namespace.matrix_transpose(self)

    def __repr__(self) -> str:
        """Shape, dtype, and how it is split."""
        where = "replicated" if self.axis is None else f"axis {self.axis} split by {self.counts}"
        return f"<DistributedArray {self.shape}, dtype={self.dtype}, {where}>"

    # Ways to NumPy

    def gathered(self) -> HostArray:
        """Return the whole array, which every rank then holds. One allgather, for a split array."""
        if self.axis is None or self.comm is None:
            return self.local.copy()
        shape = self.local.shape
        shapes = [(*shape[: self.axis], count, *shape[self.axis + 1 :]) for count in self.counts]
        return np.concatenate(self.comm.allgather(np.ascontiguousarray(self.local), shapes), axis=self.axis)

    def _whole(self, wish: str) -> HostArray:
        """The numbers of a replicated array."""
        if self.axis is not None:
            raise TypeError(
                f"{wish} needs all of a DistributedArray, whose axis {self.axis} is split over {len(self.counts)} "
                "ranks: use `.gathered()` for the whole, or `.local` for this rank's part"
            )
        return self.local

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        """Return a replicated array's numbers."""
        return np.array(self._whole("a NumPy array"), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Export a replicated array."""
        whole = self._whole("DLPack")
        return (whole if whole.flags.writeable else whole.copy()).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Return where a replicated array is."""
        return self._whole("DLPack").__dlpack_device__()

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return the module of functions on these arrays."""
        return self.namespace

    def to_device(self, device: Any, /, *, stream: Any = None) -> DistributedArray:
        """Return the array itself: there is one device."""
        if device != "cpu":
            raise ValueError(f'DistributedArray.to_device: `device` must be "cpu", got {device!r}')
        return self

    def __bool__(self) -> bool:
        return bool(self._whole("bool"))

    def __int__(self) -> int:
        return int(self._whole("int"))

    def __index__(self) -> int:
        return operator.index(self._whole("an index"))

    def __float__(self) -> float:
        return float(self._whole("float"))

    def __complex__(self) -> complex:
        return complex(self._whole("complex"))

    # Parts

    def __getitem__(self, key: Any) -> DistributedArray:
        """Return a view: integers, slices, None and Ellipsis; of the split axis, all."""
        local_key, axis = index(self, key)
        return DistributedArray(self.local[local_key], axis, self.comm, WHOLE if axis is None else self.counts)

    def __iter__(self) -> Iterator[DistributedArray]:
        """Go along the first axis, which must not be split: Python would take an IndexError for the end."""
        if self.axis == 0:
            raise TypeError(f"iteration: axis 0 of {self!r} is split over ranks")
        return (self[i] for i in range(self.shape[0]))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write into such a part."""
        self[key]._write(operator.setitem, value)

    def _write(self, function: Callable[..., Any], value: Any) -> DistributedArray:
        """Call ``function(local, ..., value)`` that writes into this array."""
        (_, local), axis, _, _ = aligned((self, value))
        if axis is not None and self.axis is None:
            raise ValueError("DistributedArray: numbers of a split array cannot be written into a replicated one")
        if function is operator.setitem:
            self.local[...] = local
        else:
            function(self.local, local)
        return self

    # Arithmetic

    def __abs__(self) -> DistributedArray:
        return self._like(abs(self.local))

    def __neg__(self) -> DistributedArray:
        return self._like(-self.local)

    def __pos__(self) -> DistributedArray:
        return self._like(+self.local)

    def __invert__(self) -> DistributedArray:
        return self._like(~self.local)

    def __matmul__(self, other: Any) -> DistributedArray:
        return self.namespace.matmul(self, other)

    def _like(self, local: Any) -> DistributedArray:
        """An array that is split as this one."""
        return DistributedArray(np.asarray(local), self.axis, self.comm, self.counts)


def _binary(function: Callable[[Any, Any], Any], *, swapped: bool) -> Callable[[Any, Any], Any]:
    def apply(self: DistributedArray, other: Any) -> Any:
        if not is_operand(other):
            return NotImplemented
        return elementwise(function, other, self) if swapped else elementwise(function, self, other)

    return apply


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(self: DistributedArray, other: Any) -> Any:
        return self._write(function, other) if is_operand(other) else NotImplemented

    return apply


def _define_operators() -> None:
    """Give the class its arithmetic."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
        function = getattr(operator, f"__{name}__")
        setattr(DistributedArray, f"__{name}__", _binary(function, swapped=False))
        setattr(DistributedArray, f"__r{name}__", _binary(function, swapped=True))
        setattr(DistributedArray, f"__i{name}__", _in_place(getattr(operator, f"__i{name}__")))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(DistributedArray, f"__{name}__", _binary(getattr(operator, f"__{name}__"), swapped=False))


_define_operators()


def is_operand(x: Any) -> bool:
    """Whether `x` may stand beside a distributed array: another one, or a number."""
    return isinstance(x, DistributedArray | Number)


def aligned(
    operands: Sequence[Any],
) -> tuple[list[Any], int | None, Communicator | None, Runs]:
    """What each rank computes with: the operands' local parts, and how a result that broadcasts them is split.

    Returns
    -------
    parts : list
        Arrays of NumPy and numbers.
    axis : int or None
        The split axis, counted from the last (-1).
    comm, counts
        As of `DistributedArray`.

    Raises
    ------
    TypeError
        If an operand is neither a distributed array nor a number.
    ValueError
        If operands are split in different ways, or do not fit.
    """
    split = [x for x in operands if isinstance(x, DistributedArray) and x.axis is not None]
    for x in operands:
        if not is_operand(x):
            raise TypeError(
                f"a DistributedArray goes with others and with numbers, got {type(x).__name__}: "
                "use `distributed.replicated` for an array that all ranks hold"
            )
    if not split:
        return [x.local if isinstance(x, DistributedArray) else x for x in operands], None, None, WHOLE
    first = split[0]
    axis = first.axis - first.ndim  # type: ignore[operator]
    for x in split[1:]:
        is_alike = x.axis - x.ndim == axis and first.counts.is_same(x.counts)  # type: ignore[operator]
        if not is_alike and len(x.counts) > 1:
            raise ValueError(f"these arrays must be split alike, got {first!r} and {x!r}")
    return [_run(x, axis, first) for x in operands], axis, first.comm, first.counts


def _run(x: Any, axis: int, like: DistributedArray) -> Any:
    """The part of an operand that goes with the run of `like`."""
    if not isinstance(x, DistributedArray):
        return x
    if x.axis is not None or x.ndim < -axis or x.local.shape[axis] == 1:
        return x.local
    total = like.counts.total
    if x.local.shape[axis] != total:
        raise ValueError(f"{x!r} does not fit {like!r}: axis {axis} must have length 1 or {total}")
    return run_of(x.local, axis, like.start, like.local.shape[axis])


def run_of(x: HostArray, axis: int, start: int, count: int) -> HostArray:
    """A view of some entries in a row along an axis, which is counted from the end."""
    place: Any = (..., slice(start, start + count), *(slice(None),) * (-axis - 1))
    return x[place]


def elementwise(function: Callable[..., Any], *operands: Any, **options: Any) -> DistributedArray:
    """Apply a function of NumPy to the local parts."""
    parts, axis, comm, counts = aligned(operands)
    result = np.asarray(function(*parts, **options))
    return DistributedArray(result, None if axis is None else result.ndim + axis, comm, counts)


def index(x: DistributedArray, key: Any) -> tuple[tuple[Any, ...], int | None]:
    """A key for the local part, and where the split axis is in the result."""
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
            f"DistributedArray: axis {x.axis} is split over {len(x.counts)} ranks, and only `:` is an index into it, "
            f"got {part!r}"
        )


def _place(part: Any) -> int:
    """An integer index."""
    try:
        return operator.index(part)
    except TypeError:
        raise IndexError(
            f"DistributedArray: an index must be an integer, a slice, None or Ellipsis, got {type(part).__name__}; "
            "for several places use `take`"
        ) from None


def host(owner: str, name: str, array: Any) -> HostArray:
    """What a caller gave as a NumPy array; ranks hold no others."""
    if is_array(array) and not isinstance(array, np.ndarray | np.generic | DistributedArray):
        raise TypeError(f"{owner}: `{name}` must be a NumPy array, got one of {library(array)}: copy it to the host")
    return np.asarray(array)


def replicated(array: Any) -> DistributedArray:
    """Make an array that every rank holds; all must give the same bits, which is not checked.

    Parameters
    ----------
    array : array_like
        The whole of it. Not copied.

    Returns
    -------
    DistributedArray
        With no split axis.

    Examples
    --------
    >>> from implicitsolve import distributed
    >>> distributed.replicated([1.0, 2.0])
    <DistributedArray (2,), dtype=float64, replicated>
    """
    return DistributedArray(host("replicated", "array", array), None, None)
