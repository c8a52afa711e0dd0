"""The mathematics of an implicit RNN's transition, row by row: phi of a sum over all neighbours.

The equations are those of Kazi (2016), section 4.4. What is done behind the matrix products stands in `kernels.rnn`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from implicitsolve import kernels
from implicitsolve.adapters._common import Array, ByFields, array_namespace, device, is_cupy_array
from implicitsolve.adapters._gates import beside, contiguous, each_times, split, times
from implicitsolve.adapters._sweep import FEW, RNNStep

NAMES = ("P", "N", "V", "b")


def shapes(d: int, k: int, lower: int, upper: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters by name."""
    return {"P": (lower, k, k), "N": (upper, k, k), "V": (k, d), "b": (k,)}


@dataclass(frozen=True, eq=False)
class RNNCell(ByFields):
    """f(h_1, ..., h_m, x) = phi(sum_j W_j h_j + V x + b), where W_j are the blocks of P, then those of N.

    Attributes
    ----------
    lower, upper : int
        Blocks of P and of N; their neighbours are the positions at -1, -2, ... and at 1, 2, ...
    W : Array of shape (k, m k)
        The blocks side by side.
    """

    W: Array
    V: Array
    b: Array
    lower: int
    upper: int
    activation: str
    name: str = "implicit_rnn"
    factor_count: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, Array], activation: str, **settings: Any) -> RNNCell:
        """Take the parameters by their names; `settings` are attributes."""
        xp = array_namespace(parameters["V"])
        P, N = parameters["P"], parameters["N"]
        (lower, k, _), upper = P.shape, N.shape[0]
        blocks = xp.permute_dims(xp.concat([P, N], axis=0), (1, 0, 2))
        W = xp.reshape(blocks, (k, (lower + upper) * k))
        return cls(W, parameters["V"], parameters["b"], lower, upper, activation, **settings)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Places of the neighbours, in the order of W's blocks."""
        return (*range(-1, -self.lower - 1, -1), *range(1, self.upper + 1))

    @property
    def takes_sequences(self) -> bool:
        """Whether neighbours may be given in their own places, with distances: where a kernel does that at once."""
        return self.rnn is not kernels.rnn.reference

    @property
    def size(self) -> int:
        """Numbers in a state, k."""
        return self.b.shape[0]

    @property
    def factor_size(self) -> int:
        """Numbers per row of a factor, k."""
        return self.size

    @property
    def blocks_of_W(self) -> Array:
        """W_j of each neighbour, shape (m, k, k)."""
        xp, k = array_namespace(self.W), self.size
        return xp.permute_dims(xp.reshape(self.W, (k, self.lower + self.upper, k)), (1, 0, 2))

    def project(self, x: Array) -> tuple[Array, ...]:
        """V x + b."""
        xp = array_namespace(x)
        projected = xp.matmul(x, xp.matrix_transpose(self.V))
        projected += self.b
        return (projected,)

    @cached_property
    def rnn(self) -> Any:
        """Elementwise work behind the matrix products."""
        return kernels.rnn.select(self.W, size=self.size)

    @cached_property
    def transposed(self) -> Array:
        """W_j of each neighbour as they multiply from the right, (m, k, k)."""
        return contiguous(self.blocks_of_W)

    @cached_property
    def merged(self) -> Array:
        """The same side by side, (k, m k)."""
        return beside(self.blocks_of_W)

    def value(
        self, x: tuple[Array, ...], neighbours: Sequence[Array], distances: tuple[int, ...] | None = None
    ) -> Array:
        """f row by row."""
        return self.rnn.value(self.activation, self._products(neighbours), x[0], None, distances)

    def linearize(
        self,
        x: tuple[Array, ...],
        neighbours: Sequence[Array],
        factors: Array,
        distances: tuple[int, ...] | None = None,
    ) -> Array:
        """f row by row; the factor is phi'."""
        return self.rnn.value(self.activation, self._products(neighbours), x[0], factors, distances)

    def push(self, factors: Array, dneighbours: Sequence[Array], distances: tuple[int, ...] | None = None) -> Array:
        """df for a change of the neighbours."""
        return self.rnn.push(self._products(dneighbours), factors, distances)

    def pull_back(self, factors: Array, w: Array, distances: tuple[int, ...], length: int) -> Array:
        """The sum of the neighbours' cotangents, in their own places of sequences of this length."""
        return self.rnn.gather(self.to_neighbours(factors, self.pull_sums(factors, w)), distances, length)

    def pull(self, factors: Array, w: Array) -> tuple[Array, ...]:
        """Cotangents of the neighbours."""
        return self.to_neighbours(factors, self.pull_sums(factors, w))

    def recurrence(self, of: str) -> RNNStep | None:
        """One of these, with the network's own states for neighbours; the last two on a device alone."""
        if of in ("step", "residual") and not is_cupy_array(self.W):
            return None
        if of == "step":
            return RNNStep(self.activation, array_namespace(self.W).sum(self.transposed, axis=0, keepdims=True))
        if of == "residual":
            return RNNStep(self.activation, self.transposed) if self.size <= FEW else None
        if of == "pull":
            return RNNStep(of, self.blocks_of_W)
        return RNNStep(self.activation if of == "value" else of, self.transposed)

    def diagonals(self, factors: Array) -> tuple[Array, ...]:
        """Diagonals of df/dh_j, exact."""
        xp = array_namespace(factors)
        blocks = self.blocks_of_W
        return tuple(factors[0, ...] * xp.linalg.diagonal(blocks[j, :, :]) for j in range(blocks.shape[0]))

    def blocks(self, factors: Array) -> Array:
        """df/dh_j, shape (m, n, k, k)."""
        xp = array_namespace(factors)
        slope = xp.expand_dims(factors[0, ...], axis=-1)
        return slope * xp.expand_dims(self.blocks_of_W, axis=1)

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
        xp = array_namespace(inputs)
        d = RNNCell.of(change, self.activation)
        dh = d.project(inputs)[0]
        dh += xp.matmul(dinputs, xp.matrix_transpose(self.V))
        for product in (*self._products(dneighbours), *d._products(neighbours)):
            dh += product
        dh *= self._slope(x, neighbours)
        return dh

    def pull_sums(self, factors: Array, w: Array) -> Array:
        """The cotangent of phi's argument."""
        return factors[0, ...] * w

    def to_weights(self, inputs: Array, neighbours: Sequence[Array], factors: Array, sums: Array) -> dict[str, Array]:
        """Gradients of the parameters, summed over the rows."""
        xp, k, sums_T = array_namespace(inputs), self.size, array_namespace(inputs).matrix_transpose(sums)
        found: dict[str, Array] = {"V": xp.matmul(sums_T, inputs), "b": xp.sum(sums, axis=0)}
        for name, states in (("P", neighbours[: self.lower]), ("N", neighbours[self.lower :])):
            found[name] = xp.empty((len(states), k, k), dtype=sums.dtype, device=device(sums))
            for j, h in enumerate(states):
                found[name][j, ...] = xp.matmul(sums_T, h)
        return found

    def to_inputs(self, sums: Array) -> Array:
        """Cotangents of the inputs."""
        return array_namespace(self.V).matmul(sums, self.V)

    def step(self, x: tuple[Array, ...], previous: Array) -> Array:
        """f with the previous state in place of every neighbour: the ordinary RNN with the sum of all W_j."""
        return self.value(x, [previous] * len(self.offsets))

    def astype(self, dtype: Any) -> RNNCell:
        """The same in another precision."""
        xp = array_namespace(self.W)
        W, V, b = (xp.astype(array, dtype) for array in (self.W, self.V, self.b))
        return replace(self, W=W, V=V, b=b)

    def _products(self, states: Sequence[Array]) -> list[Array]:
        """Return W_j h_j for all j."""
        return each_times(states, self.transposed, lambda: self.merged)

    def _slope(self, x: tuple[Array, ...], neighbours: Sequence[Array]) -> Array:
        """phi' row by row."""
        factors = array_namespace(x[0]).empty((1, *x[0].shape), dtype=x[0].dtype, device=device(x[0]))
        self.linearize(x, neighbours, factors)
        return factors[0, ...]

    def to_neighbours(self, factors: Array, sums: Array) -> tuple[Array, ...]:
        """Cotangents of the neighbours."""
        m = len(self.offsets)
        if is_cupy_array(sums):  # whose products would copy parts of W
            return tuple(split(times(sums, self.W), m))
        return tuple(times(sums, block) for block in split(self.W, m))
