"""What the gated layers share: gates, the part that is linear in the inputs, and the switch between neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from implicitsolve.adapters._common import Array, array_namespace, device


def gate(y: Array) -> Array:
    """1/(1 + exp(y)), which is sigma(-y)."""
    y = array_namespace(y).exp(y)  # infinite where the gate is 0
    y += 1.0
    return 1.0 / y


def along(rows: Array) -> Array:
    """Rows (n, k) as factors of the rows of n matrices: diag(row) on the left."""
    return array_namespace(rows).expand_dims(rows, axis=-1)


def across(rows: Array) -> Array:
    """Rows (n, k) as factors of the columns of n matrices: diag(row) on the right."""
    return array_namespace(rows).expand_dims(rows, axis=-2)


def identity(like: Array) -> Array:
    """The identity of the size, dtype and device of a square matrix."""
    return array_namespace(like).eye(like.shape[0], dtype=like.dtype, device=device(like))


def copied(x: Array) -> Array:
    """A copy."""
    return array_namespace(x).asarray(x, copy=True)


class InputWeights(NamedTuple):
    """Weights and biases of everything that is linear in the inputs, block below block."""

    W: Array  # (blocks k, d)
    b: Array  # (blocks, k)

    @classmethod
    def of(cls, W: Sequence[Array], b: Sequence[Array]) -> InputWeights:
        """Stack blocks W_i (k, d) and b_i (k,)."""
        xp = array_namespace(W[0])
        return cls(xp.concat(list(W), axis=0), xp.stack(list(b)))

    def project(self, x: Array) -> Array:
        """Return W_i x + b_i for x (n, d), shape (blocks, n, k)."""
        projected = self.linear(x)
        projected += array_namespace(x).expand_dims(self.b, axis=1)
        return projected

    def linear(self, x: Array) -> Array:
        """Return W_i x in one GEMM, as contiguous blocks."""
        xp = array_namespace(x)
        merged = xp.matmul(x, xp.matrix_transpose(self.W))
        blocks, k = self.b.shape
        return xp.stack([merged[:, i * k : (i + 1) * k] for i in range(blocks)])

    def pull(self, cotangents: Sequence[Array], x: Array) -> tuple[Array, Array, Array]:
        """Gradients of the W_i, stacked, and of b, and the cotangent of x, for cotangents (n, k) of each block."""
        xp = array_namespace(x)
        merged = xp.concat(list(cotangents), axis=1)
        dW = xp.reshape(xp.matmul(xp.matrix_transpose(merged), x), (*self.b.shape, x.shape[1]))
        return dW, xp.reshape(xp.sum(merged, axis=0), self.b.shape), xp.matmul(merged, self.W)

    def astype(self, dtype: object) -> InputWeights:
        """The same in another precision."""
        xp = array_namespace(self.W)
        return InputWeights(xp.astype(self.W, dtype), xp.astype(self.b, dtype))


class Switch(NamedTuple):
    """Weights s_j = sigma(a_j) / sum_l sigma(a_l), safe at any size of the a_j.

    Numerators and denominator are multiplied by exp(-m), with m = min(0, max_j a_j). What becomes of sigma(a_j) is
    1/(exp(m) + exp(m - a_j)): at least 1/2 for the largest a_j, so that the denominator cannot vanish, and 0 where the
    exponential overflows, as sigma(a_j) is then negligible beside it.
    """

    weights: list[Array]
    exponentials: list[Array]  # exp(m - a_j), perhaps infinite
    scale: Array  # exp(m)

    @classmethod
    def of(cls, arguments: Sequence[Array]) -> Switch:
        """Weigh by the arguments a_j."""
        xp = array_namespace(arguments[0])
        largest = arguments[0]
        for a in arguments[1:]:
            largest = xp.maximum(largest, a)
        largest = xp.minimum(largest, 0.0)
        exponentials = [xp.exp(largest - a) for a in arguments]
        scale = xp.exp(largest)
        weights = [1.0 / (scale + e) for e in exponentials]
        total = weights[0] + weights[1] if len(weights) > 1 else 1.0 * weights[0]
        for weight in weights[2:]:
            total += weight
        for weight in weights:
            weight /= total
        return cls(weights, exponentials, scale)

    def tails(self) -> list[Array]:
        """Return 1 - sigma(a_j), as new arrays."""
        xp = array_namespace(self.scale)
        most = float(xp.finfo(self.scale.dtype).max) / 4
        tails = [xp.minimum(e, most) for e in self.exponentials]  # infinity over infinity is no number
        for tail in tails:
            tail /= tail + self.scale
        return tails
