"""The table of capabilities, its columns of torch: tensors as arrays, `implicitsolve.torch`, and what is refused."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import adapters
from tests.capabilities.chain import Chain
from tests.capabilities.checks import NUMPY, agree, check
from tests.capabilities.layer_cases import layer, weights
from tests.capabilities.libraries import Library
from tests.capabilities.solver_cases import DIRECT, LINEAR, METHODS, PRECONDITIONERS
from tests.capabilities.table import ADJOINT, METHOD, NONE, ROWS

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")
TORCH = import_module("array_api_compat.torch")

# Forward mode compiles some decompositions of torch's own by what torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_on_tensors(name, dtype):
    row = ROWS[name]
    is_real = dtype == "float64" or row.torch != "yes"
    check(row.torch if is_real else row.complex, name, Library(TORCH, dtype))


def rows(bridge: str) -> list[str]:
    return [name for name, row in ROWS.items() if row.bridge == bridge]


class Root:
    """The chain's root as a differentiable function of its parameter `a`."""

    def __init__(self, **options: Any) -> None:
        self.on = Library(TORCH)
        self.chain, self.options = Chain(self.on), options
        self.problem = self.chain.problem()
        self.stops = {"stop": self.on.stop, "adjoint_stop": self.on.linear_stop}

    def residual(self, x: Any, a: Any) -> Any:
        return self.problem.residual(x) + self.chain.a - a

    def __call__(self, a: Any) -> Any:
        settings = {"batch_ndim": 1, "structure": self.problem.structure} | self.stops | self.options
        return imt.solve(self.residual, self.chain.x0, a, **settings)


