"""TruncatedInverse: the first terms of the Neumann series of an inverse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from implicitsolve._namespace import array_namespace, norm2
from implicitsolve._typing import Array, HostArray
from implicitsolve.krylov._base import KrylovOutcome, start
from implicitsolve.operators import LinearOperator
from implicitsolve.status import Status
from implicitsolve.stopping import check_limit, check_number


@dataclass(frozen=True, kw_only=True)
class TruncatedInverse:
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
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> A = np.eye(2) - np.array([[0.0, 0.5], [0.5, 0.0]])
    >>> result = ims.linear_solve(A, np.ones(2), method=ims.TruncatedInverse(order=2))
    >>> result.x, result.status.name
    (array([1.75, 1.75]), 'STOPPED')
    """

    kind: ClassVar[str] = "krylov"
    may_transform: ClassVar[bool] = False
    partitioned: ClassVar[bool] = True

    order: int = 1
    damping: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
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
        """Apply the polynomial on arrays (B, N); see `KrylovMethod`. Without `confirm` the norm is of a term fewer."""
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
