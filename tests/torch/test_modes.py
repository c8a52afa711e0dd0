"""Solves below `torch.compile`, under autocast and in half precision."""

from importlib import import_module

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

from tests.torch.test_modules import CASES, B, D, K, T, generator  # noqa: E402

HALF = [torch.bfloat16, torch.float16]


def contraction(x, A, b):
    return x - 0.5 * torch.tanh(x @ A) - b


class Net(torch.nn.Module):
    """An implicit layer, and a root of a residual of its own, between explicit ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before, self.layer, self.after = torch.nn.Linear(4, D), imt.ImplicitGRU(D, K), torch.nn.Linear(K, 1)

    def forward(self, u, lengths):
        states = self.layer(torch.tanh(self.before(u)), lengths)
        x = imt.solve(lambda x, W, s: x - 0.5 * torch.tanh(x @ W.T) - s, torch.zeros_like(states), self.layer.U, states)
        return self.after(torch.sin(x))


def test_a_compiled_training_step_is_the_eager_one():
    net, u, lengths = Net(), torch.randn(B, T, 4, generator=generator(0)), torch.tensor([4, 1, 3])

    def gradients(function):
        net.zero_grad()
        function(u, lengths).pow(2).mean().backward()
        return [p.grad.clone() for p in net.parameters()]

    expected = gradients(net)
    torch.compiler.reset()
    compiled = torch.compile(net, backend="eager")
    found = gradients(compiled)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for size in (2, 3):  # another batch: what is compiled is not the solve
        compiled(u[:size], lengths[:size])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= before + 6


def test_a_whole_graph_is_refused_by_the_compiler():
    with pytest.raises(Exception, match="disable"):
        torch.compile(Net(), backend="eager", fullgraph=True)(torch.ones(B, T, 4), [4, 1, 3])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", CASES)
def test_modules_solve_half_precision_in_float32(name, dtype):
    case = CASES[name]
    inputs = torch.rand((B, T, D) if case.is_sequence else (B, D), generator=generator(0)).to(dtype)
    single = case.make(generator=generator(1))
    expected = single(inputs.float())
    mixed, result = single(inputs, return_result=True)
    assert mixed.dtype == dtype
    assert result.x.dtype == "float32"
    torch.testing.assert_close(mixed, expected.to(dtype), rtol=0, atol=0)

    half = case.make(generator=generator(1), dtype=dtype)
    half.load_state_dict(single.state_dict())
    states = half(inputs, x0=mixed)
    states.sum().backward()
    assert states.dtype == dtype
    torch.testing.assert_close(states, mixed, rtol=0.02, atol=0.02)
    single(inputs.float()).sum().backward()
    for p, q in zip(half.parameters(), single.parameters(), strict=True):
        assert p.grad.dtype == dtype
        torch.testing.assert_close(p.grad.float(), q.grad, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", HALF)
def test_roots_of_half_precision_are_found_in_float32(dtype):
    A, b = (torch.rand(2, 2, generator=generator(i)).to(dtype).requires_grad_() for i in range(2))
    x, result = imt.solve(contraction, torch.zeros(3, 2, dtype=dtype), A, b[0], return_result=True)
    x.sum().backward()
    assert x.dtype == A.grad.dtype == dtype
    assert result.x.dtype == "float32"
    wide = imt.solve(contraction, torch.zeros(3, 2), A.detach().float(), b[0].detach().float())
    torch.testing.assert_close(x, wide.to(dtype), rtol=0, atol=0)


def test_autocast_does_not_reach_into_a_solve():
    net, u = Net(), torch.randn(B, T, 4, generator=generator(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, result = net.layer(net.before(u), return_result=True)
        net(u, None).float().sum().backward()
    assert states.dtype == torch.bfloat16
    assert result.success.all()
    seen = []

    def residual(x, A):
        seen.append((x @ A).dtype)
        return x - 0.5 * torch.tanh(x @ A) - 1

    A = torch.eye(2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = imt.solve(residual, torch.zeros(2), A)
        (g,) = torch.autograd.grad(x.sum(), A, create_graph=True)
        g.sum().backward()
    assert set(seen) == {torch.float32}
