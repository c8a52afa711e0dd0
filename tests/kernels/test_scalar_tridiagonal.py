"""`scalar_tridiagonal`: the compiled loops against the reference."""

import numpy as np
import pytest

from implicitsolve.kernels import scalar_tridiagonal

pytest.importorskip("numba")
SHAPES = [(1, 1, 1), (3, 7, 33), (5, 2), (2, 0, 3), (0, 4, 2)]


def assert_same_factors(factors, expected, **tolerance):
    for got, wanted in zip(factors, expected):
        assert np.isfinite(got).all()
        assert got.dtype == wanted.dtype
    (below, scale, above), (other_below, other_scale, other_above) = factors, expected
    np.testing.assert_allclose(below, other_below, **tolerance)
    np.testing.assert_allclose(scale, other_scale, **tolerance)
    np.testing.assert_allclose(above[..., :-1, :], other_above[..., :-1, :], **tolerance)  # the last is not used


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [0.2, 1.0, 30.0])
def test_as_reference(shape, dtype, size, rng):
    lower, upper = (size * rng.normal(size=(2, *shape))).astype(dtype)
    main, b = rng.normal(size=(2, *shape)).astype(dtype)
    compiled, reference = scalar_tridiagonal.select(b, "numba", size=shape[-1]), scalar_tridiagonal.reference
    tolerance = {"rtol": 1e3 * np.finfo(dtype).eps, "atol": 1e3 * np.finfo(dtype).eps}
    factors = compiled.factor(lower, main, upper)
    assert_same_factors(factors, reference.factor(lower, main, upper), **tolerance)
    x = reference.solve(b, *factors)
    np.testing.assert_allclose(compiled.solve(b, *factors), x, **tolerance | {"atol": 1e-4 * abs(x).max(initial=0)})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0, 1e-300])
def test_what_is_not_usable_is_replaced_alike(bad, rng):
    bands = rng.normal(size=(3, 2, 6, 40))
    bands[rng.uniform(size=bands.shape) < 0.2] = bad
    compiled = scalar_tridiagonal.select(bands, "numba", size=40)
    assert_same_factors(compiled.factor(*bands), scalar_tridiagonal.reference.factor(*bands), rtol=1e-12, atol=1e-12)


def test_adjoint_factors_solve_alike(rng):
    bands, b = 0.3 * rng.normal(size=(3, 2, 6, 40)), rng.normal(size=(2, 6, 40))
    bands[1] += 1.0
    compiled, reference = scalar_tridiagonal.select(b, "numba", size=40), scalar_tridiagonal.reference
    below, scale, above = compiled.factor(*bands)
    adjoint = np.roll(above, 1, axis=-2), scale, np.roll(below, -1, axis=-2)
    np.testing.assert_allclose(compiled.solve(b, *adjoint), reference.solve(b, *adjoint), rtol=1e-10, atol=1e-12)


def test_neighbours_and_strides_change_nothing(rng):
    bands = rng.normal(size=(3, 4, 12, 80))
    b = rng.normal(size=(4, 12, 80))
    compiled = scalar_tridiagonal.select(b, "numba", size=40)
    parts = [band[1:3, ::2, ::2] for band in bands]
    factors = compiled.factor(*parts)
    x = compiled.solve(b[1:3, ::2, ::2], *factors)
    alone = compiled.factor(*(part[1:].copy() for part in parts))
    np.testing.assert_array_equal(compiled.solve(b[2:3, ::2, ::2].copy(), *alone), x[1:])
