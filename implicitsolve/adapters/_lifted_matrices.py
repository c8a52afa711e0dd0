"""The matrices of a lifted net: `LiftedMatrices`, and checks, products and gradients of single ones.

A matrix is dense, sparse or block banded. A batch is a tall matrix with a row for each system, so that a product with
all of them is one of matrices. Gradients have the structure of the matrix: entries that it does not store are no
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from implicitsolve import BlockBandedMatrix
from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._arrays.namespace import array_namespace, copy_array
from implicitsolve._typing import Array, DType, HostArray, Indices
from implicitsolve.adapters._common import Matrix, check_array, quiet, zeros


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
    _places: tuple[Places, ...] = field(repr=False)  # in A, in B, in C

    def __iter__(self) -> Iterator[Any]:
        """Unpack as A, B, C."""
        return iter((self.A, self.B, self.C))

    @quiet
    def outputs(self, x: Array) -> Array:
        """Return C x for states x of shape (batch, n) or (n,), as (batch, q) or (q,)."""
        return times(self._check("outputs", "x", x, 1), x)

    @quiet
    def pull_back_outputs(self, x: Array, g: Array) -> tuple[Array, Any]:
        """Return the derivatives of a loss with respect to x and C, given g (batch, q) or (q,), that for C x.

        They are C^T g, of the shape of the states x: what `pull_back` takes; and the sum of g x^T over the batch, where
        C stores entries.
        """
        self._check("pull_back_outputs", "x", x, 1)
        C = self._check("pull_back_outputs", "g", g, 0)
        if tuple(g.shape[:-1]) != tuple(x.shape[:-1]):
            expected = (*x.shape[:-1], self.C.shape[0])
            raise ValueError(f"pull_back_outputs: `g` must have shape {expected}, got {tuple(g.shape)}")
        return times(C, g, adjoint=True), outer(C, g, x)

    def weight_gradients(self, dA: Matrix, dB: Matrix, dC: Matrix) -> dict[str, Array]:
        """Return the gradients of the network's weights, from those of the matrices that contain them.

        A weight's gradient, by its name in `weights`, is the sum of the matrices' gradients over its occurrences; other
        entries are ignored. The arguments are results of `pull_back` and `pull_back_outputs`, or have their shapes.
        """
        total = {name: array_namespace(value).zeros_like(column(value)) for name, value in self.weights.items()}
        for label, own, given, places in zip("ABC", self, (dA, dB, dC), self._places):
            if tuple(np.shape(given)) != tuple(own.shape):
                shapes = f"{tuple(own.shape)}, got {tuple(np.shape(given))}"
                raise ValueError(f"weight_gradients: `d{label}` must have the shape of {label}, {shapes}")
            for name, corners in places.items():
                total[name] = total[name] + block_sum(given, corners, total[name])
        return {name: array_namespace(value).reshape(value, self.weights[name].shape) for name, value in total.items()}

    def _check(self, caller: str, name: str, x: Array, axis: int) -> Any:
        """Check an array (batch, size) or (size,) of one of C's sizes; return C for products."""
        check_array(caller, name, x, None, next(iter(self.weights.values())))
        if x.ndim not in (1, 2) or x.shape[-1] != self.C.shape[axis]:
            size = self.C.shape[axis]
            raise ValueError(f"{caller}: `{name}` must have shape (batch, {size}) or ({size},), got {tuple(x.shape)}")
        return check_matrix("LiftedMatrices", "C", self.C, tuple(self.C.shape), x, copy=False)


Places: TypeAlias = dict[str, npt.NDArray[Any]]
"""Where each weight is in a matrix: rows and columns (places, 2) of its upper left corners."""


