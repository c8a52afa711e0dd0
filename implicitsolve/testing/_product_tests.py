"""Products J v and J^H w against differences of the residual, and against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import as_inexact, eps, is_complex
from implicitsolve._typing import Array, HostArray
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._jacobian import jacobian
from implicitsolve.operators import LinearOperator
from implicitsolve.problem import Problem
from implicitsolve.stopping import own_generator
from implicitsolve.structure._names import entry_name
from implicitsolve.testing._checks import random_like

DIFFERENCE_LENGTHS = 10.0 ** np.arange(2, -3, -1)  # of differences, in units of eps^(1/3)
SAFETY = 10  # times the change from one length to the next: the mismatch that differences excuse
UNSETTLED = 0.1  # change of the differences, relative to their size, above which they are meaningless
ROUNDING_APART = 1e3  # units of roundoff by which two ways to compute one thing may differ
LONGER_LENGTHS = 1e2, 1e4, 1e8  # times the size of x, where F hardly changes over that
UNSETTLED_HINT = "differences of the residual do not settle here: it is noisy, or not smooth; choose another `x`"
FARTHEST_BLOCKS = 8  # blocks beyond the declared ones in which missing couplings are looked for


@dataclass(frozen=True)
class Check:
    """One line of a `DerivativeReport`.

    Attributes
    ----------
    name : str
        What was checked.
    passed : bool
        Whether the mismatch is as small as it must be, or unknown.
    measured : float
        Relative mismatch; NaN where differences did not settle.
    expected : float
        The largest that passes.
    hint : str
        What to look at, where it failed.
    """

    name: str
    passed: bool
    measured: float
    expected: float
    hint: str = ""


def relative(part: HostArray, whole: HostArray) -> HostArray:
    """The ratio of a part to the whole; 0 where the part is 0, infinite where only the whole is 0."""
    with np.errstate(all="ignore"):
        return np.where(part == 0, 0.0, part / whole)


class Point:
    """A problem at x, on arrays (B, N), with directions and the derivatives of F along them by differences."""

    def __init__(self, problem: Problem, x: Array, rng: np.random.Generator) -> None:
        self.problem, self.rng = replace(problem, pure=False), rng  # functions get copies: they may write into them
        self.evaluator = Evaluator(self.problem, x)
        self.xp, self.x = self.evaluator.xp, self.evaluator.flatten(x)
        self.precision = eps(self.xp, x.dtype)
        self.tolerance = SAFETY * self.precision**0.5
        self.F = self.residual(self.x)
        xp, size = self.xp, norm2(self.x) / max(1, self.x.shape[1]) ** 0.5
        mean = from_host(np.where(size > 0, size, 1.0), self.x)[:, None]
        own = xp.abs(self.x)
        self.directions = [self._unit() * mean, self._unit() * xp.where(own > 0, own, mean * xp.ones_like(own))]

    def residual(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.evaluator.residual(x)

    def random(self) -> Array:
        return self.evaluator.flatten(random_like(self.rng, self.evaluator.unflatten(self.xp.ones_like(self.x))))

    def _unit(self) -> Array:
        """A random vector for each system, whose entries have the mean square 1: for one unknown it is never small."""
        v = self.random()
        size = norm2(v)
        return v * from_host(self.x.shape[1] ** 0.5 / np.where(size > 0, size, 1.0), v)[:, None]

    @cached_property
    def differences(self) -> list[tuple[Array, HostArray]]:
        """The derivative of F along each direction, and the norm of its uncertainty for each system."""
        return [self._settle(i) for i in range(len(self.directions))]

    def _settle(self, i: int) -> tuple[Array, HostArray]:
        """The derivative along one direction, over longer steps for systems whose F hardly changes along it."""
        v = self.directions[i]
        known, uncertain = self.difference(lambda h: self.residual(self.x + h * v))
        for factor in LONGER_LENGTHS:
            poor = ~(uncertain <= UNSETTLED * norm2(known))
            if not poor.any():
                break
            w = v * factor
            other, doubt = self.difference(lambda h: self.residual(self.x + h * w))  # noqa: B023 - called before w changes
            is_better = poor & (relative(doubt, norm2(other)) < relative(uncertain, norm2(known)))
            mask = from_host(is_better, v)[:, None]
            known, uncertain = self.xp.where(mask, other, known), np.where(is_better, doubt, uncertain)
            self.directions[i] = self.xp.where(mask, w, self.directions[i])
        return known, uncertain

    def difference(self, F: Callable[[float], Array]) -> tuple[Array, HostArray]:
        """Derivative of ``F(h)`` at h = 0, and the norm of its uncertainty: where the quotients change least."""
        best, least, last = self.xp.zeros_like(self.F), np.full(self.F.shape[0], np.inf), None
        rounding = self.precision * norm2(self.F)
        with np.errstate(all="ignore"):
            for h in (DIFFERENCE_LENGTHS * self.precision ** (1 / 3)).tolist():
                quotient = (F(h) - F(-h)) / (2 * h)
                if last is not None:
                    change = np.maximum(norm2(quotient - last), rounding / h)
                    is_better = change < least
                    least = np.where(is_better, change, least)
                    best = self.xp.where(from_host(is_better, best)[:, None], quotient, best)
                last = quotient
        return best, least

    # Checks

    def products(self, name: str, operator: LinearOperator, tolerance: float | None = None) -> Check:
        """J v against differences, along the direction in which they differ most."""
        found = [
            self.compare(name, operator.matvec(v), D, uncertain, tolerance)
            for (D, uncertain), v in zip(self.differences, self.directions)
        ]
        return _worst(found)

    def compare(self, name: str, Jv: Array, D: Array, uncertain: HostArray, tolerance: float | None = None) -> Check:
        """Compare a product with a difference, where that is meaningful."""
        with np.errstate(all="ignore"):
            mismatch, size = norm2(Jv - D), np.fmax(norm2(Jv), norm2(D))
            uncertain, mismatch = relative(uncertain, size), relative(mismatch, size)
            settled = uncertain < UNSETTLED
            if not settled.size:
                return Check(name, True, 0.0, self.tolerance)
            if not settled.any():
                return Check(name, True, float("nan"), float("nan"), UNSETTLED_HINT)
            allowed = np.maximum(self.tolerance if tolerance is None else tolerance, SAFETY * uncertain)
            excess = np.where(settled, np.where(np.isnan(mismatch), np.inf, mismatch / allowed), -1.0)
        worst = int(np.argmax(excess))
        passed = bool(excess[worst] <= 1)
        hint = "" if passed else self.reason(Jv, D, worst)
        return Check(name, passed, float(mismatch[worst]), float(allowed[worst]), hint)

    def reason(self, Jv: Array, D: Array, system: int) -> str:
        product, exact = (to_host(part[system, ...]) for part in (Jv, D))
        if not np.isfinite(product).all():
            return f"it is not finite at {self.place(system, int(np.argmin(np.isfinite(product))))}"
        with np.errstate(all="ignore"):
            factor = np.vdot(exact, product) / np.vdot(exact, exact)
            is_multiple = np.linalg.norm(product - factor * exact) < 1e-2 * np.linalg.norm(product - exact)
        if is_multiple and exact.any() and exact.size > 1:
            return "the sign is wrong" if abs(factor + 1) < 1e-3 else f"it is off by the factor {factor:.4g}"
        return f"it differs most at {self.place(system, int(np.argmax(np.abs(product - exact))))}"

    def place(self, system: int, entry: int) -> str:
        evaluator = self.evaluator
        name = entry_name("entry ", evaluator.problem.equations, entry, evaluator.event_shape)
        batch = np.unravel_index(system, evaluator.batch_shape) if evaluator.batch_shape else ()
        of = f" of system {', '.join(str(int(i)) for i in batch)}" if batch else ""
        return f"{name}{of}"

    def adjoints(self, name: str, operator: LinearOperator, forward: Check | None) -> Check:
        """<w, J v> against <J^H w, v>, with the operator's own J v where that is right."""
        is_own = forward is not None and forward.passed
        found: list[Check] = []
        for (D, uncertain), v in zip(self.differences, self.directions):
            w, Jv = self.random(), operator.matvec(v) if is_own else D
            allowed = ROUNDING_APART * SAFETY * self.precision
            if not is_own:
                allowed = max(self.tolerance, SAFETY * float(relative(uncertain, norm2(D)).max(initial=0.0)))
            if allowed < SAFETY * UNSETTLED:
                found.append(self._dot(name, operator, v, w, Jv, allowed))
            else:
                found.append(Check(name, True, float("nan"), float("nan"), UNSETTLED_HINT))
        return _worst(found)

    def _dot(self, name: str, operator: LinearOperator, v: Array, w: Array, Jv: Array, allowed: float) -> Check:
        back = operator.rmatvec(w)
        mismatch = self.mismatch(w, Jv, back, v)
        worst = float(np.where(np.isnan(mismatch), np.inf, mismatch).max(initial=0.0))
        if worst <= allowed:
            return Check(name, True, worst, allowed)
        conj = self.xp.conj if is_complex(v) else lambda z: z
        others = {
            "the sign is wrong": -back,
            "it returns J^T w: conjugate, for J^H w": conj(operator.rmatvec(conj(w))) if is_complex(v) else None,
        }
        for hint, other in others.items():
            if other is not None and (self.mismatch(w, Jv, other, v) <= allowed).all():
                return Check(name, False, worst, allowed, hint)
        with np.errstate(all="ignore"):
            is_forward = (norm2(operator.rmatvec(v) - Jv) <= max(allowed, self.tolerance) * norm2(Jv)).all()
        hint = "it returns J w in place of J^H w" if is_forward else "<w, J v> and <J^H w, v> differ"
        return Check(name, False, worst, allowed, hint)

    def mismatch(self, w: Array, Jv: Array, back: Array, v: Array) -> HostArray:
        with np.errstate(all="ignore"):
            left, right = self.xp.vecdot(w, Jv), self.xp.vecdot(back, v)
            size = np.maximum(norm2(w) * norm2(Jv), norm2(back) * norm2(v))
            return np.abs(to_host(left - right)) / np.where(size > 0, size, 1.0)

    def equal(self, name: str, a: Array, b: Array, hint: str = "the two differ") -> Check:
        """Compare two computations of F, up to rounding errors, relative to F and its change along a direction."""
        with np.errstate(all="ignore"):
            scale = norm2(self.F) + norm2(self.differences[0][0])
            if scale.size != a.shape[0]:
                scale = np.asarray([scale.max(initial=0.0)])
            measured = norm2(a - b) / np.where(scale > 0, scale, 1.0)
        worst = float(np.where(np.isnan(measured), np.inf, measured).max(initial=0.0))
        allowed = ROUNDING_APART * self.precision
        return Check(name, worst <= allowed, worst, allowed, "" if worst <= allowed else hint)


