# pyright: basic
"""Functions of one number, turned into loops over all entries of many matrices, in vector instructions.

A function of `Number` objects runs once, while a kernel is compiled; what its operators emit, LLVM instructions on
numbers or on vectors of them, is the body of the kernel's loop. So exp and tanh are vector code: Numba without SVML
calls the C library for one number at a time. LLVM vectorizes a loop automatically only if few checks prove that its
arrays do not overlap; these loops have up to twenty arrays. Each entry's arguments are read before its results are
written: an array may be both.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

import llvmlite.ir as ir
import numba
from numba.core import cgutils, config, types

from implicitsolve.backends.numba._jit import _intrinsic, kernel, llvm, supports_real


class Precision(NamedTuple):
    """Constants of a floating-point format for exp: bits of a number and of its fraction, and the exponent's bias.

    Between `low` and `high` e^x is a normal number, with an exponent that rounding does not carry beyond it. The sum of
    `log2_high` and `log2_low` is log(2); the first has so few bits that its products with exponents are exact. The
    polynomial is P with e^r - 1 = r + r^2 P(r) for |r| <= log(2)/2, minimax in the relative error, 2e-17 and 1e-8.
    """

    bits: int
    mantissa: int
    bias: int
    low: float
    high: float
    log2_high: float
    log2_low: float
    polynomial: tuple[float, ...]


POLYNOMIALS = (
    0.5000000000000006, 0.16666666666666685, 0.041666666666577847, 0.008333333333315101,
    0.0013888888931309048, 0.00019841269902038777, 2.4801505501216795e-05, 2.7557228753288138e-06,
    2.762597011548067e-07, 2.5114243506005575e-08,
), (0.5, 0.1666654348373413, 0.04166628420352936, 0.008366488851606846, 0.0013946265680715442)  # fmt: skip
DOUBLE = Precision(64, 52, 1023, -708.3, 709.4, 0.6931471803691238, 1.9082149292705877e-10, POLYNOMIALS[0])
SINGLE = Precision(32, 23, 127, -87.3, 88.3, 0.693145751953125, 1.4286068203094172e-06, POLYNOMIALS[1])


def _operation(instruction, is_reversed=False):
    """The operator of `Number` that emits an instruction on it and another number, or the reverse."""

    def apply(self, other):
        x, y = self.value, self.lift(other)
        return Number(self.builder, getattr(self.builder, instruction)(*((y, x) if is_reversed else (x, y))))

    return apply


class Number:
    """A floating-point number, or a vector of them, in code that is being built."""

    def __init__(self, builder, value):
        self.builder, self.value = builder, value

    @property
    def type(self):
        return self.value.type

    @property
    def is_vector(self):
        return isinstance(self.type, ir.VectorType)

    @property
    def precision(self):
        return precision_of(self.type.element if self.is_vector else self.type)

    def constant(self, value, element=None):
        """A constant in each place of a vector like this one; numbers, or integers of type `element`."""
        if self.is_vector:
            return ir.Constant(ir.VectorType(element or self.type.element, self.type.count), [value] * self.type.count)
        return ir.Constant(element or self.type, value)

    def lift(self, other):
        """The value of another number, or of a constant."""
        return other.value if isinstance(other, Number) else self.constant(other)

    __add__ = __radd__ = _operation("fadd")
    __mul__ = __rmul__ = _operation("fmul")
    __sub__, __rsub__ = _operation("fsub"), _operation("fsub", is_reversed=True)
    __truediv__, __rtruediv__ = _operation("fdiv"), _operation("fdiv", is_reversed=True)

    def __neg__(self):
        return Number(self.builder, self.builder.fneg(self.value))

    def __lt__(self, other):
        return self.builder.fcmp_ordered("<", self.value, self.lift(other))

    def __gt__(self, other):
        return self.builder.fcmp_ordered(">", self.value, self.lift(other))


def precision_of(element):
    return SINGLE if isinstance(element, ir.FloatType) else DOUBLE


def one(like):
    """The number 1, as scalar or vector like `like`."""
    return Number(like.builder, like.constant(1.0))


def where(condition, x, y):
    """x where the condition holds, else y; one of them may be a constant."""
    like = x if isinstance(x, Number) else y
    return Number(like.builder, like.builder.select(condition, like.lift(x), like.lift(y)))


def fma(a, b, c):
    """a b + c, rounded once where the processor can; b and c may be constants."""
    return Number(a.builder, llvm(a.builder, "fmuladd", a.value, a.lift(b), a.lift(c)))


def exp(x):
    """e^x to 1.1 units in the last place; 0 where it is not a normal number, and finite where x is too large."""
    low, high = x.precision.low, x.precision.high
    rest, power = _split(where(x > high, high, x))
    return where(x < low, 0.0, fma(power, rest, power))


def tanh(x):
    """To 2.6 units in the last place, also near 0: (e^2x - 1)/(e^2x + 1)."""
    limit = 0.45 * x.precision.mantissa  # the result rounds to 1 there
    x = where(x > limit, limit, x)  # NaN stays NaN
    rest, power = _split(where(x < -limit, -limit, x) * 2.0)
    y = fma(power, rest, power - 1.0)
    return y / (y + 2.0)


def gate(y):
    """1/(1 + e^y)."""
    return 1.0 / (exp(y) + 1.0)


def _split(x):
    """Return e^r - 1 and 2^n, where x = n log(2) + r with n whole and |r| <= log(2)/2."""
    p, builder = x.precision, x.builder
    shift = 1.5 * 2.0**p.mantissa  # a number to which it was added has the nearest integer in its last bits
    shifted = fma(x, 1.0 / math.log(2.0), shift)
    n = shifted - shift
    r = fma(n, -p.log2_low, fma(n, -p.log2_high, x))
    integer = ir.IntType(p.bits)
    bits = builder.bitcast(shifted.value, x.constant(0, integer).type)
    bits = builder.shl(builder.add(bits, x.constant(p.bias, integer)), x.constant(p.mantissa, integer))
    return fma(r * r, _polynomial(p.polynomial, r), r), Number(builder, builder.bitcast(bits, x.type))


def _polynomial(coefficients, r):
    """Sum of c_i r^i in pairs, pairs of pairs and so on, with shorter dependence chains than Horner's rule."""
    terms = list(coefficients)
    while len(terms) > 1:
        pairs = [fma(r, b, a) for a, b in zip(terms[::2], terms[1::2])]
        terms = pairs + terms[2 * len(pairs) :]
        r = r * r
    return terms[0]


