"""What `implicitsolve.torch` needs, and how tensors and arrays share memory."""

import sys
from importlib import import_module

import numpy as np
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")
share = import_module("implicitsolve.torch._share")


def test_neither_package_hides_torch():
    assert torch.__name__ == "torch"
    assert torch.nn is not None
    assert imt.__name__ == "implicitsolve.torch"


@pytest.mark.parametrize("name", imt.__all__)
def test_public_names_exist_and_have_docstrings(name):
    assert getattr(imt, name).__doc__


@pytest.mark.parametrize(
    "view",
    [lambda x: x, lambda x: x.T, lambda x: x[::2], lambda x: x.expand(2, 4, 3)],
    ids=["whole", "transposed", "strided", "expanded"],
)
def test_arrays_share_the_memory_of_tensors(view):
    x = view(torch.arange(12.0).reshape(4, 3).requires_grad_())
    array = share.to_array(x)
    assert array.ctypes.data == x.data_ptr()
    np.testing.assert_array_equal(array, x.detach().numpy())


def test_arrays_of_lazy_views_have_the_right_values():
    z = torch.tensor([1 + 2j])
    assert share.to_array(z.conj())[0] == 1 - 2j
    assert share.to_array(z.conj().imag)[0] == -2


def test_tensors_share_the_memory_of_arrays():
    array = np.arange(12.0).reshape(4, 3).T
    x = share.to_tensor(array)
    assert x.data_ptr() == array.ctypes.data
    assert x.shape == (3, 4)


def test_arrays_of_which_torch_has_no_view_are_copied():
    array = np.arange(3.0)
    array.flags.writeable = False
    for source in (array, array[::-1], np.broadcast_to(1.0, (2, 2)), np.float64(3.0)):
        np.testing.assert_array_equal(share.to_tensor(source).numpy(), source)
    share.to_tensor(array).fill_(7.0)
    assert array.tolist() == [0.0, 1.0, 2.0]


def test_cuda_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match="CUDA tensors go through CuPy, which is not installed"):
        share._cupy()
