"""A preconditioner from the Krylov spaces of earlier Newton steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, from_host, gather, scatter
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.krylov._hessenberg import HessenbergQR


SINGULAR = 1e-12  # relative size under which a singular value is rounding error


class RecycledSpace:
    """M = U_1 C_1^H + M_2 (I - C_1 C_1^H), where J U_1 = C_1 held in the last Newton step and M_2 is the M before it.

    The innermost M is 1 / theta, or the user's preconditioner. C has orthonormal rows. As long as J changes little, J M
    is the identity on what the last Krylov spaces spanned, and a new one goes on where they ended. It costs no product.

    Parameters
    ----------
    pairs : list of (Array (B, q, N), Array (B, q, N))
        Directions U and images C of earlier steps as rows, newest first; zero rows where a system has fewer.
    theta : ndarray (B,)
        Size of J on the rest.
    base : operator, optional
        The user's preconditioner.
    """

    def __init__(self, pairs: list[tuple[Array, Array]], theta: HostArray, base: Any = None) -> None:
        self.pairs, self.theta, self.base = pairs, theta, base

    @property
    def size(self) -> int:
        """Pairs held for each system."""
        return sum(U.shape[1] for U, _ in self.pairs)

    def matvec(self, v: Array) -> Array:
        """Product with M."""
        xp = array_namespace(v)
        found = xp.zeros_like(v)
        with np.errstate(all="ignore"):
            for U, C in self.pairs:
                a = project(C, v)
                v = v - combine(a, C)
                found = found + combine(a, U)
            rest = v / from_host(self.theta, v)[:, None] if self.base is None else self.base.matvec(v)
            return rest + found

    def take(self, indices: Indices) -> RecycledSpace:
        """Return the part that belongs to some systems."""
        base = None if self.base is None else self.base.take(indices)
        pairs = [(gather(U, indices), gather(C, indices)) for U, C in self.pairs]
        return RecycledSpace(pairs, self.theta[indices], base)


class SpaceCollector:
    """Gathers the pairs (U, C) from the bases of one linear solve, as its systems finish.

    Parameters
    ----------
    like : Array (B, N)
        Tells the shape, the dtype and the library.
    keep : int
        Most pairs kept for each system, old ones included.
    """

    def __init__(self, like: Array, keep: int) -> None:
        self.like, self.keep = like, keep
        self.theta = np.ones(like.shape[0])
        self.found: list[tuple[Indices, Array, Array]] = []

    def __call__(self, systems: Indices, V: Array, Z: Array, small: HessenbergQR, columns: HostArray) -> None:
        """See the bases of some systems: J Z = V H, and with H = P S W^H, U = Z W / S and C = V P."""
        m = small.columns
        used = np.arange(m)[None, :] < columns[:, None]
        P, S, Wh = np.linalg.svd(np.where(used[:, None, :], small.H[:, : m + 1, :m], 0.0), full_matrices=False)
        good = S > SINGULAR * S[:, :1]
        count = np.maximum(good.sum(1), 1)
        self.theta[systems] = np.exp(np.log(np.where(good, S, 1.0)).sum(1) / count)  # geometric mean: the size of J
        # small singular values are what a Krylov space is slow to find: those come first
        order = np.argsort(np.where(good, S, np.inf), axis=1)[:, : self.keep]
        chosen = np.take_along_axis(good, order, 1)
        inverse = np.where(chosen, 1 / np.where(chosen, np.take_along_axis(S, order, 1), 1.0), 0.0)
        P = np.take_along_axis(P, order[:, None, :], 2) * chosen[:, None, :]
        W = np.conj(np.take_along_axis(Wh, order[:, :, None], 1)) * inverse[:, :, None]
        xp = array_namespace(V)
        C = xp.matmul(from_host(np.ascontiguousarray(P.transpose(0, 2, 1)), V), V[:, : m + 1, :])
        self.found.append((systems, xp.matmul(from_host(W, V), Z[:, :m, :]), C))

    def joined(self, old: RecycledSpace | None, base: Any) -> RecycledSpace | None:
        """Put the new pairs before the older ones, and forget the oldest."""
        if not self.found:
            return old
        xp = array_namespace(self.like)
        size, length = self.like.shape
        rank = max(U.shape[1] for _, U, _ in self.found)
        if len(self.found) == 1 and self.found[0][0].size == size:
            pair = self.found[0][1], self.found[0][2]
        else:
            pair = tuple(
                xp.zeros((size, rank, length), dtype=self.like.dtype, device=self.like.device) for _ in range(2)
            )
            for systems, *parts in self.found:
                for whole, part in zip(pair, parts, strict=True):
                    scatter(whole[:, : part.shape[1], :], systems, part)
        pairs = [pair]
        for U, C in [] if old is None else old.pairs:
            room = self.keep - sum(u.shape[1] for u, _ in pairs)
            if room > 0:
                pairs.append((U[:, :room, :], C[:, :room, :]))
        return RecycledSpace(pairs, self.theta if old is None else old.theta, base)


def project(C: Array, v: Array) -> Array:
    """<C_i, v> for each system: (B, q, N), (B, N) -> (B, q)."""
    xp = array_namespace(v)
    if xp.isdtype(v.dtype, "complex floating"):
        return xp.conj(xp.matmul(C, xp.conj(v)[:, :, None]))[:, :, 0]
    return xp.matmul(C, v[:, :, None])[:, :, 0]


def combine(a: Array, rows: Array) -> Array:
    """sum_i a_i rows_i for each system."""
    xp = array_namespace(rows)
    return xp.matmul(a[:, None, :], rows)[:, 0, :]
