"""The scalar tridiagonal inverse against dense matrices, entry of a block by entry."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.precondition._parts import tridiagonal_inverse
from tests.helpers.compare import host

SHAPES = [(1, 1, 1), (3, 1, 2), (2, 2, 3), (3, 7, 4), (5, 2), (1, 3), (2, 0, 3), (0, 2)]


def bands(rng, shape, dominance=2.5):
    """Three bands of diagonally dominant matrices; what lies beyond the ends is not zero, and must not matter."""
    lower, upper = rng.uniform(-1, 1, (2, *shape))
    main = rng.choice([-1.0, 1.0], shape) * rng.uniform(dominance, 2 * dominance, shape)
    return lower, main, upper


def dense(lower, main, upper, b, adjoint=False):
    """Solve with each of the matrices (T, T) by NumPy."""
    *batch, _, k = main.shape
    x = np.empty_like(b)
    for index in np.ndindex(*batch, k):
        at = (*index[:-1], slice(None), index[-1])
        A = np.diag(main[at]) + np.diag(lower[at][1:], -1) + np.diag(upper[at][:-1], 1)
        x[at] = np.linalg.solve(A.T if adjoint else A, b[at])
    return x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_inverse_of_dominant_matrices(shape, xp, dtype, rng):
    parts, b = bands(rng, shape), rng.standard_normal(shape)
    inverse = tridiagonal_inverse(*(xp.asarray(part, dtype=dtype) for part in parts))
    assert inverse.batch_shape == shape[:-2]
    assert inverse.in_shape == inverse.out_shape == shape[-2:]
    assert inverse.dtype == dtype
    tolerance = 64 * float(xp.finfo(dtype).eps)
    given = xp.asarray(b, dtype=dtype)
    for product, adjoint in ((inverse.matvec, False), (inverse.rmatvec, True)):
        x = product(given)
        assert x.dtype == dtype
        np.testing.assert_allclose(host(x), dense(*parts, b, adjoint), rtol=0, atol=tolerance)
    np.testing.assert_array_equal(host(given), host(xp.asarray(b, dtype=dtype)))  # b is the caller's


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.1, 1.0, 3.0, 100.0]),
    st.sampled_from([0.0, 0.05, 1.0, 100.0]),
)
def test_the_adjoint_identity_holds_for_any_entries(seed, off, on):
    rng = np.random.default_rng(seed)
    shape = (2, 6, 3)
    lower, upper = off * rng.standard_normal((2, *shape))
    inverse = tridiagonal_inverse(lower, on * rng.standard_normal(shape), upper)
    v, w = rng.standard_normal((2, *shape))
    left, right = w * inverse.matvec(v), inverse.rmatvec(w) * v
    assert np.isfinite(left).all()
    assert np.isfinite(right).all()
    assert abs(left.sum() - right.sum()) <= 1e-12 * (np.abs(left).sum() + np.abs(right).sum())


HOSTILE = {
    "zero": (0.0, 0.0, 0.0),
    "no main diagonal": (1.0, 0.0, 1.0),
    "singular": (1.0, 1.0, 1.0),
    "tiny pivots": (0.5, 1e-300, 0.5),
    "NaN": (np.nan, np.nan, np.nan),
    "NaN pivot": (0.5, np.nan, 0.5),
    "NaN beside": (np.nan, 1.0, 0.5),
    "infinite": (np.inf, np.inf, -np.inf),
    "infinite pivot": (0.3, np.inf, 0.3),
    "huge": (1e200, 1.0, 1e200),
    "huge pivot": (1.0, 1e300, 1.0),
    "largest": (-1.7e308, 1.7e308, 1.7e308),
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("T", [1, 2, 5])
def test_the_inverse_is_finite_whatever_the_entries(entries, T, rng):
    lower, main, upper = (np.full((2, T, 2), entry) for entry in entries)
    inverse = tridiagonal_inverse(lower, main, upper)
    b = rng.standard_normal((2, T, 2))
    assert np.isfinite(inverse.matvec(b)).all()
    assert np.isfinite(inverse.rmatvec(b)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_entry_stays_in_its_own_matrix(bad, rng):
    shape = (3, 6, 4)
    parts, b = bands(rng, shape), rng.standard_normal(shape)
    clean = tridiagonal_inverse(*parts).matvec(b)
    for part in parts:
        part[1, 3, 2] = bad
    dirty = tridiagonal_inverse(*parts).matvec(b)
    assert np.isfinite(dirty).all()
    others = np.ones(shape, dtype=bool)
    others[1, :, 2] = False
    np.testing.assert_array_equal(dirty[others], clean[others])


@pytest.mark.parametrize("growth", [1.5, 3.0, 1e3])
@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_long_sequences_do_not_overflow(growth, precision):
    """Multipliers above 1 would grow as their T-th power."""
    one = np.ones((2000, 1), dtype=precision)
    for lower, upper in ((-growth, 0.0), (0.0, -growth)):
        inverse = tridiagonal_inverse(lower * one, one, upper * one)
        assert np.isfinite(inverse.matvec(one)).all()
        assert np.isfinite(inverse.rmatvec(one)).all()


def test_nothing_that_is_not_finite_in_b_raises_a_warning():
    parts = bands(np.random.default_rng(0), (2, 5, 1))
    b = np.full((2, 5, 1), np.inf)
    b[1] = 1.0
    inverse = tridiagonal_inverse(*parts)
    for x in (inverse.matvec(b), inverse.rmatvec(b)):
        assert np.isfinite(x[1]).all()


@given(st.data())
def test_take(data):
    B = data.draw(st.integers(1, 4))
    indices = np.asarray(data.draw(st.lists(st.integers(0, B - 1), max_size=6)), dtype=int)
    rng = np.random.default_rng(B)
    parts = bands(rng, (B, 5, 2))
    b = rng.standard_normal((len(indices), 5, 2))
    taken = tridiagonal_inverse(*parts).take(indices)
    assert taken.batch_shape == (len(indices),)
    expected = tridiagonal_inverse(*(part[indices] for part in parts))
    np.testing.assert_array_equal(taken.matvec(b), expected.matvec(b))
    np.testing.assert_array_equal(taken.rmatvec(b), expected.rmatvec(b))
