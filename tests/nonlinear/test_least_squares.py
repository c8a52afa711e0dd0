"""The small least-squares problem against NumPy's dense solution."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve.nonlinear._history import _one_by_one, newest_first


def inner_products(Y, f):
    return np.einsum("bin,bjn->bij", Y.conj(), Y), np.einsum("bin,bn->bi", Y.conj(), f)


def draw(seed, b, m, n, is_complex):
    rng = np.random.default_rng(seed)

    def random(*shape):
        values = rng.standard_normal(shape)
        return values + 1j * rng.standard_normal(shape) if is_complex else values

    return rng, random(b, m, n), random(b, n)


@given(
    seed=st.integers(0, 10**6),
    b=st.integers(1, 4),
    m=st.integers(1, 6),
    is_complex=st.booleans(),
    spread=st.integers(0, 12),
)
def test_minimizers_are_those_of_lstsq_whatever_the_lengths(seed, b, m, is_complex, spread):
    rng, Y, f = draw(seed, b, m, m + 3, is_complex)
    Y *= 10.0 ** rng.uniform(-spread, spread, (b, m, 1))
    held = rng.random((b, m)) < 0.8
    found, _ = newest_first(*inner_products(Y, f), held, 1e-14)
    for i in range(b):
        c = np.zeros(m, Y.dtype)
        lengths = np.linalg.norm(Y[i], axis=1)
        columns = (Y[i] / lengths[:, None])[held[i]].T
        c[held[i]] = np.linalg.lstsq(columns, f[i], rcond=None)[0] if held[i].any() else 0
        np.testing.assert_allclose(found[i] * lengths, c, rtol=1e-4, atol=1e-4)


@given(
    seed=st.integers(0, 10**6),
    b=st.integers(1, 3),
    m=st.integers(1, 24),
    is_complex=st.booleans(),
    least=st.sampled_from([1e-14, 1e-6, 0.5]),
)
def test_all_at_once_as_one_by_one(seed, b, m, is_complex, least):
    rng, Y, f = draw(seed, b, m, m + 3, is_complex)
    Y *= 10.0 ** rng.uniform(-3, 3, (b, m, 1))
    held = rng.random((b, m)) < 0.8
    gram, right = inner_products(Y, f)
    lengths = np.linalg.norm(Y, axis=-1)
    got, _ = newest_first(gram, right, held, least)
    A = np.where(held[:, :, None] & held[:, None, :], gram / (lengths[:, :, None] * lengths[:, None, :]), np.eye(m))
    expected = _one_by_one(A, np.where(held, right, 0.0) / lengths, held.copy(), least)
    np.testing.assert_allclose(got * lengths, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
