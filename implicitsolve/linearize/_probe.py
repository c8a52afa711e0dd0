"""A residual seen as a program: which equations change, bit for bit, when some unknowns do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicitsolve._typing import Array, HostArray

Flat = Callable[[Array], Array]
"""A residual on arrays (B, N)."""

GENERIC = 1e-3  # relative distance of the generic point: a product of three factors that vanished differs by 1e-9
STEP = 2.0**-13  # relative displacement, eps^(1/4): the changes are good entries of J as well
SEED = 20190622


class BudgetSpentError(Exception):
    """More evaluations are needed than were allowed."""


class EvaluationError(Exception):
    """The residual raised at a probing point, where a solve may never have evaluated it."""


class Probe:
    """Evaluations of a residual around a generic point, counted and bounded.

    Parameters
    ----------
    residual : callable
        ``residual(x) -> F`` on arrays (B, N).
    x : ndarray (B, N)
        The point near which the pattern is sought.
    budget : int
        Evaluations at most.
    scale : ndarray (B, N), optional
        Sizes of the unknowns. Default: |x|, at least the root mean square of its system; 1 where x is zero.
    inward : callable, optional
        ``inward(x, h)`` returns displacements as long as h that stay within the bounds of x.

    Attributes
    ----------
    x, F : ndarray (B, N)
        The generic point, and the residual there. `is_finite` is whether there is one.
    h : ndarray (B, N)
        Displacements: ``(x + h) - x`` is h, without rounding.
    evaluations : int
        Residual evaluations so far.
    """

    def __init__(
        self, residual: Flat, x: HostArray, budget: int, scale: HostArray | None = None, inward: Any = None
    ) -> None:
        self.inward: Callable[[HostArray, HostArray], HostArray] = inward or (lambda x, h: h)
        self._residual, self.budget, self.evaluations = residual, budget, 0
        self.systems, self.size = x.shape
        if scale is None:
            rms = np.sqrt(np.mean(np.square(np.abs(x)), axis=1, keepdims=True))
            scale = np.maximum(np.abs(x), np.where(rms > 0, rms, 1.0))
        self._start, self._scale = x, scale
        self.x, self.F, self.shifted, self.h = x, x, x, x
        self.is_finite = False

    def approach(self) -> None:
        """Find a generic point where F is finite, on one side of the start or the other, else the start itself."""
        x, scale, random = self._start, self._scale, np.random.default_rng(SEED)
        spread = random.uniform(0.5, 1.0, self.size)
        away = np.where(x < 0, -1.0, 1.0) if x.dtype.kind != "c" else 1.0  # no unknown changes its sign
        for distance in (GENERIC * away, -GENERIC * away, 1e-3 * GENERIC * away, 0.0):
            self.x = x + self.inward(x, (distance * spread * scale).astype(x.dtype))
            self.F = self.evaluate(self.x)
            self.is_finite = bool(np.isfinite(self.F).all())
            if self.is_finite:
                break
        towards = away * random.uniform(0.5, 1.0, self.size)  # all different: no change of two unknowns cancels
        self.shifted = self.x + self.inward(self.x, (STEP * towards * scale).astype(x.dtype))
        self.h = self.shifted - self.x

    def evaluate(self, x: HostArray) -> HostArray:
        """Evaluate the residual, or raise BudgetSpentError or EvaluationError."""
        if self.evaluations >= self.budget:
            raise BudgetSpentError
        self.evaluations += 1
        try:
            return self._residual(x)
        except Exception as error:  # whatever it is: at x0 itself the solve raises it
            raise EvaluationError from error

    def displaced(self, where: HostArray | int) -> HostArray:
        """Residual (B, N) after the unknowns `where` (indices, or a mask) have been displaced."""
        if isinstance(where, np.ndarray) and where.dtype.kind == "b":
            return self.evaluate(np.where(where, self.shifted, self.x))
        x = self.x.copy()
        x[:, where] = self.shifted[:, where]
        return self.evaluate(x)

    def changed(self, F: HostArray) -> HostArray:
        """Rows in which F differs from that at the generic point, in any system; NaN counts as a change."""
        return np.flatnonzero(self.changed_rows(F))

    def changed_rows(self, F: HostArray) -> HostArray:
        """The same as a mask."""
        return F[0] != self.F[0] if self.systems == 1 else (F != self.F).any(axis=0)

    def differ(self, a: HostArray, b: HostArray) -> HostArray:
        """Whether entries (B, n) differ in any system; two NaN are alike."""
        return ((a != b) & ~(np.isnan(a) & np.isnan(b))).any(axis=0)
