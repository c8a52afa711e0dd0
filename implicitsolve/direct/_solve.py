"""A direct solve that ends with a measured residual."""

from __future__ import annotations

import numpy as np

from implicitsolve._namespace import array_namespace, from_host, norm2
from implicitsolve._typing import Array, HostArray
from implicitsolve.direct._factorization import Factorization
from implicitsolve.krylov import KrylovOutcome
from implicitsolve.operators import LinearOperator
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop

MOST_REFINEMENTS = 5  # steps after which a direct solve that is not accurate enough has failed
REFINED = 0.5  # fraction of the residual that a step must at least leave behind


def solve_factored(
    A: LinearOperator, inverse: Factorization, b: Array, stop: LinearStop, *, adjoint: bool = False
) -> KrylovOutcome:
    """Solve A x = b, or A^H x = b, on arrays (B, N), by the factors of A, refined until `stop` holds.

    Where the inequality does not hold after that, the status is SINGULAR or STAGNATED. `iterations` counts the solves.
    """
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
    return KrylovOutcome(x, norms, _status(norms, target, inverse), iterations)


def _status(norms: HostArray, target: HostArray, inverse: Factorization) -> HostArray:
    """Verdict on each system."""
    held = norms <= target
    failed = np.where(np.reshape(inverse.status, -1) == Status.SINGULAR, int(Status.SINGULAR), int(Status.STAGNATED))
    return np.where(held, int(Status.CONVERGED), failed)