def structure_test(problem: Problem, x: Array, *, rng: np.random.Generator | None = None) -> float:
    """Mismatch between the assembled Jacobian of a declared structure and the derivative of F along a random direction.

    Parameters
    ----------
    problem : Problem
        With `structure`.
    x : array_like
        Where to test; take a point at which F is smooth and no derivative vanishes.
    rng : numpy.random.Generator, optional
        Source of the direction v. Default: seed 0.

    Returns
    -------
    float
        ``||J v - (F(x + h v) - F(x - h v)) / (2 h)|| / ||J v||``, the worst of the batch: below about 1e-6 if the
        structure (and `blocks`, `jvp`, ... where given) is right, of the size of the neglected entries if not. NaN
        where no length h of the differences makes sense, as for a noisy F.

    Examples
    --------
    >>> def F(u):
    ...     return np.diff(u, 2, prepend=0.0, append=0.0) + u**2
    >>> x = np.linspace(1.0, 2.0, 9)
    >>> right, wrong = (ims.Problem(F, structure=ims.BlockBanded(n, n)) for n in (1, 0))
    >>> ims.testing.structure_test(right, x) < 1e-6, ims.testing.structure_test(wrong, x) > 0.1
    (True, True)
    """
    x = as_inexact(x, "x")
    J = jacobian(problem, x)
    point = Point(problem, x, own_generator("structure_test", rng))
    return point.products("structure", J.flat()).measured


