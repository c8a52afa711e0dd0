"""`Vectors` and `rank_one` on a device, against their references."""

import numpy as np
import pytest

from implicitsolve._arrays.host import to_host
from implicitsolve.kernels import rank_one, vectors
from implicitsolve.kernels._norms import norm2, norm_max
from implicitsolve.krylov._bicgstab import bicgstab

pytestmark = pytest.mark.gpu

REFERENCE = vectors.reference


@pytest.fixture(params=["whole", "parts"])
def work(request, device, monkeypatch):
    """What is selected for arrays of a device, for short vectors or for vectors of several parts."""
    chosen = vectors.select(device.zeros((1, 8), dtype=device.float32), size=8)
    assert chosen is not REFERENCE
    if request.param == "parts":
        from implicitsolve.backends.cupy import _vectors

        monkeypatch.setattr(_vectors, "CHUNK", 64)
    return chosen


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """NumPy's dtype."""
    return np.dtype(request.param)


def close(actual, expected, dtype):
    """Up to a few dozen rounding errors of numbers near 1."""
    scale = 64 * np.finfo(dtype).eps * np.abs(expected).max()
    np.testing.assert_allclose(to_host(actual), expected, rtol=0, atol=scale)


def pair(device, rng, shape, dtype):
    """Numbers on the host, and on the device as every second system of a larger array."""
    host = rng.standard_normal((2 * shape[0], *shape[1:])).astype(dtype)
    return host[::2], device.asarray(host)[::2]


def test_products_with_rows_and_sums_of_them(work, device, rng, precision):
    rows, d_rows = pair(device, rng, (3, 6, 150), precision)
    v, d_v = pair(device, rng, (3, 150), precision)
    a, d_a = pair(device, rng, (3, 6), precision)
    close(work.project(d_rows, d_v), REFERENCE.project(rows, v), precision)
    close(work.combine(d_a, d_rows), REFERENCE.combine(a, rows), precision)
    close(work.without(d_v, d_a, d_rows), REFERENCE.without(v, a, rows), precision)
    close(work.dot(d_rows[:, 2, :], d_v), REFERENCE.dot(rows[:, 2], v), precision)


@pytest.mark.parametrize("columns", [1, 3, 9])
def test_gram_schmidt(work, device, rng, precision, columns):
    N, b = 150, 3
    basis = np.linalg.qr(rng.standard_normal((b, N, columns)))[0].transpose(0, 2, 1).astype(precision)
    w = rng.standard_normal((b, N)).astype(precision)
    V = np.concatenate([basis, np.full((b, 3, N), 7.0, precision)], axis=1)
    d_V = device.asarray(V)
    numbers = work.orthonormalize(d_V[:, : columns + 1, :], device.asarray(w))
    expected = REFERENCE.orthonormalize(V[:, : columns + 1, :], w)
    close(numbers, expected, precision)
    close(d_V, V, precision)  # what lies behind is as it was


def test_gram_schmidt_leaves_lengths_that_squares_do_not_tell(work, device, rng, precision):
    w = rng.standard_normal((4, 100)).astype(precision)
    w[0] *= np.sqrt(np.finfo(precision).tiny)
    w[1] = 0
    w[2] *= np.sqrt(np.finfo(precision).max)
    V = np.zeros((4, 2, 100), precision)
    V[:, 0, 0] = 1
    d_V = device.asarray(V)
    work.orthonormalize(d_V, device.asarray(w))
    lengths = norm2(to_host(d_V)[:, 1])
    np.testing.assert_allclose(lengths[:3], norm2(w[:3, 1:]), rtol=1e-4)
    np.testing.assert_allclose(lengths[3], 1.0, rtol=1e-5)


def test_the_first_vector(work, device, rng, precision):
    r = rng.standard_normal((3, 150)).astype(precision)
    norms = np.linalg.norm(r, axis=1)
    V = device.zeros((3, 4, 150), dtype=device.asarray(r).dtype)
    work.start(V, device.asarray(r), norms, np.ones(3, dtype=bool))
    close(V[:, 0, :], r / norms[:, None], precision)
    work.start(V, device.asarray(r), norms, np.asarray([True, False, True]))
    assert not to_host(V)[1].any()
    assert not to_host(V)[:, 1:].any()


