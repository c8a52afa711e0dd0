"""Fixtures that every test shares: array libraries, dtypes, seeded random numbers."""

import os

os.environ.setdefault("MPLBACKEND", "Agg")  # no test opens a window

import zlib
from importlib import import_module
from types import ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest

collect_ignore = ["examples/word_lattices/files"]  # a program that needs PocketSphinx and OpenFst

USES_DOUBLE = os.environ.get("IMPLICITSOLVE_CUPY") == "double"
if USES_DOUBLE:  # in CuPy's place before anything imports it
    import_module("tests.device_double").install()

# Each run draws the same examples, in any order; a busy machine is no failure. `thorough` looks for others.
hypothesis.settings.register_profile(
    "quick",
    deadline=None,
    max_examples=16,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.register_profile(
    "mutants",
    parent=hypothesis.settings.get_profile("quick"),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

LIBRARIES = ["numpy", "array_api_strict", pytest.param("cupy", marks=pytest.mark.gpu)]


def _cupy() -> ModuleType:
    """CuPy's array-API namespace, or a skip that says why there is none."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed", exc_type=ImportError)
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"CuPy finds no CUDA device: {error}")
    if devices == 0:
        pytest.skip("CuPy finds no CUDA device")
    return import_module("array_api_compat.cupy")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for a device is marked so."""
    for item in items:
        if {"device", "double"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def device() -> ModuleType:
    """CuPy's array-API namespace on a GPU, or on the double of one (``IMPLICITSOLVE_CUPY=double``)."""
    return _cupy()


@pytest.fixture
def double() -> ModuleType:
    """The double of a GPU, whose `counts` begin at zero; for what only it can tell: launches, transfers, memory."""
    if not USES_DOUBLE:
        pytest.skip("asks the double of a GPU: set IMPLICITSOLVE_CUPY=double")
    package = import_module("tests.device_double")
    package.reset()
    return package


@pytest.fixture
def cudss(device: ModuleType) -> ModuleType:
    """nvmath-python, or the double of it: `calls` counts its methods, those in `failing` raise."""
    if USES_DOUBLE:
        double = import_module("tests.device_double.nvmath")
        double.reset()
        return double
    return pytest.importorskip("nvmath.sparse.advanced", reason="nvmath-python is not installed")


@pytest.fixture(params=LIBRARIES)
def xp(request: pytest.FixtureRequest) -> ModuleType:
    """Array library under test: NumPy, array-api-strict, and CuPy where a GPU is (marker ``gpu``)."""
    return _cupy() if request.param == "cupy" else import_module(request.param)


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest, xp: ModuleType) -> Any:
    """Real floating dtype of the library `xp`."""
    return getattr(xp, request.param)


@pytest.fixture(params=["float32", "float64", "complex64", "complex128"])
def any_dtype(request: pytest.FixtureRequest, xp: ModuleType) -> Any:
    """Real or complex floating dtype of the library `xp`."""
    return getattr(xp, request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers seeded from the test's own name, parameters included: the same in any order and selection."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
