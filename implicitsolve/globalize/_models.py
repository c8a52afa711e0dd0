"""Models of the residual along a step, whose minimizers are the next lengths that backtracking tries."""

from __future__ import annotations

import numpy as np

from implicitsolve._namespace import array_namespace, from_host, norm2, to_host
from implicitsolve._typing import Array, HostArray

LENGTHS = np.linspace(0.1, 0.5, 17)  # among which a model of ||J^-1 F|| is minimized
REST = 1 - LENGTHS
PROMISING = 0.8  # of ||J^-1 F|| at the start: what that model must promise


def model_minimizer(
    length: HostArray, ratio: HostArray, older_length: HostArray, older_ratio: HostArray, slope: HostArray
) -> HostArray:
    """Next length: minimizer of the quadratic, then cubic model of the ratio (1 at 0, `slope` there)."""
    with np.errstate(all="ignore"):
        quadratic = -slope * length**2 / (2 * (ratio - 1 - slope * length))
        # cubic through the last two trials, Dennis and Schnabel (6.3.18)
        rest = (ratio - 1 - slope * length) / length**2
        older_rest = (older_ratio - 1 - slope * older_length) / older_length**2
        a = (rest - older_rest) / (length - older_length)
        b = (older_rest * length - rest * older_length) / (length - older_length)
        root = np.sqrt(np.maximum(b * b - 3 * a * slope, 0.0))
        cubic = np.where(np.abs(a) > 0, (root - b) / (3 * a), -slope / (2 * b))
        model = np.where(np.isfinite(cubic) & np.isfinite(older_ratio), cubic, quadratic)
        model = np.where(np.isfinite(model), model, 0.5 * length)
    bounded = np.clip(model, 0.1 * length, 0.5 * length)
    return np.where(np.isfinite(ratio), bounded, 0.1 * length)


def natural_minimizer(step: Array, natural: Array) -> HostArray:
    """Length after the whole step of an exact J, given J^-1 F at its end, if a model of ||J^-1 F|| promises much; NaN.

    Along the step ``J(x)^-1 F(x + l step) = -(1 - l) step + l^2 natural`` where F is quadratic.
    """
    xp = array_namespace(step)
    with np.errstate(all="ignore"):
        size = from_host(norm2(step), step)[:, None]
        unit, other = step / size, natural / size
        products = np.real(to_host(xp.vecdot(unit, other))).astype(np.float64)[:, None]
        model = REST**2 - 2 * REST * LENGTHS**2 * products + LENGTHS**4 * norm2(other)[:, None] ** 2
        is_promising = np.min(model, axis=1) <= PROMISING**2  # NaN is not
    return np.where(is_promising, LENGTHS[np.argmin(model, axis=1)], np.nan)
