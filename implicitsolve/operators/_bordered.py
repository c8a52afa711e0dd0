"""Square systems with one row and one column more."""

from __future__ import annotations

from collections.abc import Callable

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array, Indices
from implicitsolve.operators._base import LinearOperator


def bordered(
    product: Callable[[Array], Array],
    column: Array,
    row: Array,
    corner: Array,
    take: Callable[[Indices], LinearOperator] | None = None,
) -> LinearOperator:
    """[[A, column], [row, corner]] for each system, on arrays (B, N + 1), where ``product(x)`` is A x."""
    xp = array_namespace(column)

    def matvec(v: Array) -> Array:
        x, last = v[:, :-1], v[:, -1:]
        bottom = xp.sum(row * x, axis=1, keepdims=True) + corner * last
        return xp.concat([product(x) + column * last, bottom], axis=1)

    size, N = column.shape
    return LinearOperator(matvec, in_shape=N + 1, batch_shape=(size,), dtype=column.dtype, take=take)
