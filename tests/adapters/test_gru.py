"""The implicit GRU against its formulas written out, position by position, in complex arithmetic."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.adapters import gru_switch, implicit_gru, initial_guess
from tests.adapters.gru import WEIGHTS, Case, cases, cell, gru, make, per_system, residual, switch
from tests.helpers.compare import close, host, jacobian

KINDS = ("one-step", "zeros")


DENSE = {"ragged": {}, "full": {"lengths": None}, "shared": {"boundary": "shared"}, "short": {"T": 1, "lengths": None}}


@pytest.fixture(params=DENSE)
def case(request) -> Case:
    return make(**DENSE[request.param])


# The function and its derivatives


def test_residual_is_the_formula(case, xp, dtype):
    actual = case.layer(xp, dtype).residual(xp.asarray(case.H, dtype=dtype))
    assert actual.dtype == dtype
    close(actual, residual(case.P, case.H, case.lengths), 64 * float(xp.finfo(dtype).eps))


def test_products_are_those_of_the_dense_jacobian(case, rng):
    J, layer = case.jacobian(), case.layer()
    v, w = rng.standard_normal((2, *case.H.shape))
    F, operator = layer.linearize(case.H)
    close(F, residual(case.P, case.H, case.lengths))
    for actual in (layer.jvp(case.H, v), operator.matvec(v)):
        close(actual.ravel(), J @ v.ravel())
    for actual in (layer.vjp(case.H, w), operator.rmatvec(w)):
        close(actual.ravel(), J.T @ w.ravel())


@pytest.mark.parametrize("name", [*WEIGHTS, "inputs", "hs", "he"])
def test_parameter_products_are_those_of_the_dense_jacobian(case, rng, name):
    layer, value = case.layer(), case.P[name]
    J = jacobian(lambda changed: case.replaced(name, changed), value)
    v, w = rng.standard_normal(value.shape), rng.standard_normal(case.H.shape)
    close(layer.parameter_jvp(case.H, {name: v}).ravel(), J @ v.ravel())
    gradient = layer.parameter_vjp(case.H, w)[name]
    assert gradient.shape == value.shape
    close(gradient.ravel(), J.T @ w.ravel())


def test_products_are_the_same_in_every_library(xp, dtype, rng):
    case, tolerance = make(), 256 * float(xp.finfo(dtype).eps)
    v = rng.standard_normal(case.H.shape)
    tangents = {name: rng.standard_normal(value.shape) for name, value in case.P.items()}
    layer, ours = case.layer(), case.layer(xp, dtype)
    H, dH = xp.asarray(case.H, dtype=dtype), xp.asarray(v, dtype=dtype)
    results = {
        "jvp": (ours.jvp(H, dH), layer.jvp(case.H, v)),
        "vjp": (ours.vjp(H, dH), layer.vjp(case.H, v)),
        "parameter_jvp": (
            ours.parameter_jvp(H, {name: xp.asarray(value, dtype=dtype) for name, value in tangents.items()}),
            layer.parameter_jvp(case.H, tangents),
        ),
        "one-step": (initial_guess(ours), initial_guess(layer)),
        "random": (
            initial_guess(ours, "random", np.random.default_rng(1)),
            initial_guess(layer, "random", np.random.default_rng(1)),
        ),
        "taken": (
            ours.take(np.asarray([2, 0])).residual(xp.asarray(case.H[[2, 0]], dtype=dtype)),
            layer.residual(case.H)[[2, 0]],
        ),
    }
    expected = layer.parameter_vjp(case.H, v)
    results |= {name: (value, expected[name]) for name, value in ours.parameter_vjp(H, dH).items()}
    for actual, value in results.values():
        assert type(actual) is type(H)
        assert actual.dtype == dtype
        close(actual, value, tolerance)


def same_product(left, right):
    """Whether two sums of products agree, given the terms of each and the size of what the terms themselves cancel."""
    size = max(1.0, *(np.abs(terms).sum() for terms in (left, right)))
    return abs(left.sum() - right.sum()) <= 1e-13 * size


@given(cases(), st.integers(0, 2**32 - 1))
def test_adjoint_identities(case, seed):
    rng = np.random.default_rng(seed)
    layer = case.layer()
    v, w = rng.standard_normal((2, *case.H.shape))
    J = layer.linearize(case.H)[1]
    assert same_product(w * J.matvec(v), J.rmatvec(w) * v)
    tangents = {name: rng.standard_normal(value.shape) for name, value in case.P.items()}
    gradients = layer.parameter_vjp(case.H, w)
    assert gradients.keys() == tangents.keys() == layer.parameters.keys()
    terms = np.concatenate([(tangents[name] * gradients[name]).ravel() for name in tangents])
    assert same_product(w * layer.parameter_jvp(case.H, tangents), terms)


@given(cases())
def test_the_box_is_invariant(case):
    bound = max(1.0, np.abs(case.P["hs"]).max(), np.abs(case.P["he"]).max())
    H = bound * case.H
    assert np.abs((H - case.layer().residual(H))[np.broadcast_to(case.valid, H.shape)]).max() <= bound * (1 + 1e-15)


# The switch


def test_switch_is_the_quotient_where_that_is_safe():
    case = make()
    params = {name: case.P[name] for name in WEIGHTS}
    actual = gru_switch(params, case.P["inputs"], case.H, lengths=case.lengths, hs=case.P["hs"], he=case.P["he"])
    for b, n in enumerate(case.lengths):
        h = [case.P["hs"][b], *case.H[b, :n], case.P["he"][b]]
        for t in range(n):
            np.testing.assert_allclose(actual[b, t], switch(case.P, h[t], h[t + 2], case.P["inputs"][b, t]), rtol=1e-13)
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


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e8])
def test_large_weights_give_numbers_and_no_warning(scale, dtype, xp, rng):
    case = make(scale=scale)
    layer, H = case.layer(xp, dtype), xp.asarray(case.H, dtype=dtype)
    F, J = layer.linearize(H)
    w = xp.asarray(rng.standard_normal(case.H.shape), dtype=dtype)
    for value in (F, J.matvec(w), J.rmatvec(w), initial_guess(layer), *layer.parameter_vjp(H, w).values()):
        assert bool(xp.all(xp.isfinite(value)))


# Padding, batches, subsets


@pytest.mark.parametrize("garbage", [7.0, 1e300, np.inf, -np.inf, np.nan])
def test_padding_is_inert(garbage, rng):
    case, v = make(), rng.standard_normal((3, 4, 3))
    dirty = {"inputs": np.where(case.valid, case.P["inputs"], garbage)}
    H, dH = (np.where(case.valid, x, garbage) for x in (case.H, v))
    clean, layer = case.layer(), case.layer(**dirty)
    J, J0 = layer.linearize(H)[1], clean.linearize(case.H)[1]
    pairs = [
        (layer.residual(H), clean.residual(case.H), H),
        (layer.linearize(H)[0], clean.residual(case.H), H),
        (J.matvec(dH), J0.matvec(v), dH),
        (J.rmatvec(dH), J0.rmatvec(v), dH),
        (initial_guess(layer), initial_guess(clean), 0 * v),
    ]
    for actual, expected, padding in pairs:
        np.testing.assert_array_equal(actual, np.where(case.valid, expected, padding))
    expected = clean.parameter_vjp(case.H, v)
    assert (expected["inputs"][~case.valid[:, :, 0]] == 0).all()
    for name, gradient in layer.parameter_vjp(H, dH).items():
        np.testing.assert_array_equal(gradient, expected[name])
    tangents = {"inputs": np.where(case.valid, case.P["inputs"], garbage), "b": np.ones(3)}
    moved = layer.parameter_jvp(H, tangents)
    np.testing.assert_array_equal(moved, clean.parameter_jvp(case.H, tangents | {"inputs": case.P["inputs"]}))
    assert (moved[~case.valid[:, :, 0]] == 0).all()


def test_more_padding_changes_nothing():
    case = make()
    longer = Case(
        case.P | {"inputs": np.concatenate([case.P["inputs"], np.full((3, 5, 2), np.nan)], axis=1)},
        case.lengths,
        np.concatenate([case.H, np.zeros((3, 5, 3))], axis=1),
    )
    np.testing.assert_array_equal(longer.layer().residual(longer.H)[:, :4], case.layer().residual(case.H))
    for kind in ("one-step", "random"):
        guess = initial_guess(longer.layer(), kind, np.random.default_rng(0))
        np.testing.assert_array_equal(guess[:, :4], initial_guess(case.layer(), kind, np.random.default_rng(0)))
        assert (guess[:, 4:] == 0).all()


@given(cases(), st.integers(0, 2**32 - 1))
def test_a_batch_is_its_sequences(case, seed):
    v = np.random.default_rng(seed).standard_normal(case.H.shape)
    layer, params = case.layer(), {name: case.P[name] for name in WEIGHTS}
    F, J = layer.linearize(case.H)
    gradients = layer.parameter_vjp(case.H, v)
    total = {name: np.zeros_like(case.P[name]) for name in WEIGHTS}
    for b, n in enumerate(case.lengths):
        hs, he = (per_system(case.P[name], b) for name in ("hs", "he"))
        alone = implicit_gru(params, case.P["inputs"][b, :n], hs=hs, he=he)
        assert alone.batch_ndim == 0
        assert alone.take is None
        H, one = case.H[b, :n], slice(None, n)
        Fb, Jb = alone.linearize(H)
        close(Fb, F[b, one])
        close(Jb.matvec(v[b, one]), J.matvec(v)[b, one])
        close(Jb.rmatvec(v[b, one]), J.rmatvec(v)[b, one])
        close(alone.initial_guess("one-step", None), initial_guess(layer)[b, one])
        single = alone.parameter_vjp(H, v[b, one])
        close(single["inputs"], gradients["inputs"][b, one])
        if case.P["hs"].ndim == 2:
            close(single["hs"], gradients["hs"][b])
            close(single["he"], gradients["he"][b])
        for name in WEIGHTS:
            total[name] += single[name]
    for name in WEIGHTS:
        close(gradients[name], total[name], 1e-11)


@given(cases(), st.data())
def test_take_is_the_problem_of_some_sequences(case, data):
    B = len(case.lengths)
    indices = np.asarray(data.draw(st.lists(st.integers(0, B - 1), min_size=1, max_size=5)))
    layer = case.layer()
    F, J = layer.linearize(case.H)
    part, H = layer.take(indices), case.H[indices]
    close(part.residual(H), F[indices])
    v = np.random.default_rng(0).standard_normal(case.H.shape)
    for operator in (part.linearize(H)[1], J.take(indices)):
        assert operator.batch_shape == (len(indices),)
        close(operator.matvec(v[indices]), J.matvec(v)[indices])
        close(operator.rmatvec(v[indices]), J.rmatvec(v)[indices])
    close(part.parameter_vjp(H, v[indices])["inputs"], layer.parameter_vjp(case.H, v)["inputs"][indices])
    close(initial_guess(part), initial_guess(layer)[indices])
    again = part.take(np.arange(len(indices))[::-1])
    close(again.residual(H[::-1]), F[indices[::-1]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
@pytest.mark.parametrize("lengths", [(4, 1, 3), None])
def test_a_hopeless_neighbour_does_no_harm(bad, lengths, rng):
    case, v = make(lengths=lengths), rng.standard_normal((3, 4, 3))
    layer, rest = case.layer(), [0, 2]
    H = case.H.copy()
    H[1] = bad
    J, J0 = layer.linearize(H)[1], layer.linearize(case.H)[1]
    w = v.copy()
    w[1] = bad
    np.testing.assert_array_equal(layer.residual(H)[rest], layer.residual(case.H)[rest])
    np.testing.assert_array_equal(J.matvec(w)[rest], J0.matvec(v)[rest])
    np.testing.assert_array_equal(J.rmatvec(w)[rest], J0.rmatvec(v)[rest])
    np.testing.assert_array_equal(J.rmatvec(v)[rest], J0.rmatvec(v)[rest])


# Initial guesses


def test_one_step_guess_is_the_ordinary_recurrence_both_ways():
    case = make()
    actual = initial_guess(case.layer(), "one-step")
    P, expected = case.P, np.zeros_like(case.H)
    for b, n in enumerate(case.lengths):
        x = P["inputs"][b]
        forward, backward = [P["hs"][b]], [P["he"][b]]
        for t in range(n):
            forward.append(gru(P, forward[-1], x[t]))
            backward.append(gru(P, backward[-1], x[n - 1 - t]))
        for t in range(n):
            expected[b, t] = cell(P, forward[t], backward[n - 1 - t], x[t])
    close(actual, expected)


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


def test_lengths_of_any_integer_kind():
    case = make()
    params = {name: case.P[name] for name in WEIGHTS}
    expected = implicit_gru(params, case.P["inputs"], lengths=case.lengths).residual(case.H)
    for lengths in ([4, 1, 3], (4, 1, 3), np.asarray([4, 1, 3], np.uint8), array_api_strict.asarray([4, 1, 3])):
        np.testing.assert_array_equal(
            implicit_gru(params, case.P["inputs"], lengths=lengths).residual(case.H), expected
        )
    for length in (3, np.int32(3), np.asarray(3)):
        alone = implicit_gru(params, case.P["inputs"][2], lengths=length)
        close(alone.residual(case.H[2]), expected[2])


def test_without_boundary_states_they_are_zero():
    case = make(boundary="zero")
    params = {name: case.P[name] for name in WEIGHTS}
    layer = implicit_gru(params, case.P["inputs"], lengths=case.lengths)
    np.testing.assert_array_equal(layer.residual(case.H), case.layer().residual(case.H))
    assert layer.parameters["hs"].shape == (3,)
    assert layer.parameter_vjp(case.H, case.H)["he"].shape == (3,)


def test_nothing_passed_is_changed_kept_or_handed_out(case):
    H = case.H.copy()
    for array in (*case.P.values(), H):
        array.flags.writeable = False
    layer = case.layer()

    def everything():
        F, J = layer.linearize(H)
        gradients = layer.parameter_vjp(H, H).values()
        return [F, J.matvec(H), J.rmatvec(H), layer.residual(H), *gradients, *map(layer.initial_guess, KINDS)]

    first = everything()
    copies = [array.copy() for array in first]
    for array in case.P.values():
        array.flags.writeable = True
    for array in (*case.P.values(), *first):
        array.fill(np.nan)  # a caller may do with these what he likes
    for expected, again in zip(copies, everything()):
        np.testing.assert_array_equal(again, expected)


def test_strided_states_are_fine():
    case, layer = make(), make().layer()
    for H in (np.asfortranarray(case.H), np.repeat(case.H, 2, axis=2)[:, :, ::2]):
        np.testing.assert_array_equal(layer.residual(H), layer.residual(case.H))
        np.testing.assert_array_equal(layer.linearize(case.H)[1].rmatvec(H), layer.vjp(case.H, case.H))


def test_threads_and_pickling():
    case = make(B=4, T=20, k=16, lengths=None)
    layer = case.layer()
    J = layer.linearize(case.H)[1]
    expected = [layer.residual(case.H), J.matvec(case.H), J.rmatvec(case.H)]
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(f, case.H) for _ in range(8) for f in (layer.residual, J.matvec, J.rmatvec)]
        for i, task in enumerate(tasks):
            np.testing.assert_array_equal(task.result(), expected[i % 3])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(layer)).residual(case.H), expected[0])


def test_ragged_lengths_are_reported_by_name(rng):
    params = ims.adapters.gru_parameters(2, 3, rng=rng)
    with pytest.raises(ValueError, match="implicit_gru: `lengths` must be integers, one for each sequence"):
        implicit_gru(params, rng.standard_normal((2, 4, 2)), lengths=[[1], [2, 3]])
