"""The exact inverse of a causal layer's Jacobian: substitution, and back-propagation through time for its adjoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from implicitsolve import LinearOperator
from implicitsolve.adapters._common import Array, array_namespace, quiet, zeros
from implicitsolve.adapters._sweep import Step, Whole, sweep

if TYPE_CHECKING:
    from implicitsolve.adapters._transition import Derivative


def direction(shifts: tuple[int, ...]) -> int:
    """+1 where no position depends on later ones, -1 where none depends on earlier ones, else 0."""
    signs = {-1 if shift > 0 else 1 for shift in shifts}
    return signs.pop() if len(signs) == 1 else 0


def causal_inverse(derivative: Derivative) -> LinearOperator:
    """(I - D)^-1 for a causal derivative D: a product takes one sweep, the work of a product with D.

    Forwards ``x_t = b_t + sum_j D_tj x_(t-j)``, and for the adjoint ``x_t = b_t + sum_j D_(t+j)j^T x_(t+j)``, which is
    back-propagation through time.
    """
    map, cell, factors = derivative.map, derivative.cell, derivative.factors
    rows, towards = map.target, direction(map.shifts)
    lags = tuple(abs(shift) for shift in map.shifts)
    own = factors[0, ...] if factors.shape[0] == 1 else factors  # as kernels of whole recurrences take them

    def run(b: Array, x: tuple[Array, ...], step: Step | Whole, way: int) -> Array:
        start, packed = zeros((rows.systems, max(lags), map.size), factors), rows.inner(map.pack(rows, b))
        states = sweep(step, (packed, *x), rows, lags, {way: start})[way]
        states = states[0, ...] if map.is_single else states
        return states if rows.place is None else states + (b - map.unpack(rows, packed))  # identity where padded

    def forwards(x: tuple[Array, ...], states: tuple[Array, ...]) -> Array:
        return x[0] + cell.push(x[1], states)

    def backwards(x: tuple[Array, ...], states: tuple[Array, ...]) -> Array:
        total = x[0]
        for j, (shifted, state) in enumerate(zip(x[1:], states)):
            total = total + cell.pull(shifted, state)[j]
        return total

    @quiet
    def matvec(b: Array) -> Array:
        push = cell.recurrence("push")
        return run(b, (own,), push, towards) if push else run(b, (factors,), forwards, towards)

    @quiet
    def rmatvec(w: Array) -> Array:
        pull = cell.recurrence("pull")
        if pull:
            return run(w, (own,), pull, -towards)
        whole = derivative.of_rows()
        return run(w, tuple(_shifted(whole, -shift) for shift in map.shifts), backwards, -towards)

    return LinearOperator(
        matvec,
        rmatvec,
        in_shape=(rows.blocks, map.size),
        batch_shape=() if map.is_single else (rows.systems,),
        dtype=factors.dtype,
        take=None if map.is_single else lambda indices: causal_inverse(derivative.take(indices)),
    )


def _shifted(factors: Array, by: int) -> Array:
    """Row r is row r + by of the factors (count, n, size), zero beyond the ends."""
    xp = array_namespace(factors)
    shifted = xp.zeros_like(factors)
    n = factors.shape[1]
    if by > 0:
        shifted[:, : n - by, :] = factors[:, by:, :]
    else:
        shifted[:, -by:, :] = factors[:, : n + by, :]
    return shifted
