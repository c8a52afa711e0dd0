"""What a layer's mathematics must offer: one position's function of its neighbours, row by row, and its derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from implicitsolve.adapters._common import Array
from implicitsolve.adapters._sweep import Whole


class Cell(Protocol):
    """The function f of one position, h_t = f(h_{t + offsets[0]}, h_{t + offsets[1]}, ..., x_t), at fixed weights.

    Every method treats the n rows of tall matrices, one position a row, and changes none of its arguments but
    `factors`. The layer calls them without warnings of overflow and of invalid numbers; finite arguments must give
    finite results all the same. `x` is always the rows of what `project` returned, `neighbours` a matrix (n, size) for
    each offset.

    Attributes
    ----------
    name : str
        What errors and traces call the layer.
    offsets : tuple of int
        None is zero: f does not depend on h_t itself.
    size : int
        Numbers in the state of a position.
    factor_count, factor_size : int
        Matrices that a linearization keeps, and their columns.
    """

    @property
    def name(self) -> str: ...
    @property
    def offsets(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def factor_count(self) -> int: ...
    @property
    def factor_size(self) -> int: ...

    @property
    def takes_sequences(self) -> bool:
        """Whether `value`, `linearize` and `push` take neighbours (B, T', size) with `distances` too.

        At position [b, t] of B sequences of T they are what stands at [b, t + distance], or zero. All other arrays have
        two axes of rows then, and `pull_back` replaces `pull`.
        """
        ...

    def project(self, x: Array) -> tuple[Array, ...]:
        """All that is linear in the inputs x (n, d), bias included, in arrays with the rows on axis -2."""
        ...

    def value(
        self, x: tuple[Array, ...], neighbours: tuple[Array, ...], distances: tuple[int, ...] | None = None
    ) -> Array:
        """f, shape (n, size): a new array."""
        ...

    def linearize(
        self,
        x: tuple[Array, ...],
        neighbours: tuple[Array, ...],
        factors: Array,
        distances: tuple[int, ...] | None = None,
    ) -> Array:
        """f, and its derivatives in `factors` (factor_count, n, factor_size), which is written."""
        ...

    def push(self, factors: Array, dneighbours: tuple[Array, ...], distances: tuple[int, ...] | None = None) -> Array:
        """Change of f for changes of the neighbours: a new array."""
        ...

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        """Cotangents of the neighbours, one new array (n, size) for each offset, for the cotangent w of f.

        They stand in the row of the position whose neighbours they belong to.
        """
        ...

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        """The sum of these for each neighbour, in its own place (B, length, size)."""
        ...

    def recurrence(self, of: str) -> Whole | None:
        """What runs as a whole in place of "value", "push", "pull" or "step" in a sweep, if a kernel does that.

        "residual" is "value" where `sweep_residual` is faster than products with matrices of many rows.
        """
        ...

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Diagonals of the derivatives with respect to each neighbour, approximate, without a matrix product."""
        ...

    def blocks(self, factors: Array) -> Array:
        """Derivatives with respect to each neighbour, exact, shape (len(offsets), n, size, size)."""
        ...

    def parameter_push(
        self,
        inputs: Array,
        x: tuple[Array, ...],
        neighbours: tuple[Array, ...],
        change: Mapping[str, Array],
        dinputs: Array,
        dneighbours: tuple[Array, ...],
    ) -> Array:
        """Change of f for changes of all parameters, the inputs and the neighbours together."""
        ...

    def pull_sums(self, factors: Array, w: Array) -> Any:
        """Cotangents of all that is linear in parameters, for the cotangent w of f: in the cell's own form."""
        ...

    def to_neighbours(self, factors: Array, sums: Any) -> tuple[Array, ...]:
        """Cotangents of the neighbours, for what `pull_sums` returned: both together are `pull`."""
        ...

    def to_weights(self, inputs: Array, neighbours: tuple[Array, ...], factors: Array, sums: Any) -> dict[str, Array]:
        """Gradients of the parameters, summed over the rows: new arrays, of which no two share memory."""
        ...

    def to_inputs(self, sums: Any) -> Array:
        """Cotangents of the inputs (n, d), a new array."""
        ...

    def step(self, x: tuple[Array, ...], previous: Array) -> Array:
        """One step of the ordinary recurrence with the same weights, for the one-step guess."""
        ...

    def astype(self, dtype: Any) -> Cell:
        """The same in another precision."""
        ...


def in_precision(cell: Cell, dtype: Any) -> Cell:
    """The cell in another precision, which stays with it: a solve asks for it at many points."""
    casts = cell.__dict__.setdefault("_casts", {})
    if dtype not in casts:
        casts[dtype] = cell.astype(dtype)
    return casts[dtype]
