"""Array-API references of what brings sequences of different lengths into one matrix, and back."""

from __future__ import annotations

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array


def take_rows(x: Array, source: Array, none: int) -> Array:
    """Rows of a matrix (n, k) at the places `source`, zero where that is `none`; a new matrix."""
    xp, is_none = array_namespace(x), source == none
    return clear_rows(xp.take(x, xp.where(is_none, 0, source), axis=0), is_none)


def clear_rows(x: Array, empty: Array) -> Array:
    """Rows (..., n, k) with zeros where `empty` (n,) says so; perhaps in the same memory."""
    return array_namespace(x).where(empty[:, None], 0.0, x)
