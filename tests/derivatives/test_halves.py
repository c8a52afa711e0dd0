"""Derivatives of problems with halves, solved for every second block, against dense matrices and the whole system."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import LinearStop, pull_back, push_forward, root
from implicitsolve.status import Status
from tests.adapters.cases import NEAREST
from tests.adapters.layers import make
from tests.derivatives.halves import EXACT, SOLVED, close, solved, whole
from tests.elimination.layers import SIZES

# Against dense matrices


def test_pull_back_is_the_dense_adjoint(case, rng):
    layer, result, case = solved(case)
    cotangent = rng.standard_normal(case.H.shape)
    before = cotangent.copy()
    back = pull_back(layer, result, cotangent, stop=EXACT)
    lam = np.linalg.solve(case.jacobian().T, cotangent.ravel()).reshape(cotangent.shape)
    assert back.success.all()
    np.testing.assert_array_equal(cotangent, before)
    close(back.adjoint, lam)
    expected = {key: -value for key, value in layer.parameter_vjp(result.x, lam).items()}
    assert back.gradients.keys() == expected.keys() == layer.parameters.keys()
    for key, value in expected.items():
        close(back.gradients[key], value)


def test_the_residual_norm_is_that_of_the_whole_system(case, rng):
    layer, result, _ = solved(case)
    cotangent = rng.standard_normal(result.x.shape)
    J = layer.linearize(result.x)[1]
    for rtol in (1e-2, 1e-6):
        back = pull_back(layer, result, cotangent, stop=LinearStop(rtol=rtol))
        remains = np.linalg.norm((cotangent - J.rmatvec(back.adjoint)).reshape(3, -1), axis=1)
        np.testing.assert_allclose(back.linear.residual_norm, remains, rtol=1e-6, atol=1e-13)
        norms = np.linalg.norm(cotangent.reshape(3, -1), axis=1)
        assert (remains <= rtol * norms * (1 + 1e-9)).all()
        assert back.success.all()


@given(st.integers(0, 2**32 - 1), st.sampled_from(NEAREST), st.integers(1, 7), st.integers(1, 3), st.data())
def test_the_two_modes_agree_with_each_other_and_with_the_whole_system(seed, name, T, B, data):
    lengths = data.draw(st.none() | st.lists(st.integers(1, T), min_size=B, max_size=B))
    case = make(name, seed=seed, B=B, T=T, k=2, lengths=lengths, scale=0.6)
    layer, rng = case.layer(), np.random.default_rng(seed)
    cotangent = rng.standard_normal(case.H.shape)
    tangents = {key: rng.standard_normal(value.shape) for key, value in case.P.items()}
    back, forward = pull_back(layer, case.H, cotangent, stop=EXACT), push_forward(layer, case.H, tangents, stop=EXACT)
    left = np.sum(cotangent * forward.tangent)
    right = sum(np.sum(back.gradients[key] * tangents[key]) for key in tangents)
    scale = np.linalg.norm(cotangent) * np.linalg.norm(forward.tangent) + 1
    assert abs(left - right) <= 1e-9 * scale
    other = pull_back(whole(layer), case.H, cotangent, stop=EXACT)
    close(back.adjoint, other.adjoint, 1e-9)
    for key, value in other.gradients.items():
        close(back.gradients[key], value, 1e-9)
    close(forward.tangent, push_forward(whole(layer), case.H, tangents, stop=EXACT).tangent, 1e-9)


def test_one_sequence_alone(name, rng):
    for T in (1, 2, 5):
        case = make(name, B=1, T=T, lengths=None, scale=0.8)
        params = {key: case.P[key] for key in case.weights}
        edges = {key: case.P[key][0] for key in case.adapter.boundaries(1)}
        alone = case.adapter.build(params, case.P["inputs"][0], **edges, **case.adapter.options)
        result = root(alone, method="newton-krylov", stop=SOLVED)
        cotangent = rng.standard_normal(result.x.shape)
        back = pull_back(alone, result, cotangent, stop=EXACT)
        J = replace(case, H=result.x[None]).jacobian()
        close(back.adjoint, np.linalg.solve(J.T, cotangent.ravel()).reshape(cotangent.shape))
        assert back.status is Status.CONVERGED
        assert isinstance(back.linear.residual_norm, float)
        assert isinstance(back.linear.iterations, int)
        tangents = {"inputs": rng.standard_normal(case.P["inputs"][0].shape)}
        right = -alone.parameter_jvp(result.x, tangents)
        forward = push_forward(alone, result, tangents, stop=EXACT)
        close(forward.tangent, np.linalg.solve(J, right.ravel()).reshape(right.shape))


METHODS = {
    "default": None,
    "gmres": ims.GMRES(),
    "gmres of 3": ims.GMRES(restart=3),
    "lgmres": ims.LGMRES(),
    "bicgstab": ims.BiCGSTAB(),
    "block-lu": ims.BlockLU(),
    "cyclic": ims.CyclicReduction(),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("size", ["T1", "T2", "ragged"])
def test_every_method_finds_the_same(method, size, rng):
    layer, result, case = solved(make("implicit_gru", **SIZES[size], scale=0.8))
    cotangent = rng.standard_normal(case.H.shape)
    tangents = {key: rng.standard_normal(value.shape) for key, value in case.P.items()}
    stop = LinearStop(rtol=1e-11)
    back = pull_back(layer, result, cotangent, method=method, stop=stop)
    forward = push_forward(layer, result, tangents, method=method, stop=stop)
    assert back.success.all()
    assert forward.success.all()
    close(back.adjoint, pull_back(layer, result, cotangent, stop=EXACT).adjoint, 1e-9)
    close(forward.tangent, push_forward(layer, result, tangents, stop=EXACT).tangent, 1e-9)


@pytest.mark.parametrize("order", [0, 1, 4])
@pytest.mark.parametrize("damping", [1.0, 0.6])
def test_a_truncated_inverse_sees_the_whole_system(order, damping, rng):
    """Nothing is eliminated, and no preconditioner used: lam = tau sum_i (I - tau J^T)^i cotangent."""
    layer, result, case = solved(make("implicit_gru", T=5, lengths=(5, 2, 4), scale=0.8))
    cotangent = rng.standard_normal(case.H.shape)
    J = case.jacobian()
    method = ims.TruncatedInverse(order=order, damping=damping)
    for transposed in (True, False):
        A = J.T if transposed else J
        if transposed:
            found = pull_back(layer, result, cotangent, method=method)
            right, lam = cotangent, found.adjoint
        else:
            tangents = {"inputs": rng.standard_normal(case.P["inputs"].shape)}
            found = push_forward(layer, result, tangents, method=method)
            right, lam = -layer.parameter_jvp(result.x, tangents), found.tangent
        term = total = damping * right.ravel()
        for _ in range(order):
            term = term - damping * (A @ term)
            total = total + term
        close(lam.ravel(), total, 1e-12)
        assert (found.status == Status.STOPPED).all()
        remains = np.linalg.norm((right.ravel() - A @ total).reshape(3, -1), axis=1)
        np.testing.assert_allclose(found.linear.residual_norm, remains, rtol=1e-10)


def test_a_preconditioner_that_is_given_is_for_the_whole_system(rng):
    layer, result, case = solved(make("implicit_gru", T=5, lengths=(5, 2, 4), scale=0.8))
    cotangent = rng.standard_normal(case.H.shape)
    expected = pull_back(layer, result, cotangent, stop=EXACT).adjoint
    used = []
    identity = ims.LinearOperator(
        lambda v: used.append(v.shape) or v, lambda v: v, in_shape=case.H.shape[1:], batch_shape=(3,)
    )
    for M in (identity, ims.BlockLU()):
        back = pull_back(layer, result, cotangent, M=M, method=ims.GMRES(), stop=EXACT)
        assert back.success.all()
        close(back.adjoint, expected)
    assert set(used) == {(3, 5, 3)}


def test_a_start_saves_the_work(rng):
    layer, result, _ = solved(make("implicit_gru", T=7, lengths=None, scale=1.5))
    cotangent = rng.standard_normal(result.x.shape)
    stop = LinearStop(rtol=1e-8)
    cold = pull_back(layer, result, cotangent, stop=stop)
    known = pull_back(layer, result, cotangent, stop=LinearStop(rtol=1e-10)).adjoint
    before = known.copy()
    warm = pull_back(layer, result, cotangent, x0=known, stop=stop)
    np.testing.assert_array_equal(known, before)
    assert (warm.linear.iterations == 0).all()
    assert (cold.linear.iterations > 1).all()
    assert warm.success.all()
    close(warm.adjoint, known, 1e-7)
    near = pull_back(layer, result, cotangent, x0=known + 1e-5 * rng.standard_normal(known.shape), stop=stop)
    assert near.success.all()
    assert (near.linear.iterations < cold.linear.iterations).all()
    known[:, ::2] = np.nan  # follows from the others
    np.testing.assert_array_equal(pull_back(layer, result, cotangent, x0=known, stop=stop).adjoint, warm.adjoint)
    tangents = {"b": np.ones(3)}
    forward = push_forward(layer, result, tangents, stop=LinearStop(rtol=1e-10))
    again = push_forward(layer, result, tangents, x0=forward.tangent, stop=stop)
    assert (again.linear.iterations == 0).all()
    close(again.tangent, forward.tangent, 1e-7)


def test_half_the_unknowns_need_fewer_products(rng):
    layer, result, _ = solved(make("implicit_gru", B=4, T=12, k=8, lengths=None, scale=0.6))
    cotangent = rng.standard_normal(result.x.shape)
    stop = LinearStop(rtol=1e-8)
    half, full = (pull_back(one, result, cotangent, stop=stop) for one in (layer, whole(layer)))
    assert half.linear.matvecs < 0.8 * full.linear.matvecs
