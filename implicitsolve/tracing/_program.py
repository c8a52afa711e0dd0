"""The program of a function written in NumPy: F, its products, and the check that these are right."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import FunctionType

import jax
import jax.numpy as jnp
import numpy as np

from implicitsolve._parameters import Parametrized, as_parametrized
from implicitsolve._typing import CallersArray, HostArray, Residual
from implicitsolve.problem import Problem
from implicitsolve.tracing._array import Traced, unwrap, wrap
from implicitsolve.tracing._flat import FlatProgram
from implicitsolve.tracing._functions import UntraceableError, as_value, budget, cast, is_tracer
from implicitsolve.tracing._rebuilt import LIBRARIES, traceable

NEARBY = 0.1, 1e-3  # distances of the points at which a trace is compared, over the size of x
SIMILAR = 5e4  # units of rounding by which F and its trace may differ, of its own size,
SHARE = 16.0  # ... of the largest F,
DIGITS, TRACE_ROUNDING = 16.0, 50.0  # ... and so many times the change of the trace as x changes by so many such units
PRODUCT_MISMATCH = 1e-3  # part by which a product may differ from a difference of F

Jvp = Callable[[HostArray, HostArray], tuple[HostArray, HostArray]]


class Derivative:
    """F(a, b) and its derivative in a: one program gives F and what depends on a and b alone, others the products."""

    def __init__(self, F: Callable[..., CallersArray], a: CallersArray, b: CallersArray) -> None:
        self.function: Callable[..., CallersArray] = F
        self._at = a
        self._ahead: FlatProgram = FlatProgram(lambda a, b: jax.linearize(lambda a: F(a, b), a), a, b)
        self._value, self._linear = self._ahead.outcome

    @cached_property
    def _along(self) -> FlatProgram:
        return FlatProgram(lambda linear, v: linear(v), self._linear, self._at)

    @cached_property
    def _back(self) -> FlatProgram:
        return FlatProgram(lambda linear, w: jax.linear_transpose(linear, self._at)(w)[0], self._linear, self._value)

    def linearize(self, a: CallersArray, b: CallersArray) -> list[HostArray]:
        """F, and what the products take."""
        return self._ahead(*jax.tree.leaves((a, b)))

    def along(self, known: list[HostArray], V: CallersArray) -> HostArray:
        """J v for each v along the first axis of V."""
        return np.stack([self._along(*known, *v)[0] for v in zip(*jax.tree.leaves(V), strict=True)])

    def back(self, known: list[HostArray], w: HostArray) -> CallersArray:
        """J^H w."""
        found = self._back(*known, np.conj(w))
        return jax.tree.unflatten(jax.tree.structure(self._at), map(np.conj, found))

    def jvp(self, a: CallersArray, v: CallersArray, b: CallersArray) -> tuple[HostArray, HostArray]:
        """F and J v."""
        value, *known = self.linearize(a, b)
        return value, self.along(known, jax.tree.map(lambda part: np.asarray(part)[None], v))[0]


class Program(Derivative):
    def __init__(self, residual: Residual, x: HostArray, parameters: Mapping[str, HostArray]) -> None:
        own = as_parametrized(residual)
        bound = Parametrized(traceable(own.function), own.values, own.form)
        with budget():
            F = partial(_evaluate, lambda x, given: bound.at(given)(x))
            self.flat: FlatProgram = FlatProgram(F, x, dict(parameters))
        function = self.flat.function
        super().__init__(lambda x, parameters: function(x, *jax.tree.leaves(parameters))[0], x, parameters)
        self._parameters = parameters

    @cached_property
    def by_parameters(self) -> Derivative:
        return Derivative(lambda parameters, x: self.function(x, parameters), self._parameters, self._at)

    def second(self, at: CallersArray, along: CallersArray, w: HostArray) -> tuple[HostArray, dict[str, HostArray]]:
        """The derivatives of J^H w and of (dF/dtheta)^H w, both at (x, theta), along a direction in which both move."""
        found = self._second(*jax.tree.leaves((at, along)), np.conj(w))
        return jax.tree.unflatten(jax.tree.structure(at), map(np.conj, found))

    @cached_property
    def _second(self) -> FlatProgram:
        def pull(at: CallersArray, w: CallersArray) -> CallersArray:
            return jax.vjp(lambda at: self.function(*at), at)[1](w)[0]

        at = self._at, self._parameters
        return FlatProgram(lambda at, along, w: jax.jvp(lambda at: pull(at, w), (at,), (along,))[1], at, at, self._at)


def _evaluate(
    function: Callable[[CallersArray, CallersArray], CallersArray], x: CallersArray, parameters: CallersArray
) -> CallersArray:
    F = as_value(unwrap(function(Traced(x), {name: wrap(value) for name, value in parameters.items()})))
    if F is None or (not is_tracer(F) and np.asarray(F).dtype.kind not in "biufc"):
        raise UntraceableError(f"F returned {type(F).__name__}")
    F = jnp.asarray(F)
    if F.size != x.size or np.issubdtype(F.dtype, np.complexfloating) > np.issubdtype(x.dtype, np.complexfloating):
        raise UntraceableError(f"F returned {F.dtype} of shape {F.shape} for {x.dtype} of shape {x.shape}")
    return cast(F, x.dtype).reshape(x.shape)


def explanation(error: Exception) -> str:
    """Why a function was not traced, and at which of the user's lines."""
    message = str(error).splitlines()[0] if str(error) else type(error).__name__
    if not isinstance(error, UntraceableError):
        message = f"{type(error).__name__}: {message}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not (bool(LIBRARIES & set(Path(frame.filename).parts)) or frame.filename.startswith("<__array_function__"))
    ]
    if not frames:
        return message
    last = frames[-1]
    line = f": {last.line}" if last.line else ""
    return f"{message} ({Path(last.filename).name}, line {last.lineno}, in {last.name}{line})"


