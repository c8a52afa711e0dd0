"""Compiled products: agreement with NumPy for any sizes and layouts, and rows shared out over threads."""

from __future__ import annotations

import math
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from numba.core import config

from implicitsolve.adapters import gru_parameters, implicit_gru
from implicitsolve.backends.numba import _jit, _product
from implicitsolve.backends.numba._product import product

pytestmark = pytest.mark.skipif(not _product.HAS_AVX512, reason="needs AVX-512")
LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: np.asfortranarray(x),
    "view": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
}


@settings(max_examples=30)
@given(
    sizes=st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 120)),
    dtype=st.sampled_from(["float32", "float64"]),
    layouts=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS))),
)
def test_products_agree_with_numpy_for_any_sizes_and_layouts(sizes, dtype, layouts):
    rows, inner, columns = sizes
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (rows, inner)).astype(dtype), rng.uniform(-1, 1, (inner, columns)).astype(dtype)
    found = product(LAYOUTS[layouts[0]](x), LAYOUTS[layouts[1]](y))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, x @ y, rtol=0, atol=inner * np.finfo(dtype).eps)


@pytest.mark.parametrize("rows", [30, 2 * _product.PANEL, 2 * _product.PANEL + 3])
@pytest.mark.parametrize("inner", [25, _product.SMALL // 8 // 40 + 1])
def test_a_row_does_not_depend_on_the_rows_beside_it(rows, inner):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((rows, inner)), rng.standard_normal((inner, 40))
    found = product(x, y)
    np.testing.assert_allclose(found, x @ y, atol=1e-12 * inner)
    assert (found[3:20] == product(x[3:20], y)).all()


def test_nan_and_infinity_stay_in_their_row_as_in_numpy():
    x, y = np.ones((9, 4)), np.ones((4, 33))
    x[2, 1], x[5, 3] = np.nan, np.inf
    with np.errstate(invalid="ignore"):  # some BLAS kernels add up to inf - inf in padding
        expected = x @ y
    np.testing.assert_array_equal(product(x, y), expected)


@pytest.fixture
def two_threads(monkeypatch):
    """Share out everything."""
    monkeypatch.setattr(config, "NUMBA_NUM_THREADS", 2)
    monkeypatch.setattr(_jit, "LEAST", 0)
    monkeypatch.setattr(_product, "threads", lambda: math.inf)


def layer():
    rng = np.random.default_rng(0)
    problem = implicit_gru(gru_parameters(3, 32, rng=rng), rng.standard_normal((4, 9, 3)), lengths=[9, 5, 7, 9])
    H, v = rng.uniform(-1, 1, (2, 4, 9, 32))
    F, J = problem.linearize(H)
    return [problem.residual(H), F, J.matvec(v), J.rmatvec(v)]


def test_a_layer_s_products_do_not_depend_on_the_number_of_threads(request):
    alone = layer()
    request.getfixturevalue("two_threads")
    for found, expected in zip(layer(), alone):
        np.testing.assert_array_equal(found, expected)


def test_threads_hide_warnings_as_the_calling_thread_does(two_threads):
    states = np.full((32, 4), 1e300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = _product.by_rows(lambda x: (x * x,), 32, 1.0, states)
    assert np.isinf(found).all()


def test_slices_that_share_again_stay_on_their_thread(two_threads):
    found = _jit.share(lambda part: _jit.share(lambda inner: inner, 8, math.inf), 2, math.inf)
    assert found == [[slice(0, 8)], [slice(0, 8)]]


@pytest.mark.parametrize("pieces", [1, 4])
def test_the_error_of_a_later_slice_was_raised(two_threads, pieces):
    later_failed = threading.Event()

    def fail(part):
        if part.start == 0:
            later_failed.wait(1.0)
        else:
            later_failed.set()
        raise ValueError(f"slice {part.start}")

    with pytest.raises(ValueError, match="slice 0"):
        _jit.share(fail, 8, math.inf, pieces)


@pytest.mark.parametrize(("setting", "most"), [("1", 1), ("4", 4), ("", math.inf), ("4,2", math.inf)])
def test_products_take_no_more_threads_than_blas(monkeypatch, setting, most):
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert _product.threads.__wrapped__() == most
