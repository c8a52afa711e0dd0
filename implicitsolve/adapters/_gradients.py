"""Gradients of a loss by everything that a layer depends on, from the cotangents of its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from implicitsolve.adapters._boundary import Boundaries
from implicitsolve.adapters._cell import Cotangents
from implicitsolve.adapters._common import Array, HostIndices, array_namespace, from_host, quiet
from implicitsolve.adapters._rows import Rows, part_of, taken
from implicitsolve.adapters._transition import Derivative, Transition


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
    sums: list[Cotangents]
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

    def add_to(self, gradients: dict[str, Array], *, weights: bool, inputs: bool) -> Array | None:
        """Add the gradients of the cell's parameters; return the cotangents of the inputs, if wanted."""
        transition, target = self.transition, self.transition.map.target
        parts = target.parts(transition.inputs)
        if weights:
            near = transition.rows_of(self.states)
            for part, sums in zip(parts, self.sums):
                at = transition.inputs[part, :], part_of(near, part), self.factors[:, part, :]
                add(gradients, transition.cell.to_weights(*at, sums))
        if not inputs:
            return None
        if len(parts) == 1:
            return transition.map.unpack(target, transition.cell.to_inputs(self.sums[0]))
        found = array_namespace(transition.inputs).empty_like(transition.inputs)
        for part, sums in zip(parts, self.sums):
            found[part, :] = transition.cell.to_inputs(sums)
        return transition.map.unpack(target, found)


def add(total: dict[str, Array], gradients: Mapping[str, Array]) -> None:
    """Add gradients to those that are there, in place."""
    for name, gradient in gradients.items():
        if name in total:
            total[name] += gradient
        else:
            total[name] = gradient


@dataclass(frozen=True, eq=False)
class Gradients:
    """What is wanted of a layer's gradients, and what it takes to find them.

    Attributes
    ----------
    parameters : mapping of str to Array
        Of the layer: the cell's, "inputs", and boundary states.
    wanted : frozenset of str
        Names of those by which to differentiate.
    rows : Rows
        Layout of the whole layer.
    """

    parameters: Mapping[str, Array]
    boundaries: Boundaries
    rows: Rows
    wanted: frozenset[str]

    @property
    def of_weights(self) -> bool:
        """Whether any of the cell's own parameters is wanted."""
        return bool(self.wanted - self.boundaries.names - {"inputs"})

    def whole(self, transition: Transition, H: Array, w: Array) -> dict[str, Array]:
        """(dF/dtheta)^T w at the states H."""
        derivative = transition.linearize(H)[1]
        pulled = Pulled.of(transition, derivative, H, w, sends=bool(self.boundaries.names & self.wanted))
        gradients: dict[str, Array] = {}
        self._add_boundaries(gradients, pulled, None)
        inputs = pulled.add_to(gradients, weights=self.of_weights, inputs="inputs" in self.wanted)
        if inputs is not None:
            gradients["inputs"] = array_namespace(H).asarray(inputs, copy=True)
        return gradients

    def halves(
        self,
        transitions: tuple[Transition, Transition],
        derivatives: tuple[Derivative, Derivative],
        states: tuple[Array, Array],
        e: Array,
        w: Array,
    ) -> tuple[Array, Array, Callable[[], dict[str, Array]]]:
        """What `Halves.pull` returns."""
        even, odd = transitions
        edges: dict[str, Array] = {}
        of_kept = Pulled.of(odd, derivatives[1], states[0], w, sends=True)
        self._add_boundaries(edges, of_kept, 1)
        v = e + of_kept.back()
        of_eliminated = Pulled.of(even, derivatives[0], states[1], v, sends=True)
        self._add_boundaries(edges, of_eliminated, 0)

        def gradients() -> dict[str, Array]:
            found: dict[str, Array] = {}
            has_inputs = "inputs" in self.wanted
            parts = [
                pulled.add_to(found, weights=self.of_weights, inputs=has_inputs) for pulled in (of_eliminated, of_kept)
            ]
            if has_inputs:
                found["inputs"] = dinputs = array_namespace(v).empty_like(self.parameters["inputs"])
                dinputs[..., 0::2, :], dinputs[..., 1::2, :] = parts
            return found | edges

        return v, of_eliminated.back(), quiet(gradients)

    def _add_boundaries(self, gradients: dict[str, Array], pulled: Pulled, parity: int | None) -> None:
        """Add what the positions of some rows send beyond the ends: of all, or those of one parity."""
        offsets, sent, rows = pulled.transition.cell.offsets, pulled.sent, pulled.transition.map.target
        if sent is None:
            return

        def at(offset: int, position: HostIndices) -> Array:
            """What a position of each sequence sends to its neighbour (B, size); zero where the position is -1."""
            slot = position
            if parity is not None:
                slot = np.where((position >= 0) & (position % 2 == parity), position // 2, -1)
            matrix = sent[offsets.index(offset)]
            return taken(matrix, from_host(np.where(slot >= 0, rows.first + slot, -1), matrix), -1)

        for side in self.boundaries.sides:
            ends = 0 * self.rows.lengths if side.side < 0 else self.rows.lengths - 1
            has_end = parity is None or bool((ends % 2 == parity).any())
            if has_end and self.wanted & set(side.names):
                add(gradients, side.gradients(at, offsets, self.parameters, self.rows))
