"""What the core needs of an array library: norms without overflow, transfers, rows in and out."""

import math

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from implicitsolve._arrays.host import from_host, gather, scatter, to_host
from implicitsolve._arrays.namespace import (
    array_namespace,
    as_inexact,
    real_dtype,
)
from implicitsolve.kernels._norms import norm2, norm_max

FLOATS = st.floats(-1, 1, width=32).filter(lambda v: v == 0 or abs(v) > 1e-3)
rows = hnp.arrays(np.float64, st.tuples(st.integers(0, 3), st.integers(0, 6)), elements=FLOATS)


def exact_norm(row: np.ndarray) -> float:
    """Norm with one rounding: of numbers from 1e-3 to 1 times a power of two, which is taken out first."""
    return math.sqrt(math.fsum(float(v) ** 2 for v in row))


@given(rows=rows, power=st.integers(-1000, 1000), is_complex=st.booleans())
def test_norms_neither_overflow_nor_underflow(rows, power, is_complex):
    x = np.ldexp(rows, power)
    given = x * (1 + 1j) if is_complex else x
    factor = math.sqrt(2) if is_complex else 1.0
    expected = np.asarray([np.ldexp(exact_norm(row) * factor, power) for row in rows])
    np.testing.assert_allclose(norm2(given), expected, rtol=1e-14)
    largest = np.abs(rows).max(axis=1, initial=0.0) * factor
    np.testing.assert_allclose(norm_max(given), np.ldexp(largest, power), rtol=1e-15)


@given(rows=rows, power=st.integers(-900, 900))
def test_powers_of_two_scale_norms_exactly(rows, power):
    np.testing.assert_array_equal(norm2(np.ldexp(rows, power)), np.ldexp(norm2(rows), power))


def test_norms_of_rows_that_are_not_finite(xp):
    x = xp.asarray([[1.0, math.nan], [math.inf, 1.0], [-math.inf, math.nan], [3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_array_equal(norm2(x), [math.nan, math.inf, math.nan, 5.0, 0.0])
    np.testing.assert_array_equal(norm_max(x), [math.nan, math.inf, math.nan, 4.0, 0.0])


def test_numbers_go_to_the_host_and_back(xp, any_dtype):
    like = xp.zeros((1, 1), dtype=any_dtype)
    host = to_host(like)
    assert isinstance(host, np.ndarray)
    real = from_host(np.asarray([1.5, 2.5]), like)
    assert real.dtype == real_dtype(xp, any_dtype)
    np.testing.assert_array_equal(to_host(real), [1.5, 2.5])
    counts = from_host(np.asarray([3, 1]), like)
    assert xp.isdtype(counts.dtype, "integral")
    mask = from_host(np.asarray([True, False]), like)
    assert xp.isdtype(mask.dtype, "bool")
    if xp.isdtype(any_dtype, "complex floating"):
        assert from_host(np.asarray([1j]), like).dtype == any_dtype
    (real * like)  # of the same library


def test_rows_are_taken_and_put_back(xp, rng):
    values = rng.standard_normal((5, 3))
    x, indices = xp.asarray(values), np.asarray([4, 0])
    some = gather(x, indices)
    np.testing.assert_array_equal(to_host(some), values[[4, 0]])
    whole = xp.zeros((5, 3))
    scatter(whole, indices, some)
    expected = np.zeros((5, 3))
    expected[[4, 0]] = values[[4, 0]]
    np.testing.assert_array_equal(to_host(whole), expected)
    some[0, 0] = 7.0  # a copy
    assert float(x[4, 0]) == values[4, 0]
    nothing = np.asarray([], dtype=int)
    scatter(whole, nothing, gather(x, nothing))
    np.testing.assert_array_equal(to_host(whole), expected)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        ([1, 2], np.float64),
        (3, np.float64),
        ((1.5, 2j), np.complex128),
        (np.asarray([True]), np.float64),
        (np.asarray([1], np.int8), np.float64),
        (np.asarray([1], np.uint64), np.float64),
        (np.asarray([1], np.float16), np.float32),
        (np.asarray([1], np.float32), np.float32),
        (np.asarray([1], np.complex64), np.complex64),
    ],
    ids=["list", "number", "tuple", "bool", "int8", "uint64", "float16", "float32", "complex64"],
)
def test_numbers_become_inexact(x, dtype):
    converted = as_inexact(x, "x")
    assert converted.dtype == dtype
    np.testing.assert_array_equal(converted, np.asarray(x))


def test_arrays_keep_their_library_and_floats_are_not_copied(xp):
    x = xp.asarray([1.0, 2.0])
    assert as_inexact(x, "x") is x
    whole = as_inexact(xp.asarray([1, 2]), "x")
    assert whole.dtype == xp.float64
    assert type(whole) is type(x)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ("text", TypeError, ["`start`", "real or complex", "<U4"]),
        (None, TypeError, ["`start`", "real or complex", "NoneType"]),
        (np.asarray([1, None]), TypeError, ["`start`", "objects of NoneType and int"]),
        (np.asarray(["2020-01-01"], "datetime64[D]"), TypeError, ["`start`", "datetime64"]),
        ([[1.0], [1.0, 2.0]], ValueError, ["`start`", "one shape"]),
        (np.ma.masked_array([1.0], [True]), TypeError, ["`start`", "masked"]),
    ],
    ids=["str", "None", "objects", "dates", "ragged", "masked"],
)
def test_what_is_not_numbers_is_refused_by_name(x, error, words):
    with pytest.raises(error) as caught:
        as_inexact(x, "start")
    for word in words:
        assert word in str(caught.value)


def test_two_libraries_have_no_common_one():
    assert array_namespace(array_api_strict.zeros(1)) is array_api_strict
    with pytest.raises(TypeError):
        array_namespace(np.zeros(1), array_api_strict.zeros(1))
