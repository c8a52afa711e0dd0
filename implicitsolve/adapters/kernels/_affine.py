"""Array-API reference of affine recurrences whose matrices are small blocks of diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from implicitsolve.adapters._common import Array, array_namespace
from implicitsolve.adapters.kernels._recurrence import Plan, recurrence


def affine_recurrence(rule: str, x: tuple[Array, Array], begin: Array, lags: tuple[int, ...], plan: Plan) -> Array:
    """Return the h_t (plan.rows, p k) of all runs for x = (b, D), by one of the rules

    - "push": h_t = b_t + D_t h_(t-1),
    - "pull": h_t = b_t + D_(t-1)^T h_(t-1), the adjoint, which runs the other way; `begin` holds the products.

    The first p^2 matrices of the stack D are the diagonals of the p x p blocks of size k, row by row: k independent
    recurrences of p numbers. `begin`, `lags`, which is (1,), and `plan` are as of `recurrence`.
    """  # noqa: D400

    def step(x: tuple[Array, ...], states: tuple[Array, ...]) -> tuple[Array, Array]:
        if rule == "push":
            h = x[0] + times(x[1], states[0])
            return h, h
        h = x[0] + states[0]
        return h, times(x[1], h, transposed=True)

    b, D = x
    parts = begin.shape[-1] // D.shape[-1]
    return recurrence(step, (b, D[: parts * parts, ...]), begin, lags, plan)


def times(D: Array, h: Array, *, transposed: bool = False) -> Array:
    """Blocks of diagonals, the first p^2 of a stack (any, ..., k), times states (..., p k)."""
    k = D.shape[-1]
    p = h.shape[-1] // k
    if p == 1:
        return D[0, ...] * h
    parts = [h[..., j * k : (j + 1) * k] for j in range(p)]
    row, column = (1, p) if transposed else (p, 1)
    rows: Sequence[Any] = [sum(D[i * row + j * column, ...] * part for j, part in enumerate(parts)) for i in range(p)]
    return array_namespace(h).concat(rows, axis=-1)
