# pyright: basic
"""A number type for Numba that holds one number of each of several systems, in vector registers.

Code written for one system then solves all of them at once, if it does the same for each: comparisons give a `Mask`,
and code can branch on its `bits` alone. Lanes are independent. Importing this module registers their arithmetic with
Numba.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.typeconv.castgraph import Conversion
from numba.core.typing import signature  # pyright: ignore[reportPrivateImportUsage]
from numba.extending import lower_builtin, lower_cast, models, overload, register_model, type_callable

from implicitsolve._typing import HostArray
from implicitsolve.backends.numba._jit import _intrinsic, llvm
from implicitsolve.backends.numba._views import View, new_view

LANES = 16  # doubles in two of the widest registers: while one result is waited for, the other is computed
REAL_TYPES = types.Integer | types.Float
LINE = 64  # bytes of a cache line, which no vector should cross


def aligned_zeros(shape: tuple[int, ...], dtype) -> HostArray:
    """Zeros of `shape` and one axis more, the lanes."""
    size = math.prod(shape) * LANES * np.dtype(dtype).itemsize
    raw = np.zeros(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(dtype).reshape((*shape, LANES))


class Lanes(types.Type):
    """One real number of each system."""

    def __init__(self, number) -> None:
        self.number = number
        super().__init__(name=f"Lanes({number})")

    def can_convert_from(self, typingctx, other):
        """Convert any real number, to all lanes."""
        return Conversion.safe if isinstance(other, REAL_TYPES) else None

    def unify(self, typingctx, other):
        """The type of a variable that holds lanes on one path and a number on another."""
        return self if isinstance(other, REAL_TYPES) else None


class Mask(types.Type):
    """One truth value of each system."""

    def __init__(self) -> None:
        super().__init__(name="Mask")


MASK = Mask()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    """A vector; in memory it is packed, without the alignment of vectors, which Numba's arrays lack."""

    def __init__(self, dmm, fe_type) -> None:
        number = dmm.lookup(fe_type.number).get_value_type()
        super().__init__(dmm, fe_type, ir.VectorType(number, LANES))

    def get_data_type(self):
        return ir.LiteralStructType([self.get_value_type()], packed=True)

    def as_data(self, builder, value):
        return builder.insert_value(ir.Constant(self.get_data_type(), ir.Undefined), value, 0)

    def from_data(self, builder, value):
        return builder.extract_value(value, 0)


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(ir.IntType(1), LANES))


@_intrinsic
def select(typing_context, mask, a, b):
    """The lanes of a where `mask` is true, of b elsewhere."""
    return a(mask, a, a), lambda context, builder, signature, values: builder.select(*values)


@_intrinsic
def bits(typing_context, mask):
    """The truth values of a mask as the bits of an integer: 0 where none is true."""

    def generate(context, builder, signature, values):
        return builder.zext(builder.bitcast(values[0], ir.IntType(LANES)), ir.IntType(64))

    return types.int64(mask), generate


@_intrinsic
def mask_of(typing_context, integer):
    """The inverse of `bits`."""

    def generate(context, builder, signature, values):
        return builder.bitcast(builder.trunc(values[0], ir.IntType(LANES)), ir.VectorType(ir.IntType(1), LANES))

    return MASK(types.int64), generate


@_intrinsic
def lanes(typing_context, numbers):
    """View an array of numbers, whose last axis holds the lanes, as an array of Lanes."""
    out = View(Lanes(numbers.dtype), numbers.ndim - 1)

    def generate(context, builder, signature, values):
        data = builder.bitcast(builder.extract_value(values[0], 0), context.get_data_type(out.dtype).as_pointer())
        sizes = [builder.extract_value(values[0], [1, axis]) for axis in range(out.ndim)]
        return new_view(context, builder, out, data, cgutils.pack_array(builder, sizes))

    return out(numbers), generate


@_intrinsic
def pointer_to_lanes(typing_context, pointer):
    """A pointer to numbers as one to Lanes."""
    out = types.CPointer(Lanes(pointer.dtype))

    def generate(context, builder, signature, values):
        return builder.bitcast(values[0], context.get_value_type(out))

    return out(pointer), generate


