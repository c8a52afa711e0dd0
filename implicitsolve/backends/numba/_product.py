# pyright: basic
"""Products of real matrices on processors with AVX-512: `kernels.product`.

OpenBLAS 0.3.31 takes its kernels for AVX2 on AMD's Zen 5: these loops took 0.5 of their time with k = 200 and 448, and
0.95 (float32) and 0.8 (float64) of the time of its kernels for AVX-512. Each entry is summed in the order of the inner
axis, so that a row of a product does not depend on the rows beside it.
"""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import llvmlite.binding as binding
import llvmlite.ir as ir
import numba
import numpy as np
from numba.core import cgutils, types

from implicitsolve.adapters import kernels
from implicitsolve.backends.numba._gates_loops import COMPILES, VECTOR
from implicitsolve.backends.numba._jit import _intrinsic, kernel, llvm, share, supports_real

ROWS, REGISTERS = 8, 3  # of a tile: its 24 sums, a row of y and an entry of x take 28 of the 32 registers
PANEL = 256  # rows that are multiplied by all columns before the next ones, and so read from memory once,
SMALL = 2**18  # bytes of y up to which this is done: 0.7 of the time of 20,000 x 100 x 100; for larger y's 1.06
SPEED = 20  # multiplications in the time of one operation of scalar code
HAS_AVX512 = bool(binding.get_host_cpu_features().get("avx512f"))


class Rows:
    """The rows of a matrix in code that is being built, by byte addresses."""

    def __init__(self, context, builder, kind, value):
        array = context.make_array(kind)(context, builder, value=value)
        self.builder, self.start = builder, builder.bitcast(array.data, ir.IntType(8).as_pointer())
        self.shape, self.strides = (cgutils.unpack_tuple(builder, part) for part in (array.shape, array.strides))

    def at(self, row, column, kind):
        """Pointer to a number, or to a vector that begins there, in a column of this distance from the first."""
        builder = self.builder
        return builder.bitcast(builder.gep(self.start, [builder.add(builder.mul(row, self.strides[0]), column)]), kind)


