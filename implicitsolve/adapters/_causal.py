"""The Jacobian of a layer, and recurrences along whole sequences: a causal one's inverse, and the one-step guess."""

from __future__ import annotations

from implicitsolve import LinearOperator
from implicitsolve._namespace import array_namespace, copied
from implicitsolve._typing import Array
from implicitsolve.adapters._common import quiet, zeros
from implicitsolve.adapters._rows import Run, stepwise, sweep
from implicitsolve.adapters._transition import Derivative, Transition, difference


def direction(shifts: tuple[int, ...]) -> int:
    """+1 where no position depends on later ones, -1 where none depends on earlier ones, else 0."""
    signs = {-1 if shift > 0 else 1 for shift in shifts}
    return signs.pop() if len(signs) == 1 else 0


def jacobian(derivative: Derivative) -> LinearOperator:
    """J = I - dF/dH of a whole layer; of a causal one with its inverse."""
    map = derivative.map
    return LinearOperator(
        quiet(lambda v: difference(v, derivative.matvec(v))),
        quiet(lambda w: difference(w, derivative.rmatvec(w))),
        in_shape=(map.target.blocks, map.size),
        batch_shape=() if map.is_single else (map.target.systems,),
        dtype=derivative.factors.dtype,
        take=None if map.is_single else lambda indices: jacobian(derivative.take(indices)),
        inverse=(lambda: causal_inverse(derivative)) if direction(map.shifts) else None,
        cast=lambda dtype: jacobian(derivative.astype(dtype)),
    )


def causal_inverse(derivative: Derivative) -> LinearOperator:
    """(I - D)^-1 for a causal derivative D: a product takes one sweep, the work of a product with D.

    Forwards ``x_t = b_t + sum_j D_tj x_(t-j)``, and for the adjoint ``x_t = b_t + sum_j D_(t+j)j^T x_(t+j)``, which is
    back-propagation through time.
    """
    map, cell, factors = derivative.map, derivative.cell, derivative.factors
    rows, towards = map.target, direction(map.shifts)
    lags = tuple(abs(shift) for shift in map.shifts)
    own = factors[0, ...] if factors.shape[0] == 1 else factors  # as kernels of whole recurrences take them

    def solve(run: Run, b: Array, x: tuple[Array, ...], way: int) -> Array:
        start, packed = zeros((rows.systems, max(lags), map.size), factors), rows.inner(map.pack(rows, b))
        states = sweep(run, (packed, *x), rows, lags, {way: start})[way]
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
        return solve(push, b, (own,), towards) if push else solve(stepwise(forwards), b, (factors,), towards)

    @quiet
    def rmatvec(w: Array) -> Array:
        pull = cell.recurrence("pull")
        if pull:
            return solve(pull, w, (own,), -towards)
        whole = derivative.of_rows()
        return solve(stepwise(backwards), w, tuple(_shifted(whole, -shift) for shift in map.shifts), -towards)

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


@quiet
def one_step(transition: Transition, starts: dict[int, Array]) -> Array:
    """The layer's function of the states of an ordinary recurrence with these weights, forwards and backwards.

    Earlier neighbours are those of the forward run, later ones those of the backward run, which begins at each
    sequence's own end. Both runs, and all sequences, are one batch; a causal layer has only one of them. `starts` are
    the states (B, 1, size) before the first position, of each direction.
    """
    cell, map, rows = transition.cell, transition.map, transition.map.target
    run = cell.recurrence("step") or stepwise(lambda x, states: cell.step(x, states[0]))
    runs = sweep(run, transition.x, rows, (1,), starts)
    packed = {way: rows.pack(run) for way, run in runs.items()}
    near = tuple(rows.shifted(packed[direction((offset,))], offset) for offset in cell.offsets)
    values = map.unpack(rows, transition.values(transition.with_edges(near)))
    return copied(values)
