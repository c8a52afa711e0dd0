"""A stacked operator: the operators of several systems as one of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.operators._stacked import stacked


def matrices(rng: np.random.Generator, count: int) -> tuple[Any, ims.LinearOperator]:
    A = rng.standard_normal((count, 3, 3))

    def of(A: Any) -> ims.LinearOperator:
        return ims.LinearOperator(
            lambda v: (A @ v[..., None])[..., 0],
            lambda w: (np.swapaxes(A, 1, 2) @ w[..., None])[..., 0],
            in_shape=3,
            batch_shape=(A.shape[0],),
            dtype=A.dtype,
            take=lambda indices: of(A[indices]),
            inverse=lambda: of(np.linalg.inv(A)),
            cast=lambda dtype: of(A.astype(dtype)),
        )

    return A, of(A)


def test_a_stacked_operator_is_that_of_all_systems(rng: np.random.Generator) -> None:
    (A, one), (B, other), (C, last) = (matrices(rng, count) for count in (2, 1, 3))
    whole, v = np.concatenate([A, B, C]), rng.standard_normal((6, 3))
    operator = stacked([stacked([one, other]), last])
    np.testing.assert_allclose(operator.matvec(v), (whole @ v[..., None])[..., 0])
    np.testing.assert_allclose(operator.rmatvec(v), (np.swapaxes(whole, 1, 2) @ v[..., None])[..., 0])
    inverse = operator.approximate_inverse()
    assert inverse is not None
    np.testing.assert_allclose(inverse.matvec(operator.matvec(v)), v)
    assert operator.astype(np.float32).matvec(v.astype(np.float32)).dtype == np.float32
    for rows in ([0, 2, 5], [5, 0, 0, 3, 2, 1], [4]):
        part = operator.take(np.asarray(rows))
        assert part.batch_shape == (len(rows),)
        np.testing.assert_allclose(part.matvec(v[rows]), (whole[rows] @ v[rows][..., None])[..., 0])


def test_a_stacked_operator_offers_what_all_of_its_parts_offer(rng: np.random.Generator) -> None:
    _, one = matrices(rng, 2)
    poor = ims.LinearOperator(lambda v: v, in_shape=3, batch_shape=(1,))
    operator = stacked([one, poor])
    assert operator.approximate_inverse() is None
    with pytest.raises(TypeError, match="rmatvec"):
        operator.rmatvec(np.ones((3, 3)))
