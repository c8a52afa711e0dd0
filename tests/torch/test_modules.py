"""The modules of `implicitsolve.torch`, each against its adapter."""

import copy
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

D, K, B, T = 2, 3, 3, 4
LENGTHS = [4, 1, 3]
EXACT = imt.SolveOptions(stop=ims.NonlinearStop(atol=1e-13, rtol=0.0), adjoint_stop=ims.LinearStop(rtol=1e-13))


@dataclass(frozen=True)
class Case:
    """How a module is made and called, and which adapter it stands for."""

    make: Callable[..., Any]
    adapter: str
    boundaries: dict[str, tuple[int, ...]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    size: int = K

    @property
    def is_sequence(self) -> bool:
        return self.adapter != "lifted_net"


CASES = {
    "gru": Case(lambda **o: imt.ImplicitGRU(D, K, **o), "implicit_gru", {"hs": (K,), "he": (B, K)}),
    "rnn": Case(
        lambda **o: imt.ImplicitRNN(D, K, lower=2, activation="logistic", **o),
        "implicit_rnn",
        {"hs": (B, 2, K), "he": (1, K)},
        {"activation": "logistic"},
    ),
    "stencil": Case(
        lambda **o: imt.StencilGRU(D, K, offsets=(-2, 1), **o),
        "stencil_gru",
        {"hs": (2, K), "he": (B, 1, K)},
        {"offsets": (-2, 1)},
    ),
    "lstm": Case(
        lambda **o: imt.ImplicitLSTM(D, K, **o),
        "implicit_lstm",
        {"hs": (K,), "cs": (B, K), "he": (K,), "ce": (K,)},
        size=2 * K,
    ),
    "elman": Case(lambda **o: imt.Elman(D, K, **o), "elman", {"h0": (B, K)}, {"activation": "tanh"}),
    "diagonal gru": Case(lambda **o: imt.DiagonalGRU(D, K, **o), "diagonal_gru", {"h0": (B, K)}),
    "diagonal lstm": Case(
        lambda **o: imt.DiagonalLSTM(D, K, **o), "diagonal_lstm", {"h0": (K,), "c0": (B, K)}, size=2 * K
    ),
    "lifted": Case(lambda **o: imt.LiftedNet(K, D, **o), "lifted_net", {}, {"activation": "tanh"}),
}


def generator(seed: int):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


@pytest.fixture
def module(case):
    return case.make(solve_options=EXACT, scale=0.7, generator=generator(1), dtype=torch.float64)


@pytest.fixture
def arguments(case):
    """Inputs and boundary states that require grad, by name."""
    shapes = {"inputs": (B, T, D) if case.is_sequence else (B, D)} | case.boundaries
    values = {
        name: torch.rand(shape, generator=generator(seed), dtype=torch.float64) - 0.5
        for seed, (name, shape) in enumerate(shapes.items())
    }
    return {name: value.requires_grad_() for name, value in values.items()}


def call(case, module, arguments, **others):
    lengths = {"lengths": LENGTHS} if case.is_sequence else {}
    return module(**arguments, **lengths, **others)


def problem_of(case, module, arguments):
    """The adapter's own problem, on NumPy arrays."""
    params = {name: value.detach().numpy() for name, value in module.named_parameters()}
    given = {name: value.detach().numpy() for name, value in arguments.items()}
    adapter = getattr(ims.adapters, case.adapter)
    if not case.is_sequence:
        return adapter(**params, **given, **case.settings)
    return adapter(params, lengths=LENGTHS, **given, **case.settings)


def test_states_and_gradients_are_the_adapter_s(case, module, arguments):
    problem = problem_of(case, module, arguments)
    result = ims.root(problem, stop=EXACT.stop)
    states = call(case, module, arguments)
    assert states.shape == ((B, T, case.size) if case.is_sequence else (B, K))
    np.testing.assert_array_equal(states.detach().numpy(), result.x)

    cotangent = torch.rand(states.shape, generator=generator(9), dtype=torch.float64)
    states.backward(cotangent)
    expected = ims.pull_back(problem, result, cotangent.numpy(), stop=EXACT.adjoint_stop).gradients
    found = dict(module.named_parameters()) | arguments
    assert sorted(found) == sorted(expected)
    for name, value in found.items():
        np.testing.assert_array_equal(value.grad.numpy(), expected[name], err_msg=name)


def functional(case, module, arguments):
    """The states as a function of all tensors, and the tensors."""
    names = [name for name, _ in module.named_parameters()]

    def states(*tensors):
        parameters = dict(zip(names, tensors, strict=False))
        given = dict(zip(arguments, tensors[len(names) :], strict=True))
        lengths = {"lengths": LENGTHS} if case.is_sequence else {}
        return torch.func.functional_call(module, parameters, (), given | lengths)

    return states, (*(p.detach().requires_grad_() for p in module.parameters()), *arguments.values())


def test_gradcheck(case, module, arguments):
    torch.autograd.gradcheck(*functional(case, module, arguments), fast_mode=True)


def test_forward_mode_is_the_adjoint_of_reverse_mode(case, module, arguments):
    states, tensors = functional(case, module, arguments)
    tangents = tuple(torch.rand(x.shape, generator=generator(7), dtype=torch.float64) for x in tensors)
    x, tangent = torch.func.jvp(states, tuple(t.detach() for t in tensors), tangents)
    cotangent = torch.rand(x.shape, generator=generator(8), dtype=torch.float64)
    gradients = torch.autograd.grad(states(*tensors), tensors, cotangent)
    expected = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
    torch.testing.assert_close((cotangent * tangent).sum(), expected)


def test_changes_of_the_states_in_place_are_noticed(case, module, arguments):
    states = call(case, module, arguments)
    with torch.no_grad():
        states.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_stays(case, dtype):
    module = case.make(dtype=dtype)
    inputs = torch.ones((B, T, D) if case.is_sequence else (B, D), dtype=dtype)
    states, result = module(inputs, return_result=True)
    assert states.dtype == dtype
    assert result.success.all()
    atol = 1e-5 if dtype == torch.float32 else 1e-8
    assert (result.residual_norm <= np.maximum(atol, torch.finfo(dtype).eps ** 0.5 * result.initial_norm)).all()
    states.sum().backward()
    assert all(p.grad.dtype == dtype for p in module.parameters())


def test_one_system(module, arguments):
    inputs = arguments["inputs"]
    torch.testing.assert_close(module(inputs[0]), module(inputs)[0], rtol=0, atol=1e-12)


def test_padding_is_inert(module, case, arguments):
    if not case.is_sequence:
        pytest.skip("has no sequences")
    call(case, module, arguments).sum().backward()
    gradient = arguments["inputs"].grad
    assert not gradient[1, 1:].any()
    assert gradient[1, :1].any()
    changed = arguments["inputs"].detach().clone()
    changed[1, 1:] = torch.nan
    torch.testing.assert_close(
        call(case, module, arguments | {"inputs": changed}), call(case, module, arguments), rtol=0, atol=0
    )


@pytest.mark.parametrize("lengths", [np.array(LENGTHS), torch.tensor(LENGTHS)], ids=["array", "tensor"])
def test_lengths_of_any_kind(lengths):
    layer, inputs = imt.ImplicitGRU(D, K, generator=generator(0)), torch.ones(B, T, D)
    torch.testing.assert_close(layer(inputs, lengths), layer(inputs, LENGTHS), rtol=0, atol=0)


def test_warm_start(case, module, arguments):
    states, cold = call(case, module, arguments, return_result=True)
    start = states.detach().requires_grad_()
    again, warm = call(case, module, arguments, x0=start, return_result=True)
    assert warm.iterations.max() == 0
    assert cold.success.all()
    again.sum().backward()
    assert start.grad is None
    torch.testing.assert_close(again, states, rtol=0, atol=1e-12)


def test_parameters_have_the_adapter_s_names(module):
    assert tuple(name for name, _ in module.named_parameters()) == module.names
    assert type(module).__name__ in repr(module)
    for name, parameter in module.named_parameters():
        assert f"{name}={tuple(parameter.shape)}" in repr(module)


def test_state_dict_round_trip(case, module, arguments):
    other = case.make(solve_options=EXACT, generator=generator(5), dtype=torch.float64)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    torch.testing.assert_close(call(case, other, arguments), call(case, module, arguments), rtol=0, atol=0)


def test_copies_and_pickles(case, module, arguments):
    expected = call(case, module, arguments)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(call(case, other, arguments), expected, rtol=0, atol=0)


def test_replicas_use_their_own_parameters(case, module, arguments):
    """As DataParallel makes them: parameters are plain attributes that carry a graph to the original."""
    replica = module._replicate_for_data_parallel()
    for name, parameter in module.named_parameters():
        setattr(replica, name, parameter * 1.0)
    states, own = call(case, replica, arguments), call(case, module, arguments)
    torch.testing.assert_close(states, own, rtol=0, atol=0)
    parameters = list(module.parameters())
    gradients, expected = (torch.autograd.grad(x.sum(), parameters) for x in (states, own))
    torch.testing.assert_close(gradients, expected, rtol=0, atol=0)


def test_threads(case, module):
    """Two threads that call one module at once get what one gets."""
    shape = (B, T, D) if case.is_sequence else (B, D)
    batches = [torch.rand(shape, generator=generator(seed), dtype=torch.float64) for seed in range(2)]

    def gradients(inputs):
        return torch.autograd.grad(module(inputs).pow(2).sum(), tuple(module.parameters()))

    expected = [gradients(inputs) for inputs in batches]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(gradients, batches * 3))
    torch.testing.assert_close(found, expected * 3, rtol=0, atol=0)


def test_parametrizations_are_followed():
    layer = imt.ImplicitGRU(D, K, generator=generator(0))
    torch.nn.utils.parametrizations.weight_norm(layer, "U")
    layer(torch.ones(B, T, D)).sum().backward()
    assert layer.parametrizations.U.original0.grad.any()


def test_lifted_nets_start_well_posed_and_can_be_brought_back():
    net = imt.LiftedNet(40, D, scale=1.0, generator=generator(0), dtype=torch.float64)
    assert ims.adapters.well_posedness(net.A.detach().numpy()).is_certain
    with torch.no_grad():
        net.A.mul_(10.0)
    before, storage = net.A, net.A.data_ptr()
    net.project()
    assert net.A is before
    assert net.A.data_ptr() == storage
    assert net.A.abs().sum(dim=1).max() <= 0.95 + 1e-12
    assert net.A.requires_grad