def numpy_root() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Its value, gradient of the sum, and derivative along a = (1, 1), by NumPy."""
    on = Library(NUMPY)
    chain = Chain(on)
    problem = chain.problem("jvp", "vjp")
    result = ims.root(problem, chain.x0, stop=on.stop)
    reverse = ims.pull_back(problem, result, np.ones_like(result.x), stop=on.linear_stop)
    forward = ims.push_forward(problem, result, {"a": np.ones_like(chain.a)}, stop=on.linear_stop)
    return result.x, reverse.gradients["a"], forward.tangent


def settings(name: str) -> dict[str, Any]:
    """How `solve` is told to take a method."""
    if name == "Wolfe":  # for one system
        return {"batch_ndim": 0, "method": ims.NewtonKrylov(line_search=ims.Wolfe())}
    if name in PRECONDITIONERS:
        return {"method": ims.NewtonKrylov(preconditioner=PRECONDITIONERS[name])}
    return {"method": METHODS[name]} if name in METHODS else {"adjoint_method": (LINEAR | DIRECT)[name]}


@pytest.mark.parametrize("name", ["root", "newton_krylov", "pull_back", *rows(METHOD), *rows(ADJOINT)])
def test_roots_and_gradients_by_solve(name):
    assert ROWS[name].bridge in ("`solve`", "`backward`", METHOD, ADJOINT)
    root = Root(**(settings(name) if ROWS[name].bridge in (METHOD, ADJOINT) else {}))
    a = root.chain.a.clone().requires_grad_()
    x = root(a)
    x.sum().backward()
    agree([x.detach().numpy(), a.grad.numpy()], [*numpy_root()[:2]], root.on.eps)


@pytest.mark.parametrize("method", ["picard", "newton-krylov"])
def test_gradients_of_a_root_that_was_found_without_a_linearization(method):
    a = torch.full((3,), 0.5, dtype=torch.float64, requires_grad=True)
    x = imt.solve(lambda x, a: x - a, a.detach().clone(), a, method=method, stop=ims.NonlinearStop(atol=1e-9))
    x.sum().backward()
    assert a.grad.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="is none of its arguments"):
        imt.solve(lambda x: x - a, a.detach().clone(), method=method, stop=ims.NonlinearStop(atol=1e-9))


def test_derivatives_forwards_by_solve():
    assert rows("forward mode") == ["push_forward"]
    root = Root()
    x, tangent = torch.func.jvp(root, (root.chain.a,), (torch.ones_like(root.chain.a),))
    agree([x.numpy(), tangent.numpy()], [numpy_root()[0], numpy_root()[2]], root.on.eps)


LAYERS = [name for name, row in ROWS.items() if row.bridge.strip("`") in imt.__all__ and name.startswith("adapters.")]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_as_modules(name):
    on, adapter = Library(NUMPY), name.removeprefix("adapters.")
    problem = adapters.lifted_net(*weights(on, (6, 6), (6, 2), (3, 2))) if "lifted" in name else layer(adapter, on)
    result = ims.root(problem, stop=on.stop)
    expected = ims.pull_back(problem, result, np.ones_like(result.x), stop=on.linear_stop).gradients

    sizes = {"offsets": (-2, -1, 1)} if adapter == "stencil_gru" else {}
    make = getattr(imt, ROWS[name].bridge.strip("`"))
    options = imt.SolveOptions(stop=on.stop, adjoint_stop=on.linear_stop)
    module = make(*((6, 2) if "lifted" in name else (2, 32)), **sizes, solve_options=options, dtype=torch.float64)
    given = {key: torch.as_tensor(value) for key, value in problem.parameters.items()}
    module.load_state_dict({key: given[key] for key in module.state_dict()})
    lengths = {} if "lifted" in name else {"lengths": [5, 2, 4]}
    states = module(given["inputs"], **lengths)
    states.sum().backward()
    found = {key: value.grad.numpy() for key, value in module.named_parameters()}
    agree([states.detach().numpy(), *found.values()], [result.x, *(expected[key] for key in found)], on.eps)


def test_the_projection_of_a_module():
    assert rows("`LiftedNet.project`") == ["adapters.project_well_posed"]
    net = imt.LiftedNet(6, 2, dtype=torch.float64)
    before = net.A.detach().numpy().copy()
    net.project(0.1)
    np.testing.assert_array_equal(net.A.detach().numpy(), adapters.project_well_posed(before, 0.1))


def test_the_bridge_is_in_the_table():
    shown = " ".join({row.bridge for row in ROWS.values()} - {NONE})
    others = {"ConvergenceWarning", "ImplicitLayer", "SolveOptions", "WarmStarts"}  # settings, and what modules share
    assert {name for name in imt.__all__ if name not in shown} == others


def squares(x: Any) -> Any:
    return x**2 - 2


ONES = torch.ones(3, dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)
TRAINED = torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)
MATRIX = (2 * EYE).requires_grad_()
DRAWN = adapters.gru_parameters(2, 3, rng=np.random.default_rng(0))
GRU = {name: torch.as_tensor(value) for name, value in DRAWN.items()}
INPUTS = torch.ones(2, 4, 2, dtype=torch.float64)


def linearized(x: Any) -> Any:
    return squares(x), ims.LinearOperator(lambda v: 2 * x * v * TRAINED, in_shape=3, dtype=torch.float64)


LOST = {
    "x0": lambda: ims.root(squares, TRAINED),
    "residual": lambda: ims.root(lambda x: x**2 - TRAINED, ONES),
    "jvp": lambda: ims.root(ims.Problem(squares, jvp=lambda x, v: x * v * TRAINED), ONES),
    "jac": lambda: ims.root(ims.Problem(squares, jac=lambda x: MATRIX), ONES),
    "linearize": lambda: ims.root(ims.Problem(squares, linearize=linearized), ONES),
    "vjp": lambda: ims.pull_back(ims.Problem(squares, vjp=lambda x, w: x * w * TRAINED), ONES, ONES),
    "cotangent": lambda: ims.pull_back(ims.Problem(squares, vjp=lambda x, w: 2 * x * w), ONES, TRAINED),
    "A": lambda: ims.linear_solve(MATRIX, ONES),
    "b": lambda: ims.linear_solve(EYE, TRAINED),
    "blocks": lambda: ims.BlockBandedMatrix(MATRIX[None, None], lower=0, upper=0),
    "x": lambda: ims.jacobian(ims.Problem(squares, structure=ims.BlockBanded(0, 0)), TRAINED),
    "Wz": lambda: adapters.implicit_gru(GRU | {"Wz": GRU["Wz"].clone().requires_grad_()}, INPUTS),
    "inputs": lambda: adapters.implicit_gru(GRU, INPUTS.clone().requires_grad_()),
    "hs": lambda: adapters.implicit_gru(GRU, INPUTS, hs=TRAINED),
    "W_0": lambda: adapters.lifted_feedforward([MATRIX, MATRIX], format="dense"),
}


@pytest.mark.parametrize("name", LOST)
def test_tensors_whose_gradient_would_be_lost(name):
    with pytest.raises(TypeError, match=rf"`{name}` must not require grad.*implicitsolve\.torch"):
        LOST[name]()


def test_lifted_nets_whose_gradient_would_be_lost():
    for A, u in ((MATRIX, ONES[None]), (EYE, TRAINED[None])):
        with pytest.raises(TypeError, match="must not require grad"):
            adapters.lifted_net(A, EYE, u)
    with pytest.raises(TypeError, match="must not require grad"):
        adapters.well_posedness(MATRIX)


@pytest.mark.parametrize(
    ("x0", "words"),
    [
        (torch.ones(3, device="meta"), "on the CPU.*cupy.from_dlpack"),  # as on CUDA
        (torch.eye(3).to_sparse(), "a dense tensor"),
    ],
    ids=["device", "sparse"],
)
def test_tensors_that_are_no_arrays(x0, words):
    with pytest.raises(TypeError, match=f"`x0` must be {words}"):
        ims.root(squares, x0)


MIXED = {
    "right-hand side": lambda: ims.linear_solve(EYE, np.ones(3)),
    "matrix": lambda: ims.linear_solve(np.eye(3), ONES),
    "preconditioner": lambda: ims.linear_solve(EYE, ONES, M=np.eye(3)),
    "product": lambda: ims.aslinearoperator(np.eye(3)) @ ONES,
    "Jacobian": lambda: ims.root(ims.Problem(squares, jac=lambda x: np.eye(3)), ONES),
    "cotangent": lambda: ims.pull_back(ims.Problem(squares, vjp=lambda x, w: 2 * x * w), ONES, np.ones(3)),
    "starts": lambda: ims.drivers.race(squares, [ONES, np.ones(3)]),
    "band": lambda: ims.BlockBandedMatrix(np.ones((3, 1, 1, 1)), lower=0, upper=0) @ ONES,
    "factors": lambda: ims.BlockLU().factor(ims.BlockBandedMatrix(EYE[None, None], lower=0, upper=0)).solve(np.ones(3)),
    "to SciPy": lambda: ims.aslinearoperator(EYE).to_scipy() @ np.ones(3),
}


@pytest.mark.parametrize("name", MIXED)
def test_libraries_are_not_mixed(name):
    with pytest.raises(TypeError, match="arrays must be of one library, got some of numpy and torch"):
        MIXED[name]()


def test_functions_that_return_another_library_s_arrays():
    with pytest.raises(TypeError, match="`residual` must return arrays of the library of x0, got some of numpy"):
        ims.root(lambda x: x.numpy() ** 2, ONES)
    with pytest.raises(TypeError, match="`residual` must return arrays of the library of x0, got some of torch"):
        ims.root(lambda x: torch.as_tensor(x) ** 2, np.ones(3))


@pytest.mark.parametrize(
    ("x0", "dtype"),
    [
        (torch.ones(3, dtype=torch.int32), torch.float64),
        (torch.ones(3, dtype=torch.bool), torch.float64),
        (torch.ones(3, dtype=torch.float16), torch.float32),
        (torch.ones(3, dtype=torch.bfloat16), torch.float32),
        (torch.ones(6, dtype=torch.float64)[::2], torch.float64),
        (torch.ones(1, dtype=torch.float64).expand(3), torch.float64),
        (torch.tensor(1.0), torch.float32),
        (torch.zeros(0), torch.float32),
        (torch.nn.Parameter(torch.ones(3), requires_grad=False), torch.float32),
    ],
    ids=["int32", "bool", "float16", "bfloat16", "strided", "expanded", "0-d", "empty", "parameter"],
)
def test_tensors_of_every_kind(x0, dtype):
    before = x0.clone()
    result = ims.root(squares, x0)
    assert result.success
    assert result.x.dtype == dtype
    assert result.x.shape == x0.shape
    torch.testing.assert_close(result.x, torch.full_like(result.x, 2**0.5), rtol=1e-3, atol=0)
    assert torch.equal(x0, before)
