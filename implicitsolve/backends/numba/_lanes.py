"""A number type for Numba that holds one number of each of several systems, in vector registers.

Code written for one system then solves all of them at once, if it does the same for each: comparisons give a `Mask`, on
which nothing can branch but its `bits`. Lanes are independent. `_lanes_arithmetic` is what can be done with them.
"""

from __future__ import annotations

import math
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.typeconv.castgraph import Conversion
from numba.extending import register_model

from implicitsolve._typing import HostArray
from implicitsolve.backends.numba._jit import _intrinsic

LANES = 16  # doubles in two of the widest registers: while one result is waited for, the other is computed
LINE = 64  # bytes of a cache line, which no vector should cross


def aligned(shape: tuple[int, ...], dtype: Any) -> HostArray:
    """Zeros of `shape` and one axis more, the lanes."""
    size = math.prod(shape) * LANES * np.dtype(dtype).itemsize
    raw = np.zeros(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(dtype).reshape((*shape, LANES))


class Lanes(types.Type):
    """One real number of each system."""

    def __init__(self, number: Any) -> None:
        self.number = number
        super().__init__(name=f"Lanes({number})")

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        """Take any real number, for all lanes."""
        return Conversion.safe if isinstance(other, types.Integer | types.Float) else None

    def unify(self, typingctx: Any, other: Any) -> Any:
        """Be what a variable holds that is a number elsewhere."""
        return self if isinstance(other, types.Integer | types.Float) else None


class Mask(types.Type):
    """One truth value of each system."""

    def __init__(self) -> None:
        super().__init__(name="Mask")


MASK = Mask()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    """A vector; in memory packed, that is without its alignment, which arrays of Numba do not have."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        number = dmm.lookup(fe_type.number).get_value_type()
        super().__init__(dmm, fe_type, ir.VectorType(number, LANES))

    def get_data_type(self) -> Any:
        return ir.LiteralStructType([self.get_value_type()], packed=True)

    def as_data(self, builder: Any, value: Any) -> Any:
        return builder.insert_value(ir.Constant(self.get_data_type(), ir.Undefined), value, 0)

    def from_data(self, builder: Any, value: Any) -> Any:
        return builder.extract_value(value, 0)


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(ir.IntType(1), LANES))


@_intrinsic
def select(typing_context: Any, mask: Any, a: Any, b: Any) -> Any:
    """The lanes of a where `mask` is true, of b elsewhere."""
    return a(mask, a, a), lambda context, builder, signature, values: builder.select(*values)


@_intrinsic
def bits(typing_context: Any, mask: Any) -> Any:
    """The truth values of a mask as the bits of an integer: 0 where none is true."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.zext(builder.bitcast(values[0], ir.IntType(LANES)), ir.IntType(64))

    return types.int64(mask), generate


@_intrinsic
def mask_of(typing_context: Any, integer: Any) -> Any:
    """The inverse of `bits`."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(builder.trunc(values[0], ir.IntType(LANES)), ir.VectorType(ir.IntType(1), LANES))

    return MASK(types.int64), generate


@_intrinsic
def lanes(typing_context: Any, array: Any) -> Any:
    """A C-contiguous array of numbers, whose last axis are the lanes, as an array of Lanes; the caller keeps it."""
    out = types.Array(Lanes(array.dtype), array.ndim - 1, "C")

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        numbers = context.make_array(array)(context, builder, value=values[0])
        view = context.make_array(out)(context, builder)
        item = context.get_data_type(out.dtype)
        context.populate_array(
            view,
            data=builder.bitcast(numbers.data, item.as_pointer()),
            shape=cgutils.unpack_tuple(builder, numbers.shape)[:-1],
            strides=cgutils.unpack_tuple(builder, numbers.strides)[:-1],
            itemsize=context.get_constant(types.intp, context.get_abi_sizeof(item)),
            meminfo=None,
        )
        return view._getvalue()

    return out(array), generate


@_intrinsic
def pointer_to_lanes(typing_context: Any, pointer: Any) -> Any:
    """A pointer to numbers as one to Lanes."""
    out = types.CPointer(Lanes(pointer.dtype))

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], context.get_value_type(out))

    return out(pointer), generate
