"""Two precisions: the answer, its target and what is said of it are those of float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.nonlinear import _auto

k = 64


@pytest.fixture(autouse=True, scope="module")
def small_ones():
    """Layers as small as these are solved in two precisions too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_auto, "TWO_STARTS", 0)
        yield


def layer(rng, B=3, T=7, s=1.0):
    params = ims.adapters.gru_parameters(5, k, rng=rng)
    params = {name: s * value if name[0] == "U" else value for name, value in params.items()}
    return ims.adapters.implicit_gru(params, rng.standard_normal((B, T, 5)), lengths=[T, T - 2, T][:B])


def contraction(rng, shift=1.0, asked=None):
    """x = A x + shift, with a nonlinear part that is small wherever x is large."""
    A, b = 0.5 * np.linalg.qr(rng.standard_normal((k, k)))[0], shift * rng.standard_normal(k)

    def problem(A, b):
        def astype(dtype):
            if asked is not None:
                asked.append(np.dtype(dtype))
            return problem(A.astype(dtype), b.astype(dtype))  # perhaps inf

        return ims.Problem(
            lambda x: x - (x @ A.T + np.tanh(x) / 4 + b),
            jvp=lambda x, v: v - (v @ A.T + v * (1 - np.tanh(x) ** 2) / 4),
            structure=ims.BlockBanded(0, 0, k),
            batch_ndim=1,
            fixed_point=True,
            astype=astype,
        )

    return problem(A, b)


@settings(max_examples=12)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([None, 1e-3, 1e-11]))
def test_as_accurate_as_in_double_precision(seed, s, rtol):
    problem, stop = layer(np.random.default_rng(seed), s=s), ims.NonlinearStop(rtol=rtol)
    result = ims.root(problem, np.zeros((3, 7, k)), stop=stop)
    assert result.success.all()
    assert result.x.dtype == result.fun.dtype == np.float64
    half = ims.elimination.even_odd(problem)
    start, end = (np.abs(half.residual(x)).max(axis=(1, 2)) for x in (np.zeros((3, 3, k)), result.x[:, 1::2]))
    np.testing.assert_allclose(result.initial_norm, start, rtol=1e-12)
    np.testing.assert_allclose(result.residual_norm, end, rtol=1e-3, atol=1e-14)
    assert (end <= (np.sqrt(2.0**-52) if rtol is None else rtol) * start).all()


@pytest.mark.parametrize("off", [0.0, 1e-12, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("rtol", [0.0, 0.01])
def test_a_warm_start_is_no_worse_than_in_double_precision(off, rtol, rng):
    problem = layer(rng)
    solution = ims.root(problem, stop=ims.NonlinearStop(atol=1e-14, rtol=0.0)).x
    x0 = solution + off * rng.standard_normal(solution.shape)
    first = np.abs(ims.elimination.even_odd(problem).residual(x0[:, 1::2])).max(axis=(1, 2))
    stop = ims.NonlinearStop(atol=3e-14, rtol=rtol)
    result = ims.root(problem, x0, stop=stop)
    assert result.success.all()
    norm = np.abs(problem.residual(result.x)).max(axis=(1, 2))
    assert (norm <= 1.01 * np.maximum(3e-14, rtol * first)).all()
    np.testing.assert_allclose(result.initial_norm, first, rtol=1e-12 if rtol else 1e-2)


def test_most_calls_are_in_single_precision(rng):
    dtypes = []
    problem = contraction(rng)

    def spied(problem):
        def residual(x):
            dtypes.append(x.dtype)
            return problem.residual(x)

        return replace(problem, residual=residual, astype=lambda dtype: spied(problem.astype(dtype)))

    result = ims.root(spied(problem), np.zeros((2, k)), stop=ims.NonlinearStop(atol=1e-12, rtol=0.0))
    assert result.success.all()
    assert result.counts.residuals == len(dtypes)
    assert 2 <= dtypes.count(np.float64) <= 4 < dtypes.count(np.float32)


def test_numbers_beyond_single_precision(rng):
    problem = contraction(rng, shift=1e40)
    result = ims.root(problem, np.zeros((2, k)))
    assert result.success.all()
    assert 1e39 < np.abs(result.x).max() < np.inf


def test_systems_that_fail_are_described_in_double_precision(rng):
    problem = layer(rng, s=2.0)
    result = ims.root(problem, stop=ims.NonlinearStop(atol=1e-10, rtol=0.0, max_iterations=3))
    assert (result.status == ims.Status.ITERATION_LIMIT).all()
    assert (result.iterations == 3).all()
    F = problem.residual(result.x)
    np.testing.assert_allclose(result.fun, F, rtol=0, atol=1e-14)
    np.testing.assert_allclose(result.residual_norm, np.abs(F).max(axis=(1, 2)), rtol=1e-12)


def test_the_monitor_sees_double_precision(rng):
    seen = []
    result = ims.root(layer(rng), monitor=lambda step, x, F: seen.append((step.iteration, x.dtype, F.dtype, x.shape)))
    assert {entry[1:] for entry in seen} == {(np.dtype(float), np.dtype(float), (3, 7, k))}
    assert [entry[0] for entry in seen] == list(range(len(result.steps)))


def test_a_norm_of_the_callers(rng):
    stop = ims.NonlinearStop(atol=1e-9, rtol=0.0, norm=lambda F: np.abs(F).sum())
    problem = layer(rng)
    result = ims.root(problem, stop=stop)
    assert result.success.all()
    assert (np.abs(problem.residual(result.x)).sum(axis=(1, 2)) <= 1e-9).all()


def test_what_anderson_leaves_goes_on_in_single_precision_too(rng, monkeypatch):
    monkeypatch.setattr(
        "implicitsolve.nonlinear._auto.Anderson", lambda: ims.Anderson(patience=1, damping=1e-6, memory=0)
    )
    dtypes = []

    def spied(problem):
        def linearize(x):
            dtypes.append(x.dtype)
            return problem.linearize(x)

        return replace(
            problem,
            linearize=linearize,
            take=lambda indices: spied(problem.take(indices)),
            astype=lambda dtype: spied(problem.astype(dtype)),
        )

    half = replace(ims.elimination.even_odd(layer(rng, s=2.0)), blocks=None)  # no Newton steps before
    result = ims.root(spied(half), np.zeros((3, 3, k)), stop=ims.NonlinearStop(atol=1e-11, rtol=0.0))
    assert result.success.all()
    assert np.abs(half.residual(result.x)).max() <= 1e-11
    assert (result.initial_norm > 1e-3).all()
    assert 1 <= dtypes.count(np.float64) <= 5 < dtypes.count(np.float32)


def test_what_astype_returns_is_checked(rng):
    problem = replace(contraction(rng), astype=lambda dtype: None)
    with pytest.raises(TypeError, match=r"`astype` must return a Problem, got NoneType"):
        ims.root(problem, np.zeros((2, k)))
