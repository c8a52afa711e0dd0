"""`rank_one`: the compiled update against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from implicitsolve.kernels import rank_one

pytest.importorskip("numba")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("N", [1, 16, 1001])
def test_adds_and_multiplies(dtype, N, rng):
    z, w, s = (rng.normal(size=(3, 2, N)) + (1j if np.dtype(dtype).kind == "c" else 0)).astype(dtype)
    amount = rng.normal(size=(2, 1)).astype(dtype)
    got, expected = z.copy(), z.copy()
    compiled = rank_one.select(z, "numba", size=N)
    product = compiled(got, w, amount, s)
    np.testing.assert_allclose(
        product, rank_one.reference(expected, w, amount, s), rtol=1e-3 if dtype == np.float32 else 1e-9
    )
    tolerance = 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    assert compiled(got, w, amount, None) is None
    again = z[1:].copy()
    assert compiled(again, w[1:], amount[1:], s[1:])[0] == product[1]  # a neighbour changes nothing
