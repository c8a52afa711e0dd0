"""What holds for the implicit GRU alone; what every layer must do is in test_layer.py."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.adapters import gru_switch, implicit_gru, initial_guess
from tests.adapters.layers import make as make_case
from tests.adapters.layers import sigma
from tests.helpers.compare import close, host

WEIGHTS = ("W", "U", "b", "Wz", "Uz", "bz", "Wr", "Ur", "br", "Wp", "Up", "bp", "Wn", "Un", "bn")
TIGHT = ims.NonlinearStop(atol=1e-14, rtol=0.0)


def make(**options: Any):
    return make_case("implicit_gru", **({"scale": 1.5} | options))


def test_switch_is_the_quotient_where_that_is_safe():
    case = make()
    params, P = {name: case.P[name] for name in WEIGHTS}, case.P
    actual = gru_switch(params, P["inputs"], case.H, lengths=case.lengths, hs=P["hs"], he=P["he"])
    for b, n in enumerate(case.lengths):
        h = [P["hs"][b], *case.H[b, :n], P["he"][b]]
        for t, x in enumerate(P["inputs"][b, :n]):
            sp = sigma(P["Wp"] @ x + P["Up"] @ h[t] + P["bp"])
            sn = sigma(P["Wn"] @ x + P["Un"] @ h[t + 2] + P["bn"])
            np.testing.assert_allclose(actual[b, t], sp / (sp + sn), rtol=1e-13)
        assert (actual[b, n:] == 0.5).all()


VALUES = np.asarray([-1e6, -1003.0, -1000.0, -95.0, -90.0, -2.0, 0.0, 3.0, 90.0, 1000.0, 1e6])


def test_switch_and_its_slopes_at_any_size(dtype, xp):
    """One position whose element i has the arguments a[i] and c[i], with p = 1 and q = -1."""
    a, c = (grid.ravel() for grid in np.meshgrid(VALUES, VALUES))
    k = len(a)
    params = {name: np.zeros({"W": (k, 1), "U": (k, k), "b": (k,)}[name[0]]) for name in WEIGHTS}
    params |= {"Up": np.diag(a), "Un": np.diag(-c)}
    params = {name: xp.asarray(value, dtype=dtype) for name, value in params.items()}
    x, ones = xp.zeros((1, 1), dtype=dtype), xp.ones((1, k), dtype=dtype)
    edges = {"hs": ones[0, :], "he": -ones[0, :]}
    tolerance = {"rtol": 64 * float(xp.finfo(dtype).eps), "atol": float(xp.finfo(dtype).smallest_normal)}

    expected = np.exp(-np.logaddexp(0, np.logaddexp(0, -a) - np.logaddexp(0, -c)))  # sigma(log sigma(a) - log sigma(c))
    np.testing.assert_allclose(host(gru_switch(params, x, 0 * ones, **edges)[0, :]), expected, **tolerance)
    gradients = implicit_gru(params, x, **edges).parameter_vjp(0 * ones, -ones)
    slope = expected * np.exp(-np.logaddexp(0, np.logaddexp(0, -c) - np.logaddexp(0, -a))) * np.exp(-np.logaddexp(0, a))
    np.testing.assert_allclose(host(gradients["bp"]), slope, **tolerance)  # h = hhat/2 and p - q = 2
    assert all(bool(xp.all(xp.isfinite(gradient))) for gradient in gradients.values())


def test_more_padding_changes_nothing():
    case = make()
    inputs = np.concatenate([case.P["inputs"], np.full((3, 5, 2), np.nan)], axis=1)
    H, longer = np.concatenate([case.H, np.zeros((3, 5, 3))], axis=1), case.layer(inputs=inputs)
    np.testing.assert_array_equal(longer.residual(H)[:, :4], case.layer().residual(case.H))
    for kind in ("one-step", "random"):
        guess = initial_guess(longer, kind, np.random.default_rng(0))
        np.testing.assert_array_equal(guess[:, :4], initial_guess(case.layer(), kind, np.random.default_rng(0)))
        assert (guess[:, 4:] == 0).all()


def test_strided_states_are_fine():
    case = make()
    layer = case.layer()
    for H in (np.asfortranarray(case.H), np.repeat(case.H, 2, axis=2)[:, :, ::2]):
        np.testing.assert_array_equal(layer.residual(H), layer.residual(case.H))
        np.testing.assert_array_equal(layer.linearize(case.H)[1].rmatvec(H), layer.vjp(case.H, case.H))


def test_threads():
    case = make(B=4, T=20, k=16, lengths=None)
    layer = case.layer()
    J = layer.linearize(case.H)[1]
    expected = [layer.residual(case.H), J.matvec(case.H), J.rmatvec(case.H)]
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(f, case.H) for _ in range(8) for f in (layer.residual, J.matvec, J.rmatvec)]
        for i, task in enumerate(tasks):
            np.testing.assert_array_equal(task.result(), expected[i % 3])


def test_other_guesses():
    layer, valid = make().layer(), make().valid
    assert not initial_guess(layer, "zeros").any()
    first, second, third = (initial_guess(layer, "random", np.random.default_rng(s)) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert (np.abs(first) <= 1).all()
    assert ((first != third) == valid).all()
    np.testing.assert_array_equal(layer.initial_guess("default", None), initial_guess(layer, "one-step"))


def test_guesses_that_cannot_be():
    layer = make().layer()
    with pytest.raises(ValueError, match="`kind` must be 'one-step', 'zeros' or 'random', got 'two-step'"):
        initial_guess(layer, "two-step")
    with pytest.raises(TypeError, match=r"`rng` must be a numpy.random.Generator, got NoneType"):
        initial_guess(layer, "random")
    with pytest.raises(TypeError, match="`problem` must be a Problem with an initial guess"):
        initial_guess(ims.Problem(lambda x: x**3, name="cube"))


@pytest.mark.parametrize("kind", ["zeros", "one-step", "random"])
def test_every_start_leads_to_the_solution(kind, xp, dtype, rng):
    case = make(scale=0.8)
    layer = case.layer(xp, dtype)
    result = ims.root(layer, initial_guess(layer, kind, rng))
    assert np.asarray(result.success).all()
    assert result.x.dtype == dtype
    close(result.x, ims.root(case.layer(), stop=TIGHT).x, 1e-3 if dtype == xp.float32 else 1e-6)


def test_padding_changes_neither_solution_nor_gradient(rng):
    case = make(scale=0.8)
    clean, padded = case.layer(), case.layer(inputs=np.where(case.valid, case.P["inputs"], np.nan))
    one, other = ims.root(clean, stop=TIGHT), ims.root(padded, stop=TIGHT)
    np.testing.assert_array_equal(one.x, other.x)
    cotangent = rng.standard_normal(one.x.shape)
    ours = ims.pull_back(padded, other, cotangent).gradients
    for name, gradient in ims.pull_back(clean, one, cotangent).gradients.items():
        np.testing.assert_array_equal(gradient, ours[name])
