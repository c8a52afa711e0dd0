"""What direct methods share: traits, the inverse of a factored matrix, a solve by it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import array_namespace, is_complex
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct._layout import Layout
from implicitsolve.kernels import BACKENDS, Factors
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov import KrylovOutcome, LinearMethod
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._arguments import multiply_stacked
from implicitsolve.result import per_system, status_per_system
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, check_choice, check_limit, check_number

MOST_REFINEMENTS = 5  # LAPACK's ITMAX in xGERFS
REFINED = 0.5  # a step that does not halve the residual is the last: Higham (2002), Accuracy and Stability, 12.1


class Factored(Protocol):
    """The inverse of any factored matrix: an operator with adjoint products, and a status for each system."""

    @property
    def status(self) -> Any:
        """CONVERGED or SINGULAR, for one system or an array of them."""
        ...

    def flat(self) -> LinearOperator:
        """Return the inverse on arrays (B, N)."""
        ...


class FactoredInverse(LinearOperator):
    """The inverse of a factored matrix, or of a batch of them."""

    status: Any
    singular_block: Any

    def _mark(self, singular: HostArray) -> None:
        """Note the block in which each system of the batch was found singular, -1 where it was not."""
        codes = np.where(singular < 0, int(Status.CONVERGED), int(Status.SINGULAR))
        self.status = status_per_system(codes, self.batch_shape)
        self.singular_block = per_system(singular, self.batch_shape)

    def solve(self, b: Array) -> Array:
        """Return A^-1 b for each system: `matvec` under the usual name of solvers."""
        return self.matvec(b)

    def solve_adjoint(self, b: Array) -> Array:
        """Return A^-H b for each system."""
        return self.rmatvec(b)

    def negative(self, F: Array) -> Array:
        """Return -A^-1 F for F (B, N) of the flattened batch: a Newton direction, without checks and spare copies."""
        return -self._matvec(F)


class Factorization(FactoredInverse):
    """The inverse of a block-banded matrix, or of a batch of them, by triangular factors that it keeps.

    Made by ``BlockLU().factor(A)`` or ``CyclicReduction().factor(A)``. An operator like any other: `matvec` multiplies
    by A^-1, `rmatvec` by A^-H, and it can be the preconditioner M of a Krylov method.

    Attributes
    ----------
    status : Status, or ndarray of int
        CONVERGED, or SINGULAR: then every product with that system's inverse is NaN.
    singular_block : int, or ndarray of int
        The block in which elimination found a pivot that was zero or not finite; -1 if none was.
    growth : float, or ndarray of float
        Growth of the entries in the elimination, relative to those of A, times its multipliers. The solution solves a
        system whose matrix differs from A by about growth * eps * ||A||. Infinite where singular.
    nbytes : int
        Bytes that the factors hold.
    A : BlockBandedMatrix or None
        The matrix; None if the factors took its place, and for systems taken from a batch without refinement.

    Notes
    -----
    Vectors have the shape ``(*batch, T, k)`` or ``(*batch, T k)``. Solves are in the precision of A; a complex
    right-hand side of a real A is solved as two real ones.

    Examples
    --------
    >>> from implicitsolve import BlockBandedMatrix, BlockLU
    >>> second_difference = np.broadcast_to(np.array([-1.0, 2.0, -1.0])[:, None, None], (4, 3, 1, 1))
    >>> inverse = BlockLU().factor(BlockBandedMatrix(second_difference, lower=1, upper=1))
    >>> inverse.solve(np.array([1.0, 0.0, 0.0, 1.0]))
    array([1., 1., 1., 1.])
    >>> inverse.status.name, inverse.singular_block
    ('CONVERGED', -1)
    """

    def __init__(self, inverse: _Inverse) -> None:  # which holds no reference to this object: no circle
        batch_shape, factors = inverse.batch_shape, inverse.factors
        super().__init__(
            lambda b: inverse.solve(b[..., None], adjoint=False)[..., 0],
            lambda b: inverse.solve(b[..., None], adjoint=True)[..., 0],
            in_shape=inverse.in_shape,
            batch_shape=batch_shape,
            dtype=inverse.like.dtype,
            take=(lambda indices: Factorization(inverse.take(indices))) if batch_shape else None,
        )
        self._factored = inverse
        self.A = inverse.A
        singular, order = factors.singular, inverse.layout.order  # the block of A in which the kernel's block begins
        self._mark(singular if order is None else np.where(singular < 0, -1, order[singular, 0]))
        self.growth: Any = per_system(factors.growth, batch_shape)

    @classmethod
    def of(
        cls, A: BlockBandedMatrix, factors: Factors, layout: Layout, *, refine: int = 0, overwritten: bool = False
    ) -> Factorization:
        """Return the inverse of A by its factors, which may have taken the place of its blocks."""
        like = A.blocks[..., :0] * 1  # no entries: it tells the library, the dtype and the device
        return cls(_Inverse(None if overwritten else A, A.batch_shape, A.in_shape, like, factors, layout, refine))

    def __repr__(self) -> str:
        """Shape, batch, dtype, and what went wrong."""
        singular = int(np.count_nonzero(np.asarray(self.status) == Status.SINGULAR))
        growth = float(np.max(self.growth, initial=1.0))
        batch = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        size = f"{self.shape[0]}x{self.shape[1]}{batch}"
        return f"<Factorization {size}, dtype={self.dtype}, {singular} singular, growth={growth:.3g}>"

    @property
    def nbytes(self) -> int:
        """Bytes that the factors hold."""
        return self._factored.factors.nbytes

    def negative(self, F: Array) -> Array:
        return self._factored.negative(F)

    def matmat(self, columns: Array) -> Array:
        """Return A^-1 B for the columns of B, shape ``batch_shape + (N, K)``, all at once."""
        return multiply_stacked("Factorization", self, lambda b: self._factored.solve(b, adjoint=False), columns)

    def rmatmat(self, columns: Array) -> Array:
        """Return A^-H B for the columns of B, shape ``batch_shape + (N, K)``, all at once."""
        return multiply_stacked("Factorization", self, lambda b: self._factored.solve(b, adjoint=True), columns)


@dataclass(frozen=True)
class _Inverse:
    """What a solve needs: factors, the arrangement of their blocks, and A for the refinement."""

    A: BlockBandedMatrix | None
    batch_shape: tuple[int, ...]
    in_shape: tuple[int, ...]
    like: Array  # an empty one of A's library and dtype
    factors: Factors
    layout: Layout
    refine: int

    def solve(self, b: Array, adjoint: bool) -> Array:
        xp = array_namespace(b, self.like)
        flat = xp.reshape(b, (math.prod(self.batch_shape), *self.in_shape, b.shape[-1]))
        with np.errstate(all="ignore"):
            x = xp.reshape(self._in_precision_of_A(flat, adjoint), b.shape)
            for _ in range(self.refine):
                A: Any = self.A
                product = xp.reshape((A.rmatmat if adjoint else A.matmat)(self._columns(x)), b.shape)
                r = xp.reshape(b - product, flat.shape)
                x = x + xp.reshape(self._in_precision_of_A(r, adjoint), b.shape)
        return x

    def negative(self, F: Array) -> Array:
        in_place = getattr(self.factors, "solve_in_place", None)
        x = -F
        parts = array_namespace(F).reshape(x, (x.shape[0], *self.in_shape, 1))
        if in_place is None or self.refine or self.layout.order is not None or F.dtype != self.like.dtype:
            return array_namespace(F).reshape(self.solve(parts, adjoint=False), F.shape)
        in_place(parts)
        return x

    def take(self, indices: Indices) -> _Inverse:
        """The inverses of some systems of the flattened batch; A, which may be as large, only where it is used."""
        A = self.A.take(indices) if self.A is not None and self.refine else None
        return replace(self, A=A, batch_shape=(len(indices),), factors=self.factors.take(indices))

    def _in_precision_of_A(self, b: Array, adjoint: bool) -> Array:
        """Solve for b (B, T, k, K) in the dtype of A; the result has the common dtype."""
        xp, dtype = array_namespace(b), self.like.dtype
        if is_complex(b) and not xp.isdtype(dtype, "complex floating"):
            K = b.shape[-1]
            x = self._in_precision_of_A(xp.concat([xp.real(b), xp.imag(b)], axis=-1), adjoint)
            return xp.astype(x[..., :K] + 1j * x[..., K:], xp.result_type(b.dtype, dtype))
        if b.dtype == dtype:
            return self._arrange(b, adjoint)
        return xp.astype(self._arrange(xp.astype(b, dtype), adjoint), xp.result_type(b.dtype, dtype))

    def _arrange(self, b: Array, adjoint: bool) -> Array:
        x = self.factors.solve(self.layout.vectors(b), adjoint)
        return self.layout.restore(x, self.in_shape[1])

    def _columns(self, x: Array) -> Array:
        return array_namespace(x).reshape(x, (*self.batch_shape, math.prod(self.in_shape), x.shape[-1]))


def solve_factored(
    A: LinearOperator, inverse: Factored, b: Array, stop: LinearStop, *, adjoint: bool = False
) -> KrylovOutcome:
    """Solve A x = b, or A^H x = b, on (B, N) by a factorization, refined until `stop` holds, else STAGNATED."""
    flat = inverse.flat()
    solve, product = (flat.rmatvec, A.rmatvec) if adjoint else (flat.matvec, A.matvec)
    xp = array_namespace(b)
    target = stop.target(norm2(b), b)
    with np.errstate(all="ignore"):
        x = solve(b)
        r = b - product(x)
        norms = norm2(r)
        iterations = np.ones(norms.shape, dtype=int)
        for _ in range(MOST_REFINEMENTS):
            again = np.isfinite(norms) & (norms > target)
            if not again.any():
                break
            better_x = x + solve(r)
            better_r = b - product(better_x)
            better_norms = norm2(better_r)
            is_better = again & (better_norms < norms)
            where = from_host(is_better, b)[:, None]
            x, r = xp.where(where, better_x, x), xp.where(where, better_r, r)
            iterations += again
            if not (better_norms < REFINED * norms)[again].any():
                norms = np.where(is_better, better_norms, norms)
                break
            norms = np.where(is_better, better_norms, norms)
    failed = np.where(np.reshape(inverse.status, -1) == Status.SINGULAR, int(Status.SINGULAR), int(Status.STAGNATED))
    status = np.where(norms <= target, int(Status.CONVERGED), failed)
    return KrylovOutcome(x, norms, status, iterations)


GROWTH_LIMIT = 16.0  # measured: the scaled residual of a solve is at most twice the growth, mostly a third of it


class DirectMethod(LinearMethod, Protocol):
    """Frozen settings of a method that factors a matrix; the factors solve with it and with its adjoint."""

    kind: ClassVar[str] = "direct"

    def factor(self, A: BlockBandedMatrix, *, overwrite: bool = False) -> Factorization:
        """Factor A, each system of a batch separately; a singular one gets a status and does not raise."""
        ...


@dataclass(frozen=True, kw_only=True)
class BlockSettings(DirectMethod):
    """Settings of the block factorizations, checked."""

    _PIVOTING: ClassVar[tuple[str, ...]] = ("auto", "block", "band")

    pivoting: str = "auto"
    refine: int = 0
    growth_limit: float = GROWTH_LIMIT
    backend: str = "auto"

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_limit(owner, "refine", self.refine)
        check_choice(owner, "pivoting", self.pivoting, self._PIVOTING)
        check_choice(owner, "backend", self.backend, BACKENDS)
        check_number(owner, "growth_limit", self.growth_limit, least=1)
