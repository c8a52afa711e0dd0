"""Walks that start to drift at an unknown time, and the Bayes posterior of that time.

Kazi and Thompson, ACL 2017, section 3.1, with the law of the drift's direction, which they do not give, as a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ive, log_ndtr, logsumexp

__all__ = ["LAWS", "LONGEST", "Law", "Rate", "Walks", "bayes_floor", "draw", "posterior"]

Array = NDArray[Any]
LONGEST = 40
LAWS = ("common", "sphere", "normal", "uniform")
QUADRATURE_NODES = 12
FLOOR_BATCH = 2000


@dataclass(frozen=True)
class Law:
    """How walks are drawn: N uniform in 1..40, t' uniform in [0, N), unit normal steps, and the law of v.

    Parameters
    ----------
    bias : float
        b, the size of the drift.
    law : {"common", "sphere", "normal", "uniform"}
        "common": v is norm * (1, ..., 1) / sqrt(dimension) for every walk, so that the default is (1, 1);
        "sphere": per walk, uniform on the sphere of radius norm; "normal": per walk, norm times a unit normal
        vector; "uniform": per walk, uniform in [0, norm]^dimension.
    dimension : int
    norm : float
    """

    bias: float = 1.0
    law: str = "common"
    dimension: int = 2
    norm: float = 2**0.5

    @property
    def common(self) -> Array:
        """The direction of law "common"."""
        return np.full(self.dimension, self.norm / self.dimension**0.5)

    def directions(self, count: int, rng: np.random.Generator) -> Array:
        """Draw v, (count, dimension)."""
        shape = count, self.dimension
        if self.law == "common":
            return np.broadcast_to(self.common, shape)
        if self.law == "uniform":
            return rng.uniform(0.0, self.norm, shape)
        v = self.norm * rng.standard_normal(shape)
        return v if self.law == "normal" else v * (self.norm / np.linalg.norm(v, axis=1, keepdims=True))


@dataclass(frozen=True)
class Walks:
    """Walks padded to length T: `positions` (B, T, d), `lengths` (B,), `changes` (B,) t', `labels` (B, T)."""

    positions: Array
    lengths: Array
    changes: Array
    labels: Array

    def part(self, which: slice) -> Walks:
        """Some of the walks."""
        return Walks(self.positions[which], self.lengths[which], self.changes[which], self.labels[which])

    @property
    def is_step(self) -> Array:
        """(B, T), false where padded."""
        return np.arange(self.labels.shape[1]) < self.lengths[:, None]


def draw(law: Law, count: int, rng: np.random.Generator, length: int | None = None) -> Walks:
    """Draw `count` walks, all of one length if it is given."""
    lengths = rng.integers(1, LONGEST + 1, count) if length is None else np.full(count, length)
    changes = rng.uniform(0.0, lengths)
    i = np.arange(1, lengths.max() + 1)
    share = np.clip(i - changes[:, None], 0.0, 1.0)  # of the drift, in each step
    drift = law.bias * share[:, :, None] * law.directions(count, rng)[:, None, :]
    steps = rng.standard_normal((count, i.size, law.dimension)) + drift
    is_step = i <= lengths[:, None]
    positions = np.cumsum(steps, axis=1) * is_step[:, :, None]
    return Walks(positions, lengths, changes, (i > changes[:, None]) & is_step)


# ------------------------------------------------------------------------------------------------------ Bayes posterior


def posterior(law: Law, walks: Walks) -> Array:
    """Exact P(y_i = 1 | walk), (B, T), zero where padded.

    t' = m + 1 - g with m = 0..N-1 and g in (0, 1): step m+1 drifts by the fraction g, later ones fully, and y_i = 1 if
    i > m. Given v, the likelihood ratio to a walk without drift is exp(b v.S - b^2 |v|^2 Q / 2) with
    S = g D_{m+1} + sum_{i > m+1} D_i (D the steps) and Q = g^2 + N - m - 1; v is integrated out analytically and g
    by Gauss-Legendre quadrature.
    """
    steps = np.diff(walks.positions, axis=1, prepend=0.0) * walks.is_step[:, :, None]
    later = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1] - steps
    nodes, weights = np.polynomial.legendre.leggauss(QUADRATURE_NODES)
    g = (nodes[:, None] + 1.0) / 2.0
    S = later[:, :, None, :] + g * steps[:, :, None, :]
    after = walks.lengths[:, None] - np.arange(1, steps.shape[1] + 1)
    Q = np.maximum(after, 0)[:, :, None] + g[:, 0] ** 2
    evidence = logsumexp(_log_ratio(law, S, Q), axis=2, b=weights)
    evidence = np.where(walks.is_step, evidence, -np.inf)
    return np.cumsum(np.exp(evidence - logsumexp(evidence, axis=1, keepdims=True)), axis=1) * walks.is_step


def _log_ratio(law: Law, S: Array, Q: Array) -> Array:
    """Log of the likelihood ratio averaged over the law of v; S (..., d), Q (...)."""
    size = law.bias * law.norm
    d = law.dimension
    if size == 0.0:
        return np.zeros_like(Q)
    if law.law == "common":
        return law.bias * (S @ law.common) - 0.5 * size**2 * Q
    if law.law == "sphere":  # mean of exp(kappa * cosine): the constant of the von Mises-Fisher distribution
        kappa = size * np.linalg.norm(S, axis=-1)
        kappa = np.maximum(kappa, 1e-8)
        mean = gammaln(d / 2) + (d / 2 - 1) * np.log(2 / kappa) + np.log(ive(d / 2 - 1, kappa)) + kappa
        return mean - 0.5 * size**2 * Q
    if law.law == "normal":
        spread = 1.0 + size**2 * Q
        return 0.5 * size**2 * (S**2).sum(axis=-1) / spread - 0.5 * d * np.log(spread)
    root = np.sqrt(Q)[..., None]  # uniform: in each dimension a piece of a Gaussian integral
    centre, width = S / root, size * root
    low, high = np.where(centre < 0, centre, -centre), np.where(centre < 0, centre - width, width - centre)
    low, high = np.minimum(low, high), np.maximum(low, high)
    log_mass = log_ndtr(high) + np.log(-np.expm1(log_ndtr(low) - log_ndtr(high)))
    return (log_mass + 0.5 * centre**2 + 0.5 * np.log(2 * np.pi) - np.log(width)).sum(axis=-1)


@dataclass(frozen=True)
class Rate:
    """An error per element and its standard error (over walks, whose elements are not independent)."""

    value: float
    standard_error: float

    @classmethod
    def of(cls, errors: Array, lengths: Array) -> Rate:
        """Ratio of two means: errors per walk to elements per walk."""
        value = errors.sum() / lengths.sum()
        deviation = np.std(errors - value * lengths, ddof=1) if lengths.size > 1 else np.nan
        return cls(float(value), float(deviation / (lengths.mean() * lengths.size**0.5)))

    def __str__(self) -> str:
        """Value and standard error."""
        return f"{self.value:.4f} +- {self.standard_error:.4f}"


def bayes_floor(law: Law, count: int, rng: np.random.Generator) -> Rate:
    """Bayes-optimal error per element: the mean of min(P, 1 - P) over fresh walks."""
    errors, lengths = [], []
    for first in range(0, count, FLOOR_BATCH):
        walks = draw(law, min(FLOOR_BATCH, count - first), rng)
        P = posterior(law, walks)
        errors.append((np.minimum(P, 1 - P) * walks.is_step).sum(axis=1))
        lengths.append(walks.lengths)
    return Rate.of(np.concatenate(errors), np.concatenate(lengths))
