# pyright: basic
"""Arrays and comparisons for kernels in a few LLVM instructions each, whose number decides how long Numba compiles."""

from __future__ import annotations

import operator
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.core.typing import signature  # pyright: ignore[reportPrivateImportUsage]
from numba.extending import lower_builtin, make_attribute_wrapper, models, register_model, type_callable

from implicitsolve.backends.numba._jit import _intrinsic


class View(types.Type):
    """A C-contiguous array whose memory the caller of a kernel keeps: a pointer and a shape.

    Indices are integers, none of them negative; fewer than there are axes give a view of the rest. An entry takes ten
    LLVM instructions; that of an array takes some 60, and atomic reference counts, for which threads wait.
    """

    def __init__(self, dtype, ndim: int) -> None:
        self.dtype, self.ndim = dtype, ndim
        super().__init__(name=f"View({dtype}, {ndim})")


@register_model(View)
class _ViewModel(models.StructModel):
    def __init__(self, dmm, fe_type) -> None:
        shape = types.UniTuple(types.intp, fe_type.ndim)
        super().__init__(dmm, fe_type, [("data", types.CPointer(fe_type.dtype)), ("shape", shape)])


make_attribute_wrapper(View, "shape", "shape")
make_attribute_wrapper(View, "data", "data")


@_intrinsic
def view(typing_context, array):
    """A `View` of a C-contiguous and aligned array, which must live as long.

    Never view an array that the kernel itself made: it would be freed after its last use under its own name.
    """

    def generate(context, builder, signature, values):
        given = context.make_array(array)(context, builder, value=values[0])
        return new_view(context, builder, signature.return_type, given.data, given.shape)

    is_usable = array.layout == "C" and array.aligned
    return (View(array.dtype, array.ndim)(array), generate) if is_usable else None


@_intrinsic
def number(typing_context, view, value):
    """A number, of the type of a view's."""

    def generate(context, builder, signature, values):
        return context.cast(builder, values[1], value, view.dtype)

    return view.dtype(view, value), generate


def new_view(context, builder, kind: View, data, shape):
    empty = ir.Constant(context.get_value_type(kind), ir.Undefined)
    return builder.insert_value(builder.insert_value(empty, data, 0), shape, 1)


def _types_at(view, index):
    """The type of what stands at an index, and that of the index; None where `view` is none."""
    if not isinstance(view, View):
        return None
    kind: Any = types.UniTuple(types.intp, len(index)) if isinstance(index, types.BaseTuple) else types.intp
    rest = view.ndim - (len(index) if isinstance(index, types.BaseTuple) else 1)
    return (View(view.dtype, rest) if rest else view.dtype), kind


@type_callable(operator.getitem)
def _type_of_get(context):
    def typer(view, index):
        found = _types_at(view, index)
        return found and signature(found[0], view, found[1])

    return typer


@type_callable(operator.setitem)
def _type_of_set(context):
    def typer(view, index, value):
        found = _types_at(view, index)
        return found and signature(types.none, view, found[1], found[0])

    return typer


def _place(builder, view, kind: View, index, index_kind):
    """Pointer to what stands at an index."""
    indices = cgutils.unpack_tuple(builder, index) if isinstance(index_kind, types.BaseTuple) else [index]
    place = indices[0]
    for axis in range(1, kind.ndim):
        place = builder.mul(place, builder.extract_value(view, [1, axis]), flags=["nsw"])
        if axis < len(indices):
            place = builder.add(place, indices[axis], flags=["nsw"])
    return builder.gep(builder.extract_value(view, 0), [place], inbounds=True)


@lower_builtin(operator.getitem, View, types.Integer)
@lower_builtin(operator.getitem, View, types.BaseTuple)
def _get(context, builder, sig, args):
    (kind, index_kind), out = sig.args, sig.return_type
    place = _place(builder, args[0], kind, args[1], index_kind)
    if not isinstance(out, View):
        return context.unpack_value(builder, out, place)
    sizes = [builder.extract_value(args[0], [1, axis]) for axis in range(kind.ndim - out.ndim, kind.ndim)]
    return new_view(context, builder, out, place, cgutils.pack_array(builder, sizes))


@lower_builtin(operator.setitem, View, types.Integer, types.Any)
@lower_builtin(operator.setitem, View, types.BaseTuple, types.Any)
def _set(context, builder, sig, args) -> None:
    context.pack_value(builder, sig.args[2], args[2], _place(builder, args[0], sig.args[0], args[1], sig.args[1]))


def _choice(comparison: str):
    """The second of two real numbers if its comparison with the first holds, else the first; `max` compiles slowly."""

    @_intrinsic
    def chosen(typing_context, a, b):
        kind = typing_context.unify_types(types.unliteral(a), types.unliteral(b))
        is_float = isinstance(kind, types.Float)

        def generate(context, builder, signature, values):
            compare = builder.fcmp_ordered if is_float else builder.icmp_signed
            return builder.select(compare(comparison, values[1], values[0]), values[1], values[0])

        return kind(kind, kind), generate

    return chosen


larger, smaller = _choice(">"), _choice("<")
