# pyright: basic
"""Arithmetic on numbers, or on vectors of them, that leaves LLVM instructions behind.

A function of `Number` objects runs once, while a kernel is compiled; what its operators emit is the body of the
kernel's loop. So exp and tanh are vector code: Numba without SVML calls the C library for one number at a time.
"""

from __future__ import annotations

import math

import llvmlite.ir as ir
from numba.core import cgutils


class Precision:
    """Constants of a floating-point format for exp.

    Attributes
    ----------
    bits, mantissa, bias : int
        Of a number, of its fraction, and what its exponent is stored with.
    low, high : float
        Arguments between which e^x is a normal number, with an exponent that rounding does not carry beyond it.
    log2_high, log2_low : float
        Their sum is log(2); the first has so few bits that its products with exponents are exact.
    polynomial : tuple of float
        P with e^r - 1 = r + r^2 P(r) for |r| <= log(2)/2, minimax in the relative error, 2e-17 and 1e-8.
    """

    def __init__(self, bits, mantissa, low, high, log2_high, log2_low, polynomial):
        self.bits, self.mantissa, self.bias = bits, mantissa, 2 ** (bits - mantissa - 2) - 1
        self.low, self.high = low, high
        self.log2_high, self.log2_low = log2_high, log2_low
        self.polynomial = polynomial


DOUBLE = Precision(
    64,
    52,
    -708.3,
    709.4,
    0.6931471803691238,
    1.9082149292705877e-10,
    (
        0.5000000000000006,
        0.16666666666666685,
        0.041666666666577847,
        0.008333333333315101,
        0.0013888888931309048,
        0.00019841269902038777,
        2.4801505501216795e-05,
        2.7557228753288138e-06,
        2.762597011548067e-07,
        2.5114243506005575e-08,
    ),
)
SINGLE = Precision(
    32,
    23,
    -87.3,
    88.3,
    0.693145751953125,
    1.4286068203094172e-06,
    (0.5, 0.1666654348373413, 0.04166628420352936, 0.008366488851606846, 0.0013946265680715442),
)


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
        """The same in each place of a vector like this one; numbers, or integers of type `element`."""
        if self.is_vector:
            return ir.Constant(ir.VectorType(element or self.type.element, self.type.count), [value] * self.type.count)
        return ir.Constant(element or self.type, value)

    def lift(self, other):
        """The value of another number, or of a constant."""
        return other.value if isinstance(other, Number) else self.constant(other)

    def _emit(self, instruction, x, y):
        return Number(self.builder, getattr(self.builder, instruction)(x, y))

    def __add__(self, other):
        return self._emit("fadd", self.value, self.lift(other))

    __radd__ = __add__

    def __mul__(self, other):
        return self._emit("fmul", self.value, self.lift(other))

    __rmul__ = __mul__

    def __sub__(self, other):
        return self._emit("fsub", self.value, self.lift(other))

    def __rsub__(self, other):
        return self._emit("fsub", self.lift(other), self.value)

    def __truediv__(self, other):
        return self._emit("fdiv", self.value, self.lift(other))

    def __rtruediv__(self, other):
        return self._emit("fdiv", self.lift(other), self.value)

    def __neg__(self):
        return Number(self.builder, self.builder.fneg(self.value))

    def __lt__(self, other):
        return self.builder.fcmp_ordered("<", self.value, self.lift(other))

    def __gt__(self, other):
        return self.builder.fcmp_ordered(">", self.value, self.lift(other))


def precision_of(element):
    """Of a type of numbers."""
    return SINGLE if isinstance(element, ir.FloatType) else DOUBLE


def one(like):
    """1 as a number like another."""
    return Number(like.builder, like.constant(1.0))


def where(condition, x, y):
    """x where the condition holds, else y; one of them may be a constant."""
    like = x if isinstance(x, Number) else y
    return Number(like.builder, like.builder.select(condition, like.lift(x), like.lift(y)))


def clamp(x, low, high):
    """x, or the nearest of the two; no number stays none."""
    x = where(x > high, high, x)
    return where(x < low, low, x)


def fma(a, b, c):
    """a b + c, rounded once where the processor can; b and c may be constants."""
    lanes = f"v{a.type.count}" if a.is_vector else ""
    name = f"llvm.fmuladd.{lanes}f{a.precision.bits}"
    function = cgutils.get_or_insert_function(a.builder.module, ir.FunctionType(a.type, [a.type] * 3), name)
    return Number(a.builder, a.builder.call(function, [a.value, a.lift(b), a.lift(c)]))


def exp(x):
    """e^x to 1.1 units in the last place; 0 where it is no normal number, and a finite one where x is too large."""
    low, high = x.precision.low, x.precision.high
    rest, power = _split(where(x > high, high, x))
    return where(x < low, 0.0, fma(power, rest, power))


def tanh(x):
    """To 2.6 units in the last place, also near 0: (e^2x - 1)/(e^2x + 1)."""
    limit = 0.45 * x.precision.mantissa  # the result rounds to 1 there
    rest, power = _split(clamp(x, -limit, limit) * 2.0)
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