def test_norms_of_several_arrays_at_once(work, device, rng, precision):
    arrays = [rng.standard_normal((3, n)).astype(precision) for n in (150, 70, 1, 64)]
    arrays[1][2, 5] = np.nan
    arrays[3][0, 63] = -np.inf
    numbers = to_host(work.measure([device.asarray(x) for x in arrays]))
    with np.errstate(invalid="ignore"):
        expected = REFERENCE.measure(arrays)
    np.testing.assert_allclose(numbers, expected, rtol=64 * np.finfo(precision).eps)


def test_norms_beyond_the_range_of_squares(work, device, rng, precision):
    x = rng.standard_normal((6, 150)).astype(precision)
    info = np.finfo(precision)
    x[0] *= info.max / 8
    x[1] *= info.tiny * 1e6  # float32 kernels take smaller numbers than `tiny` for zero
    x[2] = 0
    x[3, 7] = np.nan
    x[4, 7] = np.inf
    np.testing.assert_allclose(norm2(device.asarray(x)), norm2(x), rtol=1e-5)
    np.testing.assert_array_equal(norm_max(device.asarray(x)), norm_max(x))


def test_a_step_of_anderson_s_method(work, device, rng, precision):
    x, image = (rng.standard_normal((3, 150)).astype(precision) for _ in range(2))
    rows, d_rows = pair(device, rng, (3, 6, 150), precision)
    a, d_a = pair(device, rng, (3, 6), precision)
    expected = REFERENCE.mix(x, image, a, rows)
    for actual, right in zip(work.mix(device.asarray(x), device.asarray(image), d_a, d_rows), expected):
        close(actual, right, precision)


def test_what_anderson_s_method_remembers(work, device, rng, precision):
    arrays = [rng.standard_normal((3, 150)).astype(precision) for _ in range(6)]  # F, old F, step, image, old image, x
    arrays[0][1, 7] *= 100  # the largest
    d_arrays = [device.asarray(array) for array in arrays]
    rooms = [rng.standard_normal((3, 5, 150)).astype(precision) for _ in range(2)]
    d_rooms = [device.asarray(room) for room in rooms]
    for j, m in ((2, 3), (0, 5)):
        expected = REFERENCE.advance(*rooms, j, m, *arrays)
        close(work.advance(*d_rooms, j, m, *d_arrays), expected, precision)
    for j, m in ((3, 4), (1, 5)):
        expected = REFERENCE.remember(*rooms, j, m, arrays[3], arrays[4], arrays[0])
        close(work.remember(*d_rooms, j, m, d_arrays[3], d_arrays[4], d_arrays[0]), expected, precision)
    for d_room, room in zip(d_rooms, rooms, strict=True):
        close(d_room, room, precision)


def test_a_point_nearby(work, device, rng, precision):
    x, v = (rng.standard_normal((4, 150)).astype(precision) for _ in range(2))
    v[0] *= np.finfo(precision).max / 8
    v[1] = 0
    reach = np.asarray([1.0, 2.0, 3.0, 4.0], precision)
    with np.errstate(all="ignore"):
        expected = REFERENCE.nearby(x, v, reach)
    for actual, right in zip(work.nearby(*(device.asarray(a) for a in (x, v, reach))), expected, strict=True):
        np.testing.assert_allclose(to_host(actual), right, rtol=1e-4, atol=1e-5)


