"""Comparison of arrays of any library with NumPy's."""

from collections.abc import Callable
from typing import Any

import numpy as np


def host(x: Any) -> np.ndarray:
    return x.get() if hasattr(x, "get") else np.asarray(x)


def close(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Of one shape, and as near as the tolerance times the largest number expected, or 1."""
    actual, expected = host(actual), host(expected)
    assert actual.shape == expected.shape
    bound = tolerance * max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)


def jacobian(function: Callable[[Any], Any], x: Any) -> Any:
    """Derivative of a function of one array by complex steps: exact, shape (outputs, inputs)."""
    columns = []
    for i in range(x.size):
        moved = x.astype(complex)
        moved.flat[i] += 1e-30j
        columns.append(function(moved).imag.ravel() / 1e-30)
    return np.stack(columns, axis=1) if columns else np.zeros((function(x).size, 0))
