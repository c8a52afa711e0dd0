"""Operators of several batches as that of all their systems."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import LinearOperator, aslinearoperator
from implicitsolve.operators._wrappers import Part, stack_systems

N = 3


def product(matrices, v):
    return (matrices @ v[..., None])[..., 0]


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_it_is_its_parts_one_behind_the_other(sizes, seed, data):
    rng = np.random.default_rng(seed)
    matrices, v = rng.normal(size=(sum(sizes), N, N)), rng.normal(size=(sum(sizes), N))
    A = stack_systems([aslinearoperator(part) for part in np.split(matrices, np.cumsum(sizes)[:-1])])
    assert A.batch_shape == (sum(sizes),)
    assert A.in_shape == (N,)
    assert A.dtype == np.float64
    np.testing.assert_allclose(A.matvec(v), product(matrices, v))
    np.testing.assert_allclose(A.rmatvec(v), product(matrices.swapaxes(1, 2), v))
    chosen = np.asarray(data.draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=6)))
    np.testing.assert_allclose(A.take(chosen).matvec(v[chosen]), product(matrices[chosen], v[chosen]))
    again = A.take(chosen).take(np.arange(chosen.size)[::-1])
    np.testing.assert_allclose(again.matvec(v[chosen][::-1]), product(matrices[chosen], v[chosen])[::-1])


def test_it_offers_what_all_of_its_parts_offer():
    def part(factor, **offers):
        return LinearOperator(lambda v: factor * v, in_shape=N, batch_shape=(1,), dtype=np.float64, **offers)

    whole = {"rmatvec": lambda v: 2 * v, "inverse": lambda: part(0.5), "cast": lambda dtype: part(3.0)}
    v = np.ones((2, N))
    A = stack_systems([part(2.0, **whole), part(2.0, **whole)])
    np.testing.assert_array_equal(A.rmatvec(v), 2 * v)
    np.testing.assert_array_equal(A.approximate_inverse().matvec(v), v / 2)
    np.testing.assert_array_equal(A.astype(np.float32).matvec(v), 3 * v)
    B = stack_systems([part(2.0, **whole), part(2.0)])
    with pytest.raises(TypeError, match="rmatvec"):
        B.rmatvec(v)
    assert B.approximate_inverse() is None
    assert B.astype(np.float32) is B


def test_parts_of_one_operator_are_one_part_of_it_and_gather_nothing_before_a_product(rng):
    matrices, v = rng.normal(size=(5, N, N)), rng.normal(size=(4, N))
    whole = aslinearoperator(matrices)
    A = stack_systems([Part(whole, np.asarray([3, 1])).take(np.asarray([1])), Part(whole, np.asarray([0, 4, 2]))])
    assert isinstance(A, Part)
    assert "gathered" not in vars(A)
    chosen = matrices[[1, 0, 4, 2]]
    np.testing.assert_allclose(A.matvec(v), product(chosen, v))
    np.testing.assert_allclose(A.rmatvec(v), product(chosen.swapaxes(1, 2), v))
    others = stack_systems([Part(whole, np.asarray([0])), Part(aslinearoperator(matrices), np.asarray([1]))])
    assert not isinstance(others, Part)
