"""Broyden's rank-one updates of a factorized Jacobian, for each system of a batch, without matrices.

With H the inverse of the factorized J, and s = x+ - x, y = F(x+) - F(x) of each step since, the inverse is

    H+ = (I + w s^H) H,        w = (s - H y) / (s^H H y)

(Sherman and Morrison), which maps y to s. After a whole step, s = -H F(x), w is the next direction over s^H s [1]_, so
that each step kept costs one vector, and two passes over it.

References
----------
.. [1] C. T. Kelley, "Iterative methods for linear and nonlinear equations", SIAM (1995), section 7.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy as np
from scipy.linalg import blas

from implicitsolve._namespace import array_namespace, from_host, gather, is_safe, norm_max, safe_range, to_host
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels import rank_one
from implicitsolve.kernels._vectors import vectors_like

AXPY = {"f": blas.saxpy, "d": blas.daxpy, "F": blas.caxpy, "D": blas.zaxpy}


class BroydenInverse:
    """The updates since each system's last factorization."""

    def __init__(self) -> None:
        # s, w and a factor of w for each system (b, 1); s is zero for the systems that were factorized since
        self.pairs: list[tuple[Array, Array, Array]] = []
        self.last: tuple[Array, Array, tuple[Array, Array] | None] | None = None
        # s, s^H d for d = -H F(x), and where not all steps were whole: the rest d - s, and which were

    def direction(self, inverse: Callable[[Array], Array], F: Array) -> Array:
        """-H F at the newest iterate, where `inverse` is that of the factorized J."""
        return self.corrected(-inverse(F))

    def corrected(self, z: Array) -> Array:
        """The same, given z = -H F for the factorized J, which is overwritten."""
        if not self.pairs and self.last is None:
            return z
        newest = [] if self.last is None else [self.last[0]]
        following = [pair[0] for pair in self.pairs[1:]] + newest
        gain = None
        if self.pairs:
            correct = rank_one.select(z, size=z.shape[1])
            gain = _dot(self.pairs[0][0], z)
            for (_, w, factor), s in zip_longest(self.pairs, following):
                gain = correct(z, w, gain * factor, s)
        if self.last is None:
            return z
        s, advance, rest = self.last
        self.last = None
        gain = _dot(s, z) if gain is None else gain
        z, w, factor = _newest(z, gain, advance, rest)
        self.pairs.append((s, w, factor))
        return z

    def step(self, s: Array, d: Array, length: HostArray | None = None, size: HostArray | None = None) -> None:
        """See the step s, `length` times the direction d, that was taken; 0 where it was not, None for whole steps.

        `size` is ||s||, if s is d and that is known.
        """
        xp = array_namespace(s)
        rest = None
        if length is not None and not (length == 1.0).all():
            rest = d * from_host(1.0 - length, d)[:, None], from_host(length == 1.0, d)[:, None]
        with np.errstate(all="ignore"):
            advance = _dot(s, d)
            size = np.sqrt(np.abs(to_host(advance[:, 0]))) if size is None else size
        is_fit = is_safe(size, xp, s.dtype) if length is None else is_safe(size, xp, s.dtype) | (length == 0)
        if not is_fit.all():  # w s^H is the same for any multiple of s
            size = norm_max(s)
            usable = (size > 0) & np.isfinite(size)
            exponent = np.where(usable, np.frexp(size)[1], 0)
            s = s * from_host(np.ldexp(1.0, -exponent), s)[:, None]
            advance = _dot(s, d)
        self.last = s, advance, rest

    def forget(self, oldest: int) -> None:
        """Drop pairs that no system uses: those of more than `oldest` steps ago."""
        self.pairs = self.pairs[max(0, len(self.pairs) - oldest) :]

    def reset(self, where: HostArray) -> None:
        """Forget the systems that are factorized again."""
        if where.all():
            self.pairs, self.last = [], None
        if not where.any() or not (self.pairs or self.last):
            return
        self.pairs = [(_without(s, where), _without(w, where), factor) for s, w, factor in self.pairs]
        if self.last is not None:
            self.last = _without(self.last[0], where), *self.last[1:]

    def take(self, indices: Indices) -> BroydenInverse:
        """The updates of some systems; those of the others are dropped here too."""
        self.pairs = [(gather(s, indices), gather(w, indices), gather(f, indices)) for s, w, f in self.pairs]
        if self.last is not None:
            s, advance, rest = self.last
            rest = None if rest is None else (gather(rest[0], indices), gather(rest[1], indices))
            self.last = gather(s, indices), gather(advance, indices), rest
        return self


class WholeSteps(BroydenInverse):
    """The same for one system of real NumPy numbers, in fewer calls as long as its steps are whole.

    Each whole step is w of the step before it, over the square of that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Array] = []  # (1, N), since the factorization
        self.squares: list[float] = []  # s^T s of each, and of the newest direction
        self.is_whole = True

    def corrected(self, z: Array) -> Array:
        """Direction at the newest iterate, given z = -H F for the factorized J, which is overwritten."""
        if not self.is_whole:
            return super().corrected(z)
        row, growth, axpy = z[0], 1.0, AXPY[z.dtype.char]
        del self.squares[len(self.steps) :]
        for s, square, following in zip_longest(self.steps, self.squares, self.steps[1:]):
            gain = float(np.vdot(s[0], row)) / square
            if following is not None:
                axpy(following[0], row, a=gain)
            else:
                growth = 1 / (1 - gain) if gain != 1 else math.inf
        if math.isfinite(growth):
            row *= growth
        self.squares.append(float(np.vdot(row, row)))
        return z

    def step(self, s: Array, d: Array, length: HostArray | None = None, size: HostArray | None = None) -> None:
        """See the step s that was taken along the direction d."""
        if self.is_whole:
            low, high = safe_range(array_namespace(s), s.dtype)
            if (length is None or length[0] == 1.0) and low < math.sqrt(self.squares[-1]) < high:
                self.steps.append(s)
                return
            self._go_on_generally(d)
        super().step(s, d, length, size)

    def reset(self, where: HostArray) -> None:
        """Forget everything."""
        super().reset(where)
        self.steps, self.squares, self.is_whole = [], [], True

    def take(self, indices: Indices) -> WholeSteps:
        """Forget the system when it has ended."""
        self.reset(np.ones(1, dtype=bool))
        return self

    def _go_on_generally(self, d: Array) -> None:
        """Go on as for any steps; d is the newest direction."""
        self.is_whole = False
        for s, w, square in zip(self.steps, [*self.steps[1:], d], self.squares):
            self.pairs.append((s, w, np.full((1, 1), 1 / square, dtype=s.dtype)))


def _newest(z: Array, gain: Array, advance: Array, rest: tuple[Array, Array] | None) -> tuple[Array, Array, Array]:
    """Direction, w and its factor after a step s, from z = -H F, s^H z and s^H d."""
    work: Any = vectors_like(z)
    growth, factor = work.growth(gain, advance)
    if rest is None:
        z *= growth
        return z, z, factor
    # w is (z - rest) growth / advance; where the whole step was taken, z growth is both w and direction
    w = (z - rest[0]) * growth
    return array_namespace(z).where(rest[1], w, z + w * (gain * factor)), w, factor


def _dot(s: Array, z: Array) -> Array:
    """s^H z for each system, as a column."""
    work: Any = vectors_like(z)
    return work.dot(s, z)


def _without(s: Array, where: HostArray) -> Array:
    """Copy of s with zeros for the systems `where`."""
    xp = array_namespace(s)
    return xp.where(from_host(where, s)[:, None], xp.zeros_like(s), s)
