"""BiCGSTAB for each system of a batch, restarted where its recurrence breaks down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, gather, scatter, to_host
from implicitsolve._arrays.namespace import array_namespace, eps, is_safe, quotient
from implicitsolve._typing import Array, HostArray
from implicitsolve.kernels import Kernel
from implicitsolve.kernels._norms import norm2
from implicitsolve.kernels._vectors import vectors_like
from implicitsolve.krylov._base import KrylovMethod, KrylovOutcome, classify, part_of, start, update
from implicitsolve.operators import LinearOperator

MAX_RESTARTS = 20  # runs that did not halve the residual after which a system has broken down


@dataclass(frozen=True, kw_only=True)
class BiCGSTAB(KrylovMethod):
    """Stabilized biconjugate gradients: short recurrences, two products per iteration.

    Notes
    -----
    Each system has its own scalars. Where <r0, r> is negligible against ||r0|| ||r||, or a step length vanishes, that
    system restarts from its current residual. Convergence is confirmed by a measured residual.

    Cost per iteration: 2 products, 2 with M, 1 short transfer to the host. Holds about 12 vectors per system.

    References
    ----------
    .. [1] H. A. van der Vorst, "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG for the solution of
           nonsymmetric linear systems", SIAM J. Sci. Stat. Comput. 13 (1992) 631-644.

    Examples
    --------
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
        polish: bool = False,
    ) -> KrylovOutcome:
        size = b.shape[0]
        x, r, norms = start(A, b, x0)
        iterations, restarts = np.zeros(size, dtype=int), np.zeros(size, dtype=int)
        nonfinite, broken = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        running = (norms > target) & np.isfinite(norms) & (iterations < max_iterations)
        while running.any():
            rows = np.flatnonzero(running)
            whole = rows.size == size
            part, precondition = (A, M) if whole else (A.take(rows), None if M is None else M.take(rows))
            scale = from_host(norms[rows], b)[:, None]
            run = _Recurrence(part, precondition, quotient(part_of(r, rows), scale), restarted=restarts[rows] > 0)
            run.iterate(target[rows] / norms[rows], max_iterations - iterations[rows])
            with np.errstate(all="ignore"):
                new_x = part_of(x, rows) + run.dx * scale
                is_measured = confirm or bool((run.norm * norms[rows] > target[rows]).any())
                new_r = part_of(b, rows) - part.matvec(new_x) if is_measured else run.r * scale
            new_norms = norm2(new_r)
            better, halved = new_norms < norms[rows], new_norms < 0.5 * norms[rows]
            x, r = update(x, rows, better, new_x), update(r, rows, better, new_r)
            norms[rows] = np.where(better, new_norms, norms[rows])
            restarts[rows] += ~halved
            iterations[rows] += np.maximum(run.iterations, 1)
            nonfinite[rows] = run.nonfinite & ~better
            ended = (norms <= target) | nonfinite | (iterations >= max_iterations)
            broken |= ~ended & running & (restarts >= MAX_RESTARTS)
            running &= ~ended & ~broken
        return KrylovOutcome(x, norms, classify(norms, target, broken=broken, nonfinite=nonfinite), iterations)


class Steps:
    """The vector work of an iteration for vectors (b, N); numbers of each system are columns (b, 1)."""

    def __init__(self, like: Array) -> None:
        self.vectors: Any = vectors_like(like)

    def first_half(self, shadow: Array, r: Array, v: Array, rho: Array) -> tuple[Array, Array]:
        """alpha = rho / <shadow, v>, or 0, and s = r - alpha v."""
        xp, slope = array_namespace(r), self.vectors.dot(shadow, v)
        alpha = xp.where(xp.abs(slope) > 0, rho / slope, xp.zeros_like(rho))
        return alpha, xp.where(xp.isfinite(alpha), r - alpha * v, r)

    def second_half(self, shadow: Array, s: Array, t: Array, alpha: Array, rho: Array) -> tuple[Array, ...]:
        """Omega, residual, rho, beta; as columns |rho|, |omega|, |alpha|, the largest of t, the residual's square."""
        omega, size = self.vectors.coefficient(t, s)
        r = s - omega * t
        rho_new, rr = self.vectors.dots((shadow, r), (r, r))
        beta = (rho_new / rho) * (alpha / omega)
        xp = array_namespace(s)
        numbers = xp.concat([xp.abs(rho_new), xp.abs(omega), xp.abs(alpha), size, xp.abs(rr)], axis=1)
        return omega, r, rho_new, beta, numbers

    def advance(
        self,
        dx: Array,
        p: Array,
        alpha: Array,
        p_hat: Array,
        omega: Array,
        s_hat: Array,
        r: Array,
        beta: Array,
        v: Array,
    ) -> tuple[Array, Array]:
        """The next correction, dx + alpha p_hat + omega s_hat, and direction, r + beta (p - omega v)."""
        return dx + alpha * p_hat + omega * s_hat, r + beta * (p - omega * v)


