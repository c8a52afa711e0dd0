"""Derivatives with respect to the parameters, each parameter by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import array_namespace, is_array, is_complex, norm2, to_host
from implicitsolve._typing import Array, HostArray
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.problem import Problem
from implicitsolve.testing._product_tests import (
    ROUNDING,
    SAFETY,
    UNSETTLED,
    UNSETTLED_HINT,
    Check,
    Point,
    random_like,
)

Build = Callable[[Mapping[str, Array]], Problem]


def parameter_tests(point: Point, build: Build | None) -> tuple[list[Check], list[str]]:
    """Checks of `parameter_jvp` and `parameter_vjp`, and what could not be checked."""
    problem = point.problem
    if problem.parameter_jvp is None and problem.parameter_vjp is None:
        return [], []
    checks: list[Check] = []
    skipped: list[str] = []
    w = point.evaluator.unflatten(point.random())
    gradients: Any = None
    if problem.parameter_vjp is not None:
        gradients = problem.parameter_vjp(point.evaluator.unflatten(point.x), point.xp.asarray(w, copy=True))
    for name, value in (problem.parameters or {}).items():
        if _values(value) is None:
            skipped.append(f"{name!r}: a {type(value).__name__} is no array")
            continue
        tangent = _with_values(value, random_like(point.rng, _values(value)))
        known = _difference(point, name, value, tangent, build)
        change, allowed = known, point.tolerance
        if problem.parameter_jvp is not None:
            product = problem.parameter_jvp(point.evaluator.unflatten(point.x), {name: tangent})
            product = point.evaluator.flatten(product)
            if known is not None:
                checks.append(point.compared(f"parameter_jvp[{name!r}]", product, *known))
            elif problem.parameter_vjp is None:
                skipped.append(f"parameter_jvp[{name!r}]: a copy of F does not follow the array; give `build`")
            if known is None or checks[-1].passed:
                change, allowed = (product, np.zeros(product.shape[0])), SAFETY * ROUNDING * point.precision
        if gradients is None:
            continue
        if change is None:
            skipped.append(f"parameter_vjp[{name!r}]: a copy of F does not follow the array; give `build`")
            continue
        checks.append(_gradient(point, name, value, tangent, gradients, w, change, allowed))
    return checks, skipped


def _gradient(
    point: Point,
    name: str,
    value: Array,
    tangent: Array,
    gradients: Any,
    w: Array,
    change: tuple[Array, HostArray],
    allowed: float,
) -> Check:
    """<w, dF> against <gradient, tangent>, over the whole batch; `change` is dF and its uncertainty."""
    title = f"parameter_vjp[{name!r}]"
    if name not in gradients:
        return Check(title, False, float("nan"), allowed, f"it returns no gradient of {name!r}")
    gradient = gradients[name]
    if tuple(gradient.shape) != tuple(value.shape):
        return Check(title, False, float("nan"), allowed, f"its shape is {gradient.shape}, not {value.shape}")
    pairs = [(point.evaluator.flatten(w), change[0]), (_values(gradient), _values(tangent))]
    host = [[to_host(part).reshape(-1) for part in pair] for pair in pairs]
    left, right = (complex(np.vdot(a, b)) for a, b in host)
    if not is_complex(_values(value)):  # the gradient of a real parameter is real
        left, right = left.real, right.real
    scale = max(float(np.linalg.norm(a)) * float(np.linalg.norm(b)) for a, b in host) or 1.0
    excused = SAFETY * float(np.linalg.norm(host[0][0])) * float(np.linalg.norm(change[1])) / scale
    if not excused < SAFETY * UNSETTLED:
        return Check(title, True, float("nan"), float("nan"), UNSETTLED_HINT)
    allowed, measured = max(allowed, excused), abs(left - right) / scale
    passed = measured <= allowed
    hint = "" if passed else "the sign is wrong" if abs(left + right) <= allowed * scale else ""
    if not passed and not hint:
        hint = f"the gradient with respect to {name!r} does not belong to the residual"
    return Check(title, passed, measured, allowed, hint)


def _difference(
    point: Point, name: str, value: Array, tangent: Array, build: Build | None
) -> tuple[Array, HostArray] | None:
    """Derivative of F along one parameter, and its uncertainty; None where copies of F do not follow it."""

    def F(h: float) -> Array:
        moved = _with_values(value, _values(value) + h * _values(tangent))
        problem = _copied(point.problem, name, moved) if build is None else build({**parameters, name: moved})
        return Evaluator(problem, point.evaluator.unflatten(point.x)).residual(point.x)

    parameters = point.problem.parameters or {}
    change, uncertain = point.difference(F)
    return None if build is None and not norm2(change).any() else (change, uncertain)


def _copied(problem: Problem, name: str, value: Array) -> Problem:
    """A deep copy in which a parameter has another value, for functions that carry their arrays, as a layer's do."""
    other = copy.deepcopy(problem)
    values = _values((other.parameters or {})[name])
    values[...] = array_namespace(values).astype(_values(value), values.dtype)
    return other


def _values(value: Any) -> Array:
    """The numbers of a parameter: an array, or what a sparse or a block-banded matrix stores; else None."""
    if scipy.sparse.issparse(value):
        return value.data
    if isinstance(value, BlockBandedMatrix):
        return value.blocks
    return value if is_array(value) else None


def _with_values(value: Any, values: Array) -> Any:
    """A parameter with other numbers."""
    if scipy.sparse.issparse(value):
        other = value.copy()
        other.data = values
        return other
    if isinstance(value, BlockBandedMatrix):
        return BlockBandedMatrix(values, lower=value.lower, upper=value.upper, periodic=value.periodic)
    return values
