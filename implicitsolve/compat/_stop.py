"""SciPy's termination condition as a stopping rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, CallersArray, HostArray
from implicitsolve.stopping import NonlinearStop, check_limit, check_number

DEFAULT_F_TOL = float(np.finfo(np.float64).eps ** (1 / 3))  # SciPy's


@dataclass(frozen=True, kw_only=True)
class ScipyStop(NonlinearStop):
    """SciPy's termination condition, for each system of a batch."""

    f_rtol: float = math.inf
    x_tol: float = math.inf
    x_rtol: float = math.inf
    ignores_residual: bool = False

    OWNER: ClassVar[str] = "newton_krylov"

    @classmethod
    def build(
        cls,
        x0: Array,
        batch_ndim: int,
        given: dict[str, float | None],
        *,
        iter: int | None,
        maxiter: int | None,
        tol_norm: Callable[[CallersArray], Any] | None,
        **budget: Any,
    ) -> ScipyStop:
        tolerances: dict[str, Any] = {}
        for name, value in given.items():
            if value is None:
                continue
            if isinstance(value, np.ndarray) and value.ndim == 0:
                value = value.item()
            check_number("newton_krylov", name, value)
            if not value >= 0:
                raise ValueError(f"newton_krylov: `{name}` must not be negative or NaN, got {value}")
            tolerances[name] = float(value)
        if tol_norm is not None and not callable(tol_norm):
            raise TypeError(f"newton_krylov: `tol_norm` must be callable, got {type(tol_norm).__name__}")
        for name, steps in (("iter", iter), ("maxiter", maxiter)):
            if steps is not None:
                check_limit("newton_krylov", name, steps)
        steps = 100 * (math.prod(x0.shape[batch_ndim:]) + 1) if maxiter is None else maxiter
        f_tol = tolerances.pop("f_tol", DEFAULT_F_TOL)
        return cls(
            atol=min(f_tol, float(np.finfo(np.float64).max)),
            rtol=0.0,
            max_iterations=steps if iter is None else iter if maxiter is None else min(iter, maxiter),
            norm="max" if tol_norm is None else lambda x: tol_norm(flat(x)),
            ignores_residual=iter is not None,
            **tolerances,
            **budget,
        )

    @property
    def keeps_last(self) -> bool:
        return self.ignores_residual

    def target(self, first: HostArray, F: Array) -> HostArray:
        """Right-hand side of both conditions on the residual; 0 where a number of steps is prescribed."""
        if self.ignores_residual:
            return np.zeros(first.shape)
        with np.errstate(invalid="ignore"):
            return np.fmin(self.atol, self.f_rtol * first)  # inf * 0 is no number, and gives way

    def holds(self, norms: HostArray, target: HostArray, x: Array, step: Array | None) -> HostArray:
        """Where all conditions hold, or F is zero."""
        is_zero, held = norms == 0, norms <= target
        if self.ignores_residual:
            return is_zero
        if self.x_tol == math.inf and self.x_rtol == math.inf:
            return is_zero | held
        if step is None:
            return is_zero
        x_norm, step_norm = self.measure(x, tuple(x.shape[1:])), self.measure(step, tuple(step.shape[1:]))
        relative = np.full(x_norm.shape, math.inf) if self.x_rtol == math.inf else self.x_rtol * x_norm
        return is_zero | (held & (step_norm <= self.x_tol) & (step_norm <= relative))


def flat(x: Array) -> Array:
    return array_namespace(x).reshape(x, (-1,))
