"""Whether a trace is right: its values are those of the function, and its products are differences of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np

from implicitsolve._typing import CallersArray, HostArray
from implicitsolve.tracing._functions import UntraceableError

NEARBY = 0.1, 1e-3  # distances of the points at which a trace is compared, over the size of x
SIMILAR = 5e4  # units of rounding by which F and its trace may differ, of its own size,
PART = 16.0  # ... of the largest F,
DIGITS, ROUNDING = 16.0, 50.0  # ... and so many times the change of the trace as x changes by so many such units
MISMATCH = 1e-3  # part by which a product may differ from a difference of F

Jvp = Callable[[HostArray, HostArray], tuple[HostArray, HostArray]]


class Comparison:
    """A function and its trace, `jvp`, which gives F and J v, in `bounds`.

    F may be undefined at points that the caller has not chosen, and raise one of `quiet` there; `raised` is any other.
    """

    def __init__(
        self,
        residual: Callable[[HostArray], CallersArray],
        jvp: Jvp,
        bounds: CallersArray = None,
        rejects: tuple[type[Exception], ...] | type[Exception] = (),
    ) -> None:
        self.residual, self.jvp, self.bounds, self.evaluations = residual, jvp, bounds, 0
        own = rejects if isinstance(rejects, tuple) else (rejects,)
        self.quiet: tuple[type[Exception], ...] = (ArithmeticError, ValueError, *own)
        self.raised: Exception | None = None

    def holds_nearby(self, x: HostArray) -> bool:
        for y, _ in self._nearby(x):
            F = self.value(y)
            if F is not None and np.isfinite(F).any():
                return self.holds(y, F)
        return False

    def holds_anew(self, x: HostArray, first: HostArray | None) -> bool:
        """Whether they agree at x, where F is `first`, and at two points near it, and the product between these."""
        is_known = first is not None and bool(np.isfinite(first).any())
        if first is not None and is_known and not self.holds(x, first):
            return False
        for y, v in self._nearby(x):
            for h in np.finfo(x.dtype).eps ** (1 / 3) / np.array([1.0, 8.0]):
                ahead, behind = (self.inside((y + side * h * v).astype(x.dtype)) for side in (1, -1))
                F, G = self.value(ahead), self.value(behind)
                if F is None or G is None or not np.isfinite(F + G).any():
                    break
                if not (self.holds(ahead, F) and self.holds(behind, G)):
                    return False
                if self._is_product((F - G) / (2 * h), y, (ahead - behind) / (2 * h), np.abs(F) / h):
                    return True
            else:
                return False
        if not is_known:
            raise UntraceableError("F is not finite near x0, so that its trace cannot be compared")
        return True

    def _nearby(self, x: HostArray) -> Iterator[tuple[HostArray, HostArray]]:
        random = np.random.default_rng(x.size)
        size = np.maximum(np.abs(x), np.sqrt(np.mean(np.abs(x) ** 2)) or 1.0)
        for distance in NEARBY:
            y = self.inside((x + distance * size * random.uniform(-1, 1, x.shape)).astype(x.dtype))
            yield y, random.uniform(0.5, 1, x.shape) * random.choice((-1.0, 1.0), x.shape) * size

    def inside(self, x: HostArray) -> HostArray:
        if self.bounds is None:
            return x
        lower, upper = (np.asarray(side, x.dtype) for side in self.bounds)
        return np.clip(x, lower, upper)

    def value(self, x: HostArray) -> HostArray | None:
        self.evaluations += 1
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return np.array(self.residual(x.copy()), x.dtype).reshape(x.shape)
        except self.quiet:
            return None
        except Exception as error:
            self.raised = error
            raise

    def holds(self, x: HostArray, F: HostArray) -> bool:
        """Whether values of the trace are F(x), entry by entry, up to rounding."""
        unit, zero = np.finfo(x.dtype).eps, np.zeros_like(x)
        own = self.jvp(x, zero)[0]
        if not np.array_equal(np.isfinite(F), np.isfinite(own)):
            return False
        with np.errstate(all="ignore"):
            error = np.where(np.isfinite(F), np.abs(F - own), 0)
            allowed = SIMILAR * unit * np.abs(F) + PART * unit * np.max(np.abs(F), initial=0, where=np.isfinite(F))
            wrong = error > allowed
            random = np.random.default_rng(0)
            for _ in range(6):
                if not wrong.any():
                    return True
                moved = (x * (1 + DIGITS * unit * random.uniform(-1, 1, x.shape))).astype(x.dtype)
                change = np.abs(self.jvp(moved, zero)[0] - own)
                wrong &= ~(error <= allowed + ROUNDING * change)
        return not wrong.any()

    def _is_product(self, difference: HostArray, x: HostArray, v: HostArray, size: HostArray) -> bool:
        """Whether most entries of the product with v are those of a difference of values of a size."""
        product = self.jvp(x, v.astype(x.dtype))[1]
        with np.errstate(all="ignore"):
            rounding = 10 * np.finfo(x.dtype).eps * np.max(size, initial=0, where=np.isfinite(size))
            excess = np.abs(difference - product) - MISMATCH * np.maximum(np.abs(difference), np.abs(product))
        known = excess[np.isfinite(excess)]
        return not known.size or bool(np.median(known) <= rounding)
