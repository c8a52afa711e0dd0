"""W2 to W4: differential equations on a line, in central differences, and many short lines at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._base import Array, Banded

if TYPE_CHECKING:
    import implicitsolve as ims

ROUNDING = 4e-15  # of a tridiagonal residual whose terms are about 1: no target is below it
A, DIFFUSION, EXCHANGE = 1.0, 0.02, 0.1  # of the Brusselators


def second_difference(u: Array, left: Any = 0.0, right: Any = 0.0) -> Array:
    """u_{i-1} - 2 u_i + u_{i+1} along the first axis."""
    d = -2 * u
    d[1:] += u[:-1]
    d[:-1] += u[1:]
    d[0] += left
    d[-1] += right
    return d


@dataclass(frozen=True, kw_only=True, eq=False)
class Scalar(Banded):
    """One unknown in every point: the user gives the residual and says "tridiagonal"."""

    h: float
    constant: float

    @property
    def widths(self) -> tuple[int, int]:
        """Tridiagonal."""
        return 1, 1

    @abstractmethod
    def slope(self, x: Array) -> Array:
        """Derivative of the residual by the equation's one constant."""

    def problem(self) -> ims.Problem:
        """The residual, the structure, and the derivative by the constant; no derivative by x."""
        import implicitsolve as ims

        return ims.Problem(
            self.residual,
            structure=ims.BlockBanded(1, 1),
            parameters={"constant": np.asarray(self.constant)},
            parameter_vjp=lambda x, w: {"constant": np.vdot(self.slope(x), w)},
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Bratu(Scalar):
    """W2: u'' + c exp(u) = 0 with c = 3 on (0, 1), zero at both ends, times h^2."""

    constant: float = 3.0

    @classmethod
    def draw(cls, n: int) -> Bratu:
        """n points, from zero."""
        h = 1 / (n + 1)
        return cls(name=f"W2 Bratu {n}", x0=np.zeros(n), target=max(3e-8 * h**2, ROUNDING), h=h)

    def residual(self, x: Array) -> Array:
        """F(u)."""
        return second_difference(x) + self.constant * self.h**2 * np.exp(x)

    def slope(self, x: Array) -> Array:
        """h^2 exp(u)."""
        return self.h**2 * np.exp(x)

    def band(self, x: Array) -> Array:
        """The Jacobian's three diagonals."""
        ab = np.ones((3, x.size))
        ab[1] = self.constant * self.h**2 * np.exp(x) - 2
        return ab


@dataclass(frozen=True, kw_only=True, eq=False)
class Burgers(Scalar):
    """W2: c u'' = u u' with c = 0.05 on (-1, 1), u(-1) = 1, u(1) = -1, times h^2."""

    constant: float = 0.05

    @classmethod
    def draw(cls, n: int) -> Burgers:
        """n points, from the straight line."""
        h = 2 / (n + 1)
        x0 = 1 - h * np.arange(1, n + 1)
        target = max(1e-8 * h**2, ROUNDING)
        return cls(name=f"W2 Burgers {n}", x0=x0, target=target, h=h)

    def _difference(self, u: Array) -> Array:
        """u_{i+1} - u_{i-1}."""
        d = np.empty_like(u)
        d[1:-1] = u[2:] - u[:-2]
        d[0], d[-1] = u[1] - 1.0, -1.0 - u[-2]
        return d

    def residual(self, x: Array) -> Array:
        """F(u)."""
        return self.constant * second_difference(x, 1.0, -1.0) - 0.5 * self.h * x * self._difference(x)

    def slope(self, x: Array) -> Array:
        """h^2 u''."""
        return second_difference(x, 1.0, -1.0)

    def band(self, x: Array) -> Array:
        """The Jacobian's three diagonals."""
        ab = np.zeros((3, x.size))
        ab[0, 1:] = self.constant - 0.5 * self.h * x[:-1]
        ab[1] = -2 * self.constant - 0.5 * self.h * self._difference(x)
        ab[2, :-1] = self.constant + 0.5 * self.h * x[1:]
        return ab


@dataclass(frozen=True, kw_only=True, eq=False)
class Brusselator(Banded):
    """W3: steady states of 1-D Brusselators, u and v of `chemistries` in every cell, times h^2.

    u'' D + A - (B + 1) u + u^2 v = 0 and v'' D + B u - u^2 v = 0, at rest (A, B / A) at both ends. In a ring of several
    chemistries every u is exchanged with that of the one before.
    """

    chemistries: int
    B: float = 1.5

    @classmethod
    def draw(cls, cells: int, chemistries: int) -> Brusselator:
        """A wave upon the state at rest."""
        p = chemistries
        wave = np.sin(np.pi * np.arange(1, cells + 1) / (cells + 1))[:, None]
        rest = np.r_[np.full(p, A), np.full(p, cls.B / A)]
        x0 = rest + wave * np.r_[np.linspace(0.3, 0.6, p), np.full(p, 0.3)]
        self = cls(name=f"W3 k={2 * p}", x0=x0, target=0.0, chemistries=p)
        target = max(1e-8 * self.size(x0), 1e-14)
        return cls(name=self.name, x0=x0, target=target, chemistries=p)

    @property
    def h2(self) -> float:
        """Squared distance of two cells."""
        return 1 / (len(self.x0) + 1) ** 2

    @property
    def widths(self) -> tuple[int, int]:
        """A block on either side."""
        return 2 * self.chemistries, 2 * self.chemistries

    def residual(self, x: Array) -> Array:
        """F(u, v) of shape (cells, 2 * chemistries)."""
        p, h2 = self.chemistries, self.h2
        u, v = x[:, :p], x[:, p:]
        rest = np.r_[np.full(p, A), np.full(p, self.B / A)]
        F = DIFFUSION * second_difference(x, rest, rest)
        uuv = u * u * v
        F[:, :p] += h2 * (A - (self.B + 1) * u + uuv)
        F[:, p:] += h2 * (self.B * u - uuv)
        if p > 1:
            F[:, :p] += EXCHANGE * h2 * (np.roll(u, 1, axis=1) - u)
        return F

    def band(self, x: Array) -> Array:
        """The Jacobian's diagonals; a row of unknowns is one cell after the other."""
        p, k, h2 = self.chemistries, 2 * self.chemistries, self.h2
        u, v = x[:, :p], x[:, p:]
        ab = np.zeros((2 * k + 1, x.size))
        entries = ab.reshape(2 * k + 1, len(x), k)
        ab[0, k:] = ab[2 * k, :-k] = DIFFUSION
        entries[k, :, :p] = h2 * (2 * u * v - (self.B + 1) - (EXCHANGE if p > 1 else 0.0))
        entries[k, :, p:] = -h2 * u * u
        entries[k] -= 2 * DIFFUSION
        entries[k + p, :, :p] = h2 * (self.B - 2 * u * v)
        entries[k - p, :, p:] = h2 * u * u
        for c in range(p if p > 1 else 0):  # the equation of u_c contains u_{c-1}
            entries[k + c - (c - 1) % p, :, (c - 1) % p] += EXCHANGE * h2
        return ab

    def problem(self) -> ims.Problem:
        """The residual, the structure, and the derivative by B; no derivative by x."""
        import implicitsolve as ims

        p = self.chemistries

        def pull(x: Array, w: Array) -> dict[str, Array]:
            inside = self.h2 * np.sum(x[:, :p] * (w[:, p:] - w[:, :p]))
            return {"B": inside + DIFFUSION / A * (w[0, p:] + w[-1, p:]).sum()}

        return ims.Problem(
            self.residual,
            structure=ims.BlockBanded(1, 1, 2 * p),
            parameters={"B": np.asarray(self.B)},
            parameter_vjp=pull,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Brusselators(Banded):
    """W4: Brusselators of a few cells (k = 2), each with its own B and start: x has shape (systems, cells, 2)."""

    B: Array

    @classmethod
    def draw(cls, systems: int, cells: int, seed: int = 0) -> Brusselators:
        """Random ones."""
        rng = np.random.default_rng(seed)
        B = rng.uniform(1.2, 2.2, systems)
        rest = np.stack([np.full((systems, cells), A), np.broadcast_to(B[:, None] / A, (systems, cells))], axis=-1)
        x0 = rest + rng.uniform(-0.3, 0.3, rest.shape)
        return cls(name=f"W4 {systems} x {cells}", x0=x0, target=1e-10, B=B)

    @property
    def h2(self) -> float:
        """Squared distance of two cells."""
        return 1 / (self.x0.shape[1] + 1) ** 2

    @property
    def widths(self) -> tuple[int, int]:
        """A block on either side."""
        return 2, 2

    def residual(self, x: Array) -> Array:
        """F of all systems."""
        return self.residual_of(x, self.B)

    def residual_of(self, x: Array, feed: Array) -> Array:
        """F of the systems with these B."""
        u, v, b = x[..., 0], x[..., 1], feed[:, None]
        F = -2 * x
        F[:, 1:] += x[:, :-1]
        F[:, :-1] += x[:, 1:]
        F[:, [0, -1], 0] += A
        F[:, [0, -1], 1] += b / A
        F *= DIFFUSION
        uuv = u * u * v
        F[..., 0] += self.h2 * (A - (b + 1) * u + uuv)
        F[..., 1] += self.h2 * (b * u - uuv)
        return F

    def band(self, x: Array) -> Array:
        """The Jacobian of all systems, one after the other."""
        u, v, b, h2 = x[..., 0], x[..., 1], self.B[:, None], self.h2
        ab = np.zeros((5, *x.shape))
        ab[0, :, 1:], ab[4, :, :-1] = DIFFUSION, DIFFUSION
        ab[2, ..., 0] = h2 * (2 * u * v - (b + 1)) - 2 * DIFFUSION
        ab[2, ..., 1] = -h2 * u * u - 2 * DIFFUSION
        ab[3, ..., 0] = h2 * (b - 2 * u * v)
        ab[1, ..., 1] = h2 * u * u
        return ab.reshape(5, -1)

    def problem(self) -> ims.Problem:
        """The residual of the batch, the structure, the derivative by B, and how to go on with some of the systems."""
        import implicitsolve as ims

        def pull(x: Array, w: Array) -> dict[str, Array]:
            inside = self.h2 * np.sum(x[..., 0] * (w[..., 1] - w[..., 0]), axis=1)
            return {"B": inside + DIFFUSION / A * (w[:, 0, 1] + w[:, -1, 1])}

        def chosen(feed: Array) -> ims.Problem:
            return ims.Problem(
                lambda x: self.residual_of(x, feed),
                structure=ims.BlockBanded(1, 1, 2),
                batch_ndim=1,
                parameters={"B": feed},
                parameter_vjp=pull,
                take=lambda rows: chosen(feed[rows]),
            )

        return chosen(self.B)

    def compiled(self) -> tuple[Callable[..., None], Array]:
        """The residual of one system, compiled by Numba, and its parameters, as `newton_batch` takes them."""
        import numba

        h2 = self.h2

        @numba.njit
        def residual(x: Array, p: Array, out: Array) -> None:
            last = x.shape[0] - 1
            for i in range(last + 1):
                u, v = x[i, 0], x[i, 1]
                left_u, left_v = (x[i - 1, 0], x[i - 1, 1]) if i > 0 else (A, p[0] / A)
                right_u, right_v = (x[i + 1, 0], x[i + 1, 1]) if i < last else (A, p[0] / A)
                uuv = u * u * v
                out[i, 0] = DIFFUSION * (left_u - 2 * u + right_u) + h2 * (A - (p[0] + 1) * u + uuv)
                out[i, 1] = DIFFUSION * (left_v - 2 * v + right_v) + h2 * (p[0] * u - uuv)

        return residual, self.B[:, None]
