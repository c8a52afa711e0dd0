"""`rank_one` and `broyden_direction`: the compiled updates against their references, and against matrices."""

from __future__ import annotations

import numpy as np
import pytest

from implicitsolve.kernels import broyden_direction, rank_one

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


def broyden_inverse(H, steps, changes):
    """H by Broyden's rank-one updates, as a matrix."""
    for s, y in zip(steps, changes):
        H = H + np.outer(s - H @ y, s @ H) / (s @ H @ y)
    return H


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_broyden_direction_is_that_of_the_updated_matrix(backend, dtype, count, rng):
    """A linear problem, solved by whole steps from a poor inverse."""
    N = 20
    A, H = np.eye(N) + 0.1 * rng.normal(size=(N, N)) / N, np.eye(N)
    S, squares, x = np.zeros((count + 1, N), dtype=dtype), np.zeros(count + 1), rng.normal(size=N)
    direct = broyden_direction.select(S, backend, size=N)
    steps, changes = [], []
    for j in range(count + 1):
        S[j] = -H @ (A @ x)
        expected = -broyden_inverse(H, steps, changes) @ (A @ x)
        old, new = x.astype(dtype), np.empty(N, dtype=dtype)
        direct(S, j, squares, old, new)
        tolerance = 200 * np.finfo(dtype).eps * np.abs(expected).max() * 10**j
        np.testing.assert_allclose(S[j], expected, rtol=0, atol=tolerance)
        np.testing.assert_allclose(new, old + S[j], rtol=0, atol=4 * np.finfo(dtype).eps * np.abs(old).max())
        assert squares[j] == pytest.approx(float(S[j] @ S[j]), rel=1e-5)
        steps.append(S[j].astype(float))
        changes.append(A @ steps[-1])
        x = x + steps[-1]


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_broyden_direction_without_a_finite_update(backend):
    """s^T H y = 0: the direction stays that of the factorized matrix."""
    S = np.zeros((2, 16))
    S[:, 0] = 1.0  # s = z: no y at all
    squares, new = np.asarray([1.0, 0.0]), np.empty(16)
    with np.errstate(all="ignore"):
        broyden_direction.select(S, backend, size=16)(S, 1, squares, np.zeros(16), new)
    np.testing.assert_array_equal(S[1], np.eye(16)[0])
    np.testing.assert_array_equal(new, S[1])
