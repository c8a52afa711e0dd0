"""NumPy's functions and ufuncs on values: numbers of NumPy, and tracers of JAX for what depends on the unknowns."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Generator
from typing import TypeAlias

import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.sparse
from jax import lax

from implicitsolve._typing import CallersArray, HostArray

Value: TypeAlias = CallersArray
"""Numbers of NumPy, or a tracer of JAX."""
Arguments: TypeAlias = tuple[CallersArray, ...]
Keywords: TypeAlias = dict[str, CallersArray]

REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "fmax": "nanmax", "fmin": "nanmin"}
REDUCTIONS |= {"logical_and": "all", "logical_or": "any"}
ACCUMULATIONS: dict[str, Callable[..., Value]] = {"add": jnp.cumsum, "multiply": jnp.cumprod}
ACCUMULATIONS |= {"maximum": lax.cummax, "minimum": lax.cummin}
UPDATE_NAMES = {"add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide", "maximum": "max"}
UPDATE_NAMES |= {"minimum": "min", "power": "power"}
SPECIAL = {"psi": "digamma"}  # ufuncs of scipy.special that JAX calls otherwise
JOINS = frozenset(["block", "column_stack", "concat", "concatenate", "dstack", "hstack", "stack", "vstack"])
LARGEST_FUNCTION = 2000  # of a function: they take some seconds
LONGEST_KERNEL = 64  # of a convolution that is a sum of shifted arrays
HIGHEST_POWER = 16  # that is a product, as NumPy's small ones are


class UntraceableError(TypeError):
    """Something in a function that cannot be traced; the message says what, and what to write in its place."""


class _Budget(threading.local):
    def __init__(self) -> None:
        self.left, self.known = math.inf, dict[object, CallersArray]()


_budget = _Budget()


@contextlib.contextmanager
def budget() -> Generator[None]:
    """A trace, of a limited number of operations: loops over points become too long a program."""
    before = vars(_budget).copy()
    _budget.left, _budget.known = LARGEST_FUNCTION, {}
    try:
        yield
    finally:
        vars(_budget).clear()
        vars(_budget).update(before)


def count_operation() -> None:
    _budget.left -= 1
    if _budget.left < 0:
        raise UntraceableError("the program is too long: write loops over points as operations on arrays")


def once(compute: Callable[[], Value], name: object, *values: Value) -> Value:
    """The result of `compute` for these values, once in a trace: `x > 0` is the same mask wherever it is written."""
    if not all(is_tracer(part) or type(part) in (bool, int, float, complex) for part in values):
        return compute()
    key = (name, *(id(part) if is_tracer(part) else repr(part) for part in values))
    if key not in _budget.known:
        _budget.known[key] = compute(), values  # which are kept, lest others take their places
    return _budget.known[key][0]


def is_tracer(value: object) -> bool:
    return hasattr(value, "aval")


def has_tracer(part: CallersArray) -> bool:
    if isinstance(part, list | tuple):
        return any(map(has_tracer, part))
    return any(map(has_tracer, part.values())) if isinstance(part, dict) else is_tracer(part)


def as_value(part: CallersArray) -> Value:
    if isinstance(part, list | tuple) and has_tracer(part):
        return jnp.stack([jnp.asarray(as_value(item)) for item in part])
    return part if is_tracer(part) else np.asarray(part)


def cast(value: Value, dtype: CallersArray) -> Value:
    """A value converted to a dtype, as by an assignment in NumPy."""
    if not is_tracer(value):
        return np.asarray(value).astype(dtype)
    if value.dtype == dtype:
        return value
    if np.issubdtype(value.dtype, np.complexfloating) and not np.issubdtype(dtype, np.complexfloating):
        value = value.real
    return value.astype(dtype)


# Ufuncs


def apply_ufunc(ufunc: np.ufunc, method: str, values: Arguments, keywords: Keywords) -> Value:
    """What a ufunc, or its `reduce`, `accumulate`, `outer` or `reduceat`, gives."""
    count_operation()
    name = ufunc.__name__
    if method == "__call__":
        dtype = keywords.pop("dtype", None)
        return once(lambda: call_ufunc(ufunc, values, dtype), (ufunc, str(dtype)), *values)
    if method == "outer":
        a, b = map(as_value, values)
        return call_ufunc(ufunc, (a.reshape(a.shape + (1,) * b.ndim), b), None)
    a = jnp.asarray(values[0])
    if method == "reduce" and name in REDUCTIONS:
        return getattr(jnp, REDUCTIONS[name])(a, **{"axis": values[1] if len(values) > 1 else 0, **keywords})
    if method == "accumulate" and name in ACCUMULATIONS:
        return ACCUMULATIONS[name](a, axis=values[1] if len(values) > 1 else keywords.get("axis", 0))
    if method == "reduceat" and name == "add":
        _, places, *axes = values
        return segments(a, np.asarray(places), keywords.get("axis") or (axes[0] if axes else 0))
    raise UntraceableError(f"np.{name}.{method} of values that depend on the unknowns")


def call_ufunc(ufunc: np.ufunc, values: Arguments, dtype: CallersArray) -> Value:
    """A ufunc in the precision that NumPy takes for its arguments."""
    name, scalars = ufunc.__name__, (int, float, complex)
    values = tuple(part if type(part) in scalars else as_value(part) for part in values)
    if ufunc is np.power and not is_tracer(values[1]) and np.ndim(values[1]) == 0 and values[0].dtype.kind in "fc":
        base, exponent = values[0], float(np.real(values[1]))
        if exponent == values[1]:
            if exponent.is_integer() and abs(exponent) <= HIGHEST_POWER:
                return lax.integer_pow(cast(base, np.result_type(base.dtype, values[1])), int(exponent))
            values = base, exponent
    kinds = [type(part) if type(part) in scalars else np.dtype(part.dtype) for part in values]
    loop = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout)) if dtype is None else (np.dtype(dtype),) * len(values)
    return _own_ufunc(name)(*(jnp.asarray(part, kind) for part, kind in zip(values, loop)))


def _own_ufunc(name: str) -> Callable[..., Value]:
    function = getattr(jnp, name, None) or getattr(jax.scipy.special, SPECIAL.get(name, name), None)
    if function is None:
        raise UntraceableError(f"{name} of values that depend on the unknowns")
    return function


def segments(a: Value, begins: HostArray, axis: int) -> Value:
    if (np.diff(begins) <= 0).any():
        raise UntraceableError("np.add.reduceat with indices that do not increase")
    groups = np.searchsorted(begins, np.arange(begins[0], a.shape[axis]), side="right") - 1
    a = jnp.moveaxis(a, axis, 0)[begins[0] :]
    return jnp.moveaxis(jnp.zeros((begins.size, *a.shape[1:]), a.dtype).at[groups].add(a), 0, axis)


# Functions


def apply_function(function: CallersArray, args: Arguments, keywords: Keywords) -> Value:
    """What a function of NumPy, numpy.linalg or numpy.fft gives, by JAX's of that name."""
    count_operation()
    part = function.__module__.removeprefix("numpy").lstrip(".")
    name = f"{part}.{function.__name__}".lstrip(".")
    home = getattr(jnp, part) if part in ("linalg", "fft") else jnp
    own = OWN.get(name) or getattr(home, function.__name__, None)
    if own is None:
        raise UntraceableError(f"np.{name} of values that depend on the unknowns")
    if name in JOINS and name != "block":
        args = ([as_value(item) for item in args[0]], *args[1:])
    try:
        return own(*args, **keywords)
    except UntraceableError:
        raise
    except (TypeError, ValueError, NotImplementedError) as error:
        if any(isinstance(item, list) for item in (*args, *keywords.values())):
            args = tuple(as_value(item) if isinstance(item, list) else item for item in args)
            keywords = {key: as_value(item) if isinstance(item, list) else item for key, item in keywords.items()}
            return apply_function(function, args, keywords)
        raise UntraceableError(f"np.{name}: {str(error).splitlines()[0]}") from error


