"""BlockBandedMatrix: a block-banded matrix, or a batch of them, stored by its blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from implicitsolve._arrays.host import gather
from implicitsolve._arrays.namespace import array_namespace, as_inexact, host_dtype
from implicitsolve._typing import Array, DType, Indices
from implicitsolve.operators import _block_storage as storage
from implicitsolve.operators._arguments import as_number, multiply_stacked
from implicitsolve.operators._base import LinearOperator
from implicitsolve.operators._block_storage import Products, transpose_blocks
from implicitsolve.stopping import check_limit
from implicitsolve.structure import BlockBanded


class BlockBandedMatrix(LinearOperator):
    """A block-banded matrix A, or a batch of them: T x T blocks of k x k, zero outside a band of block diagonals.

    Parameters
    ----------
    blocks : array_like
        The band, of shape ``(*batch, T, lower + upper + 1, k, k)``: ``blocks[..., t, j, :, :]`` is the block of A in
        block row t and block column ``t + j - lower``. Where that column is outside 0..T-1 the entry is ignored,
        whatever it holds. Not copied: an array that changes later may or may not change A.
    lower, upper : int
        Number of block diagonals below and above the main one. They may exceed the number of blocks.
    periodic : bool, optional
        Whether block columns wrap, ``(t + j - lower) % T``, so that A has blocks in its corners. Needs
        ``T >= lower + upper + 1``. Default False.

    Attributes
    ----------
    blocks : array
        The band as given; whole numbers become float64.
    lower, upper, periodic
        As given.
    length : int
        Block rows T.
    block_size : int
        Rows of a block, k.
    structure : BlockBanded
        Bandwidths, block size and `periodic` together.

    Raises
    ------
    TypeError, ValueError
        If `blocks` or a bandwidth is not usable.

    Notes
    -----
    Vectors have the shape ``(*batch, T, k)`` or ``(*batch, T k)``. A product costs 2 T (lower + upper + 1) k^2 flops
    for each system. On NumPy arrays, fewer than 4 columns (any number for k = 1) are multiplied by SciPy's compiled BSR
    product, which needs 4 more bytes per block (and a copy of the blocks if some outside the matrix are not zero). More
    columns and other libraries use a batched product of dense blocks for each block diagonal. On NumPy arrays the first
    adjoint product stores the blocks of A^H, as many as those of A. In a band of more than 8 block diagonals, SciPy's
    product skips those that are zero, if they are the majority.

    Sums, differences and multiples of such matrices, `H` and `T` are of this class; a product of two, or a sum with
    another operator, is a `LinearOperator`.

    Examples
    --------
    >>> from implicitsolve.operators import BlockBandedMatrix
    >>> second_difference = np.broadcast_to(np.array([-1.0, 2.0, -1.0])[:, None, None], (4, 3, 1, 1))
    >>> A = BlockBandedMatrix(second_difference, lower=1, upper=1)
    >>> A @ np.ones(4)
    array([1., 0., 0., 1.])
    >>> A.todense()
    array([[ 2., -1.,  0.,  0.],
           [-1.,  2., -1.,  0.],
           [ 0., -1.,  2., -1.],
           [ 0.,  0., -1.,  2.]])
    """

    def __init__(self, blocks: Any, *, lower: int, upper: int, periodic: bool = False) -> None:
        blocks = as_inexact(blocks, "blocks")
        check_limit("BlockBandedMatrix", "lower", lower)
        check_limit("BlockBandedMatrix", "upper", upper)
        width = lower + upper + 1
        if blocks.ndim < 4 or blocks.shape[-3] != width or blocks.shape[-2] != blocks.shape[-1] or not blocks.shape[-1]:
            raise ValueError(
                f"BlockBandedMatrix: `blocks` must have shape (..., T, {width}, k, k), got {tuple(blocks.shape)}"
            )
        self.blocks = blocks
        self.structure: BlockBanded = BlockBanded(int(lower), int(upper), int(blocks.shape[-1]), periodic=periodic)
        self.structure.check_circle(self.length)
        self.lower: int = self.structure.lower
        self.upper: int = self.structure.upper
        self.block_size: int = self.structure.block_size
        self.periodic: bool = self.structure.periodic
        products = Products(blocks, self.lower, self.periodic)
        self._products = products

        # Functions that hold `products` and not this object: no circle of references keeps the blocks alive.
        super().__init__(
            lambda v: products.times(v[..., None])[..., 0],
            lambda w: products.adjoint_times(w[..., None])[..., 0],
            in_shape=(self.length, self.block_size),
            batch_shape=tuple(blocks.shape[:-4]),
            dtype=blocks.dtype,
        )

    @property
    def length(self) -> int:
        """Block rows, T."""
        return self.blocks.shape[-4]

    @property
    def diagonal(self) -> Array:
        """The blocks of the main diagonal, ``(*batch, T, k, k)``: a view where the library has views."""
        return self.blocks[..., self.lower, :, :]

    def __repr__(self) -> str:
        batch = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        periodic = ", periodic" if self.periodic else ""
        return (
            f"<BlockBandedMatrix of {self.length} block rows, block_size={self.block_size}, lower={self.lower}, "
            f"upper={self.upper}{periodic}{batch}, dtype={self.dtype}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _matrix, (self.blocks, self.structure)

    # Products

    def matmat(self, columns: Array) -> Array:
        """Return A V for the columns of V, shape ``batch_shape + (N, K)``, all at once."""
        return multiply_stacked("BlockBandedMatrix", self, self._products.times, columns)

    def rmatmat(self, columns: Array) -> Array:
        """Return A^H W for the columns of W, shape ``batch_shape + (N, K)``, all at once."""
        return multiply_stacked("BlockBandedMatrix", self, self._products.adjoint_times, columns)

    def take(self, indices: Indices) -> BlockBandedMatrix:
        """Return some systems of the flattened batch, as a batch of shape ``(len(indices),)``."""
        if not self.batch_shape:
            raise ValueError("BlockBandedMatrix.take: this matrix has no batch axes")
        flat = array_namespace(self.blocks).reshape(self.blocks, (math.prod(self.batch_shape), *self.blocks.shape[-4:]))
        return _matrix(gather(flat, indices), self.structure)

    # Algebra

    @property
    def H(self) -> BlockBandedMatrix:
        """The adjoint, stored by its blocks: a copy."""
        return self._transpose(conjugate=True)

    @property
    def T(self) -> BlockBandedMatrix:
        """The transpose, stored by its blocks: a copy."""
        return self._transpose(conjugate=False)

    def _transpose(self, *, conjugate: bool) -> BlockBandedMatrix:
        blocks = transpose_blocks(self.blocks, self.lower, self.periodic, conjugate=conjugate)
        return BlockBandedMatrix(blocks, lower=self.upper, upper=self.lower, periodic=self.periodic)

    def __add__(self, other: Any) -> LinearOperator:
        """Sum: for two block-banded matrices, a block-banded one with the block diagonals of both."""
        if not isinstance(other, BlockBandedMatrix) or not self._adds_to(other):
            return super().__add__(other)
        lower, upper = max(self.lower, other.lower), max(self.upper, other.upper)
        array_namespace(self.blocks, other.blocks)  # raises where there is no common library
        blocks = self._widen(lower, upper) + other._widen(lower, upper)
        return BlockBandedMatrix(blocks, lower=lower, upper=upper, periodic=self.periodic)

    __radd__ = __add__

    def _widen(self, lower: int, upper: int) -> Array:
        """The blocks with zeros around them, in a wider band."""
        if (lower, upper) == (self.lower, self.upper):
            return self.blocks
        xp = array_namespace(self.blocks)
        none = xp.zeros_like(self.blocks[..., :1, :, :])
        before, after = [none] * (lower - self.lower), [none] * (upper - self.upper)
        return xp.concat([*before, self.blocks, *after], axis=-3)

    def _adds_to(self, other: BlockBandedMatrix) -> bool:
        width = max(self.lower, other.lower) + max(self.upper, other.upper) + 1
        return (
            (self.batch_shape, self.in_shape, self.periodic) == (other.batch_shape, other.in_shape, other.periodic)
        ) and (not self.periodic or width <= self.length)

    def __mul__(self, factor: Any) -> BlockBandedMatrix:
        factor = as_number(factor)
        blocks = self.blocks
        if isinstance(factor, complex) and host_dtype(self.dtype).kind != "c":
            xp = array_namespace(blocks)
            blocks = xp.astype(blocks, xp.complex64 if xp.finfo(blocks.dtype).bits == 32 else xp.complex128)
        with np.errstate(all="ignore"):  # what is outside the matrix may be anything
            return _matrix(blocks * factor, self.structure)

    __rmul__ = __mul__

    # Other forms

    def astype(self, dtype: DType) -> BlockBandedMatrix:
        """Return the matrix in another floating-point data type: itself if it has that type."""
        if self.blocks.dtype == dtype:
            return self
        return _matrix(array_namespace(self.blocks).astype(self.blocks, dtype), self.structure)

    def todense(self) -> Array:
        """Return A as an array ``(*batch, N, N)``."""
        return storage.to_dense(self.blocks, self.structure)

    @classmethod
    def from_dense(cls, A: Any, structure: BlockBanded) -> BlockBandedMatrix:
        """Return the matrix with the entries of an array ``(*batch, N, N)``, in the blocks of `structure`.

        Raises ValueError if the shape does not fit, or an entry outside the structure is not zero.
        """
        return _matrix(storage.from_dense(as_inexact(A, "A"), structure), structure)

    def to_sparse(self, format: str = "bsr") -> Any:
        """Return one system's matrix as a SciPy sparse array with every block of the band, zero or not.

        The `format` is "bsr" (default), "csr" or "csc". Raises ValueError for more than one system.
        """
        return storage.to_sparse(self.blocks, self.structure, format)

    @classmethod
    def from_sparse(cls, A: Any, structure: BlockBanded) -> BlockBandedMatrix:
        """Return the matrix with the entries of a SciPy sparse matrix; arguments as in `from_dense`."""
        return _matrix(storage.from_sparse(A, structure), structure)

    @classmethod
    def from_banded(cls, l_and_u: tuple[int, int], ab: Any) -> BlockBandedMatrix:
        """Return the matrix given in LAPACK's band storage, with blocks of one entry.

        As in `scipy.linalg.solve_banded`, `l_and_u` are the diagonals below and above the main one, and `ab` is the
        band, ``(*batch, kl + ku + 1, N)``, whose unused corners are ignored. Raises ValueError where it does not fit.
        """
        return _matrix(storage.from_banded(l_and_u, as_inexact(ab, "ab")), BlockBanded(*l_and_u))


def _matrix(blocks: Array, structure: BlockBanded) -> BlockBandedMatrix:
    return BlockBandedMatrix(blocks, lower=structure.lower, upper=structure.upper, periodic=structure.periodic)
