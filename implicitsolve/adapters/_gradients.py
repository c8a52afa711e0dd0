"""The derivatives of a layer as a whole: its Jacobian, recurrences along whole sequences, and gradients of a loss.

The inverse of a causal layer's J is a recurrence, and so is the one-step guess of any layer. Gradients are with respect
to everything that a layer depends on, including the states beyond the ends of the sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np

from implicitsolve import LinearOperator
from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import array_namespace, copy_array
from implicitsolve._typing import Array, Indices
from implicitsolve.adapters._cell import Cotangents
from implicitsolve.adapters._common import check_array, quiet, zeros
from implicitsolve.adapters._rows import Rows, Run, stepwise, sweep, take_or_zero
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
        return solve(stepwise(backwards), w, tuple(_shift(whole, -shift) for shift in map.shifts), -towards)

    return LinearOperator(
        matvec,
        rmatvec,
        in_shape=(rows.blocks, map.size),
        batch_shape=() if map.is_single else (rows.systems,),
        dtype=factors.dtype,
        take=None if map.is_single else lambda indices: causal_inverse(derivative.take(indices)),
    )


def _shift(factors: Array, by: int) -> Array:
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

    Earlier neighbours are those of the forward run, later ones of the backward run; both are one batch. `starts` are
    the states (B, 1, size) before the first position, of each direction.
    """
    cell, map, rows = transition.cell, transition.map, transition.map.target
    run = cell.recurrence("step") or stepwise(lambda x, states: cell.step(x, states[0]))
    runs = sweep(run, transition.x, rows, (1,), starts)
    packed = {way: rows.pack(run) for way, run in runs.items()}
    near = tuple(rows.shift(packed[direction((offset,))], offset) for offset in cell.offsets)
    values = map.unpack(rows, transition.values(transition.with_edges(near)))
    return copy_array(values)


