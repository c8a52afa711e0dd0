"""Recurrent layers of a GPU's arrays: the same values, products and gradients as NumPy's, in few launches."""

from typing import Any

import numpy as np
import pytest
from array_api_compat import array_namespace

from implicitsolve.adapters import kernels
from tests.adapters.layers import make
from tests.backends.cupy.close import close

pytestmark = pytest.mark.gpu

EDGES = [("zero", (5, 2, 4)), ("system", None)]  # states at the ends, and lengths
SOME = ("implicit_gru", "stencil_gru", "stencil_gru-wide", "implicit_rnn", "implicit_lstm", "elman")


@pytest.fixture(params="fd")
def char(request):
    """Precision."""
    return request.param


@pytest.fixture
def in_pieces(device, monkeypatch):
    """Without the kernel of a whole GRU, which large layers do not use either."""
    kernels.gru_cell.select(device.zeros(1), size=1, neighbours=1)  # loads it
    monkeypatch.delitem(kernels.gru_cell.implementations, "cupy")


def layers(device, name, char, boundary="zero", **shape) -> tuple[Any, Any, Any]:
    """A layer of NumPy's and one of the device's, and a state."""
    case = make(name, B=3, T=5, k=5, d=2, boundary=boundary, **shape)
    both = []
    for xp in (np, device):
        own = {key: xp.asarray(value.astype(char)) for key, value in case.P.items()}
        edges = {key: own[key] for key in case.adapter.boundaries(1)} if boundary != "zero" else {}
        params = {key: own[key] for key in case.weights}
        options = case.adapter.options | {"lengths": case.lengths}
        both.append(case.adapter.build(params, own["inputs"], **options, **edges))
    return *both, case.H.astype(char)


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize(("boundary", "lengths"), EDGES)
@pytest.mark.parametrize("name", ["implicit_gru", "stencil_gru", "stencil_gru-causal"])
def test_grus_in_pieces_are_numpys(device, char, name, boundary, lengths):
    agree(*layers(device, name, char, boundary, lengths=lengths))


def agree(host, layer, H):
    """Compare values, products, blocks and gradients."""
    device = array_namespace(layer.parameters["inputs"])
    F, J = layer.linearize(device.asarray(H))
    expected, on_host = host.linearize(H)
    close([layer.residual(device.asarray(H)), F], [host.residual(H), expected], 256)
    other = device.asarray(H[::-1].copy())
    close([J.matvec(other), J.rmatvec(other)], [on_host.matvec(H[::-1]), on_host.rmatvec(H[::-1])], 256)
    part = J.take(np.asarray([2, 0]))
    close(part.rmatvec(other[1:, ...]), on_host.take(np.asarray([2, 0])).rmatvec(H[::-1][1:]), 256)
    close(layer.blocks(device.asarray(H)), host.blocks(H), 256)
    found, gradients = layer.parameter_vjp(device.asarray(H), other), host.parameter_vjp(H, H[::-1])
    close([found[key] for key in gradients], list(gradients.values()), 1024)
    if host.halves is None:
        return
    for parity, half, own in (
        (0, host.halves.eliminated, layer.halves.eliminated),
        (1, host.halves.kept, layer.halves.kept),
    ):
        near, w = (np.ascontiguousarray(H[:, way::2]) for way in (1 - parity, parity))
        value, derivative = half.linearize(near)
        found, coupling = own.linearize(device.asarray(near))
        close([found, own.apply(device.asarray(near))], [value, value], 256)
        close(coupling.matvec(device.asarray(near)), derivative.matvec(near), 256)
        close(coupling.rmatvec(device.asarray(w)), derivative.rmatvec(w), 256)


@pytest.mark.parametrize("name", SOME)
def test_what_is_not_finite_stays_in_its_sequence(device, name):
    """Products with the derivative at a state of which one sequence diverged."""
    _, layer, H = layers(device, name, "d", lengths=(5, 2, 4))
    expected = layer.linearize(device.asarray(H))[1].rmatvec(device.asarray(H)).get()
    H[1, 0] = np.inf
    bad = layer.linearize(device.asarray(H))[1].rmatvec(device.asarray(np.where(np.isfinite(H), H, 0.0))).get()
    np.testing.assert_array_equal(bad[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize(("boundary", "lengths"), EDGES)
@pytest.mark.parametrize("name", SOME)
def test_no_product_waits_for_the_device(double, device, name, boundary, lengths):
    _, layer, H = layers(device, name, "f", boundary, lengths=lengths)
    H = device.asarray(H)
    J = layer.linearize(H)[1]  # the first call brings what stays
    layer.residual(H), J.matvec(H), J.rmatvec(H)
    double.reset()
    J = layer.linearize(H)[1]
    layer.residual(H), J.matvec(H), J.rmatvec(H)
    assert double.counts["to_host"] == double.counts["to_device"] == 0


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize(
    ("name", "residual", "linearize", "push", "pull"),
    [("implicit_gru", 8, 8, 8, 9), ("implicit_lstm", 5, 5, 5, 7), ("implicit_rnn", 3, 3, 3, 4), ("elman", 3, 3, 3, 4)],
)
def test_few_launches(double, device, name, residual, linearize, push, pull):
    """Each piece between two matrix products is one, and the identity another."""
    _, layer, H = layers(device, name, "f", lengths=None)
    H = device.asarray(H)
    J = layer.linearize(H)[1]
    J.matvec(H), J.rmatvec(H)
    calls = [(layer.residual, residual), (layer.linearize, linearize), (J.matvec, push), (J.rmatvec, pull)]
    for call, most in calls:
        double.reset()
        call(H)
        assert double.counts["launch"] <= most
