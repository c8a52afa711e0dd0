"""What every Krylov method takes and returns; the simplest of them, the first terms of the Neumann series."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import norm2
from implicitsolve.operators import LinearOperator
from implicitsolve.status import Status
from implicitsolve.stopping import check_limit, check_number

# Relative reduction of the residual below which a cycle, or a call, counts as idle: a digit would take 2300 of them.
IDLE_FALL = 1e-3


@dataclass(frozen=True)
class KrylovOutcome:
    """Result of a Krylov solve on arrays (B, N).

    Attributes
    ----------
    x : Array (B, N)
        Solution.
    residual_norm : ndarray (B,)
        2-norm of b - A x: measured by a product with `confirm`, else from the recurrence.
    status : ndarray (B,) of int
        `Status` codes.
    iterations : ndarray (B,) of int
        Krylov iterations of each system.
    """

    x: Array
    residual_norm: HostArray
    status: HostArray
    iterations: HostArray


class ApproximateInverse(Protocol):
    """An approximate inverse: its products, and the restriction to some systems of the batch."""

    def matvec(self, v: Array) -> Array: ...
    def take(self, indices: Indices) -> ApproximateInverse: ...


class LinearMethod(Protocol):
    """Frozen settings of a linear solver, and what they declare about it as class attributes.

    Attributes
    ----------
    kind : {"krylov", "direct"}
        Which method the settings have: `solve`, as a `KrylovMethod`, or `factor`, as a `DirectMethod`.
    may_transform : bool
        Whether an equivalent system may be solved instead: preconditioned by the approximate inverse that A offers, or
        reduced by even-odd elimination.
    """

    kind: ClassVar[str]
    may_transform: ClassVar[bool] = False


class KrylovMethod(LinearMethod, Protocol):
    """Frozen settings of an iterative method that needs products with A alone."""

    kind: ClassVar[str] = "krylov"
    may_transform: ClassVar[bool] = True

    def solve(
        self,
        A: LinearOperator,
        b: Array,
        *,
        target: HostArray,
        max_iterations: int,
        M: Any = None,
        x0: Array | None = None,
        confirm: bool = True,
        polish: bool = False,
    ) -> KrylovOutcome:
        """Solve A x = b on arrays (B, N) until ||b - A x||_2 <= target for each system.

        With `confirm`, convergence is claimed only after a product at the returned x has shown it. `polish` permits a
        last correction M r that costs no product and is not confirmed; methods that have none ignore it.
        """
        ...


def start(A: LinearOperator, b: Array, x0: Array | None) -> tuple[Array, Array, HostArray]:
    """Return x, r = b - A x and ||r||; no product when x0 is None. Where b is zero, x = 0 whatever x0 is."""
    xp = array_namespace(b)
    if x0 is None:
        return xp.zeros_like(b), b, norm2(b)
    x = xp.where(xp.any(b != 0, axis=1, keepdims=True), x0, xp.zeros_like(b))
    r = b - A.matvec(x)
    return x, r, norm2(r)


def part_of(x: Array, rows: Indices) -> Array:
    """Some rows of x, or x itself."""
    return x if rows.size == x.shape[0] else gather(x, rows)


def update(x: Array, rows: Indices, where: HostArray, values: Array) -> Array:
    """Return x with the values of some rows replaced `where` true; x is not written to, since it may be b itself."""
    if where.all() and rows.size == x.shape[0]:
        return values
    x, kept = array_namespace(x).asarray(x, copy=True), np.flatnonzero(where)
    if kept.size:
        scatter(x, rows[kept], part_of(values, kept))
    return x


def classify(
    norms: HostArray, target: HostArray, *, broken: HostArray, nonfinite: HostArray, stagnated: HostArray | None = None
) -> HostArray:
    status = np.full(norms.shape, int(Status.ITERATION_LIMIT))
    if stagnated is not None:
        status[stagnated] = Status.STAGNATED
    status[broken] = Status.BREAKDOWN
    status[nonfinite | ~np.isfinite(norms)] = Status.NONFINITE
    status[np.isfinite(norms) & (norms <= target)] = Status.CONVERGED
    return status


def with_idle_measured(outcome: KrylovOutcome, A: LinearOperator, b: Array, target: HostArray) -> KrylovOutcome:
    """Measure residuals where x = 0 was accepted without a product: no x solves a system whose A has a NaN."""
    rows = np.flatnonzero((outcome.iterations == 0) & (outcome.status == Status.CONVERGED))
    if not rows.size or 0 in b.shape:
        return outcome
    norms, status = outcome.residual_norm.copy(), outcome.status.copy()
    with np.errstate(all="ignore"):
        norms[rows] = norm2(part_of(b, rows) - A.take(rows).matvec(part_of(outcome.x, rows)))
    status[rows] = classify(
        norms[rows], target[rows], broken=norms[rows] > target[rows], nonfinite=np.isnan(norms[rows])
    )
    return replace(outcome, residual_norm=norms, status=status)


@dataclass(frozen=True, kw_only=True)
class TruncatedInverse(KrylovMethod):
    """A^-1 b by the polynomial P_n(I - A) b = b + (I - A) b + ... + (I - A)^n b, with A near the identity.

    Parameters
    ----------
    order : int, optional
        n, the number of products. The default 1 is that of most experiments of [1]_; 0 returns b.
    damping : float, optional
        tau in (0, 1]: the polynomial ``tau sum_i (I - tau A)^i``, i = 0 ... n, which converges for eigenvalues of
        I - A left of 1 where the plain series does not. As the method of `pull_back` it gives the phantom gradient of
        [2]_. Default 1.

    Notes
    -----
    As the linear method of `NewtonKrylov`, with full steps, it is the iteration of [1]_, and with order 0 Picard's;
    as the method of `pull_back` its truncated adjoint. The system is not transformed: no block is eliminated, and no
    preconditioner used but one that is given. Nothing is iterated to a tolerance: the status is STOPPED unless a
    product at the returned x, which only `linear_solve` and the derivatives spend, shows that the rule holds.

    Cost: n products, one more to measure; two vectors.

    References
    ----------
    .. [1] M. Kazi, "Implicitly-defined neural networks for sequence labeling" (2016), sections 4.2 and 4.3.
    .. [2] Z. Geng, X.-Y. Zhang, S. Bai, Y. Wang and Z. Lin, "On training implicit models", NeurIPS (2021).

    Examples
    --------
    >>> A = np.eye(2) - np.array([[0.0, 0.5], [0.5, 0.0]])
    >>> result = ims.linear_solve(A, np.ones(2), method=ims.TruncatedInverse(order=2))
    >>> result.x, result.status.name
    (array([1.75, 1.75]), 'STOPPED')
    """

    may_transform: ClassVar[bool] = False

    order: int = 1
    damping: float = 1.0

    def __post_init__(self) -> None:
        check_limit("TruncatedInverse", "order", self.order)
        check_number("TruncatedInverse", "damping", self.damping)
        if not 0 < self.damping <= 1:
            raise ValueError(f"TruncatedInverse: `damping` must be in (0, 1], got {self.damping}")

    def solve(
        self,
        A: LinearOperator,
        b: Array,
        *,
        target: HostArray,
        max_iterations: int,
        M: Any = None,
        x0: Array | None = None,
        confirm: bool = True,
        polish: bool = False,
    ) -> KrylovOutcome:
        """Apply the polynomial on arrays (B, N); see `KrylovMethod`. Without `confirm` the norm lacks the last term."""
        x, r, norms = start(A, b, x0)
        products = min(self.order, max_iterations)
        with np.errstate(all="ignore"):
            for i in range(products + 1):
                x = x + self.damping * (r if M is None else M.matvec(r))
                if i < products or confirm:
                    r = b - A.matvec(x)
                    norms = norm2(r)
        is_finite = np.isfinite(norm2(x))
        status = np.where(is_finite, int(Status.STOPPED), int(Status.NONFINITE))
        if confirm:
            status[is_finite & (norms <= target)] = Status.CONVERGED
        return KrylovOutcome(array_namespace(b).asarray(x), norms, status, np.full(norms.shape, products))
