"""One rank's part of a problem, and the user's functions on it: checked, and an error of one ends all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.distributed._communicator import Communicator
from implicitsolve.distributed._halo import halos
from implicitsolve.distributed._layout import Runs
from implicitsolve.operators import LinearOperator
from implicitsolve.structure import BlockBanded


@dataclass(frozen=True, kw_only=True)
class Part:
    """Which blocks a rank owns, and how many it sees around them.

    Attributes
    ----------
    first, stop : int
        Its blocks are first, ..., stop - 1 of all.
    before, after : int
        Blocks of the neighbours in front of them and behind: 0 beyond the ends.
    length : int
        Blocks of all ranks, T.

    Examples
    --------
    >>> from implicitsolve.distributed import Part
    >>> part = Part(first=4, stop=8, before=1, after=0, length=8)
    >>> part.count, part.own, part.is_first, part.is_last
    (4, slice(1, 5, None), False, True)
    """

    first: int
    stop: int
    before: int
    after: int
    length: int

    @classmethod
    def of(cls, comm: Communicator, counts: Runs, structure: BlockBanded) -> Part:
        """The part of this rank in a layout."""
        first = counts.starts[comm.rank]
        before, after = halos(comm, structure.lower, structure.upper, structure.periodic)
        return cls(first=first, stop=first + counts[comm.rank], before=before, after=after, length=counts.total)

    @property
    def count(self) -> int:
        """How many blocks the rank owns."""
        return self.stop - self.first

    @property
    def own(self) -> slice:
        """Where they are among those that it sees."""
        return slice(self.before, self.before + self.count)

    @property
    def seen(self) -> int:
        """How many it sees."""
        return self.before + self.count + self.after

    @property
    def is_first(self) -> bool:
        """Whether it owns the first of all blocks."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """Whether it owns the last one."""
        return self.stop == self.length


@dataclass(frozen=True)
class LocalFunctions:
    """The user's functions on one rank's part, by name.

    What they return is checked and copied; whatever goes wrong on one rank ends all of them.
    """

    comm: Communicator
    part: Part
    batch_ndim: int
    given: Mapping[str, Callable[..., Any] | None]

    def has(self, name: str) -> bool:
        """Whether the user gave that function."""
        return self.given[name] is not None

    def array(self, name: str, shape: tuple[int, ...], x: HostArray, *others: Any) -> HostArray:
        """What a function returns for x and others, of a shape, in the dtype of x."""
        return self._guarded(name, lambda value: self._checked(name, value, shape, x.dtype), x, *others)

    def linearized(self, shape: tuple[int, ...], x: HostArray) -> tuple[HostArray, LinearOperator]:
        """What `linearize` returns: F of a shape, and J of the own blocks."""
        return self._guarded("linearize", lambda value: self._checked_pair(value, shape, x), x)

    def product(self, J: LinearOperator, name: str, shape: tuple[int, ...], v: HostArray) -> HostArray:
        """A product with what `linearize` has returned; `name` is "matvec" or "rmatvec"."""
        try:
            return self._checked(f"J.{name}", getattr(J, name)(v), shape, v.dtype)
        except Exception as error:  # noqa: BLE001 (abort raises it, or ends the process)
            self.comm.abort(error)

    def gradients(self, x: HostArray, w: HostArray, **wanted: Any) -> dict[str, HostArray]:
        """What `parameter_vjp` returns."""
        return self._guarded("parameter_vjp", self._checked_gradients, x, w, **wanted)

    def _guarded(self, name: str, check: Callable[[Any], Any], *arguments: Any, **named: Any) -> Any:
        function: Any = self.given[name]
        try:
            return check(function(self.part, *arguments, **named))
        except Exception as error:  # noqa: BLE001 (abort raises it, or ends the process)
            self.comm.abort(error)

    def _checked(self, name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
        if value is None:
            raise TypeError(f"`{name}` returned None; it must return an array of shape {shape}")
        value = np.asarray(value)
        if value.shape != shape:
            raise ValueError(f"`{name}` must return an array of shape {shape} for {self.part}, got {value.shape}")
        if value.dtype.kind not in "biufc":
            raise TypeError(f"`{name}` must return numbers, got dtype {value.dtype}")
        if value.dtype.kind == "c" and dtype.kind != "c":
            raise TypeError(f"`{name}` returned complex numbers for a real x0: pass a complex x0 to solve in complex")
        return np.array(value, dtype=dtype)

    def _checked_pair(self, value: Any, shape: tuple[int, ...], x: HostArray) -> tuple[HostArray, LinearOperator]:
        if not (isinstance(value, tuple) and len(value) == 2):
            raise TypeError(f"`linearize` must return a pair (F, J), got {type(value).__name__}")
        F, J = self._checked("linearize", value[0], shape, x.dtype), value[1]
        expected = shape[: self.batch_ndim], x.shape[self.batch_ndim :], shape[self.batch_ndim :]
        if not isinstance(J, LinearOperator):
            raise TypeError(f"`linearize` must return J as a LinearOperator, got {type(J).__name__}")
        if (J.batch_shape, J.in_shape, J.out_shape) != expected:
            raise ValueError(
                f"`linearize` must return J of batch_shape, in_shape and out_shape {expected} for {self.part}, got "
                f"{(J.batch_shape, J.in_shape, J.out_shape)}"
            )
        return F, J

    def _checked_gradients(self, value: Any) -> dict[str, HostArray]:
        if not isinstance(value, Mapping):
            raise TypeError(f"`parameter_vjp` must return a mapping, got {type(value).__name__}")
        return {str(key): np.asarray(gradient) for key, gradient in value.items()}
