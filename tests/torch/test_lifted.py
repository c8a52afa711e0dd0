"""Lifted nets with biases and patterns, against the networks that they are."""

from importlib import import_module

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import adapters

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

# Forward mode compiles some decompositions of torch's own by what torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

EXACT = imt.SolveOptions(stop=ims.NonlinearStop(atol=1e-13, rtol=0.0), adjoint_stop=ims.LinearStop(rtol=1e-13))
SPARSE = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0]], dtype=bool)
TIED = np.array([[0, 1, 0, 2], [3, 0, 1, 0], [0, 0, 0, 1], [2, 3, 0, 0]])
PATTERNS = {
    "dense": None,
    "sparse": (SPARSE, np.ones((4, 2), dtype=bool)),
    "tied": (TIED, np.array([[4, 0], [5, 4], [0, 1], [1, 6]])),
}


def make(pattern, bias):
    generator = torch.Generator().manual_seed(1)
    options = {"solve_options": EXACT, "scale": 0.6, "generator": generator, "dtype": torch.float64}
    return imt.LiftedNet(4, 2, bias=bias, pattern=PATTERNS[pattern], **options)


def matrices(net, pattern):
    """A and B, dense."""
    if pattern == "dense":
        return net.A, net.B
    places = PATTERNS[pattern]
    if pattern == "sparse":
        numbers = np.arange(1, 1 + sum(int(place.sum()) for place in places))
        places = [place.astype(int) for place in places]
        for place, own in zip(places, np.split(numbers, [int(places[0].sum())]), strict=True):
            place[place > 0] = own
    padded = torch.cat([net.weights.new_zeros(1), net.weights])
    return tuple(padded[torch.from_numpy(place)] for place in places)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_states_and_gradients_are_those_of_the_dense_net(pattern, bias):
    net, u = make(pattern, bias), torch.rand(3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def residual(x, A, B, b):
        return x - torch.tanh(x @ A.T + u @ B.T + b)

    b = net.b if bias else torch.zeros(4, dtype=torch.float64)
    x0, exact = torch.zeros(3, 4, dtype=torch.float64), {"stop": EXACT.stop, "adjoint_stop": EXACT.adjoint_stop}
    expected = imt.solve(residual, x0, *matrices(net, pattern), b, batch_ndim=1, **exact)
    found = net(u)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    parameters = tuple(net.parameters())
    both = [torch.autograd.grad(x.pow(2).sum(), parameters, create_graph=True) for x in (found, expected)]
    second = [torch.autograd.grad(sum(g.pow(2).sum() for g in gradients), parameters) for gradients in both]
    for g, h in (*zip(*both, strict=True), *zip(*second, strict=True)):
        torch.testing.assert_close(g, h, rtol=1e-8, atol=1e-10)
    assert net.residual(found, u).abs().max() < 1e-12

    values = tuple(p.detach() for p in parameters)

    def states(*values):
        return torch.func.functional_call(net, dict(zip(net.names, values, strict=True)), (u,))

    tangent = torch.func.jvp(states, values, values)[1]
    along = sum((g * v).sum() for g, v in zip(torch.autograd.grad(net(u).sum(), parameters), values, strict=True))
    torch.testing.assert_close(tangent.sum(), along, rtol=1e-8, atol=1e-10)


def test_a_recurrent_network_shares_its_weights():
    W_H, W_I = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
    A, B, _ = adapters.lifted_rnn(W_H, W_I, np.ones((1, 2)), 3)
    net = imt.LiftedNet(8, 3, pattern=(A, B), dtype=torch.float64, solve_options=EXACT)
    with torch.no_grad():
        net.weights.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    u = torch.tensor([[[0.3], [-0.2], [0.7]]], dtype=torch.float64)
    x = net(torch.from_numpy(adapters.lifted_inputs(u.numpy()).copy()))
    h = torch.zeros(2, dtype=torch.float64)
    for step in u[0]:
        h = torch.tanh(net.weights[:4].reshape(2, 2) @ h + net.weights[4:].reshape(2, 1) @ step)
    torch.testing.assert_close(x[0, :2], h)
    gradients = [torch.autograd.grad(y.sum(), net.weights)[0] for y in (x[0, :2], h)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("pattern", ["sparse", "tied"])
def test_patterns_start_well_posed_and_are_brought_back(pattern):
    net = make(pattern, bias=True)
    for kappa in (0.95, 0.3):
        assert matrices(net, pattern)[0].abs().sum(dim=1).max() <= kappa + 1e-12
        with torch.no_grad():
            net.weights.mul_(5.0)
        net.project(0.3)
    assert list(net.state_dict()) == ["weights", "b"]


def test_patterns_of_another_shape_are_named():
    with pytest.raises(ValueError, match=r"LiftedNet: `pattern` must have a matrix B of shape \(4, 3\), got \(4, 2\)"):
        imt.LiftedNet(4, 3, pattern=PATTERNS["tied"])
