"""The mathematics of the implicit GRU's transition: a GRU on the stencil of both neighbours, with its own names.

The equations are those of Kazi and Thompson (2017), section 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from implicitsolve.adapters._common import Array, array_namespace
from implicitsolve.adapters._stencil_gru_cell import StencilGRUCell

NAMES = tuple(kind + which for which in ("p", "n", "z", "r", "") for kind in "WUb")


def shapes(d: int, k: int) -> dict[str, tuple[int, ...]]:
    """Of the parameters, in their order."""
    return {name: {"W": (k, d), "U": (k, k), "b": (k,)}[name[0]] for name in NAMES}


@dataclass(frozen=True, eq=False)
class GRUCell(StencilGRUCell):
    """The implicit GRU of one position."""

    name: str = "implicit_gru"

    @classmethod
    def of(cls, parameters: Mapping[str, Array]) -> GRUCell:  # type: ignore[override]
        """Take the parameters by their names."""
        cell = StencilGRUCell.of(_as_stencil(parameters), (-1, 1))
        return cls(cell.offsets, cell.x, cell.Us, cell.gates, cell.U)

    def switch(self, x: tuple[Array, ...], neighbours: Sequence[Array]) -> Array:
        """The switch s alone, the weight of the previous state."""
        factors = self._empty(neighbours[0])
        self.mixture.value(self._arguments(neighbours), x[0][:2, ...], neighbours, factors)
        return factors[0, ...]

    def parameter_push(
        self,
        inputs: Array,
        x: tuple[Array, ...],
        neighbours: Sequence[Array],
        change: Mapping[str, Array],
        dinputs: Array,
        dneighbours: Sequence[Array],
    ) -> Array:
        """df for a change of everything."""
        return super().parameter_push(inputs, x, neighbours, _as_stencil(change), dinputs, dneighbours)

    def to_weights(self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: Any) -> dict[str, Array]:
        """Gradients of the parameters, summed over the rows."""
        found = self._to_gates(inputs, neighbours, factors, sums)
        for which, switch in zip("pn", self._to_switches(inputs, neighbours, sums)):
            found |= {kind + which: gradient for kind, gradient in switch.items()}
        return found


def _as_stencil(parameters: Mapping[str, Array]) -> dict[str, Array]:
    """The parameters under the names of the stencil GRU."""
    xp = array_namespace(parameters["U"])
    switches = {kind + "s": xp.stack([parameters[kind + which] for which in "pn"]) for kind in "WUb"}
    return dict(parameters) | switches
