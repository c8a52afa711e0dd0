"""The mathematics of a layer: one position's function of its neighbours, row by row, and its derivatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from array_api_compat import device

from implicitsolve._arrays.namespace import array_namespace, is_cupy_array
from implicitsolve._typing import Array, Arrays
from implicitsolve.adapters._common import ByFields, DType
from implicitsolve.adapters._rows import InputWeights, Run, affine_gradients, contiguous, join_sides, split
from implicitsolve.adapters.kernels._formulas import Factors
from implicitsolve.adapters.kernels._gates import Distances


class Cotangents(NamedTuple):
    """Cotangents of all arguments, in the order of the blocks of the input weights, and of the mixture."""

    arguments: Arrays
    mixture: tuple[Array, ...] = ()
    neighbours: tuple[Array, ...] | None = None  # in place of the mixture, from a kernel of the whole function
    joined: Array | None = None  # the arguments side by side, (n, blocks k), from the same


@dataclass(frozen=True, eq=False)
class Cell(ByFields, ABC):
    """The function f of one position, h_t = f(h_{t + offsets[0]}, h_{t + offsets[1]}, ..., x_t), at fixed weights.

    Every method treats the n rows of tall matrices, one position a row, and changes none of its arguments but
    `factors`. The layer calls them without warnings of overflow and of invalid numbers; finite arguments must give
    finite results all the same. `x` is always the rows of what `project` returned, `neighbours` a matrix (n, size) for
    each offset.

    Where `takes_sequences`, `value`, `linearize` and `push` accept neighbours (B, T', size) with `distances` too: at
    position [b, t] of B sequences of T they are the states at [b, t + distance], or zero. All other arrays have two
    axes of rows then, and `pull_back` replaces `pull`.
    """

    offsets: tuple[int, ...]  # none is zero: f does not depend on h_t itself
    x: InputWeights  # weights and biases of the inputs
    weights: Array  # (blocks, k, k): those of the states, the neighbours' first

    name: ClassVar[str]  # what errors and traces call the layer

    @cached_property
    def size(self) -> int:
        """Numbers in the state of a position."""
        return self.factor_size

    @cached_property
    def factor_size(self) -> int:
        """Columns of the matrices that a linearization keeps: k."""
        return self.weights.shape[-1]

    @property
    @abstractmethod
    def factor_count(self) -> int:
        """Number of these matrices."""

    @property
    @abstractmethod
    def takes_sequences(self) -> bool:
        """Whether neighbours may be given in their own places, with distances: if a kernel takes them so."""

    @cached_property
    def is_nearly_diagonal(self) -> bool:
        """Whether the derivatives' diagonals approximate them."""
        return True

    @cached_property
    def Us(self) -> Array:
        """The neighbours' weights, (m, k, k)."""
        return self.weights[: len(self.offsets), ...]

    @cached_property
    def by_columns(self) -> Array:
        """The neighbours' weights, transposed: they multiply from the right."""
        return contiguous(self.Us)

    @cached_property
    def wide_weights(self) -> Array:
        """The neighbours' weights side by side, (k, m k)."""
        return join_sides(self.Us)

    def times(self, states: Array, weights: Array) -> Array:
        """States (..., k) times weights (k, any). Solves often begin at zero, where there is nothing to multiply."""
        shape = *states.shape[:-1], weights.shape[1]
        if isinstance(states, np.ndarray) and states.size and not (states.item(states.size // 2) or states.any()):
            return np.zeros(shape, states.dtype)
        xp = array_namespace(states)
        if len(shape) == 2:
            return xp.matmul(states, weights)
        return xp.reshape(xp.matmul(xp.reshape(states, (-1, states.shape[-1])), weights), shape)

    def each_times(self, states: Arrays, weights: Array, merged: Callable[[], Array]) -> tuple[Array, ...]:
        """Each state times its own matrix of the weights (m, k, k), which are side by side in ``merged()`` (k, m k)."""
        first, m = states[0], len(states)
        if m > 1 and is_cupy_array(first) and all(state is first for state in states[1:]):
            return tuple(split(self.times(first, merged()), m))
        return tuple([self.times(h, weights[j, ...]) for j, h in enumerate(states)])

    def product_sum(self, stack: Array, weights: Array) -> Array:
        """Sum of the products of the matrices of a stack (c, ..., k) with weights (c, k, k), in one product."""
        xp, (c, *rows, k) = array_namespace(stack), stack.shape
        axes = (*range(1, len(rows) + 1), 0, len(rows) + 1)
        side_by_side = xp.reshape(xp.permute_dims(stack, axes), (*rows, c * k))
        return self.times(side_by_side, xp.reshape(weights, (c * k, k)))

    def project(self, x: Array) -> tuple[Array, ...]:
        """All terms linear in the inputs x (n, d), with the bias, in arrays with the rows on axis -2."""
        return (self.x.project(x),)

    def hidden(self, state: Array) -> Array:
        """The part of a state that weights multiply."""
        return state

    def products(self, states: Arrays, extra: Array | None = None) -> tuple[Array, ...]:
        """Each neighbour's state times its weights, plus its part of `extra` where there is one."""
        hidden = {id(state): self.hidden(state) for state in states}  # one view of one array
        found = self.each_times([hidden[id(state)] for state in states], self.by_columns, lambda: self.wide_weights)
        if extra is not None:
            for j, product in enumerate(found[: extra.shape[0]]):
                product += extra[j, ...]
        return found

    def value(self, x: Arrays, neighbours: Arrays, distances: Distances = None) -> Array:
        """f, shape (n, size): a new array."""
        return self.linearize(x, neighbours, None, distances)

    @abstractmethod
    def linearize(self, x: Arrays, neighbours: Arrays, factors: Factors, distances: Distances = None) -> Array:
        """f; its derivatives are written to `factors` (factor_count, n, factor_size), unless that is None."""

    @abstractmethod
    def push(self, factors: Array, changes: Arrays, distances: Distances = None, extra: Array | None = None) -> Array:
        """Change of f (a new array) for changes of the neighbours and `extra` ones of all arguments (blocks, n, k)."""

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        """Cotangents of the neighbours, (n, size) for each offset, in the row of the position with the neighbour."""
        return self.to_neighbours(factors, self.pull_sums(factors, w))

    @abstractmethod
    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        """The sum of the cotangents that each neighbour gets, in its own place (B, length, size)."""

    @abstractmethod
    def pull_sums(self, factors: Array, w: Array) -> Cotangents:
        """Cotangents of everything linear in the parameters, for the cotangent w of f."""

    @abstractmethod
    def to_neighbours(self, factors: Array, sums: Cotangents) -> tuple[Array, ...]:
        """Cotangents of the neighbours, for what `pull_sums` returned: both together are `pull`."""

    @abstractmethod
    def to_weights(self, inputs: Array, neighbours: Arrays, factors: Array, sums: Cotangents) -> dict[str, Array]:
        """Gradients of the parameters, summed over the rows: new arrays, of which no two share memory."""

    def to_inputs(self, sums: Cotangents) -> Array:
        """Cotangents of the inputs (n, d), a new array."""
        return self.x.pull(sums.arguments)

    def recurrence(self, of: str) -> Run | None:
        """The function that replaces "value", "push", "pull" or "step" in a sweep, if a kernel offers it.

        "residual" is "value" where `sweep_residual` is faster than products with matrices of many rows.
        """
        return None

    @abstractmethod
    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Diagonals of the derivatives with respect to each neighbour, approximate, without a matrix product."""

    @abstractmethod
    def blocks(self, factors: Array) -> Array:
        """Derivatives with respect to each neighbour, exact, shape (len(offsets), n, size, size)."""

    @abstractmethod
    def at(self, parameters: Mapping[str, Array]) -> Self:
        """The cell with other parameters."""

    @abstractmethod
    def states(self, neighbours: Arrays, factors: Array) -> list[Array]:
        """The states (n, k) that the weights multiply, one for each weight matrix."""

    def recurrent(self, states: Arrays) -> list[Array]:
        """What the product of each weight matrix with its state adds to the argument."""
        weights = array_namespace(self.weights).matrix_transpose(self.weights)
        return [self.times(state, weights[j, ...]) for j, state in enumerate(states)]

    def parameter_push(
        self, inputs: Array, x: Arrays, near: Arrays, change: Mapping[str, Array], dinputs: Array, dnear: Arrays
    ) -> Array:
        """Change of f for changes of all parameters, the inputs and the neighbours together."""
        factors, d = self.new_factors(inputs.shape[0]), self.at(change)
        self.linearize(x, near, factors)
        extra = d.x.project(inputs)
        extra += self.x.linear(dinputs)
        for j, product in enumerate(d.recurrent(self.states(near, factors))):
            extra[j, ...] += product
        return self.push(factors, dnear, extra=extra)

    @abstractmethod
    def step(self, x: Arrays, previous: Array) -> Array:
        """One step of the ordinary recurrence with the same weights: f with `previous` for every neighbour."""

    def new_factors(self, rows: int) -> Array:
        shape = (self.factor_count, rows, self.factor_size)
        return array_namespace(self.weights).empty(shape, dtype=self.weights.dtype, device=device(self.weights))

    def astype(self, dtype: DType) -> Self:
        """The cell in another precision; cached, since a solve needs it at many points."""
        casts: dict[Any, Self] = vars(self).setdefault("_casts", {})
        if dtype not in casts:
            weights = array_namespace(self.weights).astype(self.weights, dtype)
            casts[dtype] = replace(self, x=self.x.astype(dtype), weights=weights)
        return casts[dtype]


@dataclass(frozen=True, eq=False)
class AffineCell(Cell):
    """A cell whose arguments are all W x + U state + b, and whose parameters are named by the arguments' suffixes."""

    suffixes: ClassVar[tuple[str, ...]]  # "s" stands for a stack of arguments, one for each neighbour
    flipped: ClassVar[tuple[str, ...]] = ()  # kept with the opposite sign: gates computed as 1/(1 + exp(y))
    is_diagonal: ClassVar[bool] = False  # whether U is a vector

    @classmethod
    def shapes(cls, d: int, k: int, m: int = 1) -> dict[str, tuple[int, ...]]:
        one = {"W": (k, d), "U": (k,) if cls.is_diagonal else (k, k), "b": (k,)}
        return {
            kind + which: (m, *shape) if which == "s" else shape
            for which in cls.suffixes
            for kind, shape in one.items()
        }

    @classmethod
    def of(cls, parameters: Mapping[str, Array], offsets: tuple[int, ...] = (-1, 1)) -> Self:
        W, U, b = (
            [part for which in cls.suffixes for part in cls.parts_of(parameters[kind + which], which)] for kind in "WUb"
        )
        return cls(offsets, InputWeights.of(W, b), array_namespace(U[0]).stack(U))

    @classmethod
    def parts_of(cls, parameter: Array, which: str) -> list[Array]:
        """The arrays in which a parameter is kept: the parts of a stack, or the parameter itself."""
        if which == "s":
            return [parameter[j, ...] for j in range(parameter.shape[0])]
        return [-parameter if which in cls.flipped else parameter]

    def at(self, parameters: Mapping[str, Array]) -> Self:
        return self.of(parameters, self.offsets)

    def gradients(self, inputs: Array, neighbours: Arrays, factors: Array, sums: Cotangents) -> list[dict[str, Array]]:
        states = self.states(neighbours, factors)
        return [affine_gradients(sum_, inputs, state, self.is_diagonal) for sum_, state in zip(sums.arguments, states)]

    def to_weights(self, inputs: Array, neighbours: Arrays, factors: Array, sums: Cotangents) -> dict[str, Array]:
        gradients, found = self.gradients(inputs, neighbours, factors, sums), {}
        for which in self.suffixes:
            count = len(self.offsets) if which == "s" else 1
            own, gradients = gradients[:count], gradients[count:]
            for kind in "WUb":
                parts = [one[kind] for one in own]
                if which in self.flipped:
                    parts[0] *= -1.0
                found[kind + which] = array_namespace(inputs).stack(parts) if which == "s" else parts[0]
        return found


@dataclass(frozen=True, eq=False)
class GatedCell(AffineCell):
    """A cell that mixes its neighbours' states by a switch, whose arguments come first, and gates the mixture."""

    @abstractmethod
    def gate(self, x: Array, mixture: Any, factors: Factors = None) -> Array:
        """f of a mixture, for the projections of the gates' arguments."""

    @abstractmethod
    def push_gates(self, dmixture: Any, factors: Array, extra: Array | None) -> Array:
        """Change of f for changes of the mixture and `extra` changes of the gates' arguments."""

    @cached_property
    @abstractmethod
    def mixing_count(self) -> int:
        """Number of the mixture's factors, which precede those of the gates."""

    @cached_property
    @abstractmethod
    def mixer(self) -> Any:
        """The kernels that mix the neighbours' states; the gates take the mixture that they return."""

    def split(self, factors: Array) -> tuple[Array, Array]:
        return factors[: self.mixing_count, ...], factors[self.mixing_count :, ...]

    def linearize(self, x: Arrays, neighbours: Arrays, factors: Factors, distances: Distances = None) -> Array:
        m, (mixing, gating) = len(self.offsets), (None, None) if factors is None else self.split(factors)
        mixture = self.mixer.value(self.products(neighbours), x[0][:m, ...], neighbours, mixing, distances)
        return self.gate(x[0][m:, ...], mixture, gating)

    def push(self, factors: Array, changes: Arrays, distances: Distances = None, extra: Array | None = None) -> Array:
        m, (mixing, gating) = len(self.offsets), self.split(factors)
        dmixture = self.mixer.push(self.products(changes, extra), changes, mixing, distances)
        return self.push_gates(dmixture, gating, None if extra is None else extra[m:, ...])

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        sums = self.pull_sums(factors, w)
        return self.mixer.gather(self._to_states(sums), *sums.mixture, self.split(factors)[0], distances, length)

    def to_neighbours(self, factors: Array, sums: Cotangents) -> tuple[Array, ...]:
        if sums.neighbours is not None:
            return sums.neighbours
        return self.mixer.share(self._to_states(sums), *sums.mixture, self.split(factors)[0])

    def _to_states(self, sums: Cotangents) -> tuple[Array, ...]:
        """The products U_j^T times the cotangents of the switch's arguments."""
        return tuple([self.times(sums.arguments[j], self.Us[j, ...]) for j in range(len(self.offsets))])
