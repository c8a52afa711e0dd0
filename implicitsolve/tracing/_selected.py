"""Entries under a mask that depends on the unknowns, and functions of NumPy that write into their argument."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from implicitsolve._typing import CallersArray, HostArray
from implicitsolve.tracing._functions import UntraceableError, Value

ASK_WHERE = "how many entries are under a mask depends on the unknowns: use np.where"


class Selected(np.lib.mixins.NDArrayOperatorsMixin):
    """The entries of an array under a mask that depends on the unknowns: how many they are is not known.

    `whole` is an array like that one, with 1 where an entry is not selected, so that no function fails there.
    """

    __array_priority__ = 2e6

    def __init__(self, whole: CallersArray, mask: Value) -> None:
        self.whole, self.mask = whole, mask

    @classmethod
    def of(cls, array: CallersArray, mask: Value) -> Selected:
        """Entries of an array."""
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
