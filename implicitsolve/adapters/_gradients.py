"""Gradients of a loss by everything that a layer depends on, from the cotangents of its states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from implicitsolve.adapters._common import Array, HostIndices, array_namespace, from_host, quiet
from implicitsolve.adapters._rows import Rows, part_of, taken
from implicitsolve.adapters._transition import Derivative, Transition

if TYPE_CHECKING:
    from implicitsolve.adapters._layer import Layer


@dataclass(frozen=True, eq=False)
class Wanted:
    """What gradients are asked for.

    Attributes
    ----------
    weights, inputs : bool
        Whether any of the cell's parameters, and whether the inputs.
    boundaries : frozenset of str
        Boundary states by name.
    """

    weights: bool
    inputs: bool
    boundaries: frozenset[str]

    @classmethod
    def of(cls, layer: Layer, wrt: Iterable[str] | None) -> Wanted:
        """Those named, or all."""
        names = set(layer.parameters if wrt is None else wrt)
        boundaries = frozenset(name for boundary in layer.boundaries for name in boundary.names)
        return cls(bool(names - boundaries - {"inputs"}), "inputs" in names, boundaries & names)


@dataclass(frozen=True, eq=False)
class Pulled:
    """What the cotangents w of a transition's results send to everything that these depend on.

    Attributes
    ----------
    factors : Array
        Of the derivative, zero where there is no position.
    states : Array
        Of the source.
    sums : list
        The cell's cotangents of all that is linear in parameters, part by part.
    sent : tuple of Array or None
        Cotangents (count, size) of the neighbours at each offset, where they were asked for.
    """

    transition: Transition
    factors: Array
    states: Array
    sums: list[Any]
    sent: tuple[Array, ...] | None

    @classmethod
    def of(cls, transition: Transition, derivative: Derivative, states: Array, w: Array, *, sends: bool) -> Pulled:
        """One adjoint product at `states` of the source; w are states of the target."""
        xp, cell, layout = array_namespace(w), transition.cell, transition.map
        w, factors = layout.target.inner(layout.pack(layout.target, w)), derivative.of_rows()
        parts = layout.target.parts(w)
        sums = [cell.pull_sums(factors[:, part, :], w[part, :]) for part in parts]
        sent = None
        if sends and len(parts) == 1:
            sent = cell.to_neighbours(factors, sums[0])
        elif sends:
            sent = tuple(xp.empty_like(w) for _ in layout.shifts)
            for part, own in zip(parts, sums):
                for whole, rows in zip(sent, cell.to_neighbours(factors[:, part, :], own)):
                    whole[part, :] = rows
        return cls(transition, factors, states, sums, sent)

    def back(self) -> Array:
        """Cotangents of the source's states; afterwards `sent` is of no use."""
        layout = self.transition.map
        return layout.unpack(layout.source, layout.gather(self.sent))  # type: ignore[arg-type]

    def add_to(self, gradients: dict[str, Array], wanted: Wanted) -> Array | None:
        """Add the gradients of the cell's parameters; return the cotangents of the inputs, if wanted."""
        transition, target = self.transition, self.transition.map.target
        parts = target.parts(transition.inputs)
        if wanted.weights:
            near = transition.rows_of(self.states)
            for part, sums in zip(parts, self.sums):
                at = transition.inputs[part, :], part_of(near, part), self.factors[:, part, :]
                add(gradients, transition.cell.to_weights(*at, sums))
        if not wanted.inputs:
            return None
        if len(parts) == 1:
            return transition.map.unpack(target, transition.cell.to_inputs(self.sums[0]))
        inputs = array_namespace(transition.inputs).empty_like(transition.inputs)
        for part, sums in zip(parts, self.sums):
            inputs[part, :] = transition.cell.to_inputs(sums)
        return transition.map.unpack(target, inputs)


def add(total: dict[str, Array], gradients: Mapping[str, Array]) -> None:
    """Add gradients to those that are there, in place."""
    for name, gradient in gradients.items():
        if name in total:
            total[name] += gradient
        else:
            total[name] = gradient


def pull_whole(layer: Layer, H: Array, w: Array, wanted: Wanted) -> dict[str, Array]:
    """(dF/dtheta)^T w at the states H."""
    derivative = layer.transition.linearize(H)[1]
    pulled = Pulled.of(layer.transition, derivative, H, w, sends=bool(wanted.boundaries))
    gradients: dict[str, Array] = {}
    _add_boundaries(gradients, layer, wanted, pulled, None)
    inputs = pulled.add_to(gradients, wanted)
    if inputs is not None:
        gradients["inputs"] = array_namespace(H).asarray(inputs, copy=True)
    return gradients


def pull_halves(
    layer: Layer,
    derivatives: tuple[Derivative, Derivative],
    states: tuple[Array, Array],
    e: Array,
    w: Array,
    wanted: Wanted,
) -> tuple[Array, Array, Callable[[], dict[str, Array]]]:
    """What `Halves.pull` returns."""
    even, odd = layer.half_transitions
    edges: dict[str, Array] = {}
    of_kept = Pulled.of(odd, derivatives[1], states[0], w, sends=True)
    _add_boundaries(edges, layer, wanted, of_kept, 1)
    v = e + of_kept.back()
    of_eliminated = Pulled.of(even, derivatives[0], states[1], v, sends=True)
    _add_boundaries(edges, layer, wanted, of_eliminated, 0)

    def gradients() -> dict[str, Array]:
        found: dict[str, Array] = {}
        inputs = [pulled.add_to(found, wanted) for pulled in (of_eliminated, of_kept)]
        if wanted.inputs:
            found["inputs"] = dinputs = array_namespace(v).empty_like(layer.inputs)
            dinputs[..., 0::2, :], dinputs[..., 1::2, :] = inputs
        return found | edges

    return v, of_eliminated.back(), quiet(gradients)


def _add_boundaries(
    gradients: dict[str, Array], layer: Layer, wanted: Wanted, pulled: Pulled, parity: int | None
) -> None:
    """Add what the positions of some rows send beyond the ends: of all, or those of one parity."""
    offsets, sent, rows = layer.cell.offsets, pulled.sent, pulled.transition.map.target
    if sent is None:
        return

    def at(offset: int, position: HostIndices) -> Array:
        """What a position of each sequence sends to its neighbour; zero where it is -1."""
        slot = position
        if parity is not None:
            slot = np.where((position >= 0) & (position % 2 == parity), position // 2, -1)
        return _rows_at(sent[offsets.index(offset)], rows, slot)

    for boundary in layer.boundaries:
        ends = 0 * layer.rows.lengths if boundary.side < 0 else layer.rows.lengths - 1
        has_end = parity is None or bool((ends % 2 == parity).any())
        if has_end and wanted.boundaries & set(boundary.names):
            add(gradients, boundary.gradients(at, offsets, layer.parameters, layer.rows))


def _rows_at(matrix: Array, rows: Rows, slot: HostIndices) -> Array:
    """The row (B, size) of one position of each sequence, zero where that is -1."""
    return taken(matrix, from_host(np.where(slot >= 0, rows.first + slot, -1), matrix), -1)
