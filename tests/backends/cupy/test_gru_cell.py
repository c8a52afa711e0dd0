"""The GRU cell in one launch: the same numbers as the composition on NumPy, whatever the sizes and layouts."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import adapters
from implicitsolve.adapters import kernels
from implicitsolve.adapters._stencil_cells import StencilGRUCell

pytestmark = pytest.mark.gpu

DTYPES = ["float32", "float64"]
OFFSETS = [(-1, 1), (-1,)]
SIZES = [(1, 1, 1), (3, 2, 3), (1, 7, 32), (3, 7, 33), (1, 2, 70)]


class Both:
    """A cell at B sequences of T positions, on NumPy and on the device."""

    def __init__(self, xp, rng, offsets, B, T, k, dtype="float64", draw=None):
        self.xp, self.rng, self.dtype = xp, rng, dtype
        draw = draw or (lambda *shape: rng.uniform(-1, 1, shape))
        P = {name: draw(*shape) for name, shape in StencilGRUCell.shapes(2, k, len(offsets)).items()}
        P = {name: value.astype(dtype) for name, value in P.items()}
        self.offsets, self.shape = offsets, (B, T, k)
        self.cells = [StencilGRUCell.of(own, offsets) for own in (P, self.on_device(P))]
        references = {"mixer": kernels.mixture.reference, "gru": kernels.gru.reference}
        self.cells[0].__dict__.update(references)  # cached properties
        self.x = draw(len(offsets) + 3, B, T, k).astype(dtype)
        self.H, self.v, self.w = (draw(B, T, k).astype(dtype) for _ in range(3))

    def on_device(self, value):
        if isinstance(value, dict):
            return {name: self.on_device(part) for name, part in value.items()}
        return self.xp.asarray(value)

    def run(self, function):
        """What a function of a cell and of all arrays returns, on NumPy and on the device."""
        arrays = self.x, self.H, self.v, self.w
        factors = np.full((self.cells[0].factor_count, *self.shape), np.nan, self.dtype)
        ours = function(self.cells[1], *map(self.on_device, (*arrays, factors)))
        with np.errstate(over="ignore"):
            theirs = function(self.cells[0], *(array.copy() for array in arrays), factors)
        return [part.get() for part in ours], theirs

    def check(self, function, tolerance=64):
        ours, theirs = self.run(function)
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == np.dtype(self.dtype)
            scale = tolerance * np.finfo(self.dtype).eps * np.abs(other).max(initial=1)
            np.testing.assert_allclose(one, other, rtol=0, atol=scale)

    def everything(self, cell, x, H, v, w, factors):
        near, distances = (H,) * len(self.offsets), self.offsets
        h = cell.linearize((x,), near, factors, distances)
        sums = cell.pull_sums(factors, w)
        return [
            h,
            factors,
            cell.value((x,), near, distances),
            cell.step((x,), H),
            cell.push(factors, (v,) * len(near), distances),
            *cell.to_neighbours(factors, sums),
            *sums.arguments,
            cell.pull_back(factors, w, distances, H.shape[1]),
            *cell.diagonals(factors),
        ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("sizes", SIZES)
def test_all_functions_are_those_of_numpy(sizes, offsets, dtype, device, rng):
    both = Both(device, rng, offsets, *sizes, dtype)
    assert both.cells[1].whole is not None
    both.check(both.everything)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [200, 512])
def test_large_states(size, dtype, device, rng):
    """Slices of different lengths, and more shared memory than blocks have by default."""
    both = Both(device, rng, (-1, 1), 1, 5, size, dtype, lambda *shape: rng.uniform(-1, 1, shape) / np.sqrt(size))
    both.check(both.everything)


@pytest.mark.parametrize("distances", [(-1, 0), (0, 1)])
@pytest.mark.parametrize("length", [2, 3, 4])
def test_neighbours_stand_in_the_other_half(distances, length, device, rng):
    both = Both(device, rng, (-1, 1), 2, 3, 5)

    def of_half(cell, x, H, v, w, factors):
        H, v = (
            part[:, [0, 1, 2, 0][:length], :] if part is H else part[:, [1, 0, 2, 1][:length], :] for part in (H, v)
        )
        h = cell.linearize((x,), (H, H), factors, distances)
        return [h, cell.push(factors, (v, v), distances), cell.pull_back(factors, w, distances, length)]

    both.check(of_half)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_weights(dtype, device, rng):
    """Multiples of 1/2, of which sums are exact in any order."""
    both = Both(device, rng, (-1, 1), 2, 3, 33, dtype, lambda *shape: rng.integers(-2, 3, shape) / 2.0)
    for cell in both.cells:
        cell.weights[...] *= 256.0
    both.check(both.everything, 1 << 16)
    assert all(np.isfinite(part).all() for part in both.run(both.everything)[0])


def test_what_is_no_number_stays_in_its_row(device, rng):
    both = Both(device, rng, (-1, 1), 2, 5, 3)
    both.H[1, 2, 0] = np.nan
    ours, theirs = both.run(lambda cell, x, H, *others: [cell.value((x,), (H, H), (-1, 1))])
    assert (np.isnan(ours[0]) == np.isnan(theirs[0])).all()
    assert np.isfinite(ours[0]).sum() == 2 * 5 * 3 - 2 * 3


def test_arguments_have_any_strides(device, rng):
    """Half of the states, projections between separators, factors of a part."""
    both = Both(device, rng, (-1, 1), 2, 6, 5)

    def strided(cell, x, H, v, w, factors):
        x, factors = x[:, :, 1:4, :], factors[:, :, 2:5, :]
        H, v, w = H[:, ::2, :], v[:, 1::2, :], w[:, 3:, :]
        h = cell.linearize((x,), (H, H), factors, (-1, 0))
        return [h, factors, cell.push(factors, (v, v), (-1, 0)), cell.pull_back(factors, w, (-1, 0), 3)]

    both.check(strided)


def test_rows_in_one_axis(device, rng):
    """Neighbours are views of one matrix, or two matrices with different strides."""
    both = Both(device, rng, (-1, 1), 1, 9, 5)

    def of_rows(cell, x, H, v, w, factors):
        x, factors, w = x[:, 0, 1:8, :], factors[:, 0, 1:8, :], w[0, 1:8, :]
        near, other = (H[0, :7, :], H[0, 2:, :]), (v[0, :7, :], w)
        h = cell.linearize((x,), near, factors)
        return [
            h,
            factors,
            cell.push(factors, other),
            *cell.pull(factors, w),
            cell.value((x,), other),
            cell.step((x,), w),
        ]

    both.check(of_rows)


@pytest.mark.parametrize("offsets", OFFSETS)
def test_composed_where_rows_are_many(offsets, device, rng):
    both = Both(device, rng, offsets, 2, 3, 5)
    both.cells[1].whole.most_rows = 5
    both.check(both.everything)


def test_only_sizes_and_dtype_choose(device):
    def select(dtype, size, neighbours):
        return kernels.gru_cell.select(device.zeros(1, dtype=dtype), size=size, neighbours=neighbours)

    reference = kernels.gru_cell.reference
    assert select("float32", 512, 2) is select("float64", 1, 1) is not reference
    assert all(select(*case) is reference for case in (("float32", 513, 2), ("float32", 5, 3), ("complex64", 5, 2)))
    assert reference(np.zeros((5, 2, 2))) is None
    assert kernels.gru_cell.select(np.zeros(1), size=40, neighbours=2) is reference


def layers(xp, rng, B, T, k, dtype="float64", scale=0.5, **options):
    """An implicit GRU on NumPy and on the device."""
    P = adapters.gru_parameters(2, k, scale=scale, rng=rng) | {"inputs": rng.standard_normal((B, T, 2))}
    P |= {name: value for name, value in options.items() if name in ("hs", "he")}
    found = []
    for library in (np, xp):
        A = {name: library.asarray(value, dtype=getattr(library, dtype)) for name, value in P.items()}
        edges = {name: A.pop(name) for name in ("hs", "he") if name in A}
        inputs = A.pop("inputs")
        found.append(adapters.implicit_gru(A, inputs, lengths=options.get("lengths"), **edges))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", ["plain", "edges", "ragged"])
def test_solutions_and_gradients_are_those_of_numpy(options, dtype, device, rng):
    edges = {"hs": rng.uniform(-1, 1, 4), "he": rng.uniform(-1, 1, (3, 4))}
    given = {"plain": {}, "edges": edges, "ragged": {"lengths": [5, 2, 1]}}[options]
    ours, theirs = [], []
    stop = ims.NonlinearStop(atol=100 * np.finfo(dtype).eps)
    w = rng.standard_normal((3, 5, 4)).astype(dtype)
    for layer, found in zip(layers(device, rng, 3, 5, 4, dtype, **given), (theirs, ours)):
        xp = np if found is theirs else device
        result = ims.root(layer, stop=stop)
        assert result.success.all()
        gradients = ims.pull_back(layer, result, xp.asarray(w)).gradients
        found += [result.x, *gradients.values()]
    tolerance = 1e-10 if dtype == "float64" else 1e-4
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.get(), other, rtol=0, atol=tolerance * max(1, np.abs(other).max(initial=0)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_system_is_the_same_alone_and_again(dtype, device, rng):
    """Of so many systems that blocks have more rows."""
    both = Both(device, rng, (-1, 1), 180, 3, 5, dtype)
    both.check(both.everything)
    whole, _ = both.run(both.everything)
    again, _ = both.run(both.everything)
    both.x, both.H, both.v, both.w = (part[..., 7:8, :, :] for part in (both.x, both.H, both.v, both.w))
    both.shape = both.H.shape
    alone, _ = both.run(both.everything)
    for one, other, own in zip(whole, again, alone, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one[..., 7:8, :, :], own)


def test_launches(double, device, rng):
    _, layer = layers(device, rng, 2, 6, 5)
    H = device.asarray(rng.standard_normal((2, 6, 5)))
    half, other, v, w = layer.halves.kept, H[:, ::2], H[:, 1::2], H[:, ::2]

    def launches(function, *arguments):
        double.reset()
        function(*arguments)
        return double.counts["launch"]

    _, coupling = half.linearize(other)
    assert launches(half.apply, other) == 1
    assert launches(half.linearize, other) == 1
    assert launches(coupling.matvec, v) == 1
    assert launches(coupling.rmatvec, w) == 2
    assert launches(coupling.diagonals) == 2  # the last position has no next one
    assert launches(layer.residual, H) == 2  # with the difference
