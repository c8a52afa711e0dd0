"""Every cell of the table of capabilities: what works works, and gives what NumPy gives; what refuses says why."""

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

import implicitsolve as ims
from implicitsolve.kernels import Kernel, _contract
from tests.capabilities import page
from tests.capabilities.checks import CASES, NUMPY, check
from tests.capabilities.libraries import Library
from tests.capabilities.table import DATA, KERNELS, ROWS, YES

PACKAGES = (
    "adapters",
    "branches",
    "derivatives",
    "diagnostics",
    "direct",
    "drivers",
    "elimination",
    "precondition",
    "testing",
)
every_row = pytest.mark.parametrize("name", ROWS)


@pytest.fixture
def selected(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The backends whose kernels have been selected."""
    seen, select = set(), Kernel.select

    def recorded(kernel: Kernel, *arguments: Any, **case: Any) -> Any:
        function = select(kernel, *arguments, **case)
        seen.update(name for name, (own, _) in kernel.implementations.items() if own is function)
        return function

    monkeypatch.setattr(Kernel, "select", recorded)
    return seen


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "implicitsolve.backends.numba", raising=False)
    monkeypatch.setattr(_contract, "is_installed", _contract.is_installed.__wrapped__)


@every_row
@pytest.mark.usefixtures("without_numba")
def test_on_numpy_arrays_without_numba(name):
    check(ROWS[name].numpy, name, Library(NUMPY))


@every_row
def test_on_numpy_arrays_with_numba(name, selected):
    check(ROWS[name].numba, name, Library(NUMPY))
    if name != "newton_batch":  # which is compiled as a whole
        assert ("numba" in selected) == (ROWS[name].numba == KERNELS)


@every_row
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
@pytest.mark.usefixtures("without_numba")  # whose own tests have all dtypes
def test_in_every_precision(name, dtype):
    if name == "newton_batch":
        pytest.skip("works with Numba alone")
    row = ROWS[name]
    check(row.complex if dtype.startswith("complex") else row.numpy, name, Library(NUMPY, dtype))


@every_row
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_on_arrays_of_the_standard_alone(name, dtype):
    row = ROWS[name]
    cell = row.complex if dtype == "complex128" and row.torch == YES else row.torch
    check(cell, name, Library(pytest.importorskip("array_api_strict"), dtype))


@every_row
def test_on_cupy_arrays(name, device, selected):
    row = ROWS[name]
    check(row.cupy, name, Library(device))
    if row.cupy in (KERNELS, YES):
        assert ("cupy" in selected) == (row.cupy == KERNELS)
        check(row.cupy, name, Library(device, "complex64" if row.complex == YES else "float32"))


def public() -> dict[str, Any]:
    """Every public function and class, by the name that the table has for it."""
    found = {name: getattr(ims, name) for name in ims.__all__}
    for package in PACKAGES:
        own = {name: getattr(found[package], name) for name in found[package].__all__ if name not in found}
        found |= {f"{package}.{name}": value for name, value in own.items()}
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}


def test_every_public_function_has_a_row():
    assert set(ROWS) | DATA == set(public())
    assert not set(ROWS) & DATA
    assert set(CASES) == set(ROWS)


def test_what_has_no_row_takes_no_arrays_to_compute_with():
    functions = {name for name in DATA if inspect.isfunction(public()[name])}
    pictures = "diagnostics.plot_", "diagnostics.report"
    assert all(name.startswith(("direct.", "load", *pictures)) for name in functions)


def test_the_page_shows_the_table():
    assert page.PATH.read_text(encoding="utf-8") == page.text(), "run: python -m tests.capabilities.page"
