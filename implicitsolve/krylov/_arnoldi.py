"""One Arnoldi cycle, shared by GMRES, FGMRES and LGMRES: the basis of a Krylov space for each system of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from implicitsolve._namespace import (
    array_namespace,
    eps,
    from_host,
    gather,
    is_complex,
    is_safe,
    norm2,
    scatter,
    to_host,
)
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov._hessenberg import HessenbergQR
from implicitsolve.operators import LinearOperator


class Preconditioner(Protocol):
    """What stands for M: a product, and the part of it for some systems."""

    def matvec(self, v: Array) -> Array: ...
    def take(self, indices: Indices) -> Preconditioner: ...


class Cycle:
    """What one Arnoldi cycle found, for every system that entered it.

    Attributes
    ----------
    dx : Array (B, N)
        Correction that minimizes the residual over the space.
    residual : Array (B, N)
        Residual that remains, from the recurrence: no product was spent on it.
    norm : ndarray (B,)
        Its norm.
    columns : ndarray (B,)
        Size of each system's space.
    broken : ndarray (B,) of bool
        Systems whose space ended before the target: A is singular on it.
    nonfinite : ndarray (B,) of bool
        Systems for which a product was not finite.
    """

    def __init__(self, r: Array, norms: HostArray) -> None:
        xp = array_namespace(r)
        self.dx = xp.zeros_like(r)
        self.residual = xp.asarray(r, copy=True)
        self.norm = norms.copy()
        size = r.shape[0]
        self.columns = np.zeros(size, dtype=int)
        self.broken = np.zeros(size, dtype=bool)
        self.nonfinite = np.zeros(size, dtype=bool)

    def replace(self, systems: Indices, other: Cycle) -> None:
        """Take over what a second cycle found for some systems."""
        scatter(self.dx, systems, other.dx)
        scatter(self.residual, systems, other.residual)
        self.norm[systems], self.broken[systems] = other.norm, other.broken
        self.nonfinite[systems] = other.nonfinite
        self.columns[systems] += other.columns


def arnoldi_cycle(
    A: LinearOperator,
    r: Array,
    norms: HostArray,
    *,
    target: HostArray,
    columns: int,
    limits: HostArray | None = None,
    M: Preconditioner | None = None,
    augment: Array | None = None,
    on_finish: Callable[[Indices, Array, Array, HessenbergQR, HostArray], None] | None = None,
) -> Cycle:
    """Minimize ||r - A z|| over z in span(M v_1, ..., M v_m), plus the directions of `augment`.

    Parameters
    ----------
    A, M : operators on (B, N)
        M approximates the inverse and may change from one product to the next.
    r : Array (B, N)
        Residuals; `norms` are their 2-norms.
    target : ndarray (B,)
        A system is finished when its residual norm is at most this.
    columns : int
        Most Arnoldi steps.
    limits : ndarray (B,) of int, optional
        Most steps of each system.
    augment : Array (B, p, N), optional
        Directions that take the place of the last p of them.
    on_finish : callable, optional
        Called as ``(systems, V, Z, small, columns)`` before a system's basis is given up.

    Notes
    -----
    Per step: 1 product, 1 preconditioner, 4 passes over the basis (classical Gram-Schmidt, twice) and 1 transfer to the
    host. Holds ``columns + 1`` vectors per system, twice that with M or `augment`. Systems that have finished
    are fed zeros, and leave the arrays once they are half of those in them.
    """
    xp = array_namespace(r)
    size, length = r.shape
    columns = max(1, min(columns, length))
    out = Cycle(r, norms)
    p = 0 if augment is None else min(augment.shape[1], columns - 1)
    precision = eps(xp, r.dtype)
    rows = np.arange(size)
    limits = np.full(size, columns) if limits is None else limits
    alive = (norms > target) & np.isfinite(norms) & (limits > 0)
    V = xp.empty((size, columns + 1, length), dtype=r.dtype, device=r.device)
    separate = M is not None or p > 0
    Z = xp.empty((size, columns, length), dtype=r.dtype, device=r.device) if separate else V
    small = HessenbergQR(norms, columns, np.complex128 if is_complex(r) else np.float64)
    V[:, 0, :] = _unit(r, norms, alive)
    count = np.zeros(size, dtype=int)
    broken, nonfinite = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)

    def finish(which: Indices) -> None:
        """Turn the least-squares solutions of some rows into corrections of their systems."""
        if which.size == 0:
            return
        whole = which.size == rows.size
        part, v, z = (small, V, Z) if whole else (small.take(which), gather(V, which), gather(Z, which))
        m, systems = part.columns, rows[which]
        if m:
            with np.errstate(all="ignore"):
                dx = _combine(part.solve(count[which]), z[:, :m, :])
                rest = _combine(part.residual_coordinates(count[which]), v[:, : m + 1, :])
            scatter(out.dx, systems, dx)
            scatter(out.residual, systems, rest)
            out.norm[systems] = np.abs(part.g[np.arange(which.size), count[which]])
        out.columns[systems], out.broken[systems], out.nonfinite[systems] = (
            count[which],
            broken[which],
            nonfinite[which],
        )
        if on_finish is not None and m:
            on_finish(systems, v, z, part, count[which])

    for j in range(columns):
        if not alive.any():
            break
        if 2 * alive.sum() <= rows.size:
            finish(np.flatnonzero(~alive))
            keep = np.flatnonzero(alive)
            V, small, A = gather(V, keep), small.take(keep), A.take(keep)
            Z = gather(Z, keep) if separate else V
            M = None if M is None else M.take(keep)
            augment = None if augment is None else gather(augment, keep)
            rows, count, broken, nonfinite = rows[keep], count[keep], broken[keep], nonfinite[keep]
            alive, target, limits = alive[keep], target[keep], limits[keep]
        v = V[:, j, :]
        if augment is not None and j >= columns - p:
            given = augment[:, j - (columns - p), :]
            own = v if M is None else M.matvec(v)  # of a system that has no such direction yet
            z = xp.where(xp.any(given != 0, axis=1, keepdims=True), given, own)
        else:
            z = v if M is None else M.matvec(v)
        if separate:
            Z[:, j, :] = z
        w, h, below = _orthogonalize(V[:, : j + 1, :], A.matvec(z), alive)
        finite = np.isfinite(h).all(axis=1) & np.isfinite(below)
        nonfinite |= alive & ~finite
        alive &= finite
        h, below = np.where(alive[:, None], h, 0.0), np.where(alive, below, 0.0)
        with np.errstate(all="ignore"):
            estimate, is_void = small.append(h, below, 64 * precision)
        # the space is exhausted when what is new in A z is rounding error
        exhausted = alive & (is_void | (below <= 4 * precision * np.maximum(np.abs(h).max(axis=1), below)))
        count = np.where(alive & ~is_void, j + 1, count)
        broken |= alive & is_void & (estimate > target)
        is_new = alive & ~exhausted
        alive &= ~exhausted & (estimate > target) & (count < limits)
        V[:, j + 1, :] = _unit(w, below, is_new)
    finish(np.arange(rows.size))
    return out


def _orthogonalize(V: Array, w: Array, alive: HostArray) -> tuple[Array, HostArray, HostArray]:
    """Remove from w (b, N) its parts along V (b, j, N): classical Gram-Schmidt, twice."""
    xp = array_namespace(w)
    with np.errstate(all="ignore"):
        h = _project(V, w)
        w = w - _combine_device(h, V)
        again = _project(V, w)
        w = w - _combine_device(again, V)
        square = xp.vecdot(w, w)[:, None]
        numbers = to_host(xp.concat([h + again, xp.astype(square, h.dtype)], axis=1))
        h_host, below = numbers[:, :-1], np.sqrt(np.abs(numbers[:, -1]).astype(np.float64))
    if not is_safe(below[alive], xp, w.dtype).all():
        below = norm2(w)
    return w, h_host, below


def _project(V: Array, w: Array) -> Array:
    """V^H w for each system: (b, j, N), (b, N) -> (b, j)."""
    xp = array_namespace(w)
    if is_complex(w):
        return xp.conj(xp.matmul(V, xp.conj(w)[:, :, None]))[:, :, 0]
    return xp.matmul(V, w[:, :, None])[:, :, 0]


def _combine_device(y: Array, V: Array) -> Array:
    xp = array_namespace(V)
    return xp.matmul(y[:, None, :], V)[:, 0, :]


def _combine(y: HostArray, V: Array) -> Array:
    """sum_i y_i V_i for each system, with host coefficients (b, j)."""
    return _combine_device(from_host(y, V), V)


def _unit(w: Array, norms: HostArray, where: HostArray) -> Array:
    """w / ||w||, and zero where a system must get no further vector."""
    xp = array_namespace(w)
    good = where & (norms > 0)
    unit = w / from_host(np.where(good, norms, 1.0), w)[:, None]
    return unit if good.all() else xp.where(from_host(good, w)[:, None], unit, xp.zeros_like(w))