class Tiles:
    """The loops over tiles of ``out = x @ y``; the last one of a row or column may overlap the one before."""

    def __init__(self, builder, x, y, out, number):
        self.builder, self.x, self.y, self.out, self.number = builder, x, y, out, number
        self.bytes = 4 if isinstance(number, ir.FloatType) else 8
        self.vector = ir.VectorType(number, VECTOR // self.bytes)

    def all(self):
        """As many columns as possible three registers at a time, the others one by one."""
        builder, (rows, columns) = self.builder, self.out.shape
        wide, bytes_of_y = REGISTERS * self.vector.count, builder.mul(self.y.shape[0], self.y.strides[0])
        is_small = builder.icmp_signed("<=", bytes_of_y, rows.type(SMALL))
        panel = builder.select(is_small, rows.type(PANEL), rows)
        limit = builder.sub(columns, builder.srem(columns, columns.type(wide)))
        with cgutils.for_range_slice(builder, rows.type(0), rows, panel) as (first, _):
            end = self._within(builder.add(first, panel), rows)
            self._columns((first, end), columns.type(0), limit, REGISTERS)
            self._columns((first, end), limit, columns, 1)

    def _columns(self, rows, begin, end, registers):
        builder, (first, last) = self.builder, rows
        width = end.type(registers * self.vector.count)
        with cgutils.for_range_slice(builder, begin, end, width) as (column, _):
            column = self._within(column, builder.sub(self.out.shape[1], width))
            offset = builder.mul(column, column.type(self.bytes))
            with cgutils.for_range_slice(builder, first, last, end.type(ROWS)) as (row, _):
                self._tile(self._within(row, builder.sub(last, row.type(ROWS))), offset, registers)

    def _within(self, index, last):
        return self.builder.select(self.builder.icmp_signed(">", index, last), last, index)

    def _tile(self, first, offset, registers):
        builder, zero = self.builder, ir.Constant(self.vector, [0.0] * self.vector.count)
        rows = [builder.add(first, first.type(i)) for i in range(ROWS)]
        offsets = [builder.add(offset, offset.type(VECTOR * j)) for j in range(registers)]
        slots = [[cgutils.alloca_once(builder, self.vector) for _ in offsets] for _ in rows]
        for own in slots:
            for slot in own:
                builder.store(zero, slot)
        vectors, numbers = self.vector.as_pointer(), self.number.as_pointer()
        with cgutils.for_range(builder, self.x.shape[1]) as inner:
            of_y = [builder.load(self.y.at(inner.index, at, vectors), align=self.bytes) for at in offsets]
            column = builder.mul(inner.index, self.x.strides[1])
            for row, own in zip(rows, slots):
                entry = self._spread(builder.load(self.x.at(row, column, numbers), align=self.bytes))
                for slot, part in zip(own, of_y):
                    builder.store(llvm(builder, "fma", entry, part, builder.load(slot)), slot)
        for row, own in zip(rows, slots):
            for slot, at in zip(own, offsets):
                builder.store(builder.load(slot), self.out.at(row, at, vectors), align=self.bytes)

    def _spread(self, number):
        """A vector of one number."""
        blank, index = ir.Constant(self.vector, ir.Undefined), ir.IntType(32)
        first = self.builder.insert_element(blank, number, index(0))
        everywhere = ir.Constant(ir.VectorType(index, self.vector.count), [0] * self.vector.count)
        return self.builder.shuffle_vector(first, blank, everywhere)


@_intrinsic
def into(typing_context, x, y, out):
    """Write x y; `out` has at least 8 rows and a register's columns, and its rows and those of y are contiguous."""

    def generate(context, builder, signature, values):
        of_x, of_y, of_out = (Rows(context, builder, *pair) for pair in zip(signature.args, values))
        Tiles(builder, of_x, of_y, of_out, context.get_data_type(x.dtype)).all()
        return context.get_dummy_value()

    return types.void(x, y, out), generate


@kernel
def _multiply(x, y, out):
    into(x, y, out)


@functools.cache
def _compiled(char):
    matrix = types.Array(numba.from_dtype(np.dtype(char)), 2, "A")
    return _multiply.compile((matrix, matrix, matrix))


def product(x, y):
    """Implements `kernels.product`; what has fewer rows or columns than a tile is left to BLAS."""
    (n, k), m = x.shape, y.shape[1]
    if n < ROWS or m * x.itemsize < VECTOR or y.strides[1] != y.itemsize or x.dtype != y.dtype:
        return x @ y
    out, multiply = np.empty((n, m), x.dtype), _compiled(x.dtype.char)
    share(lambda part: multiply(x[part], y, out[part]), n, n * k * m / SPEED, most=min(threads(), n // ROWS))
    return out


@functools.cache
def threads():
    """As many as BLAS would take."""
    number = os.environ.get("OMP_NUM_THREADS", "")
    return int(number) if number.isdecimal() else math.inf


def by_rows(function, rows, multiplications, *arguments):
    """Implements `kernels.by_rows`."""

    def some(part):
        with np.errstate(all="ignore"):  # of this thread
            return function(*_cut(arguments, part))

    most = min(threads(), rows // ROWS)
    if most <= 1:
        return function(*arguments)
    parts = share(some, rows, multiplications / SPEED, most=most)
    if len(parts) == 1:
        return parts[0]
    is_tuple = isinstance(parts[0], tuple)
    return tuple(map(np.concatenate, zip(*parts))) if is_tuple else np.concatenate(parts)


def _cut(arguments: Any, part: slice) -> Any:
    if isinstance(arguments, tuple):
        return tuple(_cut(argument, part) for argument in arguments)
    return None if arguments is None else arguments[..., part, :]


if HAS_AVX512 and COMPILES:
    kernels.product.implement("numba", product, supports_real)
    kernels.by_rows.implement("numba", by_rows, supports_real)
