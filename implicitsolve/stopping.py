"""When a solve may stop: the inequality for each system; checks of arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from implicitsolve._arrays.namespace import array_namespace, copy_array, eps
from implicitsolve._typing import Array, CallersArray, HostArray
from implicitsolve.errors import ChecksKeywords
from implicitsolve.kernels._norms import Norms


@dataclass(frozen=True, kw_only=True)
class LinearStop(ChecksKeywords):
    """Stop when ``||b - A x||_2 <= max(atol, rtol * ||b||_2)``, for each system of a batch.

    Parameters
    ----------
    rtol : float, optional
        Relative tolerance. Default: 0 where `atol` is given, which then holds alone. Else 1e-6, which suits an adjoint
        whose gradient feeds an optimizer, but at least 100 rounding units of the dtype (1.2e-5 in float32).
    atol : float, optional
        Absolute tolerance, in the units of b. Default 0: the criterion is independent of the scale of b.
    max_iterations : int, optional
        Limit of Krylov iterations (never of restarts). Default 500.

    Raises
    ------
    ValueError
        If a tolerance is negative, infinite or NaN, or the limit negative.

    Examples
    --------
    >>> from implicitsolve import LinearStop
    >>> print(LinearStop(rtol=1e-8))
    ||b - A x||_2 <= 1e-08 * ||b||_2
    >>> print(LinearStop(atol=1e-8))
    ||b - A x||_2 <= 1e-08
    """

    rtol: float | None = None
    atol: float = 0.0
    max_iterations: int = 500

    def __post_init__(self) -> None:
        if self.rtol is not None:
            check_tolerance("LinearStop", "rtol", self.rtol)
        check_tolerance("LinearStop", "atol", self.atol)
        check_limit("LinearStop", "max_iterations", self.max_iterations)

    def __str__(self) -> str:
        return "||b - A x||_2 <= " + _bound(self.atol, self.rtol, "max(1e-06, 100 eps)", "||b||_2")

    def target(self, b_norm: HostArray, b: Array | None = None) -> HostArray:
        """Right-hand side of the inequality for systems whose b has these norms; b determines the dtype."""
        precision = 0.0 if b is None else eps(array_namespace(b), b.dtype)
        rtol = _relative(self.atol, self.rtol, max(1e-6, 100 * precision))
        return np.maximum(self.atol, rtol * np.where(np.isfinite(b_norm), b_norm, 0.0))


@dataclass(frozen=True, kw_only=True)
class NonlinearStop(ChecksKeywords):
    """When a system has converged: x is accurate, or F is as small as required.

    Without tolerances of F a system has converged when ``error(x) <= xtol`` and ``||F(x)||_2 <= ||F(x0)||_2``, where
    error(x) is the estimated error of x relative to x, `NonlinearResult.error`. With `atol` or `rtol` it has converged
    when ``norm(F(x)) <= max(atol, rtol * norm(F(x0)))``; the error is estimated all the same. Where a tolerance of F
    and `xtol` are given, both hold. Each system of a batch is judged alone.

    Parameters
    ----------
    atol : float, optional
        Absolute tolerance, in the units of F. Default 0: the criterion is independent of the scale of F.
    rtol : float, optional
        Tolerance of F relative to F(x0). Default 0.
    xtol : float, optional
        Largest estimated error of x, relative to x. Default: where neither `atol` nor `rtol` is given, the square root
        of the dtype's rounding unit (1.5e-8 in float64, 3.5e-4 in float32), as `scipy.optimize.root`; else none.
    max_iterations : int, optional
        Limit of steps, those that the line search rejects included. The default None is 1000 steps of a Newton method,
        500 of a fixed-point iteration, whose steps cost one residual, and 2000 of a homotopy.
    max_evaluations : int, optional
        Limit of residuals and products with J or its transpose together, as counted by `Counts`: of a whole solve, with
        all the methods that "auto" tries, and of a whole batch, where a call for all systems counts once. Each of these
        methods may take one residual at its start that is over the limit. Default: none. Then each system has a budget
        of evaluations without progress for all attempts together, and ends as STAGNATED once it is spent (see Notes).
    max_seconds : float, optional
        Limit of time by the clock, tested before each evaluation and each step. With it results depend on the speed of
        the machine. Default: none.
    norm : {"max", "2"} or callable, optional
        Norm of one system's F. The default "max" is max|F|, which does not grow with the number of unknowns. A callable
        maps an array of one system's shape to a number.

    Raises
    ------
    ValueError
        If a tolerance is negative, infinite or NaN, a limit out of range, or the norm unknown.

    Notes
    -----
    The error is estimated by Newton's theory [1]_: after a step s, ``||c|| / (1 - theta)`` with theta = ||c|| / ||s||,
    where c is the simplified Newton correction -J^-1 F(x) by the factors at hand, of J at the point before. It takes no
    evaluation. Errors are relative to each unknown in the units that the columns of a dense or sparse J show. Methods
    without factors predict the length of c by how much the last steps changed ||F||; up to 20 unknowns a dense J
    confirms it. Where F is rounding error, which one evaluation shows, and x no longer improves, x is accepted if the
    last Newton step was at most 1e-5 of it and J is regular; its error is derived from that step. A system is not
    accepted where F vanishes only as x moves on by steps that do not become shorter (`Status.AT_INFINITY`), nor where
    it has moved by more than half of its size and the norm of F is above eps^(1/4) of that at x0: where J is singular,
    F at a large x may be rounding error. Then F has to change from x to (1 + t) x, with t = eps^(1/4), by more than 100
    times its norm, which takes an evaluation. Far from x0, where F may vanish since it is flat, the inverse H of J at
    hand has to agree with F: with this t, ``abs(H @ (F((1 + t) * x) - F(x)) - t * x) <= t * abs(x) / 2``, which takes
    an evaluation. If not, J is assembled. J may change along a step that is longer than 1 % of an unknown: the estimate
    is then multiplied by the fourth power of the ratio of its length to that.

    Systems that still run at a limit end as EVALUATION_LIMIT or TIME_LIMIT, at the best of their points.

    Without `max_evaluations`, each system has a budget of 480 evaluations without progress, or 12 times the root of its
    number of unknowns, or 12 times what an assembly of J takes, if one of these is more. A step is progress where the
    norm of the stopping rule or ||F||_2 falls to half of what it was at the last progress: what an attempt has spent so
    far then no longer counts; below half of the least that earlier attempts have reached, nothing spent before does.
    The first of several attempts may take half of the budget, the last one all, those between evenly more.

    In a batch, a system is charged its residuals, Krylov iterations and assemblies. Searches for sparsity are charged
    to no system. Fixed-point methods, of one evaluation a step, homotopies near x0 (see `Homotopy`), pseudo-transient
    continuation, and a dense J whose equations differ in units have limits of steps alone.

    References
    ----------
    .. [1] P. Deuflhard, "Newton methods for nonlinear problems", Springer (2004), section 2.1.

    Examples
    --------
    >>> from implicitsolve import NonlinearStop
    >>> print(NonlinearStop())
    error(x) <= sqrt(eps)
    >>> print(NonlinearStop(xtol=1e-6))
    error(x) <= 1e-06
    >>> print(NonlinearStop(atol=1e-8))
    max|F(x)| <= 1e-08
    >>> print(NonlinearStop(atol=1e-12, rtol=1e-8))
    max|F(x)| <= max(1e-12, 1e-08 * max|F(x0)|)
    """

    atol: float = 0.0
    rtol: float | None = None
    xtol: float | None = None
    max_iterations: int | None = None
    max_evaluations: int | None = None
    max_seconds: float | None = None
    norm: str | Callable[[CallersArray], Any] = "max"

    OWNER: ClassVar[str] = "NonlinearStop"  # whose arguments messages are about

    def __post_init__(self) -> None:
        for name in ("atol", "rtol", "xtol"):
            if (tolerance := getattr(self, name)) is not getattr(NonlinearStop, name):
                check_tolerance(self.OWNER, name, tolerance)
        if self.max_iterations is not None:
            check_limit(self.OWNER, "max_iterations", self.max_iterations)
        check_budget(self.OWNER, self.max_evaluations, self.max_seconds)
        if not callable(self.norm):
            check_choice(self.OWNER, "norm", self.norm, ("max", "2"), "or a function")

    def __str__(self) -> str:
        norm = {"max": "max|F({})|", "2": "||F({})||_2"}.get(str(self.norm), "norm(F({}))")
        xtol = "sqrt(eps)" if self.xtol is None else f"{self.xtol:g}"
        limits = [f"error(x) <= {xtol}"] if self.judges_x else []
        if self.judges_F:
            limits.append(f"{norm.format('x')} <= {_bound(self.atol, self.rtol, '', norm.format('x0'))}")
        return " and ".join(limits)

    @cached_property
    def judges_x(self) -> bool:
        """Whether the estimated error of x decides: where no tolerance of F was given, or one of x was."""
        return self.xtol is not None or (self.rtol is None and not self.atol > 0)

    @cached_property
    def judges_F(self) -> bool:
        """Whether a tolerance of F was given."""
        return self.rtol is not None or self.atol > 0

    def error_limit(self, precision: float) -> float:
        """The largest error of x, on arrays with this rounding unit."""
        return math.sqrt(precision) if self.xtol is None else self.xtol

    @property
    def keeps_last(self) -> bool:
        """Whether systems that `max_iterations` ends stay at their last point, not at the best."""
        return False

    def rest(self, evaluations: int, seconds: float) -> NonlinearStop:
        """The rule for the rest of a solve that has spent so many evaluations and seconds."""
        most = None if self.max_evaluations is None else max(1, self.max_evaluations - evaluations)
        until = None if self.max_seconds is None else max(0.0, self.max_seconds - seconds)
        return replace(self, max_evaluations=most, max_seconds=until)

    def measure(self, F: Array, event_shape: tuple[int, ...]) -> HostArray:
        """Norm of each row of F (B, N) on the host; a callable norm is called with rows in the shape of one system."""
        return self.norm_of(Norms(F), event_shape)

    def norm_of(self, norms: Norms, event_shape: tuple[int, ...]) -> HostArray:
        """The norm of F, the first array of `norms`."""
        if callable(self.norm):
            F = norms.arrays[0]
            parts = (array_namespace(F).reshape(copy_array(F[i, ...]), event_shape) for i in range(F.shape[0]))
            return np.asarray([_number(self.norm(part)) for part in parts])
        return norms.largest(0) if self.norm == "max" else norms.two(0)

    def target(self, first: HostArray, F: Array) -> HostArray:
        """Right-hand side of the inequality for systems that started at norm `first`."""
        with np.errstate(invalid="ignore"):
            scaled = self.relative(eps(array_namespace(F), F.dtype)) * first
        scaled[~np.isfinite(first)] = 0.0
        return np.maximum(self.atol, scaled)

    def relative(self, precision: float) -> float:
        """The relative tolerance on arrays with this rounding unit."""
        return _relative(self.atol, self.rtol, math.sqrt(precision))

    def remaining(self, default: int, spent: HostArray) -> HostArray:
        """Steps that systems may still take: of the limit what is left of it, else the method's own, `default`."""
        return np.full(spent.shape, default) if self.max_iterations is None else self.max_iterations - spent

    def holds(self, norms: HostArray, target: HostArray, x: Array, step: Array | None) -> HostArray:
        """Where the inequality holds. NaN never does. `x` and the last `step` are for stricter criteria."""
        return norms <= target


