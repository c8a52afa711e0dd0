"""Operators made of operators: checked and counted, bordered, several batches as one; records of per-system arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._arrays.namespace import array_namespace, check_tensor, is_array, is_complex
from implicitsolve._typing import Array, Indices
from implicitsolve.operators._arguments import then
from implicitsolve.operators._base import LinearOperator

T = TypeVar("T")


def guard(
    A: LinearOperator, name: str, count: Callable[[str], None] | None = None, *, copies: bool = True
) -> LinearOperator:
    """Return the square operator `A` on arrays (B, N): each product is counted, and its result checked.

    `name` is its name in messages; ``count("jvps")`` or ``count("vjps")`` is called before each product; `copies`
    states whether arguments and results are copied. A product raises a TypeError where it returns no numbers, or
    complex ones for a real vector, and a ValueError where their shape is wrong.
    """
    flat = A.flat()

    def check_products(product: Callable[[Array], Array], kind: str) -> Callable[[Array], Array]:
        def apply(v: Array) -> Array:
            if count is not None:
                count(kind)
            xp = array_namespace(v)
            w: Any = product(xp.asarray(v, copy=True) if copies else v)
            if w is None:
                raise TypeError(f"a product with `{name}` returned None; it must return an array")
            w = w if is_array(w) else xp.asarray(w)
            if not (isinstance(w, np.ndarray) and isinstance(v, np.ndarray)):
                check_tensor(w, name)
                array_namespace(v, w)  # raises where a product comes from another library
            if is_complex(w) and not is_complex(v):
                raise TypeError(f"a product with `{name}` returned complex numbers for a real vector: solve in complex")
            expected = math.prod(v.shape)
            if math.prod(w.shape) != expected:
                raise ValueError(f"a product with `{name}` must return {expected} numbers, got shape {tuple(w.shape)}")
            return xp.astype(xp.reshape(w, v.shape), v.dtype, copy=copies)

        return apply

    return flat._alike(
        check_products(flat.matvec, "jvps"),
        None if flat._rmatvec is None else check_products(flat.rmatvec, "vjps"),
        take=lambda indices: guard(A.take(indices) if A.batch_shape else A, name, count, copies=copies),
        inverse=then(flat._inverse, lambda M: guard(M, f"the inverse of {name}", copies=copies)),
        cast=then(flat._cast, lambda A: guard(A, name, count, copies=copies)),
    )


class Part(LinearOperator):
    """Some systems of an operator on arrays (B, N), gathered for the first product."""

    def __init__(self, whole: LinearOperator, indices: Indices) -> None:
        self.whole: LinearOperator = whole
        self.indices: Indices = indices
        super().__init__(
            lambda v: self.own_systems.matvec(v),
            None if whole._rmatvec is None else lambda w: self.own_systems.rmatvec(w),
            in_shape=whole.in_shape,
            batch_shape=(len(indices),),
            dtype=whole.dtype,
            take=lambda rows: Part(whole, indices[rows]),
            inverse=then(whole._inverse, lambda M: M.take(indices)),
            cast=None if whole._cast is None else lambda dtype: Part(whole.astype(dtype), indices),
        )

    @cached_property
    def own_systems(self) -> LinearOperator:
        size = self.whole.batch_shape[0]
        is_whole = self.indices.size == size and (self.indices == np.arange(size)).all()
        return self.whole if is_whole else self.whole.take(self.indices)


def stack_systems(operators: Sequence[LinearOperator]) -> LinearOperator:
    """Return the operator of the systems of all `operators`, one batch behind the other, on arrays (B, N)."""
    wholes = {id(operator.whole) if isinstance(operator, Part) else None for operator in operators}
    if len(wholes) == 1 and None not in wholes:
        return Part(operators[0].whole, np.concatenate([operator.indices for operator in operators]))  # type: ignore[attr-defined]
    parts = [operator.flat() for operator in operators]
    ends = np.cumsum([part.batch_shape[0] for part in parts])

    def by_part(name: str) -> Callable[[Array], Array]:
        def product(v: Array) -> Array:
            found = [getattr(part, name)(v[a:b, :]) for part, a, b in zip(parts, [0, *ends.tolist()], ends.tolist())]
            return array_namespace(v).concat(found, axis=0)

        return product

    def offer(name: str, made: T) -> T | None:
        return made if all(getattr(part, name) is not None for part in parts) else None

    return parts[0]._alike(
        by_part("matvec"),
        offer("_rmatvec", by_part("rmatvec")),
        batch_shape=(int(ends[-1]),),
        take=lambda indices: _take_from(parts, ends, np.asarray(indices)),
        inverse=offer("_inverse", lambda: stack_systems([part._inverse() for part in parts])),  # type: ignore[misc]
        cast=offer("_cast", lambda dtype: stack_systems([part.astype(dtype) for part in parts])),
    )


def _take_from(parts: Sequence[LinearOperator], ends: Indices, indices: Indices) -> LinearOperator:
    """Some systems of a batch that consists of parts; these end at the positions `ends`."""
    owners = np.searchsorted(ends, indices, side="right")
    runs = np.split(indices, np.flatnonzero(np.diff(owners)) + 1)
    owned = zip(owners[np.cumsum([0, *(run.size for run in runs[:-1])])].tolist(), runs)
    found = [parts[owner].take(run - (ends[owner] - parts[owner].batch_shape[0])) for owner, run in owned]
    return found[0] if len(found) == 1 else stack_systems(found)


def border_operator(
    product: Callable[[Array], Array],
    column: Array,
    row: Array,
    corner: Array,
    take: Callable[[Indices], LinearOperator] | None = None,
) -> LinearOperator:
    """[[A, column], [row, corner]] for each system, on arrays (B, N + 1), where ``product(x)`` is A x."""
    xp = array_namespace(column)

    def matvec(v: Array) -> Array:
        x, last = v[:, :-1], v[:, -1:]
        bottom = xp.sum(row * x, axis=1, keepdims=True) + corner * last
        return xp.concat([product(x) + column * last, bottom], axis=1)

    size, N = column.shape
    return LinearOperator(matvec, in_shape=N + 1, batch_shape=(size,), dtype=column.dtype, take=take)


class SystemArrays:
    """A record whose every field holds something for each of b systems; subclasses are dataclasses.

    A field is an array (b, ...), of the host or of a device; an operator on a batch of b systems; an object with
    ``take(rows)`` and ``concat(other, systems)``, which return the data of some systems, and of its own `systems`
    followed by those of another; or None.
    """

    def take(self, rows: Indices) -> Self:
        return type(self)(*(_rows_of(part, rows) for part in vars(self).values()))

    def keep(self, rows: Indices) -> None:
        """Take the record of some systems, in place: field by field, so that few arrays are held twice at a time."""
        found: dict[int, Any] = {}  # what several fields hold is taken once
        for name, part in vars(self).items():
            if id(part) not in found:
                found[id(part)] = _rows_of(part, rows)
            setattr(self, name, found[id(part)])

    def concat(self, other: Self, systems: int) -> Self:
        """Return the record of the present systems, whose number is `systems`, followed by those of another."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(_join(first, second, systems) for first, second in pairs))

    def scatter(self, rows: Indices, other: Self) -> None:
        """Write another record's systems to these rows, in place; for records of arrays alone."""
        for whole, part in zip(vars(self).values(), vars(other).values(), strict=True):
            scatter(whole, rows, part)


def _rows_of(part: Any, rows: Indices) -> Any:
    if part is None:
        return None
    if isinstance(part, np.ndarray):
        return part.take(rows, axis=0)
    return gather(part, rows) if is_array(part) else part.take(rows)


def _join(first: Any, second: Any, systems: int) -> Any:
    if first is None or second is None:
        return None
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    if isinstance(first, LinearOperator):
        return stack_systems([first, second])
    return array_namespace(first).concat([first, second], axis=0) if is_array(first) else first.concat(second, systems)