def bincount(x: Value, weights: Value = None, minlength: int = 0) -> Value:
    if is_tracer(x):
        raise UntraceableError("np.bincount of bins that depend on the unknowns")
    bins = np.asarray(x)
    return jnp.zeros(max(int(bins.max(initial=-1)) + 1, minlength), float).at[bins].add(weights)


def convolve(a: Value, v: Value, mode: str = "full") -> Value:
    a, v = map(jnp.asarray, (a, v))
    if a.size < v.size:
        a, v = v, a
    if v.size > LONGEST_KERNEL:
        return jnp.convolve(a, v, mode=mode)
    n, m = a.size, v.size
    whole: Value = sum(jnp.pad(v[k] * a, (k, m - 1 - k)) for k in range(m))
    first, length = {"full": (0, n + m - 1), "same": ((m - 1) // 2, n), "valid": (m - 1, n - m + 1)}[mode]
    return whole[first : first + length]


def choose_entries(condition: Value, *parts: Value) -> Value:
    if not parts:
        raise UntraceableError("np.where or np.nonzero of what depends on the unknowns: use np.where(c, a, b)")
    return jnp.where(as_value(condition), *map(as_value, parts))


def count_of_result(*_: Value, **__: Value) -> Value:
    """Functions whose result has a shape that depends on the unknowns."""
    raise UntraceableError("the shape of a result depends on the unknowns: use np.where")


OWN: dict[str, Callable[..., Value]] = {
    "bincount": bincount,
    "choose": lambda which, choices: jnp.choose(as_value(which), [*map(as_value, choices)], mode="clip"),
    "convolve": convolve,
    "where": choose_entries,
    "append": lambda a, b, axis=None: jnp.append(as_value(a), as_value(b), axis),
    "copy": lambda a, **_: a,
    **dict.fromkeys(["argwhere", "compress", "extract", "flatnonzero", "nonzero", "unique"], count_of_result),
}


# Sparse matrices of SciPy, whose entries are known


def sparse_product(A: CallersArray, v: Value) -> Value:
    A, v = A.tocoo(), jnp.asarray(v)
    products = A.data.reshape(-1, *[1] * (v.ndim - 1)) * v[A.col]
    return jnp.zeros((A.shape[0], *v.shape[1:]), products.dtype).at[A.row].add(products)


def times_sparse(ufunc: np.ufunc, matrix: CallersArray, first: CallersArray, second: CallersArray) -> Value:
    is_product = ufunc is np.matmul or (ufunc is np.multiply and isinstance(matrix, scipy.sparse.spmatrix))
    if not is_product:
        raise UntraceableError(f"np.{ufunc.__name__} of a sparse matrix and values that depend on the unknowns")
    if first is matrix:
        return sparse_product(matrix, second.value)
    return jnp.transpose(sparse_product(matrix.T, jnp.transpose(first.value)))