def test_the_steps_of_bicgstab(work, device, rng, precision):
    own = bicgstab.select(device.asarray(np.zeros((4, 150), precision)), size=150)
    assert own is not bicgstab.reference
    shadow, r, v, t, dx, p, p_hat, s_hat = (rng.standard_normal((4, 150)).astype(precision) for _ in range(8))
    rho = rng.standard_normal((4, 1)).astype(precision)
    v[1], t[2] = 0, 0  # a slope and a t of zero
    names = {"shadow": shadow, "r": r, "v": v, "t": t, "dx": dx, "p": p, "p_hat": p_hat, "s_hat": s_hat, "rho": rho}
    d = {name: device.asarray(x) for name, x in names.items()}
    steps, reference = own(d["r"]), bicgstab.reference(r)
    with np.errstate(all="ignore"):
        alpha, s = reference.first_half(shadow, r, v, rho)
        second = reference.second_half(shadow, s, t, alpha, rho)
        moved = reference.advance(dx, p, alpha, p_hat, second[0], s_hat, second[1], second[3], v)
    d_alpha, d_s = steps.first_half(d["shadow"], d["r"], d["v"], d["rho"])
    d_second = steps.second_half(d["shadow"], d_s, d["t"], d_alpha, d["rho"])
    parts = d_alpha, d["p_hat"], d_second[0], d["s_hat"], d_second[1], d_second[3], d["v"]
    d_moved = steps.advance(d["dx"], d["p"], *parts)
    loose = 1e4 * np.finfo(precision).eps
    for actual, right in zip((d_alpha, d_s, *d_second, *d_moved), (alpha, s, *second, *moved), strict=True):
        np.testing.assert_allclose(to_host(actual), right, rtol=loose, atol=loose * np.abs(s).max())


def test_by_what_broyden_s_update_grows(work, device):
    gain, advance = np.asarray([[1.0], [2.0], [3.0], [np.nan], [0.0]]), np.asarray([[2.0], [2.0], [0.0], [1.0], [4.0]])
    growth, factor = work.growth(device.asarray(gain), device.asarray(advance))
    np.testing.assert_array_equal(to_host(growth), [[2.0], [1.0], [1.0], [1.0], [1.0]])
    np.testing.assert_array_equal(to_host(factor), [[0.5], [0.0], [0.0], [0.0], [0.25]])


@pytest.mark.parametrize("T", [5, 4])
def test_diagonals_without_every_second_block(work, device, rng, precision, T):
    kept, eliminated = T // 2, T - T // 2
    arrays = [rng.standard_normal((2, n, 3)).astype(precision) for n in (kept, kept, eliminated, eliminated)]
    expected = REFERENCE.half_diagonals(*arrays)
    for actual, right in zip(work.half_diagonals(*map(device.asarray, arrays)), expected, strict=True):
        close(actual, right, precision)


def test_rank_one_updates(device, rng, precision):
    z, w, following = (rng.standard_normal((3, 150)).astype(precision) for _ in range(3))
    amount = rng.standard_normal((3, 1)).astype(precision)
    for other in (following, None):
        d_z, d_w, d_amount = (device.asarray(x) for x in (z, w, amount))
        update = rank_one.select(d_z, size=150)
        assert update is not rank_one.reference
        product = update(d_z, d_w, d_amount, None if other is None else device.asarray(other))
        expected = z + w * amount
        close(d_z, expected, precision)
        assert (product is None) == (other is None)
        if other is not None:
            close(product, np.vecdot(following, expected)[:, None], precision)


def test_a_system_gets_the_same_numbers_alone(work, device, rng):
    w = device.asarray(rng.standard_normal((3, 150)).astype(np.float32))
    V = device.asarray(rng.standard_normal((3, 6, 150)).astype(np.float32) / 12)
    alone = device.asarray(to_host(V)[1:2])
    together = to_host(work.orthonormalize(V, w))
    assert to_host(work.orthonormalize(alone, w[1:2, :])).tobytes() == together[1:2].tobytes()
    assert to_host(alone).tobytes() == to_host(V)[1:2].tobytes()
    assert to_host(work.measure([w]))[1].tobytes() == to_host(work.measure([w[1:2, :]]))[0].tobytes()


def test_dtypes_are_not_mixed(work, device):
    rows, v = device.ones((1, 2, 8), dtype=device.float64), device.ones((1, 8), dtype=device.float32)
    with pytest.raises(TypeError, match="one dtype"):
        work.project(rows, v)
