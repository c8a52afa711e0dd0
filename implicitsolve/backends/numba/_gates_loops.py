# pyright: basic
"""Functions of one number, turned into loops over all entries of many matrices, in vector instructions.

LLVM vectorizes a loop automatically only if few checks prove that its arrays do not overlap; these loops have up to
twenty arrays. Each entry's arguments are read before its results are written: an array may be both.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache, reduce
from typing import Any

import llvmlite.ir as ir
import numba
import numpy as np
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

    Or all matrices have two axes of rows, (B, T, k). Then a tuple of arguments may end in a row of zeros (k,) and
    integers, one for each of its matrices: at [b, t] the body gets row [b, t + integer], and zeros beyond the ends.
    """

    def __init__(self, body):
        self.name = f"{body.__module__}.{body.__name__}"
        self.compiled = {}
        BODIES[self.name] = body

    def __call__(self, results, arguments):
        """Run the loop; types and lengths are those of the first argument."""
        first, length, axes = arguments[0], 0, 0
        if type(first) is tuple:
            first, length, axes = first[0], len(first), first[-1].ndim
        key = first.dtype.char, first.ndim, length, axes, len(results)
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
        axes = min(ndim for ndim in _dimensions(signature.args[1:]) if ndim > 1)
        results, arguments = (_operand(context, builder, axes, *pair) for pair in zip(signature.args[1:], values[1:]))
        _over_rows(builder, BODIES[name.literal_value], results, arguments, axes - 1)
        return context.get_dummy_value()

    return types.void(name, results, arguments), generate


def _dimensions(kinds):
    """Of all arrays; the least is that of a matrix, since not all are stacks."""
    return [n for kind in kinds for n in ([kind.ndim] if isinstance(kind, types.Array) else _dimensions(kind))]


class Matrix:
    """A matrix, or a stack of them: its entries at the current place of the loop."""

    def __init__(self, context, builder, axes, kind, value):
        array = context.make_array(kind)(context, builder, value=value)
        self.builder, self.start = builder, builder.bitcast(array.data, ir.IntType(8).as_pointer())
        self.shape, self.strides = (cgutils.unpack_tuple(builder, part) for part in (array.shape, array.strides))
        self.number = array.data.type.pointee
        self.bytes = precision_of(self.number).bits // 8
        self.is_stack = kind.ndim > axes

    def begin(self, *row):
        """Go to a row."""
        self.row = self._row(row)

    def _row(self, row):
        builder, strides = self.builder, self.strides[-1 - len(row) : -1]
        return builder.gep(self.start, [reduce(builder.add, map(builder.mul, row, strides))])

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


class Neighbour(Matrix):
    """A matrix (B, T, k) whose row at a distance is passed to the body, or zeros where there is none."""

    def __init__(self, *arguments, zeros, distance):
        super().__init__(*arguments)
        self.zeros, self.distance = self.builder.bitcast(zeros, self.start.type), distance

    def begin(self, b, t):
        builder, t = self.builder, self.builder.add(t, self.distance)
        is_inside = builder.icmp_unsigned("<", t, self.shape[-2])  # a negative number is a large one
        self.row = builder.select(is_inside, self._row((b, t)), self.zeros)


def _operand(context, builder, axes, kind, value):
    """Matrices in nested lists, as the arrays are in nested tuples."""
    if isinstance(kind, types.Array):
        return Matrix(context, builder, axes, kind, value)
    values = cgutils.unpack_tuple(builder, value)
    if isinstance(kind[-1], types.Array) and kind[-1].ndim == 1:
        return _neighbours(context, builder, axes, list(kind), values)
    return [_operand(context, builder, axes, *pair) for pair in zip(kind, values)]


def _neighbours(context, builder, axes, kinds, values):
    zeros, distances = (context.make_array(kinds[i])(context, builder, value=values[i]) for i in (-2, -1))
    found = []
    for j, pair in enumerate(zip(kinds[:-2], values[:-2])):
        distance = builder.load(builder.gep(distances.data, [ir.IntType(64)(j)]))
        found.append(Neighbour(context, builder, axes, *pair, zeros=zeros.data, distance=distance))
    return found


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


def _over_rows(builder, body, results, arguments, axes):
    """Loop over the rows; those between which no matrix has gaps, and whose neighbours all exist, are one long row."""
    matrices = _matrices(results) + _matrices(arguments)
    *outer, rows, columns = matrices[0].shape[-1 - axes :]
    one, size = rows.type(1), columns.type(matrices[0].bytes)
    is_packed = _agree(builder, [matrix.strides[-1] for matrix in matrices], size)
    is_dense = _agree(builder, [matrix.strides[-2] for matrix in matrices], builder.mul(columns, size))
    low, high = _inside(builder, matrices, rows)
    is_joined = builder.and_(builder.and_(is_packed, is_dense), builder.icmp_signed("<", low, high))
    low = builder.select(is_joined, low, rows.type(0))
    more = builder.select(is_joined, builder.sub(builder.sub(high, low), one), rows.type(0))  # rows joined to one
    with ExitStack() as loops:
        where = [loops.enter_context(cgutils.for_range(builder, count)).index for count in outer]
        step = loops.enter_context(cgutils.for_range(builder, builder.sub(rows, more))).index
        is_behind, is_long = (builder.icmp_signed(relation, step, low) for relation in (">", "=="))
        row = builder.select(is_behind, builder.add(step, more), step)
        entries = builder.mul(columns, builder.select(is_long, builder.add(more, one), one))
        for matrix in matrices:
            matrix.begin(*where, row)
        in_vectors = builder.select(is_packed, entries, entries.type(0))
        _over_columns(builder, body, results, arguments, matrices, entries, in_vectors)


def _inside(builder, matrices, rows):
    """The first row whose neighbours all exist, and the one after the last."""

    def extreme(relation, x, y):
        return builder.select(builder.icmp_signed(relation, x, y), x, y)

    low, high = rows.type(0), rows
    for matrix in matrices:
        if isinstance(matrix, Neighbour):
            low = extreme(">", low, builder.neg(matrix.distance))
            high = extreme("<", high, builder.sub(matrix.shape[-2], matrix.distance))
    return low, high


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


def near(parts, distances):
    """Matrices as arguments of a `Loop`: those of neighbours, where there are distances."""
    if distances is None:
        return tuple(parts)
    k, char = parts[0].shape[-1], parts[0].dtype.char
    return (*parts, _row_of_zeros(k, char), np.asarray(distances))


def of_neighbours(products, distances, shape):
    """A matrix for results, and the products as arguments.

    One of the products, if the loop leaves each of its rows behind before it writes there.
    """
    for product, distance in zip(products, distances or [0]):
        if distance >= 0 and product.shape == tuple(shape):
            return product, near(products, distances)
    return np.empty(shape, products[0].dtype), near(products, distances)


@cache
def _row_of_zeros(k, char):
    return np.zeros(k, char)
