"""Rows in another order, in one launch."""

import numpy as np
import pytest

from implicitsolve.adapters import kernels

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("char", "fd")
@pytest.mark.parametrize(("n", "k", "count"), [(1, 1, 1), (7, 37, 12), (40, 64, 9)])
def test_take_rows(device, char, n, k, count, rng):
    wide, source = rng.standard_normal((n, k + 2)).astype(char), rng.integers(-1, n, count)
    on_device = device.asarray(wide)
    expected = np.where(source[:, None] < 0, 0.0, wide[source]).astype(char)
    for columns in (slice(k), slice(None)):  # with gaps between the rows, and without
        x = on_device[:, columns]
        for take in (kernels.take_rows.select(x, "cupy", size=k), kernels.take_rows.reference):
            found = take(x, device.asarray(source), -1).get()
            np.testing.assert_array_equal(found, expected[:, columns])
            assert found.dtype == wide.dtype


def test_what_is_left_out_is_zero_whatever_stood_there(device):
    x = device.full((2, 3), np.nan)
    found = kernels.take_rows.select(x, "cupy", size=3)(x, device.asarray(np.asarray([2, 2])), 2)
    np.testing.assert_array_equal(found.get(), np.zeros((2, 3)))


@pytest.mark.parametrize("char", "fd")
@pytest.mark.parametrize("shape", [(1, 1), (7, 37), (3, 7, 5)])
def test_clear_rows(device, char, shape, rng):
    x, empty = rng.standard_normal(shape).astype(char), rng.random(shape[-2]) < 0.5
    x[..., empty, :] = np.nan
    expected = np.where(empty[:, None], 0.0, x).astype(char)
    for form in (lambda x: device.asarray(x), lambda x: device.asarray(np.repeat(x, 2, axis=-2))[..., ::2, :]):
        clear = kernels.clear_rows.select(device.asarray(x), "cupy", size=shape[-1])
        for function in (clear, kernels.clear_rows.reference):
            found = function(form(x), device.asarray(empty)).get()
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == x.dtype
