"""`check_derivatives`: every derivative that a problem has, in one call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import array_namespace, as_inexact, is_array, is_complex
from implicitsolve._typing import Array, HostArray
from implicitsolve.elimination._even_odd import even_odd, merge, split
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import own_generator
from implicitsolve.testing._checks import random_like
from implicitsolve.testing._product_tests import (
    ROUNDING_APART,
    SAFETY,
    UNSETTLED,
    UNSETTLED_HINT,
    Check,
    Point,
    product_tests,
)

OFFSET = 0.1  # of the problem's own guess, at which derivatives may vanish, and of systems that must not change others


@dataclass(frozen=True)
class DerivativeReport:
    """What `check_derivatives` found; its text is a table.

    Attributes
    ----------
    checks : tuple of Check
        Each with `name`, `passed`, `measured` (a relative mismatch), `expected` (the largest that passes) and `hint`.
    skipped : tuple of str
        What could not be checked, and why.
    """

    checks: tuple[Check, ...]
    skipped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [f"{'check':{width}}          mismatch   at most"]
        for check in self.checks:
            outcome = "WRONG" if not check.passed else "unsure" if np.isnan(check.measured) else "ok"
            lines.append(f"{check.name:{width}}  {outcome:6}  {check.measured:8.1e}  {check.expected:8.1e}")
            lines += [f"    {check.hint}"] if check.hint else []
        return "\n".join([*lines, *(f"not checked: {reason}" for reason in self.skipped)])

    def raise_if_wrong(self) -> DerivativeReport:
        """Return self, or raise a ValueError with the table."""
        if not self.ok:
            raise ValueError(f"the problem's derivatives are wrong\n{self}")
        return self


def check_derivatives(
    problem: Problem,
    x: Array | None = None,
    *,
    rng: np.random.Generator | None = None,
    build: Callable[[Mapping[str, Array]], Problem] | None = None,
) -> DerivativeReport:
    """Check every derivative that a problem has, and what solvers assume about its functions.

    Parameters
    ----------
    problem : Problem
        Whatever it offers is checked.
    x : array_like or NonlinearResult, optional
        Where to check; take a point at which F is smooth and no derivative vanishes. Default: the problem's own initial
        guess, moved at random by a tenth of its size.
    rng : numpy.random.Generator, optional
        Source of the directions. Default: seed 0.
    build : callable, optional
        ``build(parameters)`` returns the problem with other values of its parameters, for `parameter_jvp` and
        `parameter_vjp`. Without it deep copies of the problem get other values, which works for the layers and for any
        residual that is a method of an object which holds the arrays. A function that finds its arrays elsewhere,
        such as a lambda, is not copied; its `parameter_vjp` is then compared with its `parameter_jvp` alone.

    Returns
    -------
    DerivativeReport
        ``report.ok``, and the table as its text.

    Raises
    ------
    TypeError, ValueError
        If an argument, or what one of the functions returns, is not usable, or F(x) is not finite.

    See Also
    --------
    implicitsolve.testing.dot_test, implicitsolve.testing.taylor_test, implicitsolve.testing.structure_test : One each.

    Notes
    -----
    Products J v (of `jvp`, `linearize`, `jac`, `blocks` or the assembled `structure`, whichever exist) are compared
    with central differences, of the length at which these change least from one length to the next. That change also
    estimates the accuracy of the differences, and with it the mismatch that passes: 10 sqrt(eps), or ten times that
    change if it is larger. Where they do not settle at all a check is unsure, and passes with a NaN. Adjoint products
    are compared with products by ``<w, J v> = <J^H w, v>``, and parameter gradients against `parameter_jvp`, each
    parameter separately. Two directions are tried, one of them in proportion to the entries of x.

    Further checks: that the functions do not write into their arguments, that F(x) is the same when it is computed
    again, that `linearize` returns the residual, that the systems of a batch are independent, and that `take` and
    `halves` agree with the whole. A random direction does not detect an error in a single entry of a large J that is
    small relative to the change of F (1e-7).

    Costs about 30 residuals, two products of each kind, and one assembly of a declared structure.

    Examples
    --------
    >>> problem = ims.Problem(lambda x: x**3 - 8, jvp=lambda x, v: 3 * x**2 * v, vjp=lambda x, w: -3 * x**2 * w)
    >>> report = ims.testing.check_derivatives(problem, np.array([1.0, 2.0]))
    >>> report.ok, [check.name for check in report.checks if not check.passed]
    (False, ['vjp'])
    >>> print(next(check.hint for check in report.checks if not check.passed))
    the sign is wrong
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"check_derivatives: `problem` must be a Problem, got {type(problem).__name__}")
    rng = own_generator("check_derivatives", rng)
    if x is None:
        if problem.initial_guess is None:
            raise TypeError("check_derivatives: `x` is needed, since the problem offers no initial guess")
        x = as_inexact(problem.initial_guess("default", None), "x")
        x = x + OFFSET * random_like(rng, x)
    x = as_inexact(x.x if isinstance(x, NonlinearResult) else x, "x")
    point = Point(problem, x, rng)
    if not np.isfinite(norm2(point.F)).all():
        raise ValueError("check_derivatives: F(x) must be finite; choose another `x`")
    checks = [*conduct(point), *product_tests(point), *_halves(problem, x, rng)]
    if build is not None and not callable(build):
        raise TypeError(f"check_derivatives: `build` must be callable, got {type(build).__name__}")
    parameter_checks, skipped = parameter_tests(point, build)
    return DerivativeReport(tuple(checks + parameter_checks), tuple(skipped))


