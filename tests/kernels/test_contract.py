import numpy as np
import pytest

from implicitsolve import errors
from implicitsolve.kernels import Kernel, _contract, block_lu


def reference(*args):
    return "reference"


def other(*args):
    return "other"


@pytest.fixture
def none_installed(monkeypatch):
    monkeypatch.setattr(_contract, "is_installed", lambda backend: False)


@pytest.fixture
def all_installed(monkeypatch):
    monkeypatch.setattr(_contract, "is_installed", lambda backend: True)


def test_without_implementations_the_reference_does_it(none_installed):
    kernel = Kernel("k", reference)
    assert kernel.select(np.ones(3)) is reference
    assert kernel.select(np.ones(3), "reference") is reference
    assert "k" in repr(kernel)


def test_auto_takes_what_supports_the_case(none_installed):
    kernel = Kernel("k", reference)
    kernel.implement("lapack", other, lambda like, size: size > 3)
    assert kernel.select(np.ones(3), size=2) is reference
    assert kernel.select(np.ones(3), size=4) is other
    assert kernel.select(np.ones(3), "reference", size=4) is reference


def test_sizes_decide_before_a_plug_in_is_loaded(monkeypatch):
    loaded = []
    kernel = Kernel("k", reference, pays={"numba": lambda size: size > 3})

    def load(package, module):
        loaded.append((package, module))
        kernel.implement("numba", other)

    monkeypatch.setattr(_contract, "is_installed", lambda backend: True)
    monkeypatch.setattr(_contract, "load", load)
    assert kernel.select(np.ones(3), size=2) is reference
    assert not loaded
    assert kernel.select(np.ones(3), size=4) is other
    assert set(loaded) == {("implicitsolve.backends.numba", "_k")}
    assert kernel.select(np.ones(3), "numba", size=2) is other  # who names it gets it


def test_an_array_of_another_library_gets_the_reference(all_installed):
    strict = pytest.importorskip("array_api_strict")
    kernel = Kernel("k", reference)
    kernel.implement("numba", other)
    assert kernel.select(strict.ones(3)) is reference


def test_a_missing_backend_that_was_named_is_an_error_with_the_remedy(none_installed):
    with pytest.raises(errors.BackendUnavailable, match="pip install 'implicitsolve\\[numba\\]'"):
        Kernel("k", reference).select(np.ones(3), "numba")


def test_a_backend_that_cannot_is_an_error(all_installed):
    kernel = Kernel("k", reference)
    kernel.implement("numba", other, lambda like, size: False)
    with pytest.raises(ValueError, match="does not support"):
        kernel.select(np.ones(3), "numba", size=1)
    with pytest.raises(ValueError, match="does not support"):
        kernel.select(np.ones(3), "lapack", size=1)


def test_unknown_names():
    with pytest.raises(ValueError, match="backend"):
        block_lu.select(np.ones(3), "fortran")
    with pytest.raises(TypeError, match="supports"):
        block_lu.implement("fortran", other)
    for name in ("auto", "reference"):
        with pytest.raises(ValueError, match="backend"):
            block_lu.implement(name, other, lambda like, **case: True)


def test_a_backend_of_another_name_comes_first_for_the_arrays_that_it_supports(all_installed):
    strict = pytest.importorskip("array_api_strict")
    kernel = Kernel("k", reference, pays={"numba": lambda size: True})
    kernel.implement("numba", other)

    def mine(x):
        return x

    def newest(x):
        return x

    kernel.implement("mine", mine, lambda like, size: size > 3)
    assert kernel.select(np.ones(3), size=2) is other
    assert kernel.select(np.ones(3), size=4) is kernel.select(strict.ones(3), size=4) is mine
    assert kernel.select(np.ones(3), "numba", size=4) is other
    assert kernel.select(np.ones(3), "mine", size=4) is mine
    with pytest.raises(ValueError, match="does not support"):
        kernel.select(np.ones(3), "mine", size=2)
    kernel.implement("newest", newest, lambda like, size: True)
    assert kernel.select(np.ones(3), size=4) is newest
    del kernel.implementations["newest"], kernel.implementations["mine"]
    assert kernel.select(np.ones(3), size=4) is other


def test_a_package_that_is_not_there_is_not_loaded(monkeypatch):
    monkeypatch.setitem(_contract.PLUG_INS, "cupy", "implicitsolve.no.such.module")
    assert not _contract.is_installed.__wrapped__("cupy")


def test_a_kernel_without_a_module_in_a_backend_is_not_implemented_there():
    kernel = Kernel("nowhere", lambda x: x)
    assert not kernel.load("numba")
    assert kernel.select(np.ones(3)) is kernel.reference
    with pytest.raises(ValueError, match="does not support"):
        kernel.select(np.ones(3), "numba")


def test_arrays_of_a_device_take_cuda_or_the_reference(device):
    case = {"length": 20, "block_size": 2, "lower": 1, "upper": 1, "pivoting": "block"}
    like = device.ones((1, 20, 3, 2, 2))
    assert block_lu.select(like, **case) is block_lu.implementations["cupy"][0]
    assert block_lu.select(like, "cupy", **case) is block_lu.implementations["cupy"][0]
    assert block_lu.select(device.astype(like, device.complex128), **case) is block_lu.reference
    for backend in ("numba", "lapack"):
        with pytest.raises(ValueError, match="does not support"):
            block_lu.select(like, backend, **case)
    with pytest.raises(ValueError, match="does not support"):
        block_lu.select(np.ones((1, 20, 3, 2, 2)), "cupy", **case)


def test_auto_goes_on_without_a_broken_package_and_warns_once(monkeypatch):
    def load(package, module):
        raise ImportError("needs NumPy 2.3 or less")

    monkeypatch.setattr(_contract, "load", load)
    monkeypatch.setattr(_contract, "_broken", set())
    double = Kernel("double", lambda x: 2 * x)
    with pytest.warns(RuntimeWarning, match=r"without numba, .* needs NumPy 2.3 or less"):
        assert double.select(np.ones(3)) is double.reference
    assert double.select(np.ones(3)) is double.reference  # warnings are errors here
    with pytest.raises(ImportError, match="needs NumPy"):
        double.select(np.ones(3), "numba")
