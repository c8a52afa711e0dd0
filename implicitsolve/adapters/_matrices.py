"""Forms of weights, and products with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from array_api_compat import device

from implicitsolve._namespace import array_namespace, is_cupy_array
from implicitsolve._typing import Array


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

    def pull(self, cotangents: Sequence[Array]) -> Array:
        """The cotangent of x, for cotangents (n, k) of each block."""
        xp = array_namespace(self.W)
        return xp.matmul(xp.concat(list(cotangents), axis=1), self.W)

    def astype(self, dtype: object) -> InputWeights:
        """The same in another precision."""
        xp = array_namespace(self.W)
        return InputWeights(xp.astype(self.W, dtype), xp.astype(self.b, dtype))


def along(rows: Array) -> Array:
    """Rows (n, k) as factors of the rows of n matrices: diag(row) on the left."""
    return array_namespace(rows).expand_dims(rows, axis=-1)


def across(rows: Array) -> Array:
    """Rows (n, k) as factors of the columns of n matrices: diag(row) on the right."""
    return array_namespace(rows).expand_dims(rows, axis=-2)


def identity(like: Array) -> Array:
    """The identity of the size, dtype and device of a square matrix."""
    return array_namespace(like).eye(like.shape[0], dtype=like.dtype, device=device(like))


def contiguous(weights: Array) -> Array:
    """Transposes of matrices in memory of their own: products of few rows with views took up to 12 % longer."""
    xp = array_namespace(weights)
    views = xp.matrix_transpose(weights)
    transposed = xp.empty(views.shape, dtype=weights.dtype, device=device(weights))
    transposed[...] = views
    return transposed


def joined(weights: Array) -> Array:
    """Matrices (c, k, k) side by side, (k, c k), each transposed: one wide product takes up to 8 % less time than c."""
    c, k, _ = weights.shape
    return contiguous(array_namespace(weights).reshape(weights, (c * k, k)))


def times(states: Array, weights: Array) -> Array:
    """States (..., k) times weights (k, any). Solves often begin at zero, where there is nothing to multiply."""
    shape = *states.shape[:-1], weights.shape[1]
    if isinstance(states, np.ndarray) and not (states[len(states) // 2 :][:1].any() or states.any()):
        return np.zeros(shape, states.dtype)
    if len(shape) == 2:
        return states @ weights
    xp = array_namespace(states)
    return xp.reshape(xp.matmul(xp.reshape(states, (-1, states.shape[-1])), weights), shape)


def each_times(states: Sequence[Array], weights: Array, merged: Callable[[], Array]) -> list[Array]:
    """Each of the states times its own of the weights (m, k, k), which are side by side in ``merged()`` (k, m k).

    Where all states are one array, a GPU takes them in one product, whose parts are views.
    """
    first, m = states[0], len(states)
    if m > 1 and is_cupy_array(first) and all(state is first for state in states[1:]):
        return split(times(first, merged()), m)
    return [times(h, weights[j, ...]) for j, h in enumerate(states)]


def split(y: Array, m: int) -> list[Array]:
    """Views of m blocks (..., k) side by side."""
    k = y.shape[-1] // m
    return [y[..., j * k : (j + 1) * k] for j in range(m)]


def stacked(y: Array, k: int) -> Array:
    """Blocks (..., k) side by side in a matrix as a stack, perhaps a view."""
    xp, rows = array_namespace(y), y.ndim - 1
    return xp.permute_dims(xp.reshape(y, (*y.shape[:-1], -1, k)), (rows, *range(rows), rows + 1))


def product_sum(stack: Array, weights: Array) -> Array:
    """Sum of the products of the matrices of a stack (c, ..., k) with weights (c, k, k), in one product."""
    xp, (c, *rows, k) = array_namespace(stack), stack.shape
    axes = (*range(1, len(rows) + 1), 0, len(rows) + 1)
    return times(xp.reshape(xp.permute_dims(stack, axes), (*rows, c * k)), xp.reshape(weights, (c * k, k)))


def affine_gradients(sum_: Array, inputs: Array, state: Array, is_diagonal: bool) -> dict[str, Array]:
    """Gradients of W, U and b in W x + U h + b, for the cotangent of the rows of that sum; U may be a diagonal."""
    xp = array_namespace(sum_)
    sum_T = xp.matrix_transpose(sum_)
    U = xp.sum(sum_ * state, axis=0) if is_diagonal else xp.matmul(sum_T, state)
    return {"W": xp.matmul(sum_T, inputs), "U": U, "b": xp.sum(sum_, axis=0)}
