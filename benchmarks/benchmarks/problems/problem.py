"""What one entry of the gallery is, and the small array helpers its definitions share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

Array: TypeAlias = Any
HostArray: TypeAlias = NDArray[Any]
Residual: TypeAlias = Callable[[Array], Array]
Product: TypeAlias = Callable[[Array, Array], Array]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class GalleryProblem:
    """A nonlinear system with its standard start and what is known about its root.

    Parameters
    ----------
    name : str
        Unique in the gallery; what `get` looks for.
    residual : callable
        ``residual(x) -> F``, same shape and dtype as x, pure: it neither keeps nor changes x. Runs on the
        arrays of any array-API namespace.
    x0 : ndarray
        The start, a read-only float64 NumPy array.
    jvp : callable, optional
        ``jvp(x, v) -> J(x) v``, derived by hand.
    root : ndarray, optional
        A known root. Others may exist.
    root_residual : float, optional
        Bound on max|residual(root)|; larger than rounding where the literature prints a few digits only.
    rtol : float, optional
        Stopping tolerance proposed for benchmarks, relative to max|F(x0)|; None proposes an absolute 1e-8.
    title, source, note : str, optional
        For tables: the usual name, where the definition comes from, scaling or a peculiarity.
    """

    name: str
    residual: Residual
    x0: HostArray
    jvp: Product | None = None
    root: HostArray | None = None
    root_residual: float = 1e-12
    rtol: float | None = None
    title: str = ""
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for field, value in (("x0", self.x0), ("root", self.root)):
            if value is not None:
                copy = np.array(value, dtype=np.float64)
                copy.flags.writeable = False
                object.__setattr__(self, field, copy)

    @property
    def size(self) -> int:
        """Number of unknowns."""
        return int(self.x0.size)

    def tolerance(self) -> float:
        """Absolute tolerance on max|F| that benchmarks use: 1e-8, or `rtol` times max|F(x0)|."""
        if self.rtol is None:
            return 1e-8
        return self.rtol * float(np.max(np.abs(self.residual(self.x0.copy()))))

    def __repr__(self) -> str:
        return self.name


def like(x: Array, values: HostArray) -> Array:
    """Constants as an array of x's library, dtype and device (no copy for float64 NumPy)."""
    return array_namespace(x).asarray(values, dtype=x.dtype, device=device(x))


def counting(x: Array, start: int = 1) -> Array:
    """start, start + 1, ... in x's library and dtype, as many as x has entries."""
    return array_namespace(x).arange(start, start + x.shape[0], dtype=x.dtype, device=device(x))


def with_ends(u: Array, left: float, right: float) -> Array:
    """The grid function u (first axis) between its two boundary values."""
    xp = array_namespace(u)
    edge = xp.ones_like(u[:1, ...])
    return xp.concat([left * edge, u, right * edge], axis=0)


def second_difference(u: Array) -> Array:
    """2 u[i] - u[i-1] - u[i+1] at the inner points of the first axis."""
    return 2.0 * u[1:-1, ...] - u[:-2, ...] - u[2:, ...]


def central_difference(u: Array) -> Array:
    """u[i+1] - u[i-1] at the inner points of the first axis."""
    return u[2:, ...] - u[:-2, ...]


def framed(u: Array) -> Array:
    """u inside a frame of zeros one point wide, on every axis."""
    xp = array_namespace(u)
    out = xp.zeros(tuple(n + 2 for n in u.shape), dtype=u.dtype, device=device(u))
    out[(slice(1, -1),) * u.ndim] = u
    return out


def shifted(p: Array, axis: int, by: int) -> Array:
    """The inner points of the framed array p, moved by -1, 0 or 1 along axis."""
    index = [slice(1, -1)] * p.ndim
    index[axis] = slice(1 + by, p.shape[axis] - 1 + by)
    return p[tuple(index)]


def minus_laplacian(p: Array) -> Array:
    """h^2 (-laplace u) at the inner points of the framed array p, by the 2 d + 1 point stencil."""
    out = 2.0 * p.ndim * shifted(p, 0, 0)
    for axis in range(p.ndim):
        out = out - shifted(p, axis, -1) - shifted(p, axis, 1)
    return out
