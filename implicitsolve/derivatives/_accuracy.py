"""Whether a derivative is accurate: its equation is measured by differences of F along one direction.

J^H lam = c holds if lam^H (J d) = c^H d for a random d, and J t = b is a difference of F along t. Both test J as F has
it, whatever gave the matrix, the products or the pattern of the solve. A difference is trusted as far as one of an
eighth of its length agrees with it. Longer ones are not tried: over many periods of F they agree with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass

import numpy as np

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._arrays.namespace import array_namespace, eps
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.derivatives._systems import DROWNED
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._difference_steps import DifferenceSteps, rms
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import random_direction
from implicitsolve.problem import spread

RATIO = 8.0  # of the lengths of two differences
COUNT = 8  # of the lengths that are tried, each an eighth of the last
NEAR_ZERO = 1e-3  # size of x below which lengths for one of size 1 are tried too
TRUST = 4.0  # error of a difference over its distance to the next one

Level = tuple[int, int]  # the scale, 0 that of x and 1 the number 1, and the power of 1 / RATIO


def lengths(evaluator: Evaluator, x: Array) -> Array:
    """Lengths (B, N) of central differences, eps^(1/3) times x_scale or |x|: at least its rms over the blocks, or 1."""
    xp, problem = evaluator.xp, evaluator.problem
    precision = eps(xp, evaluator.dtype)
    if problem.x_scale is not None and not isinstance(problem.x_scale, str):
        size = from_host(spread("x_scale", problem.x_scale, evaluator.shape), x)
        return evaluator.inward(x, precision ** (1 / 3) * evaluator.flatten(size))
    k = 1 if problem.block_structure is None else problem.block_structure.block_size
    states = xp.reshape(x, (x.shape[0], x.shape[1] // k if k else 0, k))
    columns = rms(states)
    whole = np.sqrt(np.mean(columns**2, axis=1, keepdims=True))
    floor = np.where(columns > 0, columns, np.where(whole > 0, whole, 1.0))
    size = xp.reshape(xp.maximum(xp.abs(states), from_host(floor, x)[:, None, :]), x.shape)
    return evaluator.inward(x, precision ** (1 / 3) * size)


class Differences:
    """Derivatives of F along d (B, N) at x, by central differences of several lengths; each is taken once.

    Within bounds they are as accurate on one side, and entries of d that lead out are taken backwards.
    """

    def __init__(self, evaluator: Evaluator, x: Array, d: Array, F: Array | None = None) -> None:
        self.evaluator, self.x, self.d, self.F = evaluator, x, d, F
        size = np.sqrt(np.asarray(norm2(x)) ** 2 / max(1, x.shape[1]))
        is_tiny = (size > 0) & (size < NEAR_ZERO)
        self.second: HostArray = np.where(is_tiny, 1 / np.where(is_tiny, size, 1.0), 1.0)
        self._taken: dict[Level, Array] = {}

    def levels(self) -> Iterable[Level]:
        """Lengths in the order in which they are tried."""
        yield 0, 0
        if self.evaluator.box is None and (self.second > 1).any():
            yield from ((1, k) for k in (0, 1, -1))
        yield from ((0, k) for k in range(1, COUNT))

    def factor(self, level: Level) -> HostArray:
        """Length at a level over that of d (B,)."""
        which, k = level
        return RATIO**-k * (self.second if which else np.ones_like(self.second))

    def at(self, level: Level) -> Array:
        """The derivative along d, by differences of that length."""
        if level not in self._taken:
            t = from_host(self.factor(level), self.x)[:, None]
            with np.errstate(all="ignore"):
                self._taken[level] = self._one_sided(t) if self.evaluator.box is not None else self._central(t)
        return self._taken[level]

    def pair(self, level: Level) -> tuple[Array, Array]:
        """The derivative at an eighth of the length, and its distance to that at the length itself."""
        which, k = level
        coarse, fine = self.at(level), self.at((which, k + 1))
        with np.errstate(all="ignore"):
            return fine, fine - coarse

    def error(self, level: Level) -> HostArray:
        """The relative distance of a pair, at least an eighth of the next: rounded ones may agree by chance."""
        which, k = level
        fine, distance = self.pair(level)
        with np.errstate(all="ignore"):
            error = norm2(distance) / norm2(fine)
            if level == (0, 0) and error.all():
                return error
            fine, distance = self.pair((which, k + 1))
            return np.maximum(error, norm2(distance) / norm2(fine) / RATIO)

    def _central(self, t: Array) -> Array:
        h, residual = t * self.d, self.evaluator.residual
        return (residual(self.x + h) - residual(self.x - h)) / (2 * t)

    def _one_sided(self, t: Array) -> Array:
        xp, evaluator = self.evaluator.xp, self.evaluator
        if self.F is None:
            self.F = evaluator.residual(self.x)
        turned = evaluator.inward(self.x, self.d) * self.d < 0
        total = xp.zeros_like(self.x)
        for mask, sign in ((~turned, 1.0), (turned, -1.0)):
            if xp.any(mask & (self.d != 0)):
                h = xp.where(mask, sign * t * self.d, xp.zeros_like(self.d))
                half, whole = (evaluator.residual(evaluator.move(self.x, part)) for part in (0.5 * h, h))
                total = total + sign * (4 * (half - self.F) - (whole - self.F)) / t
        return total


class GivenSteps(DifferenceSteps):
    """The lengths that are given for all systems (B, N), longer where F does not change over them."""

    def __init__(self, given: Array, block_size: int) -> None:
        super().__init__(given.shape[0], block_size, 1.0)
        self.given = array_namespace(given).reshape(given, (given.shape[0], given.shape[1] // block_size, block_size))

    def follow(self, rows: Indices | slice, x: Array) -> None:
        self.is_guess[rows], self.sign[rows], self.boost[rows] = False, 1.0, 1.0

    def lengths(self, rows: Indices | slice, x: Array) -> Array:
        """Steps (B, T, k), those of all systems."""
        return self.given * from_host(self.sign * self.boost, x)[:, None, :]


class Lengths:
    """Lengths h (B, N) of the differences for J: where those along one direction agree best with shorter ones."""

    def __init__(self, evaluator: Evaluator, x: Array, F: Array | None) -> None:
        h = lengths(evaluator, x)
        d = evaluator.inward(x, h * from_host(random_direction(None, x.shape[1], 0), x))
        self.along = Differences(evaluator, x, d, F)
        limit, systems = eps(evaluator.xp, evaluator.dtype) ** 0.5, x.shape[0]
        least, self.factor = np.full(systems, np.inf), np.ones(systems)
        done = np.zeros(systems, dtype=bool)
        self.derivative = self.distance = evaluator.xp.zeros_like(x)
        for level in self.along.levels():
            fine, distance = self.along.pair(level)
            error = self.along.error(level)
            better = ~done & (error < least)
            least = np.where(better, error, least)
            length = self.along.factor(level) * np.where(error <= limit, 1, RATIO**-0.5)
            self.factor = np.where(better, length, self.factor)
            mine = from_host(better | (~done & (level == (0, 0))), x)[:, None]
            self.derivative = evaluator.xp.where(mine, fine, self.derivative)
            self.distance = evaluator.xp.where(mine, distance, self.distance)
            done |= least <= limit
            if done.all():
                break
        self.are_good, self.error = done, least  # whether F is smooth over them, and how far differences agree
        self.h = evaluator.inward(x, h * from_host(self.factor, x)[:, None])


@dataclass(eq=False)
class Equation:
    """The equation that a derivative satisfies, J^H lam = c or J t = b, along the direction in which it is measured."""

    d: Array
    size: HostArray
    mismatch: Callable[[Array], HostArray]
    spread: Callable[[Array], HostArray]
    rest: InitVar[HostArray]

    def __post_init__(self, rest: HostArray) -> None:
        precision = eps(array_namespace(self.d), self.d.dtype)
        self.limit: HostArray = precision**0.5 * self.size + TRUST * rest
        self.loose: HostArray = precision**0.25 * self.size

    @classmethod
    def of_adjoint(cls, lam: Array, c: Array, d: Array, residual_norm: HostArray) -> Equation:
        """lam^H (J d) = c^H d, where ||c - J^H lam|| is `residual_norm`."""
        xp = array_namespace(d)
        right = xp.conj(c) * d if xp.isdtype(c.dtype, "complex floating") else c * d
        left = xp.conj(lam) if xp.isdtype(lam.dtype, "complex floating") else lam
        with np.errstate(all="ignore"):
            rest = residual_norm * to_host(xp.max(xp.abs(d), axis=1))
        return cls(
            d,
            norm2(right),
            lambda D: np.abs(to_host(xp.sum(left * D - right, axis=1))),
            lambda E: norm2(left * E),
            rest,
        )

    @classmethod
    def of_tangent(cls, t: Array, b: Array, h: Array, residual_norm: HostArray) -> Equation:
        """J t = b, both times a factor that brings t to the lengths h, where ||b - J t|| is `residual_norm`."""
        xp = array_namespace(t)
        with np.errstate(all="ignore"):
            longest = to_host(xp.max(xp.abs(t / h), axis=1))
            factor = np.where(longest > 0, 1 / np.where(longest > 0, longest, 1.0), 0.0)
            scale = from_host(factor, t)[:, None]
            right = scale * b
            return cls(scale * t, norm2(right), lambda D: norm2(D - right), norm2, factor * residual_norm)

    def holds(self, derivative: Array, distance: Array, are_good: HostArray) -> HostArray:
        """Whether the equation holds, by a derivative along d with a small error, about the distance.

        Over good lengths the distance is rounding in the shorter difference, many times that in J.
        """
        with np.errstate(all="ignore"):
            error = self.spread(distance)
            is_small = error <= np.where(are_good, DROWNED * self.size, self.loose)
            return (self.mismatch(derivative) <= self.limit + TRUST * error) & is_small

    def fails(self, derivative: Array, distance: Array) -> HostArray:
        """Whether a derivative along d whose error is known to be small contradicts it."""
        with np.errstate(all="ignore"):
            error = self.spread(distance)
            return (self.mismatch(derivative) > self.limit + TRUST * error) & (error <= self.loose)

    def holds_for_some(self, along: Differences, asked: HostArray) -> HostArray:
        """Whether it holds by differences along d that are as accurate as F allows: two evaluations, if they are."""
        with np.errstate(all="ignore"):
            good = self.mismatch(along.at((0, 0))) <= self.limit
            done, least, best = good | ~asked, np.full(good.shape, np.inf), good
            for level in along.levels():
                if done.all():
                    break
                derivative, distance = along.pair(level)
                error, mismatch = self.spread(distance), self.mismatch(derivative)
                doubtful = ~done & (mismatch > self.limit) & (mismatch <= self.limit + TRUST * error)
                if (doubtful & (error <= self.loose)).any():
                    following = self.spread(along.pair((level[0], level[1] + 1))[1])
                    sharper = np.maximum(error / RATIO**2, following / RATIO)
                    error = np.where(doubtful & (following <= error), sharper, error)
                agrees = mismatch <= self.limit + TRUST * error
                better = ~done & (error < least)
                best, least = np.where(better, agrees, best), np.where(better, error, least)
                done |= better & ((agrees & (error <= self.loose)) | (error <= self.limit / TRUST))
            return best