def disagreement(residual: Residual, first: HostArray | None, again: HostArray | None) -> str:
    """Why a trace may differ from a function that had these values at one point, before and after."""
    code = getattr(as_parametrized(residual).function, "__code__", None)
    where = f" ({Path(code.co_filename).name}, line {code.co_firstlineno}, in {code.co_name})" if code else ""
    if first is not None and again is not None and not np.array_equal(first, again, equal_nan=True):
        return f"F changes from call to call: pass what changes as parameters{where}"
    return f"F has other values or slopes: it rounds them, or takes other branches for arrays of other types{where}"


def numeric(parameters: Mapping[str, CallersArray] | None) -> dict[str, HostArray]:
    """Parameters that are real or complex numbers, or arrays of these."""
    found: dict[str, HostArray] = {}
    for name, value in (parameters or {}).items():
        if isinstance(value, int | float | complex) and not isinstance(value, bool):
            found[name] = np.asarray(value, complex if isinstance(value, complex) else float)
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fc":
            found[name] = np.asarray(value)
    return found


def key_of(problem: Problem, x: CallersArray, parameters: Mapping[str, HostArray]) -> object:
    """All on which a trace depends, except what the comparison detects; None if it is not hashable."""
    own = as_parametrized(problem.residual)
    form, function = own.form, own.function
    shapes = tuple((name, value.shape, value.dtype) for name, value in parameters.items())
    same: object = function
    if isinstance(function, FunctionType):
        inside = zip(function.__code__.co_freevars, function.__closure__ or ())
        cells = tuple(_identity(cell) for name, cell in inside if form != "names" or name not in parameters)
        same = (function.__code__, id(function.__globals__), cells, _identity(function.__defaults__))
    try:
        hash(same)
    except TypeError:
        return None
    return same, form, x.shape, x.dtype, problem.batch_ndim, shapes


def _identity(part: CallersArray) -> object:
    """A number or a string itself; for any other object its id."""
    try:
        value = part.cell_contents if hasattr(part, "cell_contents") else part
    except ValueError:  # an empty cell
        return None
    if isinstance(value, tuple):
        return tuple(map(_identity, value))
    return value if isinstance(value, int | float | complex | str | bytes | None) else id(value)


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
        self.returned: HostArray | None = None  # by the last call, if it was an array of finite numbers

    def holds_nearby(self, x: HostArray) -> bool:
        for y, _ in self._nearby(x):
            F = self.value(y)
            if F is not None and np.isfinite(F).any():
                return self.holds(y, F)
        return False

    def holds_anew(self, x: HostArray, first: HostArray | None) -> bool:
        """Whether F and its trace agree at x, where F is `first`, and near it, in values and in a product."""
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
                F = self.residual(x.copy())
                self.returned = F.copy() if type(F) is np.ndarray and np.isfinite(F).all() else None
                return np.array(F, x.dtype).reshape(x.shape)
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
            allowed = SIMILAR * unit * np.abs(F) + SHARE * unit * np.max(np.abs(F), initial=0, where=np.isfinite(F))
            wrong = error > allowed
            random = np.random.default_rng(0)
            for _ in range(6):
                if not wrong.any():
                    return True
                moved = (x * (1 + DIGITS * unit * random.uniform(-1, 1, x.shape))).astype(x.dtype)
                change = np.abs(self.jvp(moved, zero)[0] - own)
                wrong &= ~(error <= allowed + TRACE_ROUNDING * change)
        return not wrong.any()

    def _is_product(self, difference: HostArray, x: HostArray, v: HostArray, size: HostArray) -> bool:
        """Whether most entries of the product with v agree with a difference of values of this size."""
        product = self.jvp(x, v.astype(x.dtype))[1]
        with np.errstate(all="ignore"):
            rounding = 10 * np.finfo(x.dtype).eps * np.max(size, initial=0, where=np.isfinite(size))
            excess = np.abs(difference - product) - PRODUCT_MISMATCH * np.maximum(np.abs(difference), np.abs(product))
        known = excess[np.isfinite(excess)]
        return not known.size or bool(np.median(known) <= rounding)