def matrices(
    caller: str, weights: dict[str, Array], places: tuple[Places, ...], sizes: tuple[int, ...], format: str
) -> LiftedMatrices:
    """Build A, B and C of sizes (n, p, q) from the places of the weights in each."""
    n, p, q = sizes
    in_numpy = "sparse" if isinstance(next(iter(weights.values())), np.ndarray) else "dense"
    other = in_numpy if format == "block-banded" else format
    shapes, formats = ((n, n), (n, p), (q, n)), (format, other, other)
    A, B, C = (_place(caller, weights, *form) for form in zip(places, shapes, formats))
    return LiftedMatrices(A, B, C, weights, places)


def _place(caller: str, weights: Mapping[str, Array], places: Places, shape: tuple[int, int], format: str) -> Any:
    like = next(iter(weights.values()))
    blocks = [(column(weights[name]), i, j) for name, corners in places.items() for i, j in corners.tolist()]
    if format == "dense":
        return _fill(zeros(shape, like), blocks)
    sizes = {tuple(block.shape) for block, _, _ in blocks}
    size = next(iter(sizes), (shape[0], shape[0]))
    at = np.array([place for _, *place in blocks], dtype=np.intp).reshape(-1, 2)
    is_grid = len(sizes) <= 1 and not (np.concatenate([at, [shape]]) % size).any()
    if format == "block-banded":
        if size[0] != size[1] or not is_grid:
            shapes = ", ".join(map(str, sorted(sizes)))
            raise ValueError(f'{caller}: `format` must not be "block-banded", since A has blocks of shapes {shapes}')
        return _place_in_band(blocks, at // size, shape[0] // size[0], zeros(size, like))
    if not is_grid or not blocks:
        data = np.concatenate([zeros((0,), like), *(np.ravel(block) for block, _, _ in blocks)])
        inside = [np.indices(block.shape).reshape(2, -1) + np.array([[i], [j]]) for block, i, j in blocks]
        return scipy.sparse.csr_array((data, tuple(np.hstack([np.zeros((2, 0), int), *inside]))), shape=shape)
    rows, columns = (at // size).T
    order = np.lexsort((columns, rows))
    pointers = np.searchsorted(rows[order], np.arange(shape[0] // size[0] + 1))
    return scipy.sparse.bsr_array((np.stack([blocks[i][0] for i in order]), columns[order], pointers), shape=shape)


def _fill(matrix: Array, blocks: list[tuple[Array, int, int]]) -> Array:
    for block, i, j in blocks:
        matrix[i : i + block.shape[0], j : j + block.shape[1]] = block
    return matrix


def _place_in_band(blocks: list[tuple[Array, int, int]], at: Indices, length: int, zero: Array) -> BlockBandedMatrix:
    offsets = at[:, 1] - at[:, 0]
    lower, upper = max(0, -int(offsets.min(initial=0))), int(offsets.max(initial=0))
    band = zeros((length, lower + upper + 1, *zero.shape), zero)
    for (block, *_), (row, _), offset in zip(blocks, at.tolist(), offsets.tolist()):
        band[row, lower + offset, :, :] = block
    return BlockBandedMatrix(band, lower=lower, upper=upper)


def column(weight: Array) -> Array:
    """A weight as a matrix: a bias as the column of a constant input."""
    return weight if weight.ndim == 2 else array_namespace(weight).reshape(weight, (-1, 1))


def block_sum(matrix: Matrix, corners: npt.NDArray[Any], like: Array) -> Array:
    """Sum of a matrix's blocks of the shape of `like` that begin at these corners."""
    if isinstance(matrix, BlockBandedMatrix):
        matrix = matrix.to_sparse() if isinstance(matrix.blocks, np.ndarray) else matrix.todense()
    total, (r, c), is_sparse = array_namespace(like).zeros_like(like), like.shape, scipy.sparse.issparse(matrix)
    if is_sparse and matrix.format == "bsr" and matrix.blocksize == (r, c) and not (corners % (r, c)).any():
        (rows, columns), width = (corners // (r, c)).T, matrix.shape[1] // c
        is_there = np.isin(block_rows(matrix) * width + matrix.indices, rows * width + columns)
        return matrix.data[is_there].sum(axis=0, dtype=like.dtype)
    matrix = scipy.sparse.csr_array(matrix) if is_sparse else matrix
    for i, j in corners.tolist():
        block = matrix[i : i + r, j : j + c]
        total = total + (block.toarray() if is_sparse else block)
    return total


# Single matrices


SMALL_BLOCK = 128  # entries of a block up to which SciPy's loops beat a batched product


def check_matrix(
    caller: str, name: str, value: Matrix, shape: tuple[int | None, int | None], like: Array, *, copy: bool = True
) -> Matrix:
    """Check a matrix of the library and dtype of `like`, and bring it, or a copy, to a form that `times` takes.

    None in `shape` is any size. A sparse matrix becomes a BSR or CSR array, its entries sorted and unique; the blocks
    outside a block-banded one become zero.
    """
    if isinstance(value, BlockBandedMatrix):
        check_array(caller, f"{name}.blocks", value.blocks, None, like)
        if value.batch_shape:
            raise ValueError(f"{caller}: `{name}` must be one matrix, got batch shape {value.batch_shape}")
        value = inside(copy_array(value.blocks), value)
    elif scipy.sparse.issparse(value):
        value = _check_sparse(caller, name, value, like, copy)
    else:
        check_array(caller, name, value, None, like)
        value = copy_array(value) if copy else value
    got = tuple(value.shape)
    if len(got) != 2 or 0 in got or any(size not in (None, found) for size, found in zip(shape, got)):
        expected = ", ".join(axis if size is None else str(size) for axis, size in zip("mn", shape))
        raise ValueError(f"{caller}: `{name}` must have shape ({expected}), none of them 0, got {got}")
    return value


def _check_sparse(caller: str, name: str, value: Any, like: Array, copy: bool) -> Any:
    """Check a matrix of SciPy's, and bring it to blocks or rows without duplicates."""
    if not isinstance(like, np.ndarray):
        raise TypeError(f"{caller}: `{name}` must not be sparse, since the inputs are not a NumPy array")
    if value.dtype != like.dtype:
        raise TypeError(f"{caller}: `{name}` must have the dtype of the inputs, {like.dtype}, got {value.dtype}")
    form = scipy.sparse.bsr_array if value.format == "bsr" and value.blocksize != (1, 1) else scipy.sparse.csr_array
    found = form(value, copy=copy)
    if not found.has_canonical_format:
        found = found if copy else form(value, copy=True)
        found.sum_duplicates()
    return found


def inside(blocks: Array, A: BlockBandedMatrix) -> BlockBandedMatrix:
    """The matrix of A's structure with these blocks, which are changed: those outside the matrix become zero."""
    for j in () if A.periodic else range(A.lower + A.upper + 1):
        blocks[: max(0, A.lower - j), j, :, :] = 0.0
        blocks[max(0, A.length + min(0, A.lower - j)) :, j, :, :] = 0.0
    return BlockBandedMatrix(blocks, lower=A.lower, upper=A.upper, periodic=A.periodic)


def times(A: Matrix, x: Array, *, adjoint: bool = False) -> Array:
    """A x, or A^T x, for every row of x (..., n)."""
    xp, lead = array_namespace(x), x.shape[:-1]
    rows = xp.reshape(x, (math.prod(lead), x.shape[-1]))
    if isinstance(A, BlockBandedMatrix):
        product = A.rmatmat if adjoint else A.matmat
        found = xp.matrix_transpose(product(xp.matrix_transpose(rows)))
    elif not scipy.sparse.issparse(A):
        found = xp.matmul(rows, A if adjoint else xp.matrix_transpose(A))
    elif A.format == "bsr" and math.prod(A.blocksize) > SMALL_BLOCK:
        found = _block_times(A, rows, adjoint)
    else:
        A = A.T if adjoint else A
        found = A @ rows[0] if len(rows) == 1 else np.ascontiguousarray((A @ rows.T).T)
    return xp.reshape(found, (*lead, found.shape[-1] if found.ndim > 1 else len(found)))


def _block_times(A: Matrix, x: HostArray, adjoint: bool) -> HostArray:
    """A x, or A^T x, for large blocks, by a batched product and sums of its parts."""
    (r, c), rows, columns = A.blocksize, block_rows(A), A.indices
    owners, others, size = (columns, rows, r) if adjoint else (rows, columns, c)
    products = np.matmul(_stack_columns(x, size)[others], A.data if adjoint else A.data.transpose(0, 2, 1))
    count = A.shape[1] // c if adjoint else A.shape[0] // r
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    if len(starts) < len(owners):
        products, owners = np.add.reduceat(products[order], starts, axis=0), owners[order][starts]
    out = np.zeros((len(x), count, products.shape[-1]), products.dtype)
    out[:, owners] = products.transpose(1, 0, 2)
    return out.reshape(len(x), -1)


def outer(A: Matrix, y: Array, x: Array) -> Any:
    """Sum of y x^T over the rows of (..., m) and (..., n), where A stores entries, in A's own structure."""
    xp = array_namespace(x)
    y, x = (xp.reshape(rows, (-1, rows.shape[-1])) for rows in (y, x))
    if isinstance(A, BlockBandedMatrix):
        k, T, blocks = A.block_size, A.length, xp.zeros_like(A.blocks)
        left, right = xp.permute_dims(xp.reshape(y, (-1, T, k)), (1, 2, 0)), _stack_columns(x, k)
        for j in range(A.structure.width):
            columns = from_host((np.arange(T) + j - A.lower) % T, x)
            blocks[:, j, :, :] = xp.matmul(left, xp.take(right, columns, axis=0))
        return inside(blocks, A)
    if not scipy.sparse.issparse(A):
        return xp.matmul(xp.matrix_transpose(y), x)
    (r, c), rows, data = A.blocksize if A.format == "bsr" else (1, 1), block_rows(A), np.empty_like(A.data)
    blocks, left, right = data.reshape(-1, r, c), _stack_columns(y, r), _stack_columns(x, c)
    step = max(1, 2**18 // (x.shape[0] * max(r, c)))  # blocks at once, whose temporaries stay in the cache
    for start in range(0, len(blocks), step):
        part = slice(start, start + step)
        np.matmul(left[rows[part]].transpose(0, 2, 1), right[A.indices[part]], out=blocks[part])
    return type(A)((data, A.indices.copy(), A.indptr.copy()), shape=A.shape)


def astype(A: Any, dtype: DType) -> Matrix:
    if isinstance(A, BlockBandedMatrix) or scipy.sparse.issparse(A):
        return A.astype(dtype)
    return array_namespace(A).astype(A, dtype)


def entries(A: Matrix) -> Any:
    """The entries of a matrix that are not zero, on the host, as a new CSR array."""
    if isinstance(A, BlockBandedMatrix):
        A = BlockBandedMatrix(to_host(A.blocks), lower=A.lower, upper=A.upper, periodic=A.periodic).to_sparse("csr")
    found = scipy.sparse.csr_array(A if scipy.sparse.issparse(A) else to_host(A), copy=True)
    found.sum_duplicates()
    found.eliminate_zeros()
    return found


def block_rows(A: Matrix) -> HostArray:
    """Block row of each block of a BSR array, or row of each entry of a CSR array."""
    return np.repeat(np.arange(len(A.indptr) - 1), np.diff(A.indptr))


def _stack_columns(x: Array, size: int) -> Array:
    """Rows (B, N) as N / size stacked matrices (B, size)."""
    xp = array_namespace(x)
    return xp.permute_dims(xp.reshape(x, (x.shape[0], -1, size)), (1, 0, 2))
