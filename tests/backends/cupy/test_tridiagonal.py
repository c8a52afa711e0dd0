"""`scalar_tridiagonal` and `place_colors` on a device, against their references."""

import numpy as np
import pytest

from implicitsolve._arrays.host import to_host
from implicitsolve.kernels import scalar_tridiagonal
from implicitsolve.linearize._difference_steps import place_colors

pytestmark = pytest.mark.gpu

REFERENCE = scalar_tridiagonal.reference
SHAPES = [(1, 1, 1), (3, 7, 33), (5, 2), (2, 0, 3), (0, 4, 2), (2, 3, 5, 130)]


def on(device, *arrays):
    return [device.asarray(x) for x in arrays]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [0.2, 1.0, 30.0])
def test_as_reference(shape, dtype, size, device, rng):
    lower, upper = (size * rng.normal(size=(2, *shape))).astype(dtype)
    main, b = rng.normal(size=(2, *shape)).astype(dtype)
    kernel = scalar_tridiagonal.select(device.asarray(b), "cupy", size=shape[-1])
    tolerance = {"rtol": 1e3 * np.finfo(dtype).eps, "atol": 1e3 * np.finfo(dtype).eps}
    factors = REFERENCE.factor(lower, main, upper)
    for got, expected in zip(kernel.factor(*on(device, lower, main, upper)), factors, strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(to_host(got), expected, **tolerance)
    x = REFERENCE.solve(b, *factors)
    got = to_host(kernel.solve(*on(device, b, *factors)))
    np.testing.assert_allclose(got, x, **tolerance | {"atol": 1e-4 * abs(x).max(initial=0)})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0, 1e-300])
def test_what_is_not_usable_is_replaced_alike(bad, device, rng):
    bands = rng.normal(size=(3, 2, 6, 40))
    bands[rng.uniform(size=bands.shape) < 0.2] = bad
    kernel = scalar_tridiagonal.select(device.asarray(bands), size=40)
    for got, expected in zip(kernel.factor(*on(device, *bands)), REFERENCE.factor(*bands), strict=True):
        assert np.isfinite(to_host(got)).all()
        np.testing.assert_allclose(to_host(got), expected, rtol=1e-12, atol=1e-12)


def test_neighbours_and_strides_change_nothing(device, rng):
    bands, b = device.asarray(rng.normal(size=(3, 4, 12, 80))), device.asarray(rng.normal(size=(4, 12, 80)))
    kernel = scalar_tridiagonal.select(b, size=40)
    parts = [band[1:3, ::2, ::2] for band in bands]
    x = kernel.solve(b[1:3, ::2, ::2], *kernel.factor(*parts))
    alone = kernel.factor(*(device.asarray(part[1:], copy=True) for part in parts))
    np.testing.assert_array_equal(to_host(kernel.solve(b[2:3, ::2, ::2], *alone)), to_host(x[1:]))


def test_one_launch_each_and_no_transfer(device, double, rng):
    bands, b = on(device, *rng.normal(size=(3, 2, 9, 5))), device.asarray(rng.normal(size=(2, 9, 5)))
    kernel = scalar_tridiagonal.select(b, size=5)
    double.reset()
    kernel.solve(b, *kernel.factor(*bands))
    assert double.counts["launch"] == 2
    assert double.counts["to_host"] == double.counts["to_device"] == 0


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize(("T", "lower", "upper"), [(2, 3, 2), (7, 1, 1), (9, 0, 2), (10, 2, 0)])
def test_colors_are_placed_as_by_the_reference(k, T, lower, upper, device, rng):
    B, m = 2, lower + upper + 1
    colors = min(m, T)
    changes, per_length = rng.normal(size=(colors, k, B, T, k)), rng.uniform(1.0, 2.0, (B, T, k))
    place = place_colors.select(device.asarray(changes), "cupy", length=T, block_size=k)
    for first in range(colors):
        expected = np.full((B, T, m, k, k), -1.0)
        got, given = device.asarray(expected), on(device, changes[first:], per_length)
        place_colors.reference(expected, changes[first:], per_length, first, lower)
        place(got, *given, first, lower)
        np.testing.assert_array_equal(to_host(got), expected)


def test_all_colors_are_placed_by_one_launch(device, double, rng):
    changes, per_length = on(device, rng.normal(size=(3, 4, 2, 9, 4)), rng.uniform(1.0, 2.0, (2, 9, 4)))
    blocks = device.zeros((2, 9, 3, 4, 4))
    place = place_colors.select(changes, length=9, block_size=4)
    double.reset()
    place(blocks, changes, per_length, 0, 1)
    assert double.counts["launch"] == 1


def test_colors_are_placed_in_blocks_that_are_not_contiguous(device, rng):
    changes, per_length = on(device, rng.normal(size=(3, 2, 2, 5, 2)), rng.uniform(1.0, 2.0, (2, 5, 2)))
    place = place_colors.select(changes, "cupy", length=5, block_size=2)
    wide, plain = device.zeros((2, 5, 4, 2, 2)), device.zeros((2, 5, 3, 2, 2))
    place(wide[:, :, :3], changes, per_length, 0, 1)
    place(plain, changes, per_length, 0, 1)
    np.testing.assert_array_equal(to_host(wide[:, :, :3]), to_host(plain))