def _worst(checks: list[Check]) -> Check:
    """A failed check among those along several directions; else the one with the largest known mismatch."""
    return max(checks, key=lambda check: (not check.passed, not np.isnan(check.measured), check.measured))


def product_tests(point: Point) -> list[Check]:
    """Checks of each form in which a problem gives J; a generator would turn a StopIteration into another error."""
    problem, checks = point.problem, []
    alone = replace(problem, jvp=None, vjp=None, jac=None, linearize=None, blocks=None, structure=None)
    if problem.jvp is not None or problem.vjp is not None:
        operator = _operator(point, replace(alone, jvp=problem.jvp, vjp=problem.vjp))
        forward = None if problem.jvp is None else point.products("jvp", operator)
        checks += [] if forward is None else [forward]
        checks += [] if problem.vjp is None else [point.adjoints("vjp", operator, forward)]
    if problem.linearize is not None:
        checks += _whole(point, "linearize", replace(alone, linearize=problem.linearize))
    if problem.jac is not None:
        checks += _whole(point, "jac", replace(alone, jac=problem.jac))
    return checks if problem.block_structure is None else [*checks, _structure_of(point)]


def _operator(point: Point, problem: Problem) -> LinearOperator:
    return Evaluator(problem, point.evaluator.unflatten(point.x)).jacobian(point.x, point.F)