bicgstab: Kernel = Kernel("bicgstab", Steps, module="vectors")


class _Recurrence:
    """BiCGSTAB from dx = 0 for unit residuals, until each system has converged, broken down or reached its limit.

    The best dx of each system is kept. Finished systems stay unchanged, and the batch is compacted once half of its
    systems have finished. A restarted system takes another shadow residual, r + A r / ||A r||, since <r, A r> may
    vanish for a nonsingular A.
    """

    def __init__(self, A: LinearOperator, M: Any, r: Array, *, restarted: HostArray) -> None:
        self.xp = array_namespace(r)
        self.A, self.M, self.r = A, M, self.xp.asarray(r, copy=True)
        self.shadow = r
        if restarted.any():
            v = A.matvec(self._precondition(r))
            size = norm2(v)
            factor = np.where(restarted & (size > 0) & np.isfinite(size), 1.0 / np.where(size > 0, size, 1.0), 0.0)
            self.shadow = r + v * from_host(factor, r)[:, None]
        self.dx = self.xp.zeros_like(r)
        self.norm = norm2(r)
        self.iterations = np.zeros(r.shape[0], dtype=int)
        self.nonfinite = np.zeros(r.shape[0], dtype=bool)

    def _precondition(self, v: Array) -> Array:
        return v if self.M is None else self.M.matvec(v)

    def iterate(self, target: HostArray, limit: HostArray) -> None:
        """Iterate; `target` and `limit` are those of each system."""
        xp, shadow, r, p = self.xp, self.shadow, self.r, self.r
        steps: Steps = bicgstab.select(r, size=r.shape[1])(r)
        tiny = eps(xp, p.dtype) ** 2
        rho = xp.vecdot(shadow, r)[:, None]
        dx = xp.zeros_like(r)
        rows = np.arange(p.shape[0])
        alive = np.ones(p.shape[0], dtype=bool)
        while alive.any():
            if 2 * alive.sum() <= rows.size:
                keep = np.flatnonzero(alive)
                shadow, r, p, dx, rho = (gather(x, keep) for x in (shadow, r, p, dx, rho))
                self.A, self.M = self.A.take(keep), None if self.M is None else self.M.take(keep)
                rows, alive, target, limit = rows[keep], alive[keep], target[keep], limit[keep]
            p_hat = self._precondition(p)
            v = self.A.matvec(p_hat)
            with np.errstate(all="ignore"):
                alpha, s = steps.first_half(shadow, r, v, rho)
            s_hat = self._precondition(s)
            t = self.A.matvec(s_hat)
            with np.errstate(all="ignore"):
                omega, new_r, rho_new, beta, numbers = steps.second_half(shadow, s, t, alpha, rho)
                host = to_host(numbers).astype(np.float64)  # the only transfer of an iteration
                norm = np.sqrt(host[:, 4])
                if not is_safe(norm[alive], xp, new_r.dtype).all():
                    norm = norm2(new_r)
                finite = np.isfinite(norm) & np.isfinite(host[:, :4]).all(axis=1)
                lost = (host[:, 0] <= tiny * norm) | (host[:, 1] == 0) | (host[:, 2] == 0)
                new_dx, new_p = steps.advance(dx, p, alpha, p_hat, omega, s_hat, new_r, beta, v)
                dx, r, rho = _take(alive & finite, (new_dx, new_r, rho_new), (dx, r, rho))
                (p,) = _take(alive & finite & ~lost, (new_p,), (p,))
            self.iterations[rows] += alive
            self.nonfinite[rows] |= alive & ~finite
            self._remember(rows, np.flatnonzero(alive & finite & (norm < self.norm[rows])), dx, r, norm)
            alive &= finite & (norm > target) & ~lost & (self.iterations[rows] < limit)

    def _remember(self, rows: HostArray, better: HostArray, dx: Array, r: Array, norm: HostArray) -> None:
        if better.size == self.norm.size:
            self.dx, self.r, self.norm = dx, r, norm.copy()
        elif better.size:
            if self.dx is dx:  # the current dx and r keep changing
                self.dx, self.r = self.xp.asarray(dx, copy=True), self.xp.asarray(r, copy=True)
            scatter(self.dx, rows[better], gather(dx, better))
            scatter(self.r, rows[better], gather(r, better))
            self.norm[rows[better]] = norm[better]


def _take(where: HostArray, new: Sequence[Array], old: Sequence[Array]) -> Sequence[Array]:
    """The new values where the mask is true, else the old ones."""
    if where.all():
        return new
    xp, mask = array_namespace(*new), from_host(where, new[0])[:, None]
    return [xp.where(mask, a, b) for a, b in zip(new, old, strict=True)]