@dataclass(frozen=True)
class Boundary:
    """The boundary states of one side, nearest first; an adapter may name parts of them."""

    side: int  # -1 before the first position, +1 after the last
    names: tuple[str, ...]  # parts of the state under names of their own, all of one size
    depth: int  # number of states beyond this end that positions take
    size: int  # numbers in one state, all parts together
    own: frozenset[str] = frozenset()  # names of those with one value per sequence; the others are shared by all

    def accept(
        self, caller: str, given: Mapping[str, Array | None], like: Array, batch: tuple[int, ...], stacked: bool
    ) -> tuple[Boundary, dict[str, Array]]:
        """Check the parts that are given, and copy them; the others are zeros that all sequences share.

        A part has shape (k,), or (depth, k) if they are `stacked`, with the batch before it where each sequence has
        its own. A stack of one may omit its axis.
        """
        k = self.size // len(self.names)
        shared = (self.depth, k) if stacked else (k,)
        arrays, own = {}, set()
        for name in self.names:
            value = given[name]
            if value is None:
                arrays[name] = zeros(shared, like)
                continue
            shapes = [shared, (k,)] if stacked and self.depth == 1 else [shared]
            known = [(shape, False) for shape in shapes] + [((*batch, *shape), True) for shape in shapes if batch]
            found = tuple(getattr(value, "shape", ()))
            near = [item for item in known if len(item[0]) == len(found)] or known
            shape, is_own = next((item for item in near if item[0] == found), near[0])
            arrays[name] = copy_array(check_array(caller, name, value, shape, like))
            own |= {name} if is_own else set()
        return replace(self, own=frozenset(own)), arrays

    def states(self, parameters: Mapping[str, Array], systems: int) -> Array:
        """All parts side by side, for every sequence: (B, depth, size)."""
        xp = array_namespace(parameters[self.names[0]])
        k = self.size // len(self.names)
        parts = []
        for name in self.names:
            own = xp.reshape(parameters[name], (systems if name in self.own else 1, self.depth, k))
            parts.append(xp.broadcast_to(own, (systems, self.depth, k)))
        return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)

    def positions(self, offset: int, lengths: Indices) -> Indices:
        """For each state the position (B, depth) whose neighbour at `offset` it is, -1 where there is none."""
        step = abs(offset) - 1 - np.arange(self.depth)  # positions from this end
        found = np.where(self.side < 0, step, lengths[:, None] - 1 - step)
        return np.where((step >= 0) & (step < lengths[:, None]), found, -1)

    def edge(self, states: Array, offset: int, rows: Rows) -> Array:
        """Matrix (count, size) of the neighbours at `offset` that lie beyond this end, zero where they do not."""
        positions, none = self.positions(offset, rows.lengths), rows.systems * self.depth
        owner, at = np.full(rows.count, none), (rows.first[:, None] + positions)[positions >= 0]
        owner[at] = np.flatnonzero(positions >= 0)
        return take_or_zero(array_namespace(states).reshape(states, (none, self.size)), from_host(owner, states), none)

    def gradients(
        self, sent: Mapping[int, Array], parameters: Mapping[str, Array], lengths: Indices, rows: Rows, parity: int
    ) -> dict[str, Array]:
        """Gradients of the parts, where ``sent[offset]`` (count, size) goes from each row to its neighbour there.

        `rows` holds all positions of sequences of these lengths (parity -1), or those of one parity.
        """
        xp, B, k = array_namespace(sent[next(iter(sent))]), rows.systems, self.size // len(self.names)
        total = zeros((B, self.depth, self.size), sent[next(iter(sent))])
        for offset, cotangents in sent.items():
            if offset * self.side > 0:
                slot = self.positions(offset, lengths)
                if parity >= 0:
                    slot = np.where((slot >= 0) & (slot % 2 == parity), slot // 2, -1)
                source = np.where(slot >= 0, rows.first[:, None] + slot, -1).reshape(-1)
                total += xp.reshape(take_or_zero(cotangents, from_host(source, cotangents), -1), total.shape)
        gradients = {}
        for i, name in enumerate(self.names):
            part = total[:, :, i * k : (i + 1) * k]
            part = copy_array(part) if name in self.own else xp.sum(part, axis=0)
            gradients[name] = xp.reshape(part, parameters[name].shape)
        return gradients


@dataclass(frozen=True, eq=False)
class Boundaries:
    sides: tuple[Boundary, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(name for side in self.sides for name in side.names)

    @cached_property
    def own(self) -> frozenset[str]:
        """Names of the boundary states with one value per sequence."""
        return frozenset().union(*(side.own for side in self.sides))

    def edges(self, parameters: Mapping[str, Array], offsets: Sequence[int], rows: Rows) -> dict[int, Array]:
        """For offsets that lead beyond an end, the neighbours there, as in `Boundary.edge`."""
        edges: dict[int, Array] = {}
        for side in self.sides:
            states = side.states(parameters, rows.systems)
            edges |= {offset: side.edge(states, offset, rows) for offset in offsets if offset * side.side > 0}
        return edges

    def starts(self, parameters: Mapping[str, Array], direction: int, depth: int, size: int, systems: int) -> Array:
        """States (B, depth, size) from which a recurrence in this direction begins, the latest first."""
        for side in self.sides:
            if side.side == -direction:
                return side.states(parameters, systems)[:, :depth, :]
        return zeros((systems, depth, size), parameters["inputs"])


# Gradients, from the cotangents of the layer's states


@dataclass(frozen=True, eq=False)
class Pulled:
    """The cotangents of everything that a transition's results depend on, for cotangents w of the results."""

    transition: Transition
    factors: Array  # of the derivative, zero where there is no position
    states: Array  # of the source
    sums: Cotangents  # the cell's, of everything linear in the parameters
    sent: tuple[Array, ...]  # cotangents (count, size) of the neighbours at each offset; empty if they are not needed

    @classmethod
    def of(cls, transition: Transition, derivative: Derivative, states: Array, w: Array, *, sends: bool) -> Pulled:
        """One adjoint product at `states` of the source; w are states of the target."""
        cell, layout, factors = transition.cell, transition.map, derivative.of_rows()
        sums = cell.pull_sums(factors, layout.target.inner(layout.pack(layout.target, w)))
        return cls(transition, factors, states, sums, cell.to_neighbours(factors, sums) if sends else ())

    def back(self) -> Array:
        """Cotangents of the source's states; overwrites `sent`."""
        layout = self.transition.map
        return layout.unpack(layout.source, layout.gather(self.sent))

    def weights(self) -> dict[str, Array]:
        transition = self.transition
        near = transition.rows_of(self.states)
        return transition.cell.to_weights(transition.inputs, near, self.factors, self.sums)

    def inputs(self) -> Array:
        """Cotangents of the inputs, perhaps a view."""
        layout = self.transition.map
        return layout.unpack(layout.target, self.transition.cell.to_inputs(self.sums))


def add(total: dict[str, Array], gradients: Mapping[str, Array]) -> None:
    for name, gradient in gradients.items():
        if name in total:
            total[name] += gradient
        else:
            total[name] = gradient


Item = TypeVar("Item")
Pair: TypeAlias = tuple[Item, Item]
Sent: TypeAlias = tuple[Array, Array, Callable[[], dict[str, Array]]]
"""Cotangents of the kept and of the eliminated states, and the gradients when they are needed."""


@dataclass(frozen=True, eq=False)
class Gradients:
    parameters: Mapping[str, Array]  # of the layer: the cell's, "inputs", and boundary states
    boundaries: Boundaries
    rows: Rows  # layout of the whole layer
    wrt: frozenset[str]  # names of those by which to differentiate

    def whole(self, transition: Transition, H: Array, w: Array) -> dict[str, Array]:
        """(dF/dtheta)^T w at the states H."""
        derivative = transition.linearize(H)[1]
        pulled = Pulled.of(transition, derivative, H, w, sends=bool(self.boundaries.names & self.wrt))
        edges = self._of_boundaries(pulled, -1) if pulled.sent else {}
        return self._collect(edges, (slice(None), pulled))

    def halves(
        self, transitions: Pair[Transition], derivatives: Pair[Derivative], states: Pair[Array], e: Array, w: Array
    ) -> Sent:
        """What `Halves.pull` returns."""
        even, odd = transitions
        of_kept = Pulled.of(odd, derivatives[1], states[0], w, sends=True)
        edges = self._of_boundaries(of_kept, 1)
        v = e + of_kept.back()
        of_eliminated = Pulled.of(even, derivatives[0], states[1], v, sends=True)
        add(edges, self._of_boundaries(of_eliminated, 0))
        parts = (slice(0, None, 2), of_eliminated), (slice(1, None, 2), of_kept)
        return v, of_eliminated.back(), quiet(lambda: self._collect(edges, *parts))

    def _collect(self, edges: Mapping[str, Array], *parts: tuple[slice, Pulled]) -> dict[str, Array]:
        """All gradients: those of the edges, and what the positions of each part add."""
        found = dict(edges)
        if self.wrt - self.boundaries.names - {"inputs"}:
            for _, pulled in parts:
                add(found, pulled.weights())
        if "inputs" in self.wrt:
            inputs = self.parameters["inputs"]
            found["inputs"] = array_namespace(inputs).empty_like(inputs)
            for positions, pulled in parts:
                found["inputs"][..., positions, :] = pulled.inputs()
        return found

    def _of_boundaries(self, pulled: Pulled, parity: int) -> dict[str, Array]:
        """What positions send beyond the ends: all positions (parity -1), or those of one parity."""
        sent = dict(zip(pulled.transition.cell.offsets, pulled.sent))
        lengths, rows = self.rows.lengths, pulled.transition.map.target
        found: dict[str, Array] = {}
        for side in self.boundaries.sides:
            if self.wrt & set(side.names):
                found |= side.gradients(sent, self.parameters, lengths, rows, parity)
        return found
