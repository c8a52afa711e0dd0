"""`implicitsolve.torch.solve`: derivatives of roots of residuals written in torch."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest

import implicitsolve as ims

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

# Forward mode compiles some decompositions of torch's own by what torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

EXACT = {"stop": ims.NonlinearStop(rtol=1e-13), "adjoint_stop": ims.LinearStop(rtol=1e-13)}


def normal(*shape: int, seed: int = 0, dtype=torch.float64, grad: bool = False):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return x.requires_grad_(grad)


def contraction(x, A, b):
    """A residual whose rows are independent systems."""
    return x + 0.5 * torch.tanh(x @ A) - b


def squares(x, a):
    return x**2 - a


@pytest.fixture
def A():
    return normal(2, 2, seed=1, grad=True)


@pytest.fixture
def b():
    return normal(3, 2, seed=2, grad=True)


class Pair(NamedTuple):
    a: Any
    b: Any


def solved(A, b, **options):
    return imt.solve(contraction, torch.zeros(3, 2, dtype=b.dtype), A, b, **(EXACT | options))


def test_root_is_that_of_root(A, b):
    x, result = solved(A, b, batch_ndim=1, return_result=True)
    assert result.success.tolist() == [True] * 3
    assert contraction(x, A, b).abs().max() < 1e-12
    H, N = A.detach().numpy(), b.detach().numpy()
    problem = ims.Problem(lambda x: x + 0.5 * np.tanh(x @ H) - N, batch_ndim=1)
    expected = ims.root(problem, np.zeros((3, 2)), stop=EXACT["stop"])
    np.testing.assert_allclose(x.detach().numpy(), expected.x, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_dtype_stays(dtype):
    a = torch.tensor([4.0, 9.0], dtype=dtype, requires_grad=True)
    x = imt.solve(squares, torch.ones(2, dtype=dtype), a)
    x.abs().sum().backward()
    assert x.dtype == a.grad.dtype == dtype
    torch.testing.assert_close(x.detach(), torch.tensor([2, 3], dtype=dtype), rtol=1e-3, atol=0)
    torch.testing.assert_close(a.grad, torch.tensor([1 / 4, 1 / 6], dtype=dtype), rtol=1e-3, atol=0)


def test_root_shares_the_memory_of_the_result(A, b):
    x, result = solved(A, b, return_result=True)
    assert x.data_ptr() == result.x.ctypes.data


def test_residual_sees_the_solver_s_memory_and_a_product_costs_no_residual():
    calls = []

    def residual(x, a):
        calls.append(x)
        return x**3 + x - a

    _, result = imt.solve(residual, torch.ones(50, dtype=torch.float64), torch.linspace(0, 9, 50), return_result=True)
    assert len(calls) == result.counts.residuals
    assert result.counts.jvps > len(calls)


def test_start_is_neither_changed_nor_returned_nor_differentiated():
    x0 = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([4.0, 9.0], dtype=torch.float64, requires_grad=True)
    x = imt.solve(squares, x0, a)
    assert x.data_ptr() != x0.data_ptr()
    x.sum().backward()
    assert x0.grad is None
    assert x0.tolist() == [2.0, 3.0]
    assert imt.solve(squares, x0, a.detach()).requires_grad is False


def test_arguments_may_be_nested_and_of_any_type():
    net = torch.nn.Linear(2, 2).double()

    def residual(x, parameters, scale, name, pair):
        assert name == "net"
        return x - scale * torch.tanh(torch.func.functional_call(net, parameters, (x,))) - pair[0] - pair[1]["b"]

    b = normal(2, grad=True)
    arguments = dict(net.named_parameters()), 0.5, "net", (torch.ones(2, dtype=torch.int64), {"b": b})
    x = imt.solve(residual, torch.zeros(2, dtype=torch.float64), *arguments, **EXACT)
    x.sum().backward()
    assert all(p.grad.abs().min() > 0 for p in (*net.parameters(), b))
    torch.testing.assert_close(residual(x, *arguments), torch.zeros(2, dtype=torch.float64))


def test_named_tuples_stay_named():
    pair = Pair(normal(2, grad=True), [normal(2, seed=1)])
    x = imt.solve(lambda x, p: x - p.a - p.b[0], torch.zeros(2, dtype=torch.float64), pair)
    x.sum().backward()
    torch.testing.assert_close(pair.a.grad, torch.ones(2, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("batch_ndim", [0, 1])
def test_gradients(A, b, batch_ndim):
    torch.autograd.gradcheck(lambda A, b: solved(A, b, batch_ndim=batch_ndim), (A, b))


def test_forward_mode(A, b):
    torch.autograd.gradcheck(solved, (A, b), check_forward_ad=True, check_backward_ad=False)
    tangent = torch.func.jvp(lambda b: solved(A.detach(), b), (b.detach(),), (torch.ones_like(b),))[1]
    J = torch.autograd.functional.jacobian(lambda b: solved(A.detach(), b), b)
    torch.testing.assert_close(tangent, J.sum(dim=(2, 3)))


@pytest.mark.parametrize("batch_ndim", [0, 1])
def test_second_derivatives(A, b, batch_ndim):
    torch.autograd.gradgradcheck(lambda A, b: solved(A, b, batch_ndim=batch_ndim), (A, b), fast_mode=True)


def test_complex_roots():
    z = torch.tensor([1 + 1j], dtype=torch.complex128, requires_grad=True)
    r = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)

    def root_of(z, r):
        return imt.solve(lambda x, z, r: x**2 + r * x - z, torch.ones(1, dtype=torch.complex128), z, r, **EXACT)

    torch.autograd.gradcheck(root_of, (z, r), check_forward_ad=True)
    torch.autograd.gradgradcheck(root_of, (z, r), fast_mode=True)


@pytest.mark.parametrize("adjoint_method", [None, ims.BlockLU()], ids=["default", "BlockLU"])
def test_declared_structure(adjoint_method):
    k, c = normal(5, seed=1, grad=True), normal(5, seed=2, grad=True)

    def residual(x, k, c):  # lower bidiagonal: coupled to the cell before alone
        before = torch.cat([x.new_zeros(1), x[:-1]])
        return x + 0.3 * torch.sin(k * before) - c

    def root_of(k, c):
        structure = ims.BlockBanded(1, 0, 1)
        start = torch.zeros(5, dtype=torch.float64)
        return imt.solve(residual, start, k, c, structure=structure, adjoint_method=adjoint_method, **EXACT)

    torch.autograd.gradcheck(root_of, (k, c))
    torch.autograd.gradgradcheck(root_of, (k, c), fast_mode=True)


def test_residual_need_not_be_known_to_torch_func(b):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # of the old kind, which torch.func refuses
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    def root_of(b):
        return imt.solve(lambda x, b: Cube.apply(x) + x - b, torch.zeros(3, 2, dtype=torch.float64), b, **EXACT)

    torch.autograd.gradcheck(root_of, (b,))


def attention(x, A, b):
    """A residual with an operation that torch differentiates once."""
    y = (x @ A)[None, None]
    return x - 0.3 * torch.nn.functional.scaled_dot_product_attention(y, y, y)[0, 0] - b


def test_residual_without_second_derivatives(A, b):
    start = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented"):
        imt.solve(attention, start, A, b)
    root_of = partial(imt.solve, attention, start, products="differences", **EXACT)
    torch.autograd.gradcheck(root_of, (A, b))
    with pytest.raises(ValueError, match="requires grad and is none of its arguments"):
        imt.solve(lambda x: attention(x, A, b), start, products="differences")


def test_backward_twice(A, b):
    x = solved(A, b)
    first = torch.autograd.grad(x.sum(), (A, b), retain_graph=True)
    second = torch.autograd.grad(x.sum(), (A, b))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_only_what_requires_grad_gets_one(A, b):
    solved(A, b.detach()).sum().backward()
    assert A.grad.abs().min() > 0
    assert b.grad is None


def test_residual_that_ignores_an_argument(b):
    unused = normal(2, grad=True)
    x = imt.solve(lambda x, b, _: x - b, torch.zeros(3, 2, dtype=torch.float64), b, unused)
    x.sum().backward()
    assert unused.grad.tolist() == [0.0, 0.0]


def test_a_linear_part_that_vanishes():
    # Row 0 of J is zero at x = 0 in direction 1: products with such a J must be zeros, not errors.
    x, result = imt.solve(
        lambda x: torch.stack([x[0], 0 * x[1] + 1]), torch.zeros(2), on_failure="ignore", return_result=True
    )
    assert not result.success
    assert x.isfinite().all()


def test_captured_tensors_are_refused(A, b):
    def captures(x):
        return contraction(x, A, b)

    start = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"shape \(\d, 2\) that requires grad and is none of its arguments"):
        imt.solve(captures, start)
    with torch.no_grad():
        assert imt.solve(captures, start).isfinite().all()
    fixed = A.detach()
    assert imt.solve(lambda x, b: contraction(x, fixed, b), start, b).requires_grad


@pytest.mark.parametrize("what", ["root", "argument"])
def test_changes_in_place_are_noticed(A, b, what):
    x = solved(A, b)
    with torch.no_grad():
        (x if what == "root" else b).mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        x.sum().backward()


@pytest.fixture
def rootless():
    return torch.tensor([[4.0], [-1.0]], dtype=torch.float64, requires_grad=True)


def test_failure_warns_and_says_which(rootless):
    start = torch.ones(2, 1, dtype=torch.float64)
    with pytest.warns(imt.ConvergenceWarning, match="solve: forward solve: 1 of 2 systems: CONVERGED"):
        x, result = imt.solve(squares, start, rootless, batch_ndim=1, return_result=True)
    assert result.success.tolist() == [True, False]
    assert x[0].item() == pytest.approx(2.0)


def test_failure_raises_on_request(rootless):
    with pytest.raises(ims.NoConvergence):
        imt.solve(squares, torch.ones(2, 1, dtype=torch.float64), rootless, on_failure="raise")


def test_failure_is_ignored_on_request(rootless):
    imt.solve(squares, torch.ones(2, 1, dtype=torch.float64), rootless, on_failure="ignore").sum().backward()


def test_failure_of_the_adjoint(A, b):
    never = {"adjoint_stop": ims.LinearStop(max_iterations=0)}
    with pytest.warns(imt.ConvergenceWarning, match="solve: adjoint solve: ITERATION_LIMIT"):
        solved(A, b, **never).sum().backward()
    x = solved(A, b, **never, on_failure="raise")
    with pytest.raises(ims.NoConvergence):
        x.sum().backward()
    with pytest.warns(imt.ConvergenceWarning, match="solve: tangent solve"):
        torch.func.jvp(lambda b: solved(A.detach(), b, **never), (b.detach(),), (torch.ones_like(b),))


def test_inference_mode(A, b):
    expected = solved(A, b)
    with torch.inference_mode():
        x = solved(A, b)
        again = solved(A.clone(), b.clone())
    assert x.is_inference()
    torch.testing.assert_close(x.clone(), expected.detach())
    torch.testing.assert_close(again.clone(), expected.detach())


def test_threads(A):
    """Solves and their gradients in several threads at once are those in one."""
    rights = [normal(20, 2, seed=seed) for seed in range(4)]

    def gradient(b):
        x = imt.solve(contraction, torch.zeros(20, 2, dtype=torch.float64), A, b, batch_ndim=1)
        return torch.autograd.grad(x.pow(2).sum(), A)[0]

    expected = [gradient(b) for b in rights]
    with ThreadPoolExecutor(len(rights)) as pool:
        found = list(pool.map(gradient, rights * 3))
    torch.testing.assert_close(found, expected * 3, rtol=0, atol=0)


def test_a_fixed_point_is_iterated_and_has_the_same_gradient():
    def F(x, A):
        return x - 0.1 * torch.tanh(x @ A) - 1

    gradients = []
    for is_fixed in (False, True):
        A = normal(40, 40, seed=1, grad=True)
        x, result = imt.solve(F, torch.zeros(40).double(), A, fixed_point=is_fixed, return_result=True)
        x.sum().backward()
        gradients.append(A.grad)
    assert result.counts.jvps == 0
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)
