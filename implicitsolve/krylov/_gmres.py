"""GMRES and its flexible and augmented forms: restarts around one Arnoldi cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, scatter
from implicitsolve._arrays.namespace import array_namespace, quotient
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.errors import ChecksKeywords
from implicitsolve.kernels._norms import Norms
from implicitsolve.krylov._arnoldi import Arnoldi
from implicitsolve.krylov._base import IDLE_FALL, KrylovMethod, KrylovOutcome, classify, part_of, start, update
from implicitsolve.operators import LinearOperator
from implicitsolve.stopping import check_limit

MAX_IDLE = 10  # idle cycles in a row after which a system has stagnated; LGMRES may recover after a few


@dataclass(frozen=True, kw_only=True)
class GMRES(ChecksKeywords, KrylovMethod):
    """Generalized minimal residual method, restarted, for each system of a batch.

    Parameters
    ----------
    restart : int, optional
        Krylov vectors m after which the method restarts. Default 30.

    Notes
    -----
    The preconditioner is applied on the right, so that the true residual is tested. Each restart computes b - A x by a
    product, and a system has converged only if that residual satisfies the stopping rule.

    Cost per iteration: 1 product, 1 product with M, 4 passes over the basis. Holds m + 1 basis vectors per system, with
    M 2 m + 1, and about ten others.

    References
    ----------
    .. [1] Y. Saad and M. H. Schultz, "GMRES: a generalized minimal residual algorithm for solving nonsymmetric linear
           systems", SIAM J. Sci. Stat. Comput. 7 (1986) 856-869.

    Examples
    --------
    >>> ims.linear_solve(np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([3.0, 3.0]), method=ims.GMRES(restart=10)).x
    array([1., 1.])
    """

    restart: int = 30

    def __post_init__(self) -> None:
        check_limit(type(self).__name__, "restart", self.restart, least=1)

    @property
    def augment(self) -> int:
        """Corrections of earlier cycles that augment the space."""
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
        """Solve on arrays (B, N); see `KrylovMethod`, and `Arnoldi` for `polish`, which cannot be confirmed."""
        x, r, norms = start(A, b, x0)
        size = b.shape[0]
        iterations = np.zeros(size, dtype=int)
        broken, nonfinite, stagnated = (np.zeros(size, dtype=bool) for _ in range(3))
        idle = np.zeros(size, dtype=int)  # idle cycles in a row
        errors: list[tuple[Array, HostArray]] = []  # corrections of earlier cycles, newest first, and who has one
        running = (norms > target) & np.isfinite(norms) & (iterations < max_iterations)
        while running.any():
            rows = np.flatnonzero(running)
            whole = rows.size == size
            part = A if whole else A.take(rows)
            cycle = Arnoldi(
                part,
                part_of(r, rows),
                norms[rows],
                target=target[rows],
                columns=self.restart + len(errors),
                limits=max_iterations - iterations[rows],
                M=M if whole or M is None else M.take(rows),
                **_augment(errors, rows),
                polish=polish and not confirm,
                needs_residual=not confirm,
            ).run()
            with np.errstate(all="ignore"):
                new_x = part_of(x, rows) + cycle.dx
                new_r = part_of(b, rows) - part.matvec(new_x) if confirm else cycle.residual
            measured = Norms(new_r, cycle.dx) if self.augment else Norms(new_r)
            new_norms = measured.two(0) if confirm else cycle.norm
            better = new_norms < norms[rows]  # rounding, or NaN: keep the better x
            idle[rows] = np.where(new_norms > (1 - IDLE_FALL) * norms[rows], idle[rows] + 1, 0)
            x, r = update(x, rows, better, new_x), update(r, rows, better, new_r)
            norms[rows] = np.where(better, new_norms, norms[rows])
            iterations[rows] += np.maximum(cycle.columns, 1)
            nonfinite[rows] = cycle.nonfinite
            broken[rows] = cycle.broken & ~better
            stagnated[rows] = ~better | (idle[rows] >= MAX_IDLE)
            ended = nonfinite | broken | stagnated | (norms <= target) | (iterations >= max_iterations)
            running &= ~ended
            if self.augment and running.any():
                errors = [_normalize(cycle.dx, measured.two(1), rows, b), *errors][: self.augment]
        status = classify(norms, target, broken=broken, nonfinite=nonfinite, stagnated=stagnated)
        return KrylovOutcome(x, norms, status, iterations)


@dataclass(frozen=True, kw_only=True)
class LGMRES(GMRES):
    """GMRES whose cycles are augmented by the corrections of the last ones ("loose" GMRES).

    Parameters
    ----------
    restart : int, optional
        Krylov vectors m of a cycle. Default 30.
    outer_k : int, optional
        Corrections of earlier cycles that augment the space. Default 3, from [1]_ (section 4).

    Notes
    -----
    The residuals of restarted GMRES often alternate between two directions and hardly decrease; augmentation breaks
    this cycle. Where a whole cycle makes no progress there is no correction to keep, and a larger `restart` is needed.
    Holds 2 (m + outer_k) + 1 basis vectors per system, outer_k corrections, and about ten others.

    References
    ----------
    .. [1] A. H. Baker, E. R. Jessup and T. Manteuffel, "A technique for accelerating the convergence of restarted
           GMRES", SIAM J. Matrix Anal. Appl. 26 (2005) 962-984.

    Examples
    --------
    >>> A = np.diag(np.arange(1.0, 41.0)) + np.diag(np.ones(39), 1)
    >>> ims.linear_solve(A, np.ones(40), method=ims.LGMRES(restart=5)).status.name
    'CONVERGED'
    """

    outer_k: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limit("LGMRES", "outer_k", self.outer_k, least=0)

    @property
    def augment(self) -> int:
        """Corrections of earlier cycles that augment the space."""
        return self.outer_k


def _augment(errors: list[tuple[Array, HostArray]], rows: Indices) -> dict[str, Any]:
    """Corrections of earlier cycles for these systems, and which of them has one."""
    if not errors:
        return {}
    given = array_namespace(errors[0][0]).stack([part_of(e, rows) for e, _ in errors], axis=1)
    return {"augment": given, "has_one": np.stack([has_one[rows] for _, has_one in errors], axis=1)}


def _normalize(dx: Array, norms: HostArray, rows: Indices, like: Array) -> tuple[Array, HostArray]:
    """Corrections as unit vectors in an array for the whole batch, and which of them are not zero."""
    xp, has_one = array_namespace(like), np.zeros(like.shape[0], dtype=bool)
    has_one[rows] = norms > 0
    unit = quotient(dx, from_host(np.where(norms > 0, norms, 1.0), dx)[:, None])
    if rows.size == like.shape[0]:
        return unit, has_one
    out = xp.zeros_like(like)
    scatter(out, rows, unit)
    return out, has_one
