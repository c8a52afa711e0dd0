"""Second derivatives and the transforms of `torch.func`, of roots and of modules."""

from importlib import import_module

import numpy as np
import pytest

import implicitsolve as ims

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

from tests.torch.test_modules import B, call, functional  # noqa: E402
from tests.torch.test_modules import arguments as arguments  # noqa: E402
from tests.torch.test_modules import case as case  # noqa: E402
from tests.torch.test_modules import module as module  # noqa: E402
from tests.torch.test_solve import EXACT, contraction, normal, squares  # noqa: E402

# Forward mode compiles some decompositions of torch's own by what torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def root_of(A, b):
    return imt.solve(contraction, torch.zeros_like(b), A, b, **EXACT)


@pytest.fixture
def A():
    return normal(4, 2, 2, seed=1)


@pytest.fixture
def b():
    return normal(4, 3, 2, seed=2)


def test_equations_in_torch_are_the_adapter_s(case, module, arguments):
    states, result = call(case, module, arguments, return_result=True)
    x = torch.rand(states.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    lengths = {"lengths": [4, 1, 3]} if case.is_sequence else {}
    tensors = dict(module.named_parameters()) | arguments
    found = module.equations(x, tensors, **lengths)
    numbers = {name: value.detach().numpy() for name, value in tensors.items()}
    adapter = getattr(ims.adapters, case.adapter)
    parameters = {name: numbers.pop(name) for name in module.names}
    make = adapter(parameters, **numbers, **lengths, **case.settings) if case.is_sequence else None
    problem = make or adapter(**parameters, **numbers, **case.settings)
    np.testing.assert_allclose(found.detach().numpy(), problem.residual(x.numpy()), atol=1e-13)
    assert result.success.all()


def test_second_derivatives_of_modules(case, module, arguments):
    states, tensors = functional(case, module, arguments)
    v = [torch.rand(x.shape, generator=torch.Generator().manual_seed(i), dtype=x.dtype) for i, x in enumerate(tensors)]

    def gradients(t, **options):
        moved = [(x + t * dx).detach().requires_grad_() for x, dx in zip(tensors, v, strict=True)]
        return torch.autograd.grad(states(*moved).pow(3).sum(), moved, **options), moved

    g, moved = gradients(0.0, create_graph=True)
    along = sum((x * dx).sum() for x, dx in zip(g, v, strict=True))
    found = torch.autograd.grad(along, moved)
    for h, above, below in zip(found, gradients(1e-4)[0], gradients(-1e-4)[0], strict=True):
        torch.testing.assert_close(h, (above - below) / 2e-4, rtol=1e-5, atol=1e-7)


def test_vmap_is_the_loop_in_one_solve(A, b):
    calls = []

    def residual(x, A, b):
        calls.append(x)
        return contraction(x, A, b)

    def one(A, b):
        return imt.solve(residual, torch.zeros_like(b), A, b, **EXACT)

    found = torch.func.vmap(one)(A, b)
    together, expected = len(calls), torch.stack([one(*pair) for pair in zip(A, b, strict=True)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert together < len(calls) / 2
    shared = torch.func.vmap(one, in_dims=(None, 2), out_dims=1)(A[0], b.movedim(0, 2))
    torch.testing.assert_close(shared, torch.stack([one(A[0], row) for row in b], dim=1), rtol=0, atol=1e-12)
    nested = torch.func.vmap(torch.func.vmap(one, in_dims=(None, 0)), in_dims=(0, None))(A, b)
    torch.testing.assert_close(nested[1, 2], one(A[1], b[2]), rtol=0, atol=1e-12)


def test_batches_have_gradients_of_any_order(A, b):
    batch = torch.func.vmap(root_of, in_dims=(0, None))
    tensors = A[:2].clone().requires_grad_(), b[0].clone().requires_grad_()
    torch.autograd.gradcheck(batch, tensors, fast_mode=True)
    torch.autograd.gradgradcheck(batch, tensors, fast_mode=True)


def test_a_batch_has_a_status_for_each_system():
    a = torch.tensor([4.0, -1.0, 9.0], dtype=torch.float64)
    results = []

    def one(a):
        x, result = imt.solve(squares, torch.ones_like(a), a, on_failure="ignore", return_result=True)
        results.append(result)
        return x

    x = torch.func.vmap(one)(a)
    assert results[0].success.tolist() == [True, False, True]
    torch.testing.assert_close(x[[0, 2]], torch.tensor([2.0, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("jacobian", [torch.func.jacrev, torch.func.jacfwd])
def test_jacobians(A, b, jacobian):
    A, b = A[0], b[0]
    expected = torch.autograd.functional.jacobian(lambda b: root_of(A, b), b)
    torch.testing.assert_close(jacobian(lambda b: root_of(A, b))(b), expected)
    with torch.no_grad():
        torch.testing.assert_close(jacobian(lambda b: root_of(A, b))(b), expected)


def test_hessians_in_every_order_of_modes():
    a = torch.tensor([4.0, 9.0], dtype=torch.float64)

    def loss(a):
        return imt.solve(squares, torch.ones_like(a), a, **EXACT).sum()

    expected = torch.diag(-(a**-1.5) / 4)
    reverse, forward = torch.func.jacrev, torch.func.jacfwd
    for outer, inner in ((forward, reverse), (reverse, reverse), (reverse, forward), (forward, forward)):
        torch.testing.assert_close(outer(inner(loss))(a), expected)


def test_gradients_of_each_sample(case, module, arguments):
    """By vmap of grad, with shared parameters, as in differentially private training."""
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    inputs = arguments["inputs"].detach()

    def loss(parameters, inputs):
        return torch.func.functional_call(module, parameters, (inputs,)).pow(2).sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)
    for i in range(B):
        expected = torch.autograd.grad(module(inputs[i]).pow(2).sum(), tuple(module.parameters()))
        for name, gradient in zip(parameters, expected, strict=True):
            torch.testing.assert_close(found[name][i], gradient, rtol=1e-8, atol=1e-10)


def test_batches_of_gradients_were_an_error():
    """`is_grads_batched` and ``vectorize=True`` have batches of their own."""
    a = torch.tensor([4.0, 9.0], dtype=torch.float64, requires_grad=True)

    def solved(a):
        return imt.solve(lambda x, a: x**2 - a + 0.1 * x.flip(0), torch.ones_like(a), a)

    x, one = solved(a), torch.eye(2, dtype=torch.float64)
    rows = torch.stack([torch.autograd.grad(x, a, row, retain_graph=True)[0] for row in one])
    (batched,) = torch.autograd.grad(x, a, one, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(batched, rows)
    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    for strategy in ("reverse-mode", "forward-mode"):
        torch.testing.assert_close(jacobian(solved, a, vectorize=True, strategy=strategy).detach(), rows)
    expected = hessian(lambda a: solved(a).sum(), a)
    torch.testing.assert_close(hessian(lambda a: solved(a).sum(), a, vectorize=True), expected)
