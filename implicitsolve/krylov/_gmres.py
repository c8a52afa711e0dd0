"""GMRES and its flexible and augmented forms: restarts around one Arnoldi cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, from_host, gather, norm2, scatter
from implicitsolve._typing import Array, HostArray
from implicitsolve.krylov._arnoldi import arnoldi_cycle
from implicitsolve.krylov._base import IDLE, KrylovOutcome, classify, start
from implicitsolve.operators import LinearOperator
from implicitsolve.stopping import check_limit

MAX_IDLE = 10  # such cycles in a row after which a system has stagnated


@dataclass(frozen=True, kw_only=True)
class GMRES:
    """Generalized minimal residual method, restarted, for each system of a batch.

    Parameters
    ----------
    restart : int, optional
        Most Krylov vectors m before the space is given up and begun anew. Default 30.

    Notes
    -----
    The preconditioner stands on the right, so that the residual that is tested is the true one. Each restart computes
    b - A x by a product, and a system counts as converged only if that product shows it.

    Cost per iteration: 1 product, 1 product with M, 4 passes over the basis. Holds m + 1 basis vectors per system, with
    M 2 m + 1, and about ten others.

    References
    ----------
    .. [1] Y. Saad and M. H. Schultz, "GMRES: a generalized minimal residual algorithm for solving nonsymmetric linear
           systems", SIAM J. Sci. Stat. Comput. 7 (1986) 856-869.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> ims.linear_solve(np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([3.0, 3.0]), method=ims.GMRES(restart=10)).x
    array([1., 1.])
    """

    restart: int = 30

    def __post_init__(self) -> None:
        """Check the settings."""
        check_limit(type(self).__name__, "restart", self.restart, least=1)

    @property
    def augment(self) -> int:
        """Error directions kept from earlier cycles."""
        return 0

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
        """Solve on arrays (B, N); see `KrylovMethod`, and `arnoldi_cycle` for `polish`, which cannot be confirmed."""
        xp = array_namespace(b)
        x, r, norms = start(A, b, x0)
        size = b.shape[0]
        iterations = np.zeros(size, dtype=int)
        broken, nonfinite, stagnated = (np.zeros(size, dtype=bool) for _ in range(3))
        idle = np.zeros(size, dtype=int)  # cycles in a row that achieved next to nothing
        errors: list[Array] = []  # corrections of earlier cycles, newest first
        running = (norms > target) & np.isfinite(norms) & (iterations < max_iterations)
        while running.any():
            rows = np.flatnonzero(running)
            whole = rows.size == size
            part = A if whole else A.take(rows)
            cycle = arnoldi_cycle(
                part,
                gather(r, rows),
                norms[rows],
                target=target[rows],
                columns=self.restart + len(errors),
                limits=max_iterations - iterations[rows],
                M=M if whole or M is None else M.take(rows),
                augment=xp.stack([gather(e, rows) for e in errors], axis=1) if errors else None,
                polish=polish and not confirm,
            )
            with np.errstate(all="ignore"):
                new_x = gather(x, rows) + cycle.dx
                new_r = gather(b, rows) - part.matvec(new_x) if confirm else cycle.residual
            new_norms = norm2(new_r) if confirm else cycle.norm
            better = new_norms < norms[rows]  # rounding, or NaN: keep the better x
            idle[rows] = np.where(new_norms > (1 - IDLE) * norms[rows], idle[rows] + 1, 0)
            kept = np.flatnonzero(better)
            scatter(x, rows[kept], gather(new_x, kept))
            r = _updated(r, rows[kept], gather(new_r, kept))
            norms[rows[kept]] = new_norms[kept]
            iterations[rows] += np.maximum(cycle.columns, 1)
            nonfinite[rows] = cycle.nonfinite
            broken[rows] = cycle.broken & ~better
            stagnated[rows] = ~better | (idle[rows] >= MAX_IDLE)
            ended = nonfinite | broken | stagnated | (norms <= target) | (iterations >= max_iterations)
            running &= ~ended
            if self.augment:
                errors = [_normalized(cycle.dx, rows, b), *errors][: self.augment]
        status = classify(norms, target, broken=broken, nonfinite=nonfinite, stagnated=stagnated)
        return KrylovOutcome(x, norms, status, iterations)


@dataclass(frozen=True, kw_only=True)
class FGMRES(GMRES):
    """Flexible GMRES: the preconditioner may be different in every iteration.

    The same code and cost as `GMRES` with a preconditioner, whose preconditioned vectors are kept
    here in any case; the name says that a varying M is safe.

    References
    ----------
    .. [1] Y. Saad, "A flexible inner-outer preconditioned GMRES algorithm", SIAM J. Sci. Comput. 14 (1993) 461-469.
    """


@dataclass(frozen=True, kw_only=True)
class LGMRES(GMRES):
    """GMRES whose restarts remember: each cycle's space is enlarged by the last corrections.

    Parameters
    ----------
    restart : int, optional
        Krylov vectors of a cycle, m. Default 30.
    outer_k : int, optional
        Corrections of earlier cycles that enlarge the space. Default 3, from [1]_ (section 4).

    Notes
    -----
    Plain restarts often alternate between two directions and hardly advance; the augmented space breaks that. Where a
    whole cycle achieves nothing there is no correction to remember, and a larger `restart` is needed.
    Holds 2 (m + outer_k) + 1 basis vectors per system, outer_k corrections, and about ten others.

    References
    ----------
    .. [1] A. H. Baker, E. R. Jessup and T. Manteuffel, "A technique for accelerating the convergence of restarted
           GMRES", SIAM J. Matrix Anal. Appl. 26 (2005) 962-984.
    """

    outer_k: int = 3

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_limit("LGMRES", "outer_k", self.outer_k, least=0)

    @property
    def augment(self) -> int:
        """Error directions kept from earlier cycles."""
        return self.outer_k


def _updated(r: Array, rows: HostArray, values: Array) -> Array:
    """Return r with some rows replaced; r itself may be the caller's b."""
    xp = array_namespace(r)
    if rows.size == r.shape[0]:
        return values
    r = xp.asarray(r, copy=True)
    scatter(r, rows, values)
    return r


def _normalized(dx: Array, rows: HostArray, like: Array) -> Array:
    """Corrections as unit vectors in an array for the whole batch."""
    xp = array_namespace(like)
    norms = norm2(dx)
    out = xp.zeros_like(like)
    scatter(out, rows, dx / from_host(np.where(norms > 0, norms, 1.0), dx)[:, None])
    return out
