"""What a true cell is: a case works and gives what it gives on NumPy arrays, or raises what it says."""

from collections.abc import Callable
from importlib import import_module

import numpy as np
import pytest

from tests.capabilities import diagnostic_cases, layer_cases, solver_cases
from tests.capabilities.libraries import Library
from tests.capabilities.table import NONE, Cell, Refuses

CASES = solver_cases.CASES | diagnostic_cases.CASES | layer_cases.CASES
NUMPY = import_module("array_api_compat.numpy")
_references: dict[tuple[str, bool], list[np.ndarray]] = {}


def outcome(name: str, on: Library) -> list[np.ndarray]:
    """What a case gives on a library, as NumPy arrays."""
    return [on.host(value) for value in CASES[name](on)]


def reference(name: str, is_complex: bool) -> list[np.ndarray]:
    """What it gives on NumPy arrays in double precision."""
    if (name, is_complex) not in _references:
        _references[name, is_complex] = outcome(name, Library(NUMPY, "complex128" if is_complex else "float64"))
    return _references[name, is_complex]


def check(cell: Cell, name: str, on: Library, run: Callable[[], list[np.ndarray]] | None = None) -> None:
    """Raise unless a cell is true."""
    run = run or (lambda: outcome(name, on))
    if cell == NONE:
        pytest.skip("does not apply")
    if isinstance(cell, Refuses):
        with pytest.raises(cell.error) as caught:
            run()
        assert cell.words in str(caught.value)
    else:
        agree(run(), reference(name, on.is_complex), on.eps)


def agree(found: list[np.ndarray], expected: list[np.ndarray], eps: float) -> None:
    """Raise unless values agree as solutions do: to some tens of rounding units, with differences to eps^(2/3)."""
    tolerance = 1e3 * eps**0.75
    assert len(found) == len(expected) > 0
    for value, right in zip(found, expected):
        np.testing.assert_allclose(value, right, rtol=tolerance, atol=tolerance)