COMPILES = not getattr(config, "DISABLE_JIT", False)  # without its compiler there is no code to build
VECTOR = 64  # bytes; where registers are shorter, LLVM takes several. With half the length exp took 1.4 times as long
BODIES: dict[str, Any] = {}  # functions of one number, by name


class Loop:
    """``loop(results, arguments)`` writes the values of a body at the entries of the arguments.

    Both tuples hold matrices (n, k), stacks of matrices (any, n, k), or tuples of matrices, all float64 or all
    float32; only contiguous rows are fast. The body gets a `Number` for a matrix, something to index for a stack, and a
    list for a tuple; it returns as many for the results, or more, with lists for stacks. Compiled when it is first
    called; on disk the code is found by `name`.
    """

    def __init__(self, body, name):
        self.name = name
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
        builder.function.attributes.add("optsize")  # or LLVM unrolls and vectorizes the loop of what is left, too
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
        self.row = self.builder.gep(self.start, [self.builder.mul(row, self.strides[-2])])

    def stand(self, column, kind):
        """Move to a place in the matrix; `kind` is the type of a number, or of a vector of those that follow."""
        step = self.strides[-1] if kind is self.number else column.type(self.bytes)
        self.offset, self.kind = self.builder.mul(column, step), kind

    def _pointer(self, i):
        builder, offset = self.builder, self.offset
        if self.is_stack:
            offset = builder.add(builder.mul(self.strides[0], offset.type(i)), offset)
        return builder.bitcast(builder.gep(self.row, [offset]), self.kind.as_pointer())

    def __getitem__(self, place):
        """The entry in matrix i of a stack, indexed by ``[i, ...]`` as an array is."""
        i, _ = place
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
    return operand if operand.is_stack else operand[0, ...]


def _written(operand, numbers):
    """What a body returned, as (matrix, index, number); None leaves an entry as it is."""
    if isinstance(operand, list):
        return [entry for part, number in zip(operand, numbers) for entry in _written(part, number)]
    numbers = numbers if operand.is_stack else [numbers]
    return [(operand, i, number) for i, number in enumerate(numbers) if number is not None]


def _over_rows(builder, body, results, arguments):
    """Loop over the rows; those of matrices without gaps are one long row."""
    matrices = _matrices(results) + _matrices(arguments)
    rows, columns = matrices[0].shape[-2:]
    size = columns.type(matrices[0].bytes)
    is_packed, is_dense = (
        reduce(builder.and_, [builder.icmp_signed("==", matrix.strides[axis], step) for matrix in matrices])
        for axis, step in ((-1, size), (-2, builder.mul(columns, size)))
    )
    is_joined = builder.and_(is_packed, is_dense)
    entries = builder.select(is_joined, builder.mul(rows, columns), columns)
    in_vectors = builder.select(is_packed, entries, entries.type(0))
    with cgutils.for_range(builder, builder.select(is_joined, rows.type(1), rows)) as row:
        for matrix in matrices:
            matrix.begin(row.index)
        _over_columns(builder, body, results, arguments, entries, in_vectors)


def _over_columns(builder, body, results, arguments, columns, in_vectors):
    """Traverse a row in vectors, if its numbers are adjacent and fill one, else by numbers.

    The last vector ends with the row. It may overlap the one before, whose results are therefore written after its
    arguments have been read. So the code of the body is there twice, and not for each length of a remainder.
    """
    number, width = _matrices(results)[0].number, VECTOR // _matrices(results)[0].bytes
    kind, zero, count = ir.VectorType(number, width), columns.type(0), columns.type(width)
    last = builder.sub(in_vectors, count)
    is_long = builder.icmp_signed(">=", last, zero)
    with builder.if_then(is_long):
        with cgutils.for_range_slice(builder, zero, in_vectors, count) as (column, _):
            is_last = builder.icmp_signed(">", column, last)
            _stand(arguments, builder.select(is_last, last, column), kind)
            found = _written(results, body(*_read(arguments)))
            waiting = [(matrix, i, cgutils.alloca_once(builder, kind)) for matrix, i, _ in found]
            with builder.if_then(builder.icmp_signed("!=", column, zero)):
                _stand(results, builder.sub(column, count), kind)
                for matrix, i, slot in waiting:
                    matrix[i] = Number(builder, builder.load(slot))
            for (_, _, value), (_, _, slot) in zip(found, waiting):
                builder.store(value.value, slot)
        _stand(results, last, kind)
        for matrix, i, slot in waiting:
            matrix[i] = Number(builder, builder.load(slot))
    done = builder.select(is_long, columns, zero)
    with cgutils.for_range_slice(builder, done, columns, columns.type(1)) as (column, _):
        _stand([results, arguments], column, number)
        for matrix, i, value in _written(results, body(*_read(arguments))):
            matrix[i] = value


def _stand(operand, column, kind):
    for matrix in _matrices(operand):
        matrix.stand(column, kind)


def supports(like, **sizes):
    return COMPILES and supports_real(like)