def _halves(problem: Problem, x: Array, rng: np.random.Generator) -> Iterator[Check]:
    """The system of every second block, which `root` solves in place of the whole."""
    axis = problem.batch_ndim
    if problem.halves is None or x.ndim <= axis or x.shape[axis] < 2:
        return
    half = even_odd(problem)
    kept = split(x, axis)[1]
    whole, point = Point(problem, x, rng), Point(half, kept, rng)
    state = merge(problem.halves.eliminated.apply(kept), kept, axis)
    F = whole.evaluator.unflatten(whole.residual(whole.evaluator.flatten(state)))
    xp = whole.evaluator.xp
    expected = merge(xp.zeros_like(split(F, axis)[0]), half.residual(kept), axis)
    yield point.equal("halves: residual", whole.evaluator.flatten(F), whole.evaluator.flatten(expected))
    for check in product_tests(point):
        yield replace(check, name=f"halves: {check.name}")


def conduct(point: Point) -> list[Check]:
    first = _leaves_arguments(point)
    again = point.equal("residual: repeated", point.residual(point.x), point.F, "F(x) changes from call to call")
    checks = [first, again, *([_independent(point)] if point.x.shape[0] > 1 else [])]
    takes = point.problem.take is not None and point.problem.batch_ndim and point.x.shape[0]
    return [*checks, _take(point)] if takes else checks


def _leaves_arguments(point: Point) -> Check:
    """No function writes into its arguments."""
    problem, evaluator = point.problem, point.evaluator
    x, v = evaluator.unflatten(point.x), evaluator.unflatten(point.directions[0])
    calls: dict[str, tuple[Array, ...]] = dict.fromkeys(("residual", "jac", "linearize", "blocks"), (x,))
    calls |= dict.fromkeys(("jvp", "vjp", "parameter_vjp"), (x, v))
    wrong = [name for name, arguments in calls.items() if _writes(point, vars(problem)[name], arguments)]
    hint = f"{', '.join(f'`{name}`' for name in wrong)} wrote into an argument: copy it first" if wrong else ""
    return Check("arguments unchanged", not wrong, float(len(wrong)), 0.0, hint)


def _writes(point: Point, function: Callable[..., Any] | None, arguments: tuple[Array, ...]) -> bool:
    if function is None:
        return False
    given = [point.xp.asarray(argument, copy=True) for argument in arguments]
    with np.errstate(all="ignore"):
        function(*given)
    return any(not np.array_equal(to_host(a), to_host(b), equal_nan=True) for a, b in zip(given, arguments))


