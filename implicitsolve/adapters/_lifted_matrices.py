"""LiftedMatrices: a network's matrices A, B and C, and what leads from their gradients to those of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from implicitsolve import BlockBandedMatrix
from implicitsolve.adapters._common import Array, Matrix, array_namespace, check_array, quiet, zeros
from implicitsolve.adapters._lifted_weights import Weight, weight


@dataclass(frozen=True, eq=False)
class LiftedMatrices:
    """The matrices of a network as a lifted net: outputs y = C x, where x = phi(A x + B u).

    What `lifted_feedforward`, `lifted_rnn` and `lifted_birnn` return; it unpacks as ``A, B, C = ...``.

    Attributes
    ----------
    A, B, C
        Matrices of shapes (n, n), (n, p) and (q, n).
    weights : mapping of str to Array
        The network's weights, by the names of the builder's arguments.

    Examples
    --------
    One step of training, by hand:

    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> from implicitsolve.adapters import lifted_inputs, lifted_net, lifted_outputs, lifted_rnn
    >>> rng = np.random.default_rng(0)
    >>> weights = rng.uniform(-0.3, 0.3, (3, 3)), rng.uniform(-1, 1, (3, 2)), rng.uniform(-1, 1, (1, 3))
    >>> net = lifted_rnn(*weights, 4, outputs="all")
    >>> sequences = rng.standard_normal((5, 4, 2))  # 5 sequences of 4 steps
    >>> problem = lifted_net(net.A, net.B, lifted_inputs(sequences))
    >>> x = problem.substitute()
    >>> y = lifted_outputs(net.outputs(x), 4)
    >>> y.shape
    (5, 4, 1)
    >>> cotangent, dC = net.pull_back_outputs(x, lifted_inputs(y))  # of the loss sum(y**2) / 2
    >>> gradients = ims.pull_back(problem, x, cotangent).gradients
    >>> {name: g.shape for name, g in net.weight_gradients(gradients["A"], gradients["B"], dC).items()}
    {'W_H': (3, 3), 'W_I': (3, 2), 'W_O': (1, 3)}
    """

    A: Matrix
    B: Matrix
    C: Matrix
    weights: Mapping[str, Array] = field(repr=False)
    _places: tuple[Places, Places, Places] = field(repr=False)  # in A, in B, in C

    def __iter__(self) -> Iterator[Any]:
        """Unpack as A, B, C."""
        return iter((self.A, self.B, self.C))

    @quiet
    def outputs(self, x: Array) -> Array:
        """Return C x for states x of shape (batch, n) or (n,), as (batch, q) or (q,)."""
        rows = self._rows("outputs", "x", x, 1)
        return self._wrapped(rows).times(rows) if x.ndim == 2 else self._wrapped(rows).times(rows)[0, :]

    @quiet
    def pull_back_outputs(self, x: Array, g: Array) -> tuple[Array, Any]:
        """Return what a loss's derivative g by the outputs C x becomes at C.

        Parameters
        ----------
        x : Array of shape (batch, n) or (n,)
            States.
        g : Array of shape (batch, q) or (q,)
            d loss / d (C x).

        Returns
        -------
        cotangent : Array
            C^T g, the derivative by x, of the shape of x: what `pull_back` takes.
        dC : Array or sparse matrix
            The derivative by C: the sum of g x^T over the batch, where C stores entries.
        """
        x_rows, g_rows = self._rows("pull_back_outputs", "x", x, 1), self._rows("pull_back_outputs", "g", g, 0)
        if g.ndim != x.ndim or g_rows.shape[0] != x_rows.shape[0]:
            expected = (*x.shape[:-1], self.C.shape[0])
            raise ValueError(f"pull_back_outputs: `g` must have shape {expected}, got {tuple(g.shape)}")
        C = self._wrapped(x_rows)
        cotangent = C.adjoint_times(g_rows)
        return cotangent if x.ndim == 2 else cotangent[0, :], C.outer(g_rows, x_rows)

    def weight_gradients(self, dA: Matrix, dB: Matrix, dC: Matrix) -> dict[str, Array]:
        """Return the gradients of the network's weights, from those of the matrices in which they stand.

        A weight's gradient is the sum of the matrices' gradients over the places where it stands; entries elsewhere are
        not read.

        Parameters
        ----------
        dA, dB, dC : Array, sparse matrix or BlockBandedMatrix
            Derivatives of a loss by A, B and C: of `pull_back` and `pull_back_outputs`, or arrays of the same shapes.

        Returns
        -------
        dict of str to Array
            By the names of `weights`, in their order.

        Raises
        ------
        ValueError
            If a shape is wrong.
        """
        total = {name: array_namespace(value).zeros_like(value) for name, value in self.weights.items()}
        for label, own, given, places in zip("ABC", self, (dA, dB, dC), self._places):
            if tuple(np.shape(given)) != tuple(own.shape):
                shapes = f"{tuple(own.shape)}, got {tuple(np.shape(given))}"
                raise ValueError(f"weight_gradients: `d{label}` must have the shape of {label}, {shapes}")
            for name, corners in places.items():
                total[name] = total[name] + block_sum(given, corners, total[name])
        return total

    def _wrapped(self, like: Array) -> Weight:
        return weight("LiftedMatrices", "C", self.C, tuple(self.C.shape), like, copy=False)

    def _rows(self, caller: str, name: str, x: Array, axis: int) -> Array:
        """Check an array (batch, size) or (size,) of one of C's sizes; give it as rows."""
        check_array(caller, name, x, None, next(iter(self.weights.values())))
        if x.ndim not in (1, 2) or x.shape[-1] != self.C.shape[axis]:
            size = self.C.shape[axis]
            raise ValueError(f"{caller}: `{name}` must have shape (batch, {size}) or ({size},), got {tuple(x.shape)}")
        return x if x.ndim == 2 else array_namespace(x).expand_dims(x, axis=0)