def _whole(point: Point, name: str, problem: Problem) -> list[Check]:
    evaluator, checks = Evaluator(problem, point.evaluator.unflatten(point.x)), []
    if name == "linearize":
        F = evaluator.trial(point.x)[0]
        checks = [point.equal("linearize: residual", F, point.F, "`linearize` returns another F than `residual`")]
    operator = evaluator.jacobian(point.x, point.F)
    forward = point.products(f"{name}: J v", operator)
    has_adjoint = operator._rmatvec is not None
    return [*checks, forward, *([point.adjoints(f"{name}: J^H w", operator, forward)] if has_adjoint else [])]


def _structure_of(point: Point) -> Check:
    problem = point.problem
    name = "structure" if problem.blocks is None else "blocks"
    try:
        J = Assembler(point.evaluator, central=True).assemble(point.evaluator, point.x, point.F).flat()
    except ValueError as error:  # a matrix of the caller's with entries outside
        return Check(name, False, float("nan"), point.tolerance, str(error))
    check = point.products(name, J, point.precision ** (1 / 3))
    missing = "" if check.passed else _missing(point, J)
    return replace(check, hint=missing) if missing else check


def _missing(point: Point, J: LinearOperator) -> str:
    """A coupling that the structure leaves out, if the worst row of blocks has one."""
    structure: Any = point.problem.block_structure
    k, length = structure.block_size, structure.length(point.evaluator.size)
    D = point.differences[0][0]
    mismatch = np.abs(to_host(J.matvec(point.directions[0]) - D))
    system, entry = (int(i) for i in np.unravel_index(np.argmax(np.nan_to_num(mismatch)), mismatch.shape))
    row = entry // k
    sizes = np.abs(to_host(gather(point.directions[0], np.asarray([system])))).reshape(length, k)
    farthest = range(-structure.lower - FARTHEST_BLOCKS, structure.upper + FARTHEST_BLOCKS + 1)
    for distance in sorted(farthest, key=abs):
        other, place = row + distance, structure.lower + distance
        if structure.periodic:
            other, place = other % length, place % length
        if not 0 <= other < length or 0 <= place < structure.width:
            continue
        v = np.zeros((length, k))
        v[other] = sizes[other]
        h = from_host(v.reshape(1, -1) * point.precision ** (1 / 3) * DIFFERENCE_LENGTHS[0], point.x)
        change = to_host(point.residual(point.x + h) - point.F)[system].reshape(length, k)[row]
        if np.abs(change).max() > 0:
            side = "upper" if distance > 0 else "lower"
            return f"block {row} depends on block {other}: `{side}` must be at least {abs(distance)}"
    return ""