def _independent(point: Point) -> Check:
    """For each binary digit of system numbers, change the systems with a 1, then a 0: the others must not change."""
    number, x = np.arange(point.x.shape[0]), point.x
    kept, changed = [point.F[:0, ...]], [point.F[:0, ...]]
    for place in range(int(number[-1]).bit_length()):
        for bit in (0, 1):
            is_moved = (number >> place & 1) == bit
            moved = x + from_host(is_moved * OFFSET, x)[:, None] * point.directions[0]
            others = np.flatnonzero(~is_moved)
            kept.append(gather(point.F, others))
            changed.append(gather(point.residual(moved), others))
    a, b = (point.xp.concat(parts, axis=0) for parts in (kept, changed))
    hint = "a system's F changes with the x of others: `batch_ndim` is too large, or the systems are coupled"
    return point.equal("independent systems", point.xp.reshape(a, (1, -1)), point.xp.reshape(b, (1, -1)), hint)


def _take(point: Point) -> Check:
    indices = np.unique([0, point.x.shape[0] - 1])[::-1].copy()
    part = point.evaluator.chosen(indices)
    with np.errstate(all="ignore"):
        F = part.residual(gather(point.x, indices))
    a, b = (point.xp.reshape(rows, (1, -1)) for rows in (F, gather(point.F, indices)))
    return point.equal("take", a, b, "`take` gives a problem with another F than those systems have")


Build = Callable[[Mapping[str, Array]], Problem]


def parameter_tests(point: Point, build: Build | None) -> tuple[list[Check], list[str]]:
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
                checks.append(point.compare(f"parameter_jvp[{name!r}]", product, *known))
            elif problem.parameter_vjp is None:
                skipped.append(f"parameter_jvp[{name!r}]: a copy of F does not follow the array; give `build`")
            if known is None or checks[-1].passed:
                change, allowed = (product, np.zeros(product.shape[0])), SAFETY * ROUNDING_APART * point.precision
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
    other = f"the gradient with respect to {name!r} is not that of the residual"
    wrong = "the sign is wrong" if abs(left + right) <= allowed * scale else other
    return Check(title, passed, measured, allowed, "" if passed else wrong)


def _difference(
    point: Point, name: str, value: Array, tangent: Array, build: Build | None
) -> tuple[Array, HostArray] | None:
    """Derivative of F along one parameter, and its uncertainty; None where copies of F do not follow it."""

    def F(h: float) -> Array:
        moved = _with_values(value, _values(value) + h * _values(tangent))
        problem = _copy(point.problem, name, moved) if build is None else build({**parameters, name: moved})
        return Evaluator(problem, point.evaluator.unflatten(point.x)).residual(point.x)

    parameters = point.problem.parameters or {}
    change, uncertain = point.difference(F)
    return None if build is None and not norm2(change).any() else (change, uncertain)


def _copy(problem: Problem, name: str, value: Array) -> Problem:
    """A deep copy in which a parameter has another value, for functions that carry their arrays, as a layer's do."""
    other = copy.deepcopy(problem)
    values = _values((other.parameters or {})[name])
    values[...] = array_namespace(values).astype(_values(value), values.dtype)
    return other


def _values(value: Any) -> Any:
    """The numbers of a parameter: an array, or what a sparse or a block-banded matrix stores; else None."""
    if scipy.sparse.issparse(value):
        return value.data
    if isinstance(value, BlockBandedMatrix):
        return value.blocks
    return value if is_array(value) else None


def _with_values(value: Any, values: Array) -> Any:
    if scipy.sparse.issparse(value):
        other = value.copy()
        other.data = values
        return other
    if isinstance(value, BlockBandedMatrix):
        return BlockBandedMatrix(values, lower=value.lower, upper=value.upper, periodic=value.periodic)
    return values
