"""Approximate fixed points and the penalty on the Jacobian, against those of arrays."""

from importlib import import_module

import numpy as np
import pytest

import implicitsolve as ims

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

from tests.torch.test_modules import CASES, LENGTHS, B, D, K, T, generator  # noqa: E402


def elman(**options):
    return imt.Elman(D, K, scale=0.8, generator=generator(0), dtype=torch.float64, **options)


def problem_of(layer, inputs, **boundaries):
    parameters = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    return ims.adapters.elman(parameters, inputs.detach().numpy(), lengths=LENGTHS, **boundaries)


@pytest.mark.parametrize("propagation", ["full", "skipped"])
@pytest.mark.parametrize("rho", [1, 3])
def test_approximate_fixed_points_and_both_gradients(rho, propagation):
    layer = elman(rho=rho, propagation=propagation)
    inputs, h0 = (torch.rand(shape, generator=generator(1), dtype=torch.float64) for shape in ((B, T, D), (K,)))
    inputs.requires_grad_()
    states = layer(inputs, LENGTHS, h0=h0)
    expected = ims.adapters.approximate_fixed_point(problem_of(layer, inputs, h0=h0.numpy()), rho)
    np.testing.assert_allclose(states.detach().numpy(), expected.x, atol=1e-13)
    cotangent = torch.rand(states.shape, generator=generator(2), dtype=torch.float64)
    states.backward(cotangent)
    gradients = expected.pull_back(cotangent.numpy(), propagation=propagation).gradients
    for name, value in (*layer.named_parameters(), ("inputs", inputs)):
        np.testing.assert_allclose(value.grad.numpy(), gradients[name], atol=1e-12, err_msg=name)


def test_a_memory_as_long_as_the_sequence_is_the_network_itself():
    inputs = torch.rand(B, T, D, generator=generator(1), dtype=torch.float64)
    torch.testing.assert_close(elman(rho=T)(inputs), elman()(inputs), rtol=0, atol=1e-9)


def test_wrong_settings_of_an_approximation():
    for options, message in (({"rho": 0}, "`rho` must be at least 1"), ({"propagation": "half"}, "`propagation` must")):
        with pytest.raises(ValueError, match=f"Elman: {message}"):
            elman(**options)
    with pytest.raises(ValueError, match="Elman: with `rho` nothing is solved"):
        elman(rho=2)(torch.ones(B, T, D, dtype=torch.float64), return_result=True)


def test_the_penalty_is_that_of_arrays():
    layer, inputs = elman(), torch.rand(B, T, D, generator=generator(1), dtype=torch.float64)
    states = layer(inputs, LENGTHS).detach()
    found = imt.jacobian_penalty(layer.residual, states, inputs, LENGTHS, samples=2000, generator=generator(2))
    problem, rng = problem_of(layer, inputs), np.random.default_rng(0)
    expected = ims.derivatives.jacobian_penalty(problem, states.numpy(), samples=2000, rng=rng).value
    assert found.item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", ["gru", "lifted"])
def test_gradients_of_the_penalty(name):
    """Through the equations, and through the states that solve them."""
    exact = imt.SolveOptions(stop=ims.NonlinearStop(atol=1e-13, rtol=0.0), adjoint_stop=ims.LinearStop(rtol=1e-13))
    layer = CASES[name].make(solve_options=exact, scale=0.7, generator=generator(1), dtype=torch.float64)
    inputs = torch.rand((2, 3, D) if name == "gru" else (2, D), generator=generator(0), dtype=torch.float64)
    parameters = tuple(p.detach().requires_grad_() for p in layer.parameters())

    def penalty(*values):
        given = dict(zip(layer.names, values, strict=True))
        states = torch.func.functional_call(layer, given, (inputs,))

        def residual(x):
            return layer.equations(x, given | {"inputs": inputs})

        return imt.jacobian_penalty(residual, states, samples=2, generator=generator(5))

    torch.autograd.gradcheck(penalty, parameters, fast_mode=True)
    with pytest.raises(ValueError, match="jacobian_penalty: `samples`"):
        imt.jacobian_penalty(layer.residual, layer(inputs), inputs, samples=0)
