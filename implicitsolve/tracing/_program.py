"""The program that a function written in NumPy is: F, its products and its derivatives by parameters, compiled."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from implicitsolve._parameters import Parametrized
from implicitsolve._typing import CallersArray, HostArray, Residual
from implicitsolve.problem import Problem
from implicitsolve.tracing._array import Traced, unwrap
from implicitsolve.tracing._functions import UntraceableError, as_value, budget, cast, is_tracer
from implicitsolve.tracing._names import LIBRARIES, traceable

REPAID = 10_000_000  # numbers in arguments so far, after which a compilation with optimization has paid
MOST_EQUATIONS = 2000  # of a program: they take about ten seconds to compile


@contextlib.contextmanager
def double_precision() -> Generator[None]:
    """JAX with 64 bits, on the CPU, in this thread and block alone."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


Compiled = Callable[..., CallersArray]


def _on_host(function: Compiled) -> Compiled:
    """A compiled function on arrays of NumPy, in which time goes to compiling first and to running later."""
    first = jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})
    later = jax.jit(function)
    work = 0

    def call(*args: CallersArray) -> CallersArray:
        nonlocal work
        work += sum(np.size(array) for array in jax.tree.leaves(args))
        with double_precision():
            return jax.tree.map(np.asarray, (first if work < REPAID else later)(*args))

    return call


class Program:
    """F(x, parameters) as a program of JAX; all a function is compiled when it is first called."""

    def __init__(self, residual: Residual, x: HostArray, parameters: Mapping[str, HostArray]) -> None:
        with double_precision(), budget(MOST_EQUATIONS):
            self.closed: CallersArray = jax.make_jaxpr(partial(_evaluate, _with_names(residual)))(x, dict(parameters))
        self.equations: int = sum(1 for _ in _equations(self.closed.jaxpr))
        if self.equations > MOST_EQUATIONS:
            raise UntraceableError(f"the program has {self.equations} operations, more than {MOST_EQUATIONS}")
        flat = jax.extend.core.jaxpr_as_fun(self.closed)

        def F(x: CallersArray, parameters: CallersArray) -> CallersArray:
            return flat(x, *jax.tree.leaves(parameters))[0]

        def jvps(x: CallersArray, V: CallersArray, parameters: CallersArray) -> CallersArray:
            value, product = jax.linearize(lambda x: F(x, parameters), x)
            return value, jax.vmap(product)(V)

        def vjp(function: CallersArray, at: CallersArray, w: CallersArray) -> CallersArray:
            return jax.tree.map(jnp.conj, jax.vjp(function, at)[1](jnp.conj(w))[0])

        # F at (x, parameters); F and J v at (x, v, parameters), or for each v of V; J^H w at (x, w, parameters)
        self.value: Compiled = _on_host(F)
        self.jvp: Compiled = _on_host(lambda x, v, p: jax.jvp(lambda x: F(x, p), (x,), (v,)))
        self.jvps: Compiled = _on_host(jvps)
        self.vjp: Compiled = _on_host(lambda x, w, p: vjp(lambda x: F(x, p), x, w))
        self.parameter_jvp: Compiled = _on_host(lambda x, d, p: jax.jvp(lambda p: F(x, p), (p,), (d,))[1])
        self.parameter_vjp: Compiled = _on_host(lambda x, w, p: vjp(lambda p: F(x, p), p, w))


def _with_names(residual: Residual) -> Callable[[CallersArray, CallersArray], CallersArray]:
    """F(x, parameters) whose names stand for what can be traced."""
    if not isinstance(residual, Parametrized):
        function = traceable(residual)
        return lambda x, parameters: function(x)
    bound = Parametrized(traceable(residual.function), residual.values, residual.form)
    return lambda x, parameters: bound.at(parameters)(x)


def _evaluate(
    function: Callable[[CallersArray, CallersArray], CallersArray], x: CallersArray, parameters: CallersArray
) -> CallersArray:
    """F of tracers, in the shape and dtype of x."""
    traced = {name: Traced(value, _layout(value)) for name, value in parameters.items()}
    F = as_value(unwrap(function(Traced(x), traced)))
    if F is None or (not is_tracer(F) and np.asarray(F).dtype.kind not in "biufc"):
        raise UntraceableError(f"F returned {type(F).__name__}")
    F = jnp.asarray(F)
    if F.size != x.size or np.issubdtype(F.dtype, np.complexfloating) > np.issubdtype(x.dtype, np.complexfloating):
        raise UntraceableError(f"F returned {F.dtype} of shape {F.shape} for {x.dtype} of shape {x.shape}")
    return cast(F, x.dtype).reshape(x.shape)


def _layout(value: CallersArray) -> CallersArray:
    layout = np.empty(value.shape, value.dtype)
    return layout if value.ndim else layout[()]


def _equations(jaxpr: CallersArray) -> Iterator[CallersArray]:
    for equation in jaxpr.eqns:
        yield equation
        for part in equation.params.values():
            inner = getattr(part, "jaxpr", None)
            if inner is not None:
                yield from _equations(inner if hasattr(inner, "eqns") else inner.jaxpr)


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
    """What a trace depends on, but for what the comparison finds; None where that cannot be looked up."""
    function = problem.residual
    form = ""
    if isinstance(function, Parametrized):
        form, function = function.form, function.function
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
    """A number or a text itself, else where it is."""
    try:
        value = part.cell_contents if hasattr(part, "cell_contents") else part
    except ValueError:  # an empty cell
        return None
    if isinstance(value, tuple):
        return tuple(map(_identity, value))
    return value if isinstance(value, int | float | complex | str | bytes | None) else id(value)
