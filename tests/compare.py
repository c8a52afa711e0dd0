"""Comparison of arrays of any library with NumPy's."""

from __future__ import annotations

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