def _number(norm: Any) -> float:
    try:
        value = float(norm)
    except (TypeError, ValueError):
        raise TypeError(f"the norm of the stopping rule must return a real number, got {norm!r}") from None
    if value < 0:
        raise ValueError(f"the norm of the stopping rule must not be negative, got {value}")
    return value


def _relative(atol: float, rtol: float | None, default: float) -> float:
    """The relative tolerance: the default one only where no tolerance was given."""
    return (0.0 if atol > 0 else default) if rtol is None else float(rtol)


def _bound(atol: float, rtol: float | None, default: str, norm: str) -> str:
    """Right-hand side of an inequality, without a tolerance that is zero."""
    if rtol is None and not atol > 0:
        return f"{default} * {norm}"
    if not rtol:
        return f"{atol:g}"
    return f"max({atol:g}, {rtol:g} * {norm})" if atol > 0 else f"{rtol:g} * {norm}"


def check_tolerance(owner: str, name: str, value: float) -> None:
    """Raise unless `value` is a finite number that is not negative."""
    check_number(owner, name, value)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{owner}: `{name}` must be finite and not negative, got {value}")


def check_number(owner: str, name: str, value: float, least: float | None = None) -> None:
    """Raise unless `value` is a real number, of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise TypeError(f"{owner}: `{name}` must be a real number, got {type(value).__name__}")
    if least is not None and not value >= least:
        raise ValueError(f"{owner}: `{name}` must be at least {least}, got {value}")


def check_positive(owner: str, name: str, value: float) -> None:
    """Raise unless 0 < value < infinity."""
    check_number(owner, name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{owner}: `{name}` must be positive and finite, got {value}")


def check_fraction(owner: str, name: str, value: float) -> None:
    """Raise unless 0 < value < 1."""
    check_number(owner, name, value)
    if not 0 < value < 1:
        raise ValueError(f"{owner}: `{name}` must lie in (0, 1), got {value}")


def check_limit(owner: str, name: str, value: int, least: int = 0) -> None:
    """Raise unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{owner}: `{name}` must be an integer, got {type(value).__name__}")
    if not least <= value < 2**63:
        limit = f"at least {least}" if value < least else "below 2^63"
        raise ValueError(f"{owner}: `{name}` must be {limit}, got {value}")


