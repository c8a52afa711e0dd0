"""Entries of an array that are read or written, under a key or a mask, without a change of other arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from implicitsolve._typing import CallersArray, HostArray
from implicitsolve.tracing._functions import UntraceableError, Value, count_operation, is_tracer


def is_basic(key: CallersArray) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(
        part is None or part is Ellipsis or (isinstance(part, slice | int | np.integer) and not isinstance(part, bool))
        for part in parts
    )


def is_mask(key: CallersArray) -> bool:
    return is_tracer(key) and key.dtype == bool


def replace_entries(base: Value, key: CallersArray, value: Value) -> Value:
    """`base` with other entries under a key, or at positions that a function selects from an array of all."""
    if not (is_tracer(base) or is_tracer(value) or is_mask(key)):
        base = np.array(base)
        if callable(key):
            base.reshape(-1)[key(np.arange(base.size).reshape(base.shape))] = value
        else:
            base[key] = value
        return base
    count_operation()
    base = jnp.asarray(base)
    if callable(key):
        places: CallersArray = key(np.arange(base.size).reshape(base.shape))
        return base.reshape(-1).at[places].set(spread_over(value, places.shape)).reshape(base.shape)
    if is_mask(key):
        if np.ndim(value) and value.shape != base.shape:
            raise UntraceableError("values are assigned under a mask that depends on the unknowns: use np.where")
        return jnp.where(key.reshape(key.shape + (1,) * (base.ndim - key.ndim)), value, base)
    if is_basic(key):
        return write_entries(base, key, value)
    return base.at[key].set(spread_over(value, base[key].shape))


def spread_over(value: Value, shape: tuple[int, ...]) -> Value:
    """A value broadcast to a shape: leading axes of length 1 beyond those of the shape are dropped."""
    value = jnp.asarray(value)
    return jnp.broadcast_to(value.reshape(value.shape[max(0, value.ndim - len(shape)) :]), shape)


def _span(part: CallersArray, n: int) -> range:
    return range(n)[part] if isinstance(part, slice) else range(n)[operator.index(part) :][:1]


def write_entries(base: Value, key: CallersArray, value: Value) -> Value:
    """`base` with `value` under integers and slices: an updated slice, or single entries where a step is not 1."""
    parts = list(key) if isinstance(key, tuple) else [key]
    parts += [] if Ellipsis in parts else [Ellipsis]
    at, count = parts.index(Ellipsis), len(parts) - 1 - parts.count(None)
    parts[at : at + 1] = [slice(None)] * (base.ndim - count)
    spans = [_span(part, n) for part, n in zip((part for part in parts if part is not None), base.shape, strict=True)]
    value = spread_over(value, np.empty(base.shape, bool)[key].shape)
    if not value.size:
        return base
    if any(span.step != 1 and len(span) > 1 for span in spans):
        return base.at[key].set(value, unique_indices=True)
    return lax.dynamic_update_slice(base, value.reshape([*map(len, spans)]), [span.start for span in spans])


ASK_WHERE = "how many entries are under a mask depends on the unknowns: use np.where"


class Selected(np.lib.mixins.NDArrayOperatorsMixin):
    """The entries of an array under a mask that depends on the unknowns: their number is not known.

    `whole` is an array like that one, with 1 where an entry is not selected, so that no function fails there.
    """

    __array_priority__ = 2e6

    def __init__(self, whole: CallersArray, mask: Value) -> None:
        self.whole, self.mask = whole, mask

    @classmethod
    def of(cls, array: CallersArray, mask: Value) -> Selected:
        chosen = mask.reshape(mask.shape + (1,) * (array.ndim - mask.ndim))
        return cls(type(array)(jnp.where(chosen, array.value, jnp.ones((), array.dtype))), mask)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: CallersArray, **keywords: object) -> Selected:
        selected = [part for part in inputs if isinstance(part, Selected)]
        others = [part for part in inputs if not isinstance(part, Selected)]
        if method != "__call__" or any(part.mask is not self.mask for part in selected) or any(map(np.ndim, others)):
            raise UntraceableError(ASK_WHERE)
        return Selected(ufunc(*(part.whole if isinstance(part, Selected) else part for part in inputs)), self.mask)

    def __array__(self, dtype: CallersArray = None, copy: CallersArray = None) -> HostArray:
        raise UntraceableError(ASK_WHERE)

    def sum(self) -> CallersArray:
        return np.sum(np.where(type(self.whole)(self.mask), self.whole, 0.0))

    def mean(self) -> CallersArray:
        return self.sum() / jnp.sum(self.mask)


def _copy_to(dst: CallersArray, src: CallersArray, casting: str = "same_kind", where: CallersArray = True) -> None:
    dst[...] = src if where is True else np.where(where, src, dst)


def _fill_diagonal(a: CallersArray, val: CallersArray, wrap: bool = False) -> None:
    a.flat[:: sum(math.prod(a.shape[i + 1 :]) for i in range(a.ndim))] = val


def _piecewise(x: CallersArray, conditions: CallersArray, functions: CallersArray) -> CallersArray:
    conditions = list(conditions)
    result: CallersArray = np.zeros_like(x)
    rest = functions[len(conditions)] if len(functions) > len(conditions) else 0
    for condition, function in [(True, rest), *zip(conditions, functions)]:
        value: CallersArray = function(x) if callable(function) else function
        result = np.where(condition, value, result)
    return result


WRITES: dict[str, Callable[..., CallersArray]] = {
    "copyto": _copy_to,
    "fill_diagonal": _fill_diagonal,
    "piecewise": _piecewise,
    "put": lambda a, ind, v, mode="raise": a.flat.__setitem__(ind, v),
    "putmask": lambda a, mask, values: _copy_to(a, values, where=mask),
}
