"""A layer around any `Cell`: values, products and gradients, all positions of a ragged batch at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from array_api_compat import device

from implicitsolve import BlockBanded, LinearOperator, Problem
from implicitsolve._arrays.host import from_host, gather, keep_heap
from implicitsolve._arrays.namespace import array_namespace, copy_array
from implicitsolve._typing import Array, Indices
from implicitsolve.adapters._cell import Cell
from implicitsolve.adapters._common import ByFields, Lengths, check_array, check_lengths, quiet, zeros
from implicitsolve.adapters._gradients import Boundaries, Boundary, Gradients, Pair, Sent, direction, jacobian, one_step
from implicitsolve.adapters._rows import Rows, stepwise, sweep, sweep_residual
from implicitsolve.adapters._transition import Derivative, Map, Transition, difference
from implicitsolve.elimination import Half, Halves
from implicitsolve.stopping import check_generator


def build(
    caller: str,
    cell: Cell,
    parameters: Mapping[str, Array],
    inputs: Array,
    lengths: Lengths,
    *,
    before: Mapping[str, Array | None],
    after: Mapping[str, Array | None],
    stacked: bool = False,
) -> Layer:
    """Make a layer of a cell with `parameters` as `read_parameters` returns them, which are not copied again.

    Inputs (B, T, d) or (T, d) have been checked there and are copied here. `before` and `after` are the boundary
    states of the adapter, (k,) or (B, k), by name; None counts as zero, and several names on one side are parts of a
    state, side by side. If `stacked`, they have an axis for several states on one side, nearest first: (depth, k) or
    (B, depth, k), where depth is the largest offset to that side, perhaps 0. Where it is 1 the axis may be left out.
    """
    keep_heap(inputs)  # for products outside of solves, too
    is_single = inputs.ndim == 2
    B, T = (1, inputs.shape[0]) if is_single else inputs.shape[:2]
    lower, upper = max(0, -min(cell.offsets)), max(0, *cell.offsets)
    rows = Rows.of(check_lengths(caller, lengths, B, T, is_single), T, max(lower, upper), inputs)
    parameters = dict(parameters) | {"inputs": copy_array(inputs)}
    sides: list[Boundary] = []
    for side, depth, given in ((-1, lower, before), (1, upper, after)):
        if given:
            boundary = Boundary(side, tuple(given), depth, cell.size)
            boundary, arrays = boundary.accept(caller, given, inputs, () if is_single else (B,), stacked)
            parameters |= arrays
            sides.append(boundary)
    nonzero = (side for side in sides if any({**before, **after}[name] is not None for name in side.names))
    edges = Boundaries(tuple(nonzero)).edges(parameters, cell.offsets, rows)
    layout = Map(rows, rows, cell.offsets, cell.size, is_single)
    packed = rows.inner(layout.pack(rows, parameters["inputs"]))
    transition = Transition(cell, layout, packed, cell.project(packed), tuple(edges.get(o) for o in cell.offsets))
    return Layer(parameters, Boundaries(tuple(sides)), transition)


@dataclass(frozen=True, eq=False)
class Layer(ByFields):
    """A layer at fixed parameters and inputs: residual(H) = H - F(H). Immutable: any number of threads may use it."""

    parameters: dict[str, Array]
    boundaries: Boundaries
    transition: Transition

    @property
    def cell(self) -> Cell:
        return self.transition.cell

    @property
    def map(self) -> Map:
        return self.transition.map

    @property
    def rows(self) -> Rows:
        """The layout of the rows, without the neighbours."""
        return self.transition.map.target

    @property
    def inputs(self) -> Array:
        return self.parameters["inputs"]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.map.shape(self.rows)

    @property
    def weights(self) -> dict[str, Array]:
        others = self.boundaries.names | {"inputs"}
        return {name: value for name, value in self.parameters.items() if name not in others}

    def problem(self) -> Problem:
        offsets = self.cell.offsets
        return Problem(
            self.residual,
            jvp=self.jvp,
            vjp=self.vjp,
            linearize=self.linearize,
            structure=BlockBanded(max(0, -min(offsets)), max(0, *offsets), self.cell.size),
            blocks=self.blocks,
            batch_ndim=0 if self.map.is_single else 1,
            parameters=self.parameters,
            parameter_jvp=self.parameter_jvp,
            parameter_vjp=self.parameter_vjp,
            take=None if self.map.is_single else self.take,
            initial_guess=self.initial_guess,
            fixed_point=True,
            halves=self.halves() if offsets == (-1, 1) else None,
            substitute=self.substitute if self.direction else None,
            pure=True,
            name=self.cell.name,
        )

    def check(self, name: str, x: Array, shape: tuple[int, ...] | None = None) -> Array:
        shape = self.shape if shape is None else shape
        if type(x) is not type(self.inputs) or x.shape != shape or x.dtype != self.inputs.dtype:
            check_array(self.cell.name, name, x, shape, self.inputs)
        return x

    # Function and derivatives with respect to the state

    @quiet
    def residual(self, H: Array) -> Array:
        whole = self.cell.recurrence("residual") if self.direction else None
        if whole is None:
            return self.transition.residual(self.check("x", H))
        return sweep_residual(whole, self.transition.x, self.rows, *self.past, self.check("x", H))

    @quiet
    def linearize(self, H: Array) -> tuple[Array, LinearOperator]:
        F, derivative = self.transition.linearize(self.check("x", H))
        return difference(H, F), jacobian(derivative)

    def jvp(self, H: Array, v: Array) -> Array:
        return self.linearize(H)[1].matvec(v)

    def vjp(self, H: Array, w: Array) -> Array:
        return self.linearize(H)[1].rmatvec(w)

    def blocks(self, H: Array) -> Array:
        """The blocks of J, as `BlockBandedMatrix` stores them."""
        xp, offsets, k = array_namespace(H), self.cell.offsets, self.cell.size
        lower, upper = max(0, -min(offsets)), max(0, *offsets)
        band = zeros((*self.shape[:-1], lower + upper + 1, k, k), H)
        band[..., lower, :, :] = xp.eye(k, dtype=H.dtype, device=device(H))
        for offset, block in zip(offsets, self.transition.linearize(self.check("x", H))[1].blocks()):
            band[..., lower + offset, :, :] = -block
        return band

    # The two halves

    def halves(self) -> Halves:
        even, odd = (
            Half(apply=partial(self.half, parity), linearize=partial(self.linearize_half, parity)) for parity in (0, 1)
        )
        return Halves(
            eliminated=even, kept=odd, shape=self.shape, nearly_diagonal=self.cell.is_nearly_diagonal, pull=self.pull
        )

    @quiet
    def pull(
        self, couplings: Pair[Derivative], states: Pair[Array], e: Array, w: Array, wrt: Collection[str] | None
    ) -> Sent:
        """`Halves.pull` of the even and odd positions."""
        v, back, gradients = self.gradients(wrt).halves(self.half_transitions, couplings, states, e, w)
        return v, back, lambda: self.order(gradients(), wrt)

    def half(self, parity: int, other: Array) -> Array:
        return self._half(parity, other).apply(other)

    def linearize_half(self, parity: int, other: Array) -> tuple[Array, Any]:
        return self._half(parity, other).linearize(other)

    def _half(self, parity: int, other: Array) -> Transition:
        transition = self.half_transitions[parity]
        self.check("other", other, transition.map.shape(transition.map.source))
        return transition

    @cached_property
    def half_transitions(self) -> tuple[Transition, Transition]:
        return self.transition.halves()

    # Derivatives with respect to everything else

    @quiet
    def parameter_jvp(self, H: Array, tangents: Mapping[str, Array]) -> Array:
        """Return -(dF/dtheta) dtheta; what `tangents` does not name stays fixed."""
        for name, value in tangents.items():
            if name not in self.parameters:
                expected = ", ".join(self.parameters)
                raise ValueError(f"{self.cell.name}: `tangents` has unknown {name}; expected {expected}")
            check_array(self.cell.name, name, value, tuple(self.parameters[name].shape), self.inputs)
        xp, rows = array_namespace(H), self.rows
        change = {name: tangents.get(name, xp.zeros_like(value)) for name, value in self.parameters.items()}
        dweights = {name: change[name] for name in self.weights}
        neighbours = self.transition.rows_of(self.check("x", H))
        x, dinputs = (self.transition.inputs, self.transition.x), rows.inner(self.map.pack(rows, change["inputs"]))
        return -self.map.unpack(
            rows, self.cell.parameter_push(*x, neighbours, dweights, dinputs, self.boundary_rows(change))
        )

    def boundary_rows(self, parameters: Mapping[str, Array]) -> tuple[Array, ...]:
        """Neighbours beyond the ends, (count, size) for each offset, zero elsewhere."""
        edges = self.boundaries.edges(parameters, self.cell.offsets, self.rows)
        empty = zeros((self.rows.count, self.cell.size), self.inputs)
        return tuple(edges.get(o, empty) for o in self.cell.offsets)

    def gradients(self, wrt: Collection[str] | None) -> Gradients:
        names = frozenset(self.parameters if wrt is None else wrt)
        return Gradients(self.parameters, self.boundaries, self.rows, names)

    @quiet
    def parameter_vjp(self, H: Array, w: Array, wrt: Collection[str] | None = None) -> dict[str, Array]:
        """Return -(dF/dtheta)^T w for every name of `parameters`, or those of `wrt`."""
        H, w = self.check("x", H), self.check("w", w)
        return self.order(self.gradients(wrt).whole(self.transition, H, -w), wrt)

    def order(self, gradients: dict[str, Array], wrt: Collection[str] | None) -> dict[str, Array]:
        return {name: gradients[name] for name in self.parameters if wrt is None or name in wrt}

    # Subsets, and what is known without a solve

    def take(self, indices: Indices) -> Problem:
        """The problem of some of the sequences, from the same projections."""
        own = self.boundaries.own | {"inputs"}  # what each sequence has for itself
        parameters = self.parameters | {name: gather(self.parameters[name], indices) for name in own}
        return Layer(parameters, self.boundaries, self.transition.take(indices)).problem()

    def initial_guess(self, kind: str, rng: np.random.Generator | None = None) -> Array:
        """A start of `adapters.initial_guess`; "default" is "one-step", and zeros where that would be the solution."""
        if kind == "zeros" or (kind == "default" and self.direction):
            return zeros(self.shape, self.inputs)
        if kind == "random":
            return self.random(check_generator("initial_guess", rng))
        if kind in ("one-step", "default"):
            directions = sorted({direction((offset,)) for offset in self.cell.offsets}, reverse=True)
            return one_step(self.transition, {way: self.starts(way, 1) for way in directions})
        raise ValueError(f"initial_guess: `kind` must be 'one-step', 'zeros' or 'random', got {kind!r}")

    def random(self, rng: np.random.Generator) -> Array:
        """Numbers that do not depend on how far the sequences are padded."""
        positions = self.rows.positions
        values = np.zeros((self.rows.count, self.cell.size))
        values[positions] = rng.uniform(-1.0, 1.0, (len(positions), self.cell.size))
        states = self.map.unpack(self.rows, from_host(values, self.inputs))
        return copy_array(states)

    @property
    def direction(self) -> int:
        """+1 where no position depends on later ones, -1 where none depends on earlier ones, else 0."""
        return direction(self.cell.offsets)

    def starts(self, direction: int, depth: int) -> Array:
        """States (B, depth, size) from which a recurrence in this direction begins, the latest first."""
        return self.boundaries.starts(self.parameters, direction, depth, self.cell.size, self.rows.systems)

    @quiet
    def substitute(self) -> Array:
        run = self.cell.recurrence("value") or stepwise(self.cell.value)
        H = sweep(run, self.transition.x, self.rows, *self.past)[self.direction]
        return H[0, ...] if self.map.is_single else H

    @property
    def past(self) -> tuple[tuple[int, ...], dict[int, Array]]:
        """Lags of the states that the positions of a causal layer read, and the states before the first position."""
        lags = tuple(abs(offset) for offset in self.cell.offsets)
        return lags, {self.direction: self.starts(self.direction, max(lags))}