def check_budget(owner: str, max_evaluations: int | None, max_seconds: float | None) -> None:
    """Raise unless each limit is None, or allows the residual at x0."""
    if max_evaluations is not None:
        check_limit(owner, "max_evaluations", max_evaluations, least=1)
    if max_seconds is not None:
        check_tolerance(owner, "max_seconds", max_seconds)


def kind_of(value: Any) -> str | None:
    """The kind that a solver's settings declare ("krylov", "direct", ...); None for any other argument."""
    return None if isinstance(value, type) else getattr(value, "kind", None)


def check_flag(owner: str, name: str, value: bool) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}: `{name}` must be True or False, got {type(value).__name__}")


def check_choice(owner: str, name: str, value: Any, choices: Collection[object], others: str = "") -> None:
    """Raise unless `value` is one of a few names or numbers; arrays, whose comparison is no bool, are not."""
    if not isinstance(value, Hashable) or value not in choices:
        expected = f"one of {', '.join(map(repr, choices))}" + (f" {others}" if others else "")
        raise ValueError(f"{owner}: `{name}` must be {expected}, got {value!r}")


def check_rdiff(owner: str, value: float | None) -> None:
    """Raise unless a relative step of differences is None or positive."""
    if value is not None:
        check_positive(owner, "rdiff", value)


def check_kind(owner: str, name: str, part: Any, kind: str) -> None:
    """Raise unless a part of a solver's settings declares this `kind`."""
    if kind_of(part) != kind:
        such = {"line search": ", such as Backtracking()", "nonlinear": ", such as NewtonKrylov()"}.get(kind, "")
        raise TypeError(f'{owner}: `{name}` must be settings with `kind` "{kind}"{such}, got {part!r}')


def check_generator(owner: str, rng: object) -> np.random.Generator:
    """The caller's generator of random numbers, checked."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"{owner}: `rng` must be a numpy.random.Generator, got {type(rng).__name__}")
    return rng


def own_generator(owner: str, rng: object) -> np.random.Generator:
    """The caller's generator; where there is none, one with the same seed in every call."""
    return np.random.default_rng(0) if rng is None else check_generator(owner, rng)
