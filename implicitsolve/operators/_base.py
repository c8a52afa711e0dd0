"""LinearOperator: a matrix given by its products, for one system or a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse.linalg

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._arrays.namespace import array_namespace, host_dtype, is_array
from implicitsolve._typing import Array, DType, Indices
from implicitsolve.operators._arguments import (
    Matvec,
    Shape,
    as_number,
    checked_dtype,
    checked_shape,
    common_dtype,
    conj,
    multiply,
    multiply_columns,
    then,
)

Take: TypeAlias = "Callable[[Indices], LinearOperator]"


class LinearOperator:
    """A linear map given by its products with vectors, for one system or a batch.

    Parameters
    ----------
    matvec : callable
        ``matvec(v)`` returns A v. `v` has shape ``batch_shape + in_shape`` and the result ``batch_shape + out_shape``.
    rmatvec : callable, optional
        ``rmatvec(w)`` returns A^H w, the adjoint product.
    in_shape : tuple of int or int
        Shape of one system's argument; a state of T blocks of k unknowns has ``(T, k)``.
    out_shape : tuple of int or int, optional
        Shape of one system's result. Default: `in_shape`.
    batch_shape : tuple of int, optional
        Shape of the batch of systems. The default ``()`` is one system.
    dtype : dtype, optional
        Data type of the result of a product with a real vector. Default: float64.
    take : callable, optional
        ``take(indices)`` returns the operator of those systems of the flattened batch, with batch shape
        ``(len(indices),)``. Without it the whole batch is multiplied and the other results are discarded.
    inverse : callable, optional
        ``inverse()`` returns an operator that approximates A^-1 and costs little to build and to apply. Krylov and
        fixed-point methods use it when no other preconditioner is given.
    cast : callable, optional
        ``cast(dtype)`` returns the operator with products in another precision.

    Attributes
    ----------
    shape : tuple of int
        ``(prod(out_shape), prod(in_shape))``, as for a matrix.
    H, T : LinearOperator
        Adjoint and transpose.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable, or a missing product is needed.

    Notes
    -----
    ``A + B``, ``A - B``, ``2 * A``, ``-A`` and ``A @ B`` are operators too, and cost the products of their parts.
    `matvec` takes the systems' arguments in their own shape or flattened, ``batch_shape + (N,)``, and, for an operator
    of one system, any further leading axes, which are looped over.

    Examples
    --------
    >>> from implicitsolve import LinearOperator
    >>> D = LinearOperator(lambda v: 2 * v, lambda w: 2 * w, in_shape=3)
    >>> (D @ D + D) @ np.ones(3)
    array([6., 6., 6.])
    """

    __array_ufunc__ = None  # NumPy scalars and arrays leave `a * A` and `a @ A` to this class
    __array_priority__: float = 20.0

    def __init__(
        self,
        matvec: Matvec,
        rmatvec: Matvec | None = None,
        *,
        in_shape: tuple[int, ...] | int,
        out_shape: tuple[int, ...] | int | None = None,
        batch_shape: tuple[int, ...] = (),
        dtype: DType = None,
        take: Take | None = None,
        inverse: Callable[[], LinearOperator] | None = None,
        cast: Callable[[Any], LinearOperator] | None = None,
    ) -> None:
        functions: tuple[Any, ...] = matvec, rmatvec, take, inverse, cast
        for name, function in zip(("matvec", "rmatvec", "take", "inverse", "cast"), functions):
            if not callable(function) and (function is not None or name == "matvec"):
                raise TypeError(f"LinearOperator: `{name}` must be callable, got {type(function).__name__}")
        self._matvec, self._rmatvec = matvec, rmatvec
        self._take, self._inverse, self._cast = take, inverse, cast
        self.in_shape: tuple[int, ...] = checked_shape(in_shape, "in_shape")
        self.out_shape: tuple[int, ...] = self.in_shape if out_shape is None else checked_shape(out_shape, "out_shape")
        self.batch_shape: tuple[int, ...] = checked_shape(batch_shape, "batch_shape")
        self.dtype: DType = np.dtype(np.float64) if dtype is None else checked_dtype(dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of one system's matrix."""
        return math.prod(self.out_shape), math.prod(self.in_shape)

    @property
    def ndim(self) -> int:
        """Number of axes of the matrix: always 2."""
        return 2

    def __repr__(self) -> str:
        batch = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        return f"<LinearOperator {self.shape[0]}x{self.shape[1]}{batch}, dtype={self.dtype}>"

    def matvec(self, v: Array) -> Array:
        """Return A v for each system; a flat argument gives a flat result."""
        return multiply(self._matvec, v, self.batch_shape, self.in_shape, self.out_shape, "matvec")

    def rmatvec(self, w: Array) -> Array:
        """Return A^H w for each system; a flat argument gives a flat result."""
        if self._rmatvec is None:
            raise TypeError("LinearOperator.rmatvec: this operator was built without `rmatvec`")
        return multiply(self._rmatvec, w, self.batch_shape, self.out_shape, self.in_shape, "rmatvec")

    def matmat(self, columns: Array) -> Array:
        """Return A V for the columns of V, shape ``batch_shape + (N, K)``: K products."""
        return multiply_columns(self.matvec, columns, self.batch_shape, self.shape[1], self.shape[0])

    def rmatmat(self, columns: Array) -> Array:
        """Return A^H W for the columns of W, shape ``batch_shape + (N, K)``: K products."""
        return multiply_columns(self.rmatvec, columns, self.batch_shape, self.shape[0], self.shape[1])

    def take(self, indices: Indices) -> LinearOperator:
        """Return the operator of some systems of the flattened batch, which then is ``(len(indices),)``."""
        if self._take is not None:
            return self._take(indices)
        if not self.batch_shape:
            raise ValueError("LinearOperator.take: this operator has no batch axes")
        if np.unique(indices).size != len(indices):
            raise ValueError("LinearOperator.take: this operator was built without `take`, so that no index may repeat")
        return embed(self, indices)

    def approximate_inverse(self) -> LinearOperator | None:
        """Return the operator's own cheap approximation of A^-1; None if it has none."""
        return None if self._inverse is None else self._inverse()

    def astype(self, dtype: DType) -> LinearOperator:
        """Return the operator with products in another precision, if it can compute them so, else itself."""
        return self if self._cast is None else self._cast(dtype)

    def flat(self) -> LinearOperator:
        """Return the operator on arrays (B, N), the form that the solvers use."""
        size = math.prod(self.batch_shape)
        if len(self.batch_shape) == 1 and len(self.in_shape) == 1 and len(self.out_shape) == 1:
            return self

        def with_shapes(apply: Matvec, to: Shape, back: Shape) -> Matvec:
            flat_back = size, math.prod(back)

            def product(v: Array) -> Array:
                w = apply(array_namespace(v).reshape(v, self.batch_shape + to))
                is_whole = is_array(w) and math.prod(w.shape) == math.prod(flat_back)
                return array_namespace(w).reshape(w, flat_back) if is_whole else w

            return product

        return self._alike(
            with_shapes(self._matvec, self.in_shape, self.out_shape),
            None if self._rmatvec is None else with_shapes(self._rmatvec, self.out_shape, self.in_shape),
            in_shape=self.shape[1],
            out_shape=self.shape[0],
            batch_shape=(size,),
            take=(lambda indices: self.take(indices).flat()) if self.batch_shape else None,
            inverse=then(self._inverse, LinearOperator.flat),
            cast=then(self._cast, LinearOperator.flat),
        )

    @property
    def H(self) -> LinearOperator:
        """The adjoint: products with A^H."""
        if self._rmatvec is None:
            raise TypeError("LinearOperator.H: this operator was built without `rmatvec`")
        return self._alike(
            self._rmatvec,
            self._matvec,
            in_shape=self.out_shape,
            out_shape=self.in_shape,
            take=None if self._take is None else lambda indices: self.take(indices).H,
            inverse=then(self._inverse, lambda A: A.H),
            cast=then(self._cast, lambda A: A.H),
        )

    @property
    def T(self) -> LinearOperator:
        """The transpose: products with A^T = conj(A^H)."""
        adjoint = self.H
        return adjoint._alike(
            lambda w: conj(adjoint._matvec(conj(w))),
            lambda v: conj(self._matvec(conj(v))),
            take=None if self._take is None else lambda indices: self.take(indices).T,
        )

    def __add__(self, other: Any) -> LinearOperator:
        other = _operand(other)
        for name in ("in_shape", "out_shape", "batch_shape"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                raise ValueError(f"LinearOperator: both terms of a sum must have one `{name}`, got {mine} and {others}")
        return self._like(
            other,
            lambda v: self._matvec(v) + other._matvec(v),
            lambda w: self._rmatvec(w) + other._rmatvec(w),  # type: ignore[misc]
            lambda indices: self.take(indices) + other.take(indices),
        )

    __radd__ = __add__

    def __sub__(self, other: Any) -> LinearOperator:
        return self + (-_operand(other))

    def __rsub__(self, other: Any) -> LinearOperator:
        return _operand(other) - self

    def __neg__(self) -> LinearOperator:
        return self * -1

    def __mul__(self, factor: Any) -> LinearOperator:
        factor = as_number(factor)
        scaled = self._like(
            self,
            lambda v: self._matvec(v) * factor,
            lambda w: self._rmatvec(w) * factor.conjugate(),  # type: ignore[misc]
            lambda indices: self.take(indices) * factor,
        )
        if isinstance(factor, complex) and host_dtype(self.dtype).kind != "c":
            scaled.dtype = np.result_type(host_dtype(self.dtype), np.complex64)
        return scaled

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> LinearOperator:
        return self * (1 / as_number(divisor))

    def __matmul__(self, other: Any) -> Any:
        if not is_array(other) and not isinstance(other, list | tuple):
            return self._compose(_operand(other))
        other = other if is_array(other) else np.asarray(other)
        as_state = other.shape == self.batch_shape + self.in_shape
        if not as_state and other.ndim == len(self.batch_shape) + 2 and other.shape[-2] == self.shape[1]:
            return self.matmat(other)
        return self.matvec(other)

    def __rmatmul__(self, other: Any) -> Any:
        return self.T.matvec(other) if is_array(other) else _operand(other)._compose(self)

    __call__ = __matmul__
    dot = __matmul__

    def to_scipy(self) -> Any:
        """Return SciPy's operator of the whole, block-diagonal if batched, on flat arrays of all systems' entries."""
        full_in, full_out = self.batch_shape + self.in_shape, self.batch_shape + self.out_shape
        return scipy.sparse.linalg.LinearOperator(
            (math.prod(full_out), math.prod(full_in)),
            matvec=lambda v: np.asarray(self.matvec(np.reshape(v, full_in))).reshape(-1),
            rmatvec=lambda w: np.asarray(self.rmatvec(np.reshape(w, full_out))).reshape(-1),
            dtype=host_dtype(self.dtype),
        )

    def _compose(self, other: LinearOperator) -> LinearOperator:
        if other.out_shape != self.in_shape or other.batch_shape != self.batch_shape:
            raise ValueError(
                f"LinearOperator: A @ B needs B's out_shape {other.out_shape} and batch_shape {other.batch_shape} "
                f"to be A's in_shape {self.in_shape} and batch_shape {self.batch_shape}"
            )
        return self._like(
            other,
            lambda v: self._matvec(other._matvec(v)),
            lambda w: other._rmatvec(self._rmatvec(w)),  # type: ignore[misc]
            lambda indices: self.take(indices)._compose(other.take(indices)),
            in_shape=other.in_shape,
        )

    def _alike(self, matvec: Matvec, rmatvec: Matvec | None = None, **others: Any) -> LinearOperator:
        """Operator with these products, and with this one's shapes, batch and dtype unless `others` gives them."""
        names = "in_shape", "out_shape", "batch_shape", "dtype"
        return LinearOperator(matvec, rmatvec, **{name: getattr(self, name) for name in names} | others)

    def _like(self, other: LinearOperator, matvec: Matvec, rmatvec: Matvec, take: Take, **shape: Any) -> LinearOperator:
        """Operator built of self and other, which has an adjoint where both have one."""
        has_adjoint = self._rmatvec is not None and other._rmatvec is not None
        return self._alike(
            matvec,
            rmatvec if has_adjoint else None,
            dtype=common_dtype(self.dtype, other.dtype),
            take=take if self.batch_shape else None,
            **shape,
        )


def embed(A: LinearOperator, indices: Indices) -> LinearOperator:
    """Some systems of a batched operator without `take`: pad with zeros, multiply the whole batch, keep those rows."""
    size, indices = math.prod(A.batch_shape), np.asarray(indices)

    def some(product: Matvec, expected: Shape) -> Matvec:
        def padded_product(v: Array) -> Array:
            xp = array_namespace(v)
            padded = xp.zeros((size, *expected), dtype=v.dtype, device=v.device)
            scatter(padded, indices, v)
            out = product(xp.reshape(padded, A.batch_shape + expected))
            return gather(xp.reshape(out, (size, *out.shape[len(A.batch_shape) :])), indices)

        return padded_product

    return A._alike(
        some(A._matvec, A.in_shape),
        None if A._rmatvec is None else some(A._rmatvec, A.out_shape),
        batch_shape=(len(indices),),
        take=None if A._take is None else lambda part: A.take(indices[part]),
        inverse=then(A._inverse, lambda M: M.take(indices)),
        cast=then(A._cast, lambda other: embed(other, indices)),
    )


def _operand(other: Any) -> LinearOperator:
    from implicitsolve.operators._convert import aslinearoperator

    return aslinearoperator(other, "operand")