ELEMENTARY = ("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "sinh", "cosh")
ARITHMETIC = {
    (operator.add, operator.iadd): "fadd",
    (operator.sub, operator.isub): "fsub",
    (operator.mul, operator.imul): "fmul",
    (operator.truediv, operator.itruediv): "fdiv",
}
COMPARISONS = {operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "=="}
MASKS = {operator.and_: "and_", operator.or_: "or_"}


def _operator(key, result: Callable[[Any], Any], arity: int = 2) -> None:
    """Type `key` for numbers of which at least one is a Lanes: all become that Lanes."""

    def types_of(*args):
        lanes = next((a for a in args if isinstance(a, Lanes)), None)
        if lanes is None or not all(a == lanes or isinstance(a, REAL_TYPES) for a in args):
            return None
        return signature(result(lanes), *[lanes] * arity)

    def of_one(context):
        return lambda a: types_of(a)

    def of_two(context):
        return lambda a, b: types_of(a, b)

    type_callable(key)(of_one if arity == 1 else of_two)


def _same(lanes):
    return lanes


def _mask(lanes):
    return MASK


for names, instruction in ARITHMETIC.items():
    for name in names:
        _operator(name, _same)

        @lower_builtin(name, Lanes, Lanes)
        def _arithmetic(context, builder, sig, args, instruction: str = instruction):
            return getattr(builder, instruction)(*args)


for name, instruction in COMPARISONS.items():
    _operator(name, _mask)

    @lower_builtin(name, Lanes, Lanes)
    def _comparison(context, builder, sig, args, instruction: str = instruction):
        return builder.fcmp_ordered(instruction, *args)


def _unary(key, implementation: Callable[[Any, Any], Any]) -> None:
    _operator(key, _same, 1)

    @lower_builtin(key, Lanes)
    def _lower(context, builder, sig, args):
        return implementation(builder, args)


_unary(operator.neg, lambda builder, args: builder.fneg(args[0]))
_unary(operator.pos, lambda builder, args: args[0])
for function in (abs, math.fabs, np.abs):
    _unary(function, lambda builder, args: llvm(builder, "fabs", *args))
for function in (math.sqrt, np.sqrt):
    _unary(function, lambda builder, args: llvm(builder, "sqrt", *args))


for name, instruction in MASKS.items():

    @type_callable(name)
    def _type_of_logic(context):
        return lambda a, b: signature(MASK, MASK, MASK) if a == b == MASK else None

    @lower_builtin(name, Mask, Mask)
    def _logic(context, builder, sig, args, instruction: str = instruction):
        return getattr(builder, instruction)(*args)


@type_callable(operator.invert)
def _type_of_invert(context):
    return lambda a: signature(MASK, MASK) if a == MASK else None


@lower_builtin(operator.invert, Mask)
def _invert(context, builder, sig, args):
    return builder.not_(args[0])


@lower_cast(types.Integer, Lanes)
@lower_cast(types.Float, Lanes)
def _broadcast(context, builder, fromty, toty, value):
    number = context.cast(builder, value, fromty, toty.number)
    one = builder.insert_element(ir.Constant(context.get_value_type(toty), ir.Undefined), number, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, one, zeros)


def _lane_by_lane(builder, function, args):
    """Call a function of numbers for each lane; arguments that are no vectors go to all."""
    out = args[0]
    for i in range(LANES):
        lane = ir.IntType(32)(i)
        parts = [builder.extract_element(a, lane) if isinstance(a.type, ir.VectorType) else a for a in args]
        out = builder.insert_element(out, function(builder, parts), lane)
    return out


def _function(key, name: str) -> None:
    _operator(key, _same, 1)

    @lower_builtin(key, Lanes)
    def _lower(context, builder, sig, args):
        number = sig.return_type.number
        function = context.get_function(getattr(math, name), signature(number, number))
        return _lane_by_lane(builder, function, args)


for word in ELEMENTARY:
    _function(getattr(math, word), word)
    _function(getattr(np, word), word)


@type_callable(operator.pow)
def _type_of_power(context):
    def typer(base, exponent):
        if not isinstance(base, Lanes) or not isinstance(exponent, REAL_TYPES):
            return None
        is_whole = isinstance(exponent, types.Integer)
        return signature(base, base, types.unliteral(exponent) if is_whole else base.number)

    return typer


@lower_builtin(operator.pow, Lanes, types.Integer)
@lower_builtin(operator.pow, Lanes, types.Float)
def _power(context, builder, sig, args):
    number, exponent = sig.args[0].number, sig.args[1]
    function = context.get_function(operator.pow, signature(number, number, exponent))
    return _lane_by_lane(builder, function, args)


def exchange_entries(x, first, r, pivot, k) -> None:
    """Exchange entry r of the block of x that begins at `first` with that of the pivot, which differs by lane."""


@overload(exchange_entries, jit_options={"error_model": "numpy"})
def _exchange_entries(x, first, r, pivot, k):
    if not isinstance(x.dtype, Lanes):

        def exchange(x, first, r, pivot, k) -> None:
            x[first + r], x[first + pivot] = x[first + pivot], x[first + r]
    else:

        def exchange(x, first, r, pivot, k) -> None:
            for i in range(r + 1, k):
                mask = pivot == i
                a, b = x[first + r], x[first + i]
                x[first + r], x[first + i] = select(mask, b, a), select(mask, a, b)

    return exchange
