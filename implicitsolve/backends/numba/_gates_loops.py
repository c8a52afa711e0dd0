# pyright: basic
"""Functions of one number, turned into loops over all entries of many matrices, in vector instructions.

LLVM vectorizes a loop automatically only if few checks prove that its arrays do not overlap; these loops have up to
twenty arrays. Each entry's arguments are read before its results are written: an array may be both.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import llvmlite.ir as ir
import numba
from numba.core import cgutils, config, types

from implicitsolve.backends.numba._gates_numbers import Number, precision_of
from implicitsolve.backends.numba._jit import _intrinsic, kernel, supports_real

COMPILES = not getattr(config, "DISABLE_JIT", False)  # without its compiler there is no code to build
VECTOR = 64  # bytes; where registers are shorter, LLVM takes several. Of half the length: exp took 1.4 times as long
BODIES: dict[str, Any] = {}  # functions of one number, by name


def fused(body):
    """Decorate a function of one number's worth of arguments: it becomes a `Loop`."""
    return Loop(body)


class Loop:
    """``loop(results, arguments)`` writes the values of `body` at the entries of the arguments to the results.

    In both tuples stand matrices (n, k), stacks of matrices (any, n, k), or tuples of matrices, all float64 or all
    float32; only contiguous rows are fast. The body gets a `Number` for a matrix, something to index for a stack, and a
    list for a tuple; it returns a tuple of the same for the results, with lists for stacks. If there are fewer results,
    the rest of what it returns is not computed. Compiled when it is first called.
    """

    def __init__(self, body):
        self.name = f"{body.__module__}.{body.__name__}"
        self.compiled = {}
        BODIES[self.name] = body

    def __call__(self, results, arguments):
        """Run the loop; types and lengths are those of the first argument."""
        first, length = arguments[0], 0
        if type(first) is tuple:
            first, length = first[0], len(first)
        key = first.dtype.char, first.ndim, length, len(results)
        if key not in self.compiled:
            self.compiled[key] = entry(self.name).compile((_type(results), _type(arguments)))
        self.compiled[key](results, arguments)


def entry(name):
    """A function that Numba compiles and keeps on disk, where `name` is part of the key."""

    @kernel
    def run(results, arguments):
        loop(name, results, arguments)

    return run


def _type(arrays):
    """Numba's type, with any layout: code is compiled only once per precision."""
    if isinstance(arrays, tuple):
        return types.Tuple([_type(array) for array in arrays])
    return types.Array(numba.from_dtype(arrays.dtype), arrays.ndim, "A")


@_intrinsic
def loop(typing_context, name, results, arguments):
    """The loop of a body, which is known by its name."""
    if not isinstance(name, types.StringLiteral):
        return None

    def generate(context, builder, signature, values):
        results, arguments = (_operand(context, builder, *pair) for pair in zip(signature.args[1:], values[1:]))
        _over_rows(builder, BODIES[name.literal_value], results, arguments)
        return context.get_dummy_value()

    return types.void(name, results, arguments), generate


class Matrix:
    """A matrix, or a stack of them: its entries at the current place of the loop."""

    def __init__(self, context, builder, kind, value):
        array = context.make_array(kind)(context, builder, value=value)
        self.builder, self.start = builder, builder.bitcast(array.data, ir.IntType(8).as_pointer())
        self.shape, self.strides = (cgutils.unpack_tuple(builder, part) for part in (array.shape, array.strides))
        self.number = array.data.type.pointee
        self.bytes = precision_of(self.number).bits // 8
        self.is_stack = kind.ndim > 2

    def begin(self, row):
        """Go to a row."""
        self.row = self.builder.gep(self.start, [self.builder.mul(row, self.strides[-2])])

    def stand(self, column, kind):
        """Go to a place in it; `kind` is the type of a number, or of a vector of those that follow."""
        step = self.strides[-1] if kind is self.number else column.type(self.bytes)
        self.offset, self.kind = self.builder.mul(column, step), kind

    def _pointer(self, i):
        builder, offset = self.builder, self.offset
        if self.is_stack:
            offset = builder.add(builder.mul(self.strides[0], offset.type(i)), offset)
        return builder.bitcast(builder.gep(self.row, [offset]), self.kind.as_pointer())

    def __getitem__(self, i):
        """The entry in matrix i of a stack."""
        return Number(self.builder, self.builder.load(self._pointer(i), align=self.bytes))

    def __setitem__(self, i, number):
        self.builder.store(number.value, self._pointer(i), align=self.bytes)


def _operand(context, builder, kind, value):
    """Matrices in nested lists, as the arrays are in nested tuples."""
    if isinstance(kind, types.Array):
        return Matrix(context, builder, kind, value)
    return [_operand(context, builder, *pair) for pair in zip(kind, cgutils.unpack_tuple(builder, value))]


def _matrices(operand):
    return [matrix for part in operand for matrix in _matrices(part)] if isinstance(operand, list) else [operand]


def _read(operand):
    """What is passed to a body for an operand."""
    if isinstance(operand, list):
        return [_read(part) for part in operand]
    return operand if operand.is_stack else operand[0]


def _write(operand, numbers):
    """Store what a body returned for an operand; None leaves an entry as it is."""
    if isinstance(operand, list):
        for part, number in zip(operand, numbers):
            _write(part, number)
        return
    for i, number in enumerate(numbers if operand.is_stack else [numbers]):
        if number is not None:
            operand[i] = number


def _over_rows(builder, body, results, arguments):
    """Loop over the rows; those of matrices without gaps are one long row."""
    matrices = _matrices(results) + _matrices(arguments)
    rows, columns = matrices[0].shape[-2:]
    size = columns.type(matrices[0].bytes)
    is_packed = _agree(builder, [matrix.strides[-1] for matrix in matrices], size)
    is_dense = _agree(builder, [matrix.strides[-2] for matrix in matrices], builder.mul(columns, size))
    is_joined = builder.and_(is_packed, is_dense)
    entries = builder.select(is_joined, builder.mul(rows, columns), columns)
    in_vectors = builder.select(is_packed, entries, entries.type(0))
    with cgutils.for_range(builder, builder.select(is_joined, rows.type(1), rows)) as row:
        for matrix in matrices:
            matrix.begin(row.index)
        _over_columns(builder, body, results, arguments, matrices, entries, in_vectors)


def _over_columns(builder, body, results, arguments, matrices, columns, in_vectors):
    """Traverse a row in vectors, as far as its numbers are adjacent."""
    number, count = matrices[0].number, VECTOR // matrices[0].bytes

    def step(column, count):
        for matrix in matrices:
            matrix.stand(column, ir.VectorType(number, count) if count > 1 else number)
        _write(results, body(*_read(arguments)))

    done = builder.and_(in_vectors, columns.type(-count))
    with cgutils.for_range_slice(builder, columns.type(0), done, columns.type(count)) as (column, _):
        step(column, count)
    while count > 2:  # what is left, in one vector of half the length, one of a quarter, and at last by numbers
        count //= 2
        some = builder.and_(in_vectors, columns.type(count))
        with builder.if_then(builder.icmp_signed("!=", some, columns.type(0))):
            step(done, count)
        done = builder.add(done, some)
    with cgutils.for_range_slice(builder, done, columns, columns.type(1)) as (column, _):
        step(column, 1)


def _agree(builder, values, value):
    """Whether all values are this one."""
    return reduce(builder.and_, [builder.icmp_signed("==", one, value) for one in values])


def supports(like, **sizes):
    """Which arrays the loops take."""
    return COMPILES and supports_real(like)
