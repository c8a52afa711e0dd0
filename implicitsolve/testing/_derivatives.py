"""`check_derivatives`: every derivative that a problem has, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicitsolve._namespace import as_inexact, check_whole, norm2
from implicitsolve._typing import Array
from implicitsolve.elimination import even_odd, merge, split
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.testing._conduct import conduct
from implicitsolve.testing._parameter_tests import parameter_tests
from implicitsolve.testing._product_tests import Check, Point, product_tests, random_like

OFFSET = 0.1  # of the problem's own guess, at which derivatives may vanish


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
        """One line for each check, and below it what to look at where it failed."""
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [f"{'check':{width}}          mismatch   at most"]
        for check in self.checks:
            verdict = "WRONG" if not check.passed else "unsure" if np.isnan(check.measured) else "ok"
            lines.append(f"{check.name:{width}}  {verdict:6}  {check.measured:8.1e}  {check.expected:8.1e}")
            lines += [f"    {check.hint}"] if check.hint else []
        return "\n".join([*lines, *(f"not checked: {reason}" for reason in self.skipped)])

    def raise_if_wrong(self) -> DerivativeReport:
        """Return self, or raise a ValueError with the table."""
        if not self.ok:
            raise ValueError(f"the problem's derivatives are wrong\n{self}")
        return self


def check_derivatives(
    problem: Problem,
    x: Any = None,
    *,
    rng: np.random.Generator | None = None,
    build: Callable[[Mapping[str, Array]], Problem] | None = None,
) -> DerivativeReport:
    """Check every derivative that a problem has, and what solvers take for granted of its functions.

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
        `parameter_vjp`. Without it deep copies of the problem get other values: that serves the layers, and every
        residual that is a method of an object which holds the arrays. A function that finds its arrays elsewhere,
        such as a lambda, is not copied; its `parameter_vjp` is then held against its `parameter_jvp` alone.

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
    Products J v (of `jvp`, `linearize`, `jac`, `blocks` or the assembled `structure`, each of them that there is) are
    compared with central differences, of the length at which these change least from one length to the next. That
    change also says how accurate the differences are, and with it which mismatch passes: 10 sqrt(eps), or ten times
    that change if it is larger. Where they do not settle at all a check is unsure, and passes with a NaN. Adjoint
    products are held against products by ``<w, J v> = <J^H w, v>``, and parameter gradients against `parameter_jvp`,
    each parameter by itself. Two directions are tried, one of them in proportion to the entries of x.

    It is also checked that the functions do not write into their arguments, that F(x) is the same when it is computed
    again, that `linearize` returns the residual, that systems of a batch do not depend on each other, that `take` and
    `halves` are parts of the whole. A random direction does not see an error in a single entry of a large J that is
    small in comparison with F's change, relatively 1e-7.

    Costs about 30 residuals, two products of each kind, and one assembly of a declared structure.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> problem = ims.Problem(lambda x: x**3 - 8, jvp=lambda x, v: 3 * x**2 * v, vjp=lambda x, w: -3 * x**2 * w)
    >>> report = ims.check_derivatives(problem, np.array([1.0, 2.0]))
    >>> report.ok, [check.name for check in report.checks if not check.passed]
    (False, ['vjp'])
    >>> print(next(check.hint for check in report.checks if not check.passed))
    the sign is wrong
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"check_derivatives: `problem` must be a Problem, got {type(problem).__name__}")
    rng = np.random.default_rng(0) if rng is None else rng
    if x is None:
        if problem.initial_guess is None:
            raise TypeError("check_derivatives: `x` is needed, since the problem offers no initial guess")
        x = as_inexact(problem.initial_guess("default", None), "x")
        x = x + OFFSET * random_like(rng, x)
    x = as_inexact(x.x if isinstance(x, NonlinearResult) else x, "x")
    check_whole("check_derivatives", x, "the functions of one rank's part")
    point = Point(problem, x, rng)
    if not np.isfinite(norm2(point.F)).all():
        raise ValueError("check_derivatives: F(x) must be finite; choose another `x`")
    checks = [*conduct(point), *product_tests(point), *_halves(problem, x, rng)]
    parameter_checks, skipped = parameter_tests(point, build)
    return DerivativeReport(tuple(checks + parameter_checks), tuple(skipped))


def _halves(problem: Problem, x: Array, rng: np.random.Generator) -> Iterator[Check]:
    """The system of every second block, which `root` solves in the place of the whole."""
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
    yield point.equal("halves: residual", *(whole.evaluator.flatten(part) for part in (F, expected)))
    for check in product_tests(point):
        yield replace(check, name=f"halves: {check.name}")
