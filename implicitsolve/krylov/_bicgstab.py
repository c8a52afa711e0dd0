"""BiCGSTAB for each system of a batch, restarted where its recurrence breaks down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, eps, from_host, gather, norm2, scatter, to_host
from implicitsolve._typing import Array, HostArray
from implicitsolve.krylov._base import KrylovOutcome, classify, start
from implicitsolve.operators import LinearOperator

MAX_RESTARTS = 20  # beyond these a recurrence that keeps breaking down is called broken


@dataclass(frozen=True, kw_only=True)
class BiCGSTAB:
    """Stabilized biconjugate gradients: short recurrences, 7 vectors, two products an iteration.

    Notes
    -----
    Scalars belong to each system. Where <r0, r> vanishes against ||r0|| ||r||, or a step has no length, that system
    starts anew from its present residual. Convergence is claimed from a measured residual.

    Cost per iteration: 2 products, 2 with M, 1 transfer to the host. Holds 7 vectors per system, 9 with M.

    References
    ----------
    .. [1] H. A. van der Vorst, "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG for the solution of
           nonsymmetric linear systems", SIAM J. Sci. Stat. Comput. 13 (1992) 631-644.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> ims.linear_solve(np.array([[2.0, 1.0], [0.0, 4.0]]), np.array([3.0, 4.0]), method=ims.BiCGSTAB()).x.round(9)
    array([1., 1.])
    """

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
    ) -> KrylovOutcome:
        """Solve on arrays (B, N); see `KrylovMethod`."""
        size = b.shape[0]
        x, r, norms = start(A, b, x0)
        iterations, restarts = np.zeros(size, dtype=int), np.zeros(size, dtype=int)
        nonfinite = ~np.isfinite(norms)
        broken = np.zeros(size, dtype=bool)
        running = (norms > target) & ~nonfinite
        while running.any():
            rows = np.flatnonzero(running)
            left = max_iterations - iterations[rows]
            if (left <= 0).all():
                break
            whole = rows.size == size
            part, precondition = (A, M) if whole else (A.take(rows), None if M is None else M.take(rows))
            run = _recurrence(part, precondition, gather(r, rows), norms[rows], target[rows], left)
            new_x = gather(x, rows) + run.dx
            measured = confirm or bool((run.norm > target[rows]).any())
            new_r = gather(b, rows) - part.matvec(new_x) if measured else run.r
            new_norms = norm2(new_r)
            better = new_norms < norms[rows]
            scatter(x, rows[better], gather(new_x, np.flatnonzero(better)))
            r = b + 0 if r is b else r
            scatter(r, rows[better], gather(new_r, np.flatnonzero(better)))
            restarts[rows] += 1
            iterations[rows] += run.iterations
            norms[rows] = np.where(better, new_norms, norms[rows])
            nonfinite[rows] = run.nonfinite & ~better
            done = (norms[rows] <= target[rows]) | nonfinite[rows] | (iterations[rows] >= max_iterations)
            broken[rows] = ~done & (~better | (restarts[rows] >= MAX_RESTARTS))
            running[rows] = ~done & ~broken[rows]
        return KrylovOutcome(x, norms, classify(norms, target, broken, nonfinite), iterations)


class _Run:
    """Where the recurrence stood when every system of it had ended."""

    def __init__(self, dx: Array, r: Array, norm: HostArray, iterations: HostArray, nonfinite: HostArray) -> None:
        self.dx, self.r, self.norm, self.iterations, self.nonfinite = dx, r, norm, iterations, nonfinite


def _recurrence(
    A: LinearOperator, M: Any, r: Array, norms: HostArray, target: HostArray, limit: HostArray
) -> _Run:
    """BiCGSTAB from dx = 0 until each system converged, broke down or met its limit; finished ones stand still."""
    xp = array_namespace(r)
    tiny = eps(xp, r.dtype)
    r0 = r
    p = r
    dx = xp.zeros_like(r)
    rho = xp.vecdot(r0, r)[:, None]
    alive = np.ones(r.shape[0], dtype=bool)
    iterations = np.zeros(r.shape[0], dtype=int)
    nonfinite = np.zeros(r.shape[0], dtype=bool)
    norm = norms.copy()
    while alive.any():
        live = from_host(alive, r)[:, None]
        p_hat = p if M is None else M.matvec(p)
        v = A.matvec(p_hat)
        with np.errstate(all="ignore"):
            alpha = xp.where(live, rho / xp.vecdot(r0, v)[:, None], xp.zeros_like(rho))
            s = xp.where(live, r - alpha * v, r)
        s_hat = s if M is None else M.matvec(s)
        t = A.matvec(s_hat)
        with np.errstate(all="ignore"):
            tt = xp.vecdot(t, t)[:, None]
            omega = xp.where(live & (xp.abs(tt) > 0), xp.vecdot(t, s)[:, None] / tt, xp.zeros_like(rho))
            new_dx = dx + alpha * p_hat + omega * s_hat
            new_r = s - omega * t
            rho_new = xp.vecdot(r0, new_r)[:, None]
            beta = (rho_new / rho) * (alpha / omega)
            checks = xp.concat([xp.abs(rho_new), xp.abs(omega), xp.abs(alpha)], axis=1)
            new_norm = norm2(new_r)
            host = to_host(checks).astype(np.float64)
            finite = np.isfinite(new_norm) & np.isfinite(host).all(axis=1)
            keep = from_host(alive & finite, r)[:, None]
            dx, r = xp.where(keep, new_dx, dx), xp.where(keep, new_r, r)
            p = xp.where(keep, r + beta * (p - omega * v), p)
            rho = xp.where(keep, rho_new, rho)
        iterations += alive
        norm = np.where(alive & finite, new_norm, norm)
        nonfinite |= alive & ~finite
        lost = (host[:, 0] <= tiny * norms * new_norm) | (host[:, 1] == 0) | (host[:, 2] == 0)
        alive &= finite & (norm > target) & ~lost & (iterations < limit)
    return _Run(dx, r, norm, iterations, nonfinite)
