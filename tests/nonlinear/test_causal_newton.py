"""CausalNewton: all blocks of a causal system at once, by the exact inverse of J and a bound on steps."""

from dataclasses import replace

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import CausalNewton, NonlinearStop, Problem, Status, root
from implicitsolve.adapters import diagonal_gru, diagonal_gru_parameters, diagonal_lstm, diagonal_lstm_parameters
from tests.adapters.layers import ADAPTERS, make
from tests.helpers.compare import host

CAUSAL = [name for name, adapter in ADAPTERS.items() if min(adapter.offsets) > 0 or max(adapter.offsets) < 0]
DIAGONAL = {"gru": (diagonal_gru, diagonal_gru_parameters), "lstm": (diagonal_lstm, diagonal_lstm_parameters)}
TIGHT = NonlinearStop(rtol=0, atol=1e-9)


def network(kind: str = "gru", *, gain: float = 1.0, B: int = 3, T: int = 200, k: int = 6, lengths=None) -> Problem:
    """A random network; with gain 1 changes of a state fade, with 5 they grow for a while, with 20 they grow."""
    build, draw = DIAGONAL[kind]
    rng = np.random.default_rng(0)
    params = {name: gain * P if name[0] == "U" else P for name, P in draw(4, k, scale=1.0, rng=rng).items()}
    return build(params, rng.standard_normal((B, T, 4)), lengths=lengths)


@pytest.mark.parametrize("name", CAUSAL)
def test_it_solves_causal_layers(name, xp, dtype):
    case = make(name, T=6, lengths=(6, 1, 4), scale=1.0)
    layer = case.layer(xp, dtype)
    result = root(layer, method="causal-newton", stop=NonlinearStop(atol=100 * float(xp.finfo(dtype).eps)))
    assert result.success.all()
    assert result.x.dtype == dtype
    unit = float(xp.finfo(dtype).eps)
    np.testing.assert_allclose(host(result.fun), host(layer.residual(result.x)), rtol=0, atol=16 * unit)
    np.testing.assert_allclose(host(result.x), host(layer.substitute()), rtol=0, atol=1e4 * unit)


@pytest.mark.parametrize("kind", DIAGONAL)
def test_where_changes_fade_few_steps_do_whatever_the_length(kind):
    for T in (200, 1000):
        result = root(network(kind, T=T), method=CausalNewton(), stop=TIGHT)
        assert result.success.all()
        assert result.iterations.max() <= 7


@pytest.mark.parametrize("kind", DIAGONAL)
@pytest.mark.parametrize("bound", [0.1, 2.0])
def test_n_steps_make_n_blocks_exact(kind, bound):
    layer = network(kind, gain=20.0, T=40)
    exact, seen = layer.substitute(), []

    def watch(step, x, F):
        n = step.iteration
        seen.append(n)
        np.testing.assert_allclose(x[:, :n], exact[:, :n], rtol=0, atol=1e-8 * np.abs(exact).max())

    assert root(layer, method=CausalNewton(bound=bound), stop=TIGHT, monitor=watch).success.all()
    assert 5 < len(seen) <= 41


@pytest.mark.parametrize("kind", DIAGONAL)
@pytest.mark.parametrize("limit", [3, 20, 100])
def test_a_status_is_what_was_measured_on_unpredictable_maps(kind, limit):
    for gain in (5.0, 20.0):
        layer = network(kind, gain=gain, T=100)
        result = root(layer, method=CausalNewton(), stop=replace(TIGHT, max_iterations=limit))
        measured = np.abs(layer.residual(result.x)).max(axis=(1, 2))
        np.testing.assert_array_equal(result.success, measured <= 1e-9)
        assert np.isfinite(result.x).all()
        assert gain > 5 or limit < 100 or result.success.all()


def test_the_bound_saves_steps_where_changes_grow_for_a_while():
    layer = network(gain=3.0, T=400, k=16)
    bounded, free = (root(layer, method=CausalNewton(bound=bound), stop=TIGHT) for bound in (2.0, np.inf))
    assert bounded.success.all()
    assert not free.success.all()


def test_inputs_that_are_not_finite_end_their_own_sequence():
    params = diagonal_gru_parameters(2, 3, rng=np.random.default_rng(0))
    inputs = np.random.default_rng(1).standard_normal((3, 9, 2))
    inputs[1, 4] = np.nan
    result = root(diagonal_gru(params, inputs), method=CausalNewton())
    assert [Status(status).name for status in result.status] == ["CONVERGED", "NONFINITE", "CONVERGED"]


def test_problems_without_substitution_or_inverse_are_refused():
    with pytest.raises(ValueError, match="CausalNewton: the problem must offer `substitute` and `linearize`"):
        root(lambda x: x - 1, np.zeros(3), method=CausalNewton())

    def linearize(x):
        return x - 1, ims.aslinearoperator(np.eye(3))

    problem = Problem(lambda x: x - 1, linearize=linearize, substitute=lambda: np.ones(3), fixed_point=True)
    with pytest.raises(ValueError, match="CausalNewton: J must offer its `inverse`"):
        root(problem, np.zeros(3), method=CausalNewton())
