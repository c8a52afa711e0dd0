"""The inverse of a causal layer's Jacobian against dense matrices."""

from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.adapters._gradients import direction
from tests.adapters.cases import CAUSAL
from tests.adapters.layers import ADAPTERS, Case, make, rnn_adapter, stencil_adapter
from tests.helpers.compare import close

MORE = {"stencil +2": stencil_adapter(2), "stencil -3 -1": stencil_adapter(-3, -1), "rnn 3": rnn_adapter(3, 0, "tanh")}
SIZES: dict[str, dict[str, Any]] = {
    "T1": {"T": 1, "lengths": None},
    "T2": {"T": 2, "lengths": None},
    "full": {"T": 6, "lengths": None},
    "ragged": {"T": 6, "lengths": (4, 1, 6)},
    "short": {"T": 6, "lengths": (2, 1, 1)},
}


@pytest.fixture(params=[*CAUSAL, *MORE])
def name(request, monkeypatch) -> str:
    for key, adapter in MORE.items():
        monkeypatch.setitem(ADAPTERS, key, adapter)
    return request.param


@pytest.fixture(params=SIZES)
def case(request, name) -> Case:
    return make(name, **SIZES[request.param], scale=0.8)


def test_it_is_the_dense_inverse(case, rng):
    layer, J = case.layer(), case.jacobian()
    M = layer.linearize(case.H)[1].approximate_inverse()
    assert M.in_shape == M.out_shape == case.H.shape[1:]
    assert M.batch_shape == case.H.shape[:1]
    b = rng.standard_normal(case.H.shape)
    before = b.copy()
    close(M.matvec(b).ravel(), np.linalg.solve(J, b.ravel()))
    close(M.rmatvec(b).ravel(), np.linalg.solve(J.T, b.ravel()))
    close(M.H.matvec(b), M.rmatvec(b), 0)
    np.testing.assert_array_equal(b, before)


@pytest.mark.parametrize("garbage", [1e300, np.nan])
def test_padding_is_the_identity(name, garbage, rng):
    case = make(name, **SIZES["ragged"], scale=0.8)
    M = case.layer().linearize(case.H)[1].approximate_inverse()
    valid = np.broadcast_to(case.valid, case.H.shape)
    b = rng.standard_normal(case.H.shape)
    dirty = np.where(valid, b, garbage)
    for product in (M.matvec, M.rmatvec):
        expected = np.where(valid, product(np.where(valid, b, 0.0)), garbage)
        np.testing.assert_array_equal(product(dirty), expected)


def test_take(name, rng):
    case = make(name, **SIZES["ragged"], scale=0.8)
    J = case.layer().linearize(case.H)[1]
    M, b = J.approximate_inverse(), rng.standard_normal(case.H.shape)
    for indices in (np.asarray([2, 0]), np.asarray([1]), np.asarray([0, 0, 2])):
        for part in (M.take(indices), J.take(indices).approximate_inverse()):
            assert part.batch_shape == (len(indices),)
            close(part.matvec(b[indices]), M.matvec(b)[indices], 1e-13)
            close(part.rmatvec(b[indices]), M.rmatvec(b)[indices], 1e-13)
        flat = J.flat().take(indices).approximate_inverse()
        rows = b[indices].reshape(len(indices), -1)
        close(flat.matvec(rows), M.matvec(b)[indices].reshape(rows.shape), 1e-13)


def test_every_library_and_dtype(name, xp, dtype, rng):
    for size in ("T1", "ragged", "short"):
        case = make(name, **SIZES[size], scale=0.8)
        b = rng.standard_normal(case.H.shape)
        expected = case.layer().linearize(case.H)[1].approximate_inverse()
        J = case.layer(xp, dtype).linearize(xp.asarray(case.H, dtype=dtype))[1]
        M, given_b = J.approximate_inverse(), xp.asarray(b, dtype=dtype)
        tolerance = 256 * float(xp.finfo(dtype).eps)
        for actual, value in (
            (M.matvec(given_b), expected.matvec(b)),
            (M.rmatvec(given_b), expected.rmatvec(b)),
        ):
            assert actual.dtype == dtype
            close(actual, value, tolerance)
        single = J.astype(xp.float32).approximate_inverse()
        assert single.dtype == xp.float32
        x = single.matvec(xp.asarray(b, dtype=xp.float32))
        assert x.dtype == xp.float32
        close(x, expected.matvec(b), 256 * float(xp.finfo(xp.float32).eps))


def test_derivatives_take_one_iteration(name, rng):
    case = make(name, **SIZES["ragged"], scale=1.5)
    layer = case.layer()
    result = ims.root(layer, method=ims.Substitution())
    stop = ims.LinearStop(rtol=1e-11)
    back = ims.pull_back(layer, result, rng.standard_normal(case.H.shape), stop=stop)
    tangents = {"inputs": rng.standard_normal(case.P["inputs"].shape)}
    forward = ims.push_forward(layer, result, tangents, stop=stop)
    for found in (back, forward):
        assert found.success.all()
        assert (found.linear.iterations <= 1).all()
        assert found.linear.matvecs <= 3


def test_newton_takes_one_product_a_step(name):
    layer = make(name, **SIZES["ragged"], scale=0.7).layer()
    for recycle in (0, 200):
        method = ims.NewtonKrylov(forcing=ims.ConstantForcing(eta=1e-10), recycle=recycle)
        result = ims.root(layer, method=method, stop=ims.NonlinearStop(atol=1e-11, rtol=0.0))
        assert result.success.all()
        assert (result.krylov_iterations <= result.iterations).all()


def test_only_causal_layers_offer_it():
    for key, adapter in ADAPTERS.items():
        case = make(key, T=4, lengths=None)
        has_inverse = case.layer().linearize(case.H)[1].approximate_inverse() is not None
        assert has_inverse == (key in CAUSAL)
        assert (direction(adapter.offsets) != 0) == (key in CAUSAL)
