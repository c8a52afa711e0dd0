"""Steepest descent of ||F + J s||, by J^H or within a Krylov space, which a dogleg begins with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from implicitsolve._arrays.host import from_host, gather, scatter
from implicitsolve._arrays.namespace import array_namespace, quotient
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov._arnoldi import Hessenberg


@dataclass(frozen=True)
class Descent:
    """The first leg of the dogleg of each system."""

    unit: Array  # (b, N) directions of length 1
    length: HostArray  # (b,) distance to the minimizer of ||F + J s|| along them
    gain: HostArray  # (b,) part of ||F||^2 by which that reduces it
    radius: HostArray  # (b,) of the trust region; inf before the first step. `Dogleg` writes the next one to it

    @classmethod
    def of(cls, matvec: Callable[[Array], Array], rmatvec: Callable[[Array], Array], F: Array) -> Descent:
        """Descent along -J^H F, by two products."""
        with np.errstate(all="ignore"):
            unit, size = _normalize(-rmatvec(F))
            length = size / norm2(matvec(unit)) ** 2
            gain = size * length / norm2(F) ** 2
        return cls(unit, length, gain, np.full(length.shape, np.inf))

    @classmethod
    def along(cls, step: Array, linear_residual: HostArray) -> Descent:
        """Descent along Newton's step itself, where no gradient is known: the dogleg is straight."""
        unit, size = _normalize(step)
        return cls(unit, size, 1 - linear_residual**2, np.full(size.shape, np.inf))

    def take(self, rows: Indices) -> Descent:
        return Descent(gather(self.unit, rows), self.length[rows], self.gain[rows], self.radius[rows])


class DescentCollector:
    """Finds the descent in the Krylov spaces of a linear solve, as its systems finish: no product with J^H [1]_.

    With J Z = V H and F = -beta V e_1, the gradient of ||F + J Z y||^2 / 2 in y is -beta H^H e_1.

    References
    ----------
    .. [1] P. N. Brown and Y. Saad, "Hybrid Krylov methods for nonlinear systems of equations", SIAM J. Sci. Stat.
           Comput. 11 (1990) 450-481, section 4.
    """

    def __init__(self, F: Array, norms: HostArray) -> None:
        zeros = np.zeros(norms.shape)
        self.norms, self.descent = norms, Descent(array_namespace(F).zeros_like(F), zeros, zeros.copy(), zeros + np.inf)

    def __call__(self, systems: Indices, V: Array, Z: Array, small: Hessenberg, columns: HostArray) -> None:
        m = small.columns
        used = np.arange(m)[None, :] < columns[:, None]
        H = np.where(used[:, None, :], small.H[:, : m + 1, :m], 0.0)
        scale = np.ldexp(1.0, -np.frexp(np.abs(H).max(axis=(1, 2)))[1])  # the squares of H may overflow
        H *= scale[:, None, None]
        g = np.conj(H[:, 0, :])
        square, image = (np.abs(g) ** 2).sum(axis=1), (np.abs(H @ g[:, :, None]) ** 2).sum(axis=(1, 2))
        with np.errstate(all="ignore"):
            length = self.norms[systems] * scale * square / image
            y = from_host(np.where(used, g * length[:, None], 0.0), Z)
            xp = array_namespace(Z)
            unit, size = _normalize(xp.matmul(xp.astype(y, Z.dtype)[:, None, :], Z[:, :m, :])[:, 0, :])
            gain = np.where(image > 0, square**2 / image, 0.0)
        scatter(self.descent.unit, systems, unit)
        self.descent.length[systems], self.descent.gain[systems] = size, gain


def _normalize(v: Array) -> tuple[Array, HostArray]:
    """Vectors (b, N) divided by their lengths, and the lengths; zero where a length is zero."""
    size = norm2(v)
    with np.errstate(all="ignore"):
        return quotient(v, from_host(np.where(size > 0, size, 1.0), v)[:, None]), size
