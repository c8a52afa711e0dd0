"""The mathematics of the implicit GRU's transition: a GRU on the stencil of both neighbours, with its own names.

The equations are those of Kazi and Thompson (2017), section 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from implicitsolve.adapters._common import Array
from implicitsolve.adapters._stencil_gru_cell import StencilGRUCell, named

ARGUMENTS = ("p", "n", "z", "r", "")
NAMES = tuple(kind + which for which in ARGUMENTS for kind in "WUb")


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
        return cls._of((-1, 1), *([parameters[kind + which] for which in ARGUMENTS] for kind in "WUb"))

    def switch(self, x: tuple[Array, ...], neighbours: Sequence[Array]) -> Array:
        """The switch s alone, the weight of the previous state."""
        factors = self._empty(neighbours[0])
        self.mixture.value(self._arguments(neighbours), x[0][:2, ...], neighbours, factors)
        return factors[0, ...]

    def _like(self, parameters: Mapping[str, Array]) -> GRUCell:
        """The cell with other parameters."""
        return GRUCell.of(parameters)

    def to_weights(self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: Any) -> dict[str, Array]:
        """Gradients of the parameters, summed over the rows."""
        return named(self._gradients(inputs, neighbours, factors, sums), ARGUMENTS)
