"""CUDA tensors: shared with CuPy without a copy, and every module and `solve` on them.

Without a GPU, tensors of the CPU stand for CUDA's, and the double of CuPy for the device.
"""

import sys
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")
share = import_module("implicitsolve.torch._share")

from tests.torch.test_modules import CASES, EXACT, LENGTHS, B, D, T, generator  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")]


@pytest.fixture
def on_cuda(device, monkeypatch):
    """A function that brings a tensor or a module to the GPU, or to what stands for one."""
    if torch.cuda.is_available():
        return lambda x: x.cuda()
    double = pytest.importorskip("tests.device_double")
    cupy = sys.modules["cupy"]
    if cupy.RawModule is not double.launches.RawModule:
        pytest.skip("torch finds no CUDA device")
    stream = SimpleNamespace(device=SimpleNamespace(index=0), cuda_stream=7)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(cupy, "from_dlpack", lambda x: double.shared(x.numpy()))
    monkeypatch.setattr(cupy.ndarray, "__dlpack_device__", lambda x: (1, 0))  # the CPU
    monkeypatch.setattr(cupy.ndarray, "__dlpack__", lambda x, **keywords: x._host.__dlpack__(**keywords))
    double.reset()
    return lambda x: x


VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "strided": lambda x: x[::2, 1:],
    "expanded": lambda x: x.expand(2, 4, 3),
    "empty": lambda x: x[:0],
    "number": lambda x: x[1, 2],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_tensors_and_arrays_share_memory(on_cuda, device, view, dtype):
    x = view(on_cuda(torch.arange(12.0).to(getattr(torch, dtype)).reshape(4, 3).requires_grad_()))
    array = share.to_array(x)
    back = share.to_tensor(array)
    assert isinstance(array, sys.modules["cupy"].ndarray)
    assert array.dtype == getattr(device, dtype)
    assert array.shape == back.shape == x.shape
    assert back.dtype == x.dtype
    assert not back.requires_grad
    if x.numel():
        assert array.data.ptr == back.data_ptr() == x.data_ptr()
    np.testing.assert_array_equal(array.get(), x.detach().cpu().numpy())


def test_lazy_views_have_the_right_values(on_cuda):
    z = on_cuda(torch.tensor([1 + 2j]))
    assert share.to_array(z.conj()).get()[0] == 1 - 2j
    assert share.to_array(z.conj().imag).get()[0] == -2


def test_an_array_that_torch_cannot_view_is_copied(on_cuda, device):
    array = device.asarray(np.arange(6.0).reshape(2, 3))[:, ::-1]
    np.testing.assert_array_equal(share.to_tensor(array).cpu().numpy(), [[2, 1, 0], [5, 4, 3]])


def test_the_device_and_the_stream_are_those_of_torch(on_cuda, monkeypatch):
    x, cuda, entered = on_cuda(torch.ones(2)), sys.modules["cupy"].cuda, []
    made = cuda.Device
    monkeypatch.setattr(cuda, "Device", lambda place: [entered.append(place), made(place)][1])
    with share.on_device(x):
        assert entered == [x.device.index or 0]
        assert cuda.get_current_stream().ptr == torch.cuda.current_stream(x.device).cuda_stream


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("method", ["auto", "newton-krylov"])
def test_modules_give_what_they_give_on_the_cpu(on_cuda, case, method, monkeypatch):
    options = imt.SolveOptions(method=method, stop=EXACT.stop, adjoint_stop=EXACT.adjoint_stop)
    lengths = {"lengths": LENGTHS} if case.is_sequence else {}

    def run(to):
        made = to(case.make(solve_options=options, scale=0.7, generator=generator(1), dtype=torch.float64))
        shapes = {"inputs": (B, T, D) if case.is_sequence else (B, D)} | case.boundaries
        given = {
            name: to(torch.rand(shape, generator=generator(seed), dtype=torch.float64) - 0.5).requires_grad_()
            for seed, (name, shape) in enumerate(shapes.items())
        }
        states, result = made(**given, **lengths, return_result=True)
        states.pow(2).sum().backward()
        found = {"states": states.detach()} | {name: value.grad for name, value in given.items()}
        found |= {name: value.grad for name, value in made.named_parameters()}
        return result.x, {name: value.cpu() for name, value in found.items()}

    x, found = run(on_cuda)
    assert isinstance(x, sys.modules["cupy"].ndarray)
    monkeypatch.undo()
    _, expected = run(lambda x: x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("products", ["exact", "differences"])
def test_roots_of_residuals_in_torch(on_cuda, products):
    A, b = on_cuda(torch.eye(3, dtype=torch.float64) / 4).requires_grad_(), on_cuda(torch.ones(2, 3).double())
    residual = lambda x, A, b: x + torch.tanh(x @ A) - b  # noqa: E731
    start = on_cuda(torch.zeros(2, 3, dtype=torch.float64))
    options = {"batch_ndim": 1, "products": products, "stop": EXACT.stop, "adjoint_stop": EXACT.adjoint_stop}
    x, result = imt.solve(residual, start, A, b, return_result=True, **options)
    assert isinstance(result.x, sys.modules["cupy"].ndarray)
    assert float(residual(x, A, b).detach().abs().max()) < 1e-12
    x.sum().backward()
    slope = 1 - torch.tanh(x.detach() @ A.detach()) ** 2
    expected = -x.detach().T @ (slope / (1 + slope / 4))  # J is diagonal: 1 + slope / 4
    torch.testing.assert_close(A.grad, expected, rtol=0, atol=1e-10)


def test_warm_starts_keep_states_on_the_device(on_cuda):
    layer = on_cuda(imt.ImplicitGRU(2, 4, generator=generator(0), scale=0.5, dtype=torch.float64))
    inputs, starts = on_cuda(torch.ones(3, 5, 2, dtype=torch.float64)), imt.WarmStarts()
    for _ in range(2):
        states, result = layer(inputs, x0=starts[[0, 1, 2]], return_result=True)
        states.sum().backward()
    assert result.iterations.max() == 0
    assert all(state.device == inputs.device for state in (*starts.states.values(), *starts.adjoints.values()))


def test_a_lifted_net_is_brought_back_on_the_device(on_cuda):
    net = on_cuda(imt.LiftedNet(6, 2, generator=generator(0), scale=2.0, dtype=torch.float64))
    storage = net.A.data_ptr()
    net.project(0.5)
    assert net.A.data_ptr() == storage
    assert float(net.A.detach().abs().sum(dim=1).max()) <= 0.5 + 1e-12
