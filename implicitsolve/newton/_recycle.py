"""A preconditioner from the Krylov spaces of earlier Newton steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, from_host, gather, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov._hessenberg import HessenbergQR


class RecycledSpace:
    """M = U C^H + (I - C C^H) / theta, where J U = C held, C orthonormal, in the last Newton steps.

    As long as J changes little, J M is the identity on span(C) and a Krylov space need not find that part again: a new
    solve goes on where the last one ended. It costs no product.

    Parameters
    ----------
    U, C : Array (B, q, N)
        Directions and their images, as rows; zero rows where a system has fewer.
    theta : ndarray (B,)
        Size of J on the rest.
    base : operator, optional
        A preconditioner P that stands for 1 / theta on the rest: M = U C^H + P (I - C C^H).
    """

    def __init__(self, U: Array, C: Array, theta: HostArray, base: Any = None) -> None:
        self.U, self.C, self.theta, self.base = U, C, theta, base

    def matvec(self, v: Array) -> Array:
        """Product with M."""
        xp = array_namespace(v)
        with np.errstate(all="ignore"):
            a = project(self.C, v)
            rest = v - combine(a, self.C)
            rest = rest / from_host(self.theta, v)[:, None] if self.base is None else self.base.matvec(rest)
            return rest + xp.astype(combine(a, self.U), v.dtype)

    def take(self, indices: Indices) -> RecycledSpace:
        """Return the part that belongs to some systems."""
        base = None if self.base is None else self.base.take(indices)
        return RecycledSpace(gather(self.U, indices), gather(self.C, indices), self.theta[indices], base)


class SpaceCollector:
    """Gathers the pairs (U, C) from the bases of one linear solve, as its systems finish."""

    def __init__(self, like: Array, keep: int) -> None:
        xp = array_namespace(like)
        size, length = like.shape
        self.keep = keep
        self.U = xp.zeros((size, keep, length), dtype=like.dtype, device=like.device)
        self.C = xp.zeros_like(self.U)
        self.theta = np.ones(size)

    def __call__(self, systems: Indices, V: Array, Z: Array, small: HessenbergQR, columns: HostArray) -> None:
        """See the basis of some systems: J Z = V H, and H = P S W^H gives U = Z W / S, C = V P."""
        m = small.columns
        used = np.arange(m)[None, :] < columns[:, None]
        H = np.where(used[:, None, :], small.H[:, : m + 1, :m], 0.0)
        P, S, Wh = np.linalg.svd(H, full_matrices=False)
        good = (S > 1e-12 * S[:, :1]) & used
        count = np.maximum(good.sum(1), 1)
        self.theta[systems] = np.where(good.any(1), np.exp((np.log(np.where(good, S, 1.0))).sum(1) / count), 1.0)
        # the smallest singular values are what a Krylov space is slow to find: keep those first
        order = np.argsort(np.where(good, S, np.inf), axis=1)[:, : self.keep]
        chosen = np.take_along_axis(good, order, 1)
        inverse = np.where(chosen, 1 / np.where(chosen, np.take_along_axis(S, order, 1), 1.0), 0.0)
        P = np.take_along_axis(P, order[:, None, :], 2) * chosen[:, None, :]
        W = np.conj(np.take_along_axis(Wh, order[:, :, None], 1)) * inverse[:, :, None]
        xp = array_namespace(V)
        rank = order.shape[1]
        for target, rows in (
            (self.C, xp.matmul(from_host(np.ascontiguousarray(P.transpose(0, 2, 1)), V), V[:, : m + 1, :])),
            (self.U, xp.matmul(from_host(W, V), Z[:, :m, :])),
        ):
            padded = xp.zeros((rows.shape[0], self.keep, rows.shape[2]), dtype=rows.dtype, device=rows.device)
            padded[:, :rank, :] = rows
            scatter(target, systems, padded)

    def merge(self, old: RecycledSpace | None, base: Any) -> RecycledSpace:
        """Join the new pairs with older ones, the new first; older images are made orthogonal to the new."""
        xp = array_namespace(self.U)
        if old is None:
            return RecycledSpace(self.U, self.C, self.theta, base)
        U, C = old.U, old.C
        overlap = project_many(self.C, C)  # (B, q_old, q_new): <C_new, C_old>
        C = C - xp.matmul(overlap, self.C)
        U = U - xp.matmul(overlap, self.U)
        U, C = orthonormalize(U, C)
        U, C = xp.concat([self.U, U], axis=1), xp.concat([self.C, C], axis=1)
        return RecycledSpace(U[:, : self.keep, :], C[:, : self.keep, :], self.theta, base)


def orthonormalize(U: Array, C: Array) -> tuple[Array, Array]:
    """Give C orthonormal rows and U the same combination; rows that depend on the others become zero."""
    xp = array_namespace(C)
    gram = project_many(C, C)
    values, vectors = np.linalg.eigh(np.asarray(gram))
    good = values > 1e-10
    order = np.argsort(-values, axis=1)
    scale = np.where(good, 1 / np.sqrt(np.where(good, values, 1.0)), 0.0)
    rotation = np.take_along_axis(vectors * scale[:, None, :], order[:, None, :], 2)
    rows = from_host(np.ascontiguousarray(np.conj(rotation.transpose(0, 2, 1))), C)
    return xp.matmul(rows, U), xp.matmul(rows, C)


def project(C: Array, v: Array) -> Array:
    """<C_i, v> for each system: (B, q, N), (B, N) -> (B, q)."""
    xp = array_namespace(v)
    if xp.isdtype(v.dtype, "complex floating"):
        return xp.conj(xp.matmul(C, xp.conj(v)[:, :, None]))[:, :, 0]
    return xp.matmul(C, v[:, :, None])[:, :, 0]


def project_many(C: Array, rows: Array) -> Array:
    """<C_j, rows_i> for each system: (B, q, N), (B, p, N) -> (B, p, q)."""
    xp = array_namespace(C)
    adjoint = xp.conj(C) if xp.isdtype(C.dtype, "complex floating") else C
    return xp.matmul(rows, xp.matrix_transpose(adjoint))


def combine(a: Array, rows: Array) -> Array:
    """sum_i a_i rows_i for each system."""
    xp = array_namespace(rows)
    return xp.matmul(a[:, None, :], rows)[:, 0, :]
