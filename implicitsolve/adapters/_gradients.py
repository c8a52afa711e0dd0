"""Gradients of a loss by everything that a layer depends on, from the cotangents of its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from implicitsolve.adapters._boundary import Boundaries
from implicitsolve.adapters._cell import Cotangents
from implicitsolve.adapters._common import Array, array_namespace, quiet
from implicitsolve.adapters._rows import Rows
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
    sums : Cotangents
        The cell's cotangents of everything linear in the parameters.
    sent : tuple of Array
        Cotangents (count, size) of the neighbours at each offset; empty if they are not needed.
    """

    transition: Transition
    factors: Array
    states: Array
    sums: Cotangents
    sent: tuple[Array, ...]

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
        """Gradients of the cell's parameters."""
        transition = self.transition
        near = transition.rows_of(self.states)
        return transition.cell.to_weights(transition.inputs, near, self.factors, self.sums)

    def inputs(self) -> Array:
        """Cotangents of the inputs, perhaps a view."""
        layout = self.transition.map
        return layout.unpack(layout.target, self.transition.cell.to_inputs(self.sums))


def add(total: dict[str, Array], gradients: Mapping[str, Array]) -> None:
    """Accumulate gradients in place."""
    for name, gradient in gradients.items():
        if name in total:
            total[name] += gradient
        else:
            total[name] = gradient


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of a layer with respect to some of its parameters.

    Attributes
    ----------
    parameters : mapping of str to Array
        Of the layer: the cell's, "inputs", and boundary states.
    wrt : frozenset of str
        Names of those by which to differentiate.
    rows : Rows
        Layout of the whole layer.
    """

    parameters: Mapping[str, Array]
    boundaries: Boundaries
    rows: Rows
    wrt: frozenset[str]

    @property
    def of_weights(self) -> bool:
        """Whether any of the cell's own parameters is among them."""
        return bool(self.wrt - self.boundaries.names - {"inputs"})

    def whole(self, transition: Transition, H: Array, w: Array) -> dict[str, Array]:
        """(dF/dtheta)^T w at the states H."""
        derivative = transition.linearize(H)[1]
        pulled = Pulled.of(transition, derivative, H, w, sends=bool(self.boundaries.names & self.wrt))
        gradients = self._of_boundaries(pulled, -1) if pulled.sent else {}
        if self.of_weights:
            gradients |= pulled.weights()
        if "inputs" in self.wrt:
            gradients["inputs"] = array_namespace(H).asarray(pulled.inputs(), copy=True)
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
        of_kept = Pulled.of(odd, derivatives[1], states[0], w, sends=True)
        edges = self._of_boundaries(of_kept, 1)
        v = e + of_kept.back()
        of_eliminated = Pulled.of(even, derivatives[0], states[1], v, sends=True)
        add(edges, self._of_boundaries(of_eliminated, 0))

        def gradients() -> dict[str, Array]:
            found = dict(edges)
            if self.of_weights:
                found |= of_eliminated.weights()
                add(found, of_kept.weights())
            if "inputs" in self.wrt:
                found["inputs"] = dinputs = array_namespace(v).empty_like(self.parameters["inputs"])
                dinputs[..., 0::2, :], dinputs[..., 1::2, :] = of_eliminated.inputs(), of_kept.inputs()
            return found

        return v, of_eliminated.back(), quiet(gradients)

    def _of_boundaries(self, pulled: Pulled, parity: int) -> dict[str, Array]:
        """What positions send beyond the ends: all positions (parity -1), or those of one parity."""
        sent = dict(zip(pulled.transition.cell.offsets, pulled.sent))
        lengths, rows = self.rows.lengths, pulled.transition.map.target
        found: dict[str, Array] = {}
        for side in self.boundaries.sides:
            if self.wrt & set(side.names):
                found |= side.gradients(sent, self.parameters, lengths, rows, parity)
        return found