def matrices(
    caller: str,
    weights: dict[str, Array],
    places: tuple[Places, Places, Places],
    sizes: tuple[int, int, int],
    format: str,
) -> LiftedMatrices:
    """Build A, B and C of sizes (n, p, q) from the places of the weights in each."""
    n, p, q = sizes
    like = next(iter(weights.values()))
    other = format
    if format == "block-banded":
        other = "sparse" if isinstance(like, np.ndarray) else "dense"
    A = placed(caller, weights, places[0], (n, n), format)
    B, C = placed(caller, weights, places[1], (n, p), other), placed(caller, weights, places[2], (q, n), other)
    return LiftedMatrices(A, B, C, weights, places)


Places: TypeAlias = dict[str, npt.NDArray[Any]]
"""Where each weight is in a matrix: rows and columns (places, 2) of its upper left corners."""


def placed(caller: str, weights: Mapping[str, Array], places: Places, shape: tuple[int, int], format: str) -> Any:
    """Return the matrix with the weights in their places, zero elsewhere."""
    if format == "dense":
        return _dense(weights, places, shape)
    if format == "block-banded":
        return _block_banded(caller, weights, places, shape)
    return _sparse(weights, places, shape)


def _dense(weights: Mapping[str, Array], places: Places, shape: tuple[int, int]) -> Array:
    matrix = zeros(shape, next(iter(weights.values())))
    for name, corners in places.items():
        r, c = weights[name].shape
        for i, j in corners.tolist():
            matrix[i : i + r, j : j + c] = weights[name]
    return matrix


