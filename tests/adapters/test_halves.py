"""The two halves of a layer that couples nearest neighbours, against the whole layer."""

import numpy as np
import pytest

from tests.adapters.cases import NAMES, NEAREST, case_of
from tests.adapters.layers import derivative
from tests.helpers.compare import close

HALVES = [(5, 1, 4, 2), (5, 5, 5, 5), (4, 4, 4, 4), (6, 3, 1, 6), (1, 1, 1, 1), (2, 1, 1, 2), (3, 1, 3, 5)]


def merged(even: np.ndarray, odd: np.ndarray, like: np.ndarray) -> np.ndarray:
    H = np.empty(like.shape)
    H[..., ::2, :], H[..., 1::2, :] = even, odd
    return H


@pytest.mark.parametrize("name", NEAREST)
@pytest.mark.parametrize("of_lengths", HALVES)
def test_halves_are_the_layer(name, of_lengths, rng):
    case = case_of(name, lengths=of_lengths, T=max(of_lengths))
    layer, H = case.layer(), np.where(case.valid, case.H, 0)
    even, odd = layer.halves.eliminated, layer.halves.kept
    evens, odds = H[:, ::2], H[:, 1::2]
    F = H - layer.residual(H)
    close(merged(even.apply(odds), odd.apply(evens), H), F, 1e-15)
    (even_value, even_slope), (odd_value, odd_slope) = even.linearize(odds), odd.linearize(evens)
    close(merged(even_value, odd_value, H), F, 1e-15)
    v, w = rng.standard_normal((2, *H.shape))
    whole = derivative(layer, H)
    pushed = merged(even_slope.matvec(v[:, 1::2]), odd_slope.matvec(v[:, ::2]), H)
    close(pushed, whole.matvec(v), 1e-14)
    pulled = merged(odd_slope.rmatvec(w[:, 1::2]), even_slope.rmatvec(w[:, ::2]), H)
    close(pulled, whole.rmatvec(w), 1e-14)
    for ours, theirs, expected in zip(even_slope.diagonals(), odd_slope.diagonals(), whole.diagonals()):
        close(merged(ours, theirs, H), expected, 1e-14)


@pytest.mark.parametrize("name", NEAREST)
def test_parts_of_halves(name, rng):
    case = case_of(name)
    layer, indices = case.layer(), np.asarray([2, 0, 0])
    H, v = case.H, rng.standard_normal(case.H.shape)
    for half, other, own in ((layer.halves.eliminated, 1, 0), (layer.halves.kept, 0, 1)):
        value, slope = half.linearize(H[:, other::2])
        part = slope.take(indices)
        close(part.matvec(v[indices, other::2]), slope.matvec(v[:, other::2])[indices])
        close(part.rmatvec(v[indices, own::2]), slope.rmatvec(v[:, own::2])[indices])
        for some, every in zip(part.diagonals(), slope.diagonals()):
            close(some, every[indices])
        taken = layer.take(indices).halves
        taken_half = taken.eliminated if own == 0 else taken.kept
        close(taken_half.apply(H[indices, other::2]), value[indices])
        single = slope.astype(np.float32)
        product = single.matvec(v[:, other::2].astype(np.float32))
        assert product.dtype == np.float32
        close(product, slope.matvec(v[:, other::2]), 1e-5)


@pytest.mark.parametrize("name", NEAREST)
@pytest.mark.parametrize("T", [1, 2, 5])
def test_halves_of_one_sequence(name, T, rng):
    case = case_of(name, B=1, T=T, lengths=(T,), boundary="shared")
    params = {weight: case.P[weight] for weight in case.weights}
    edges = {edge: case.P[edge] for edge in case.adapter.boundaries(3)}
    layer, H = case.adapter.build(params, case.P["inputs"][0], **edges, **case.adapter.options), case.H[0]
    even, even_slope = layer.halves.eliminated.linearize(H[1::2])
    odd, odd_slope = layer.halves.kept.linearize(H[::2])
    close(H - merged(even, odd, H), layer.residual(H), 1e-15)
    v, J = rng.standard_normal(H.shape), layer.linearize(H)[1]
    close(v - merged(even_slope.matvec(v[1::2]), odd_slope.matvec(v[::2]), v), J.matvec(v), 1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", NEAREST)
def test_halves_keep_sequences_and_padding_apart(name, bad, rng):
    case, v = case_of(name), rng.standard_normal((4, 5, 6))[:, :, : case_of(name).H.shape[2]]
    layer, rest = case.layer(), [0, 2]
    H, w = np.where(case.valid, case.H, bad), np.where(case.valid, v, bad)
    H[1], H[3] = bad, bad
    w[1], w[3] = bad, bad
    for half, other, own in ((layer.halves.eliminated, 1, 0), (layer.halves.kept, 0, 1)):
        value, slope = half.linearize(H[:, other::2])
        clean, clean_slope = half.linearize(case.H[:, other::2])
        np.testing.assert_array_equal(value[rest], clean[rest])
        np.testing.assert_array_equal(half.apply(H[:, other::2])[rest], clean[rest])
        np.testing.assert_array_equal(slope.matvec(w[:, other::2])[rest], clean_slope.matvec(v[:, other::2])[rest])
        np.testing.assert_array_equal(slope.rmatvec(w[:, own::2])[rest], clean_slope.rmatvec(v[:, own::2])[rest])
        assert (clean[~case.valid[:, own::2, 0]] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_only_nearest_neighbours_have_halves(name):
    layer = case_of(name).layer()
    assert layer.fixed_point
    assert (layer.halves is not None) == (name in NEAREST)


@pytest.mark.parametrize("name", NEAREST)
def test_states_of_halves_are_checked(name):
    case = case_of(name)
    halves = case.layer().halves
    with pytest.raises(ValueError, match=r"`other` must have shape \(4, 2, [36]\), got \(4, 3, [36]\)"):
        halves.eliminated.apply(case.H[:, ::2])
    with pytest.raises(TypeError, match="`other` must have the dtype of the inputs, float64, got float32"):
        halves.kept.linearize(case.H[:, ::2].astype(np.float32))