def _sparse(weights: Mapping[str, Array], places: Places, shape: tuple[int, int]) -> Any:
    """BSR where all blocks have one shape and lie on its grid, else CSR."""
    used = {name: weights[name] for name, corners in places.items() if len(corners)}
    if not used:
        return scipy.sparse.csr_array(shape, dtype=next(iter(weights.values())).dtype)
    corners = np.concatenate([places[name] for name in used])
    if _is_grid(used, corners, shape):
        r, c = next(iter(used.values())).shape
        rows, columns = corners[:, 0] // r, corners[:, 1] // c
        order = np.lexsort((columns, rows))
        stack = np.concatenate([np.broadcast_to(used[name], (len(places[name]), r, c)) for name in used])
        pointers = np.searchsorted(rows[order], np.arange(shape[0] // r + 1))
        return scipy.sparse.bsr_array((stack[order], columns[order], pointers), shape=shape)
    data, rows, columns = (np.concatenate(parts) for parts in zip(*(_entries(v, places[n]) for n, v in used.items())))
    return scipy.sparse.csr_array((data, (rows, columns)), shape=shape)


def _entries(value: Array, corners: npt.NDArray[Any]) -> tuple[Array, Array, Array]:
    """Entries of copies of a block at these corners, and their rows and columns."""
    r, c = value.shape
    rows = corners[:, 0, None, None] + np.arange(r)[:, None]
    columns = corners[:, 1, None, None] + np.arange(c)
    data, rows, columns = (np.broadcast_to(part, (len(corners), r, c)).ravel() for part in (value, rows, columns))
    return data, rows, columns


def _is_grid(weights: Mapping[str, Array], corners: npt.NDArray[Any], shape: tuple[int, int]) -> bool:
    shapes = {tuple(value.shape) for value in weights.values()}
    block = np.array(next(iter(shapes)))
    return len(shapes) == 1 and not (corners % block).any() and not (np.array(shape) % block).any()


def _block_banded(caller: str, weights: Mapping[str, Array], places: Places, shape: tuple[int, int]) -> Any:
    like = next(iter(weights.values()))
    used = {name: weights[name] for name, corners in places.items() if len(corners)}
    corners = np.concatenate([places[name] for name in used]) if used else np.zeros((0, 2), dtype=np.intp)
    k = next(iter(used.values())).shape[0] if used else shape[0]
    if used and not (next(iter(used.values())).shape == (k, k) and _is_grid(used, corners, shape)):
        sizes = ", ".join(str(tuple(value.shape)) for value in used.values())
        raise ValueError(f'{caller}: `format` must not be "block-banded", since A has blocks of shapes {sizes}')
    offsets = (corners[:, 1] - corners[:, 0]) // k
    lower, upper = max(0, -int(offsets.min(initial=0))), max(0, int(offsets.max(initial=0)))
    blocks = zeros((shape[0] // k, lower + upper + 1, k, k), like)
    for name, value in used.items():
        for i, j in (places[name] // k).tolist():
            blocks[i, j - i + lower, :, :] = value
    return BlockBandedMatrix(blocks, lower=lower, upper=upper)


def block_sum(matrix: Matrix, corners: npt.NDArray[Any], like: Array) -> Array:
    """Sum of a matrix's blocks of the shape of `like` that begin at these corners."""
    total = array_namespace(like).zeros_like(like)
    if not len(corners):
        return total
    r, c = like.shape
    if isinstance(matrix, BlockBandedMatrix) and matrix.block_size == r == c and not (corners % r).any():
        for i, j in (corners // r).tolist():
            place = (j - i + matrix.lower) % matrix.length if matrix.periodic else j - i + matrix.lower
            if 0 <= place < matrix.structure.width:
                total = total + matrix.blocks[i, place, :, :]
        return total
    if isinstance(matrix, BlockBandedMatrix):
        matrix = matrix.tosparse("csr") if isinstance(matrix.blocks, np.ndarray) else matrix.todense()
    if not scipy.sparse.issparse(matrix):
        for i, j in corners.tolist():
            total = total + matrix[i : i + r, j : j + c]
        return total
    if matrix.format == "bsr" and matrix.blocksize == (r, c) and not (corners % (r, c)).any():
        return _sum_of_bsr(matrix, corners // (r, c), like)
    rows = scipy.sparse.csr_array(matrix)
    for i, j in corners.tolist():
        total = total + rows[i : i + r, j : j + c].toarray()
    return total


def _sum_of_bsr(matrix: Matrix, corners: npt.NDArray[Any], like: Array) -> Array:
    """Sum of the blocks in these block rows and columns, found all at once."""
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    width = matrix.shape[1] // like.shape[1]
    rows = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr))
    wanted = corners[:, 0] * width + corners[:, 1]
    is_wanted = np.isin(rows * width + matrix.indices, wanted, assume_unique=True)
    return matrix.data[is_wanted].sum(axis=0, dtype=like.dtype)
