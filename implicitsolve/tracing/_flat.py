"""Functions of JAX as lists of operations, and JAX's primitives on arrays of NumPy, by which these are evaluated."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.extend.core as jex
import numpy as np
import scipy.special
from jax import lax

from implicitsolve._typing import CallersArray, HostArray

Params: TypeAlias = dict[str, CallersArray]
Rule: TypeAlias = Callable[..., CallersArray]

NAMES = """abs acos acosh add add_any:add and:bitwise_and asin asinh atan atan2 atanh cbrt ceil conj copy:asarray
copy_p:asarray cos cosh eq:equal erf erfc exp exp2 expm1 floor ge:greater_equal gt:greater imag is_finite:isfinite
le:less_equal log log1p logistic:expit lt:less max:maximum min:minimum mul:multiply ne:not_equal neg:negative nextafter
not:invert or:bitwise_or pow real rem:fmod sign sin sinh sqrt square stop_gradient:asarray sub:subtract tan tanh
xor:bitwise_xor"""
UFUNCS: dict[str, Rule] = {}
for _name, _, _own in (pair.partition(":") for pair in NAMES.split()):
    UFUNCS[_name] = getattr(np, _own or _name, None) or getattr(scipy.special, _own or _name)
RULES: dict[str, Rule] = {}
"""A function (params, *arguments) by the name of the primitive."""


@contextlib.contextmanager
def double_precision() -> Generator[None]:
    """JAX with 64 bits, on the CPU, in this thread and block alone."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def rule(name: str) -> Callable[[Rule], Rule]:
    return lambda function: RULES.setdefault(name, function)


def on_numpy(primitive: CallersArray, params: Params) -> Rule:
    """A primitive with its parameters as a function of arrays; it is JAX's where NumPy has none."""
    if primitive.name in UFUNCS:
        return UFUNCS[primitive.name]
    is_batched = bool(getattr(params.get("dimension_numbers"), "operand_batching_dims", ()))
    if primitive.name in RULES and not is_batched:
        return partial(RULES[primitive.name], dict(params))
    return partial(_by_jax, primitive, params)


def _by_jax(primitive: CallersArray, params: Params, *arrays: CallersArray) -> CallersArray:
    with double_precision():
        return jax.tree.map(np.asarray, primitive.bind(*arrays, **params))


# Entry by entry

RULES["div"] = lambda params, a, b: a / b if a.dtype.kind in "fc" else np.trunc(a / b).astype(a.dtype)
RULES["integer_pow"] = lambda params, x: _power(x, params["y"]) if params["y"] >= 0 else 1 / _power(x, -params["y"])
RULES["select_n"] = lambda _, i, *cases: np.where(i, *cases[::-1]) if len(cases) == 2 else np.choose(i, cases)


@rule("convert_element_type")
def _convert(params: Params, x: CallersArray) -> HostArray:
    dtype = params["new_dtype"]
    return (x if np.issubdtype(dtype, np.complexfloating) else x.real).astype(dtype)


def _power(x: HostArray, n: int) -> HostArray:
    """An integer power by products: NumPy's takes ten times as long."""
    if n < 2:
        return x if n else np.ones_like(x)
    half = _power(x, n // 2)
    return half * half * x if n % 2 else half * half


# Entries in other places

RULES["concatenate"] = lambda params, *parts: np.concatenate(parts, params["dimension"])
RULES["dynamic_slice"] = lambda params, x, *begins: x[_window(x.shape, params["slice_sizes"], begins)]
RULES["reshape"] = lambda params, x: np.reshape(x, params["new_sizes"])
RULES["rev"] = lambda params, x: np.flip(x, params["dimensions"])
RULES["split"] = lambda params, x: np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])
RULES["squeeze"] = lambda params, x: np.squeeze(x, params["dimensions"])
RULES["stack"] = lambda params, *parts: np.stack(parts, params["axis"])
RULES["transpose"] = lambda params, x: np.transpose(x, params["permutation"])


@rule("slice")
def _slice(params: Params, x: HostArray) -> HostArray:
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], params["strides"] or [1] * x.ndim))]


@rule("broadcast_in_dim")
def _broadcast(params: Params, x: HostArray) -> HostArray:
    others = [axis for axis in range(len(params["shape"])) if axis not in params["broadcast_dimensions"]]
    return np.broadcast_to(np.expand_dims(x, others), params["shape"])


@rule("pad")
def _pad(params: Params, x: HostArray, value: HostArray) -> HostArray:
    """An array with entries inserted between its own, and others added or removed at its ends."""
    low, high, apart = np.transpose(params["padding_config"]).reshape(3, -1).tolist()
    spans = [n + max(n - 1, 0) * step for n, step in zip(x.shape, apart)]
    padded = np.full([n + max(a, 0) + max(b, 0) for n, a, b in zip(spans, low, high)], value, x.dtype)
    padded[tuple(slice(max(a, 0), max(a, 0) + n, step + 1) for n, a, step in zip(spans, low, apart))] = x
    return padded[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, a, b in zip(padded.shape, low, high))]


def _window(shape: Sequence[int], sizes: Sequence[int], begins: Sequence[HostArray]) -> tuple[slice, ...]:
    starts = [min(max(int(at), 0), n - m) for at, n, m in zip(begins, shape, sizes)]
    return tuple(slice(at, at + m) for at, m in zip(starts, sizes))


@rule("dynamic_update_slice")
def _update_slice(params: Params, x: HostArray, update: HostArray, *begins: HostArray) -> HostArray:
    changed = np.array(x)
    changed[_window(x.shape, update.shape, begins)] = update
    return changed


def _once(find: Callable[..., tuple[HostArray, ...]]) -> Callable[..., tuple[HostArray, ...]]:
    """Positions that are found once if their indices are constants, which are the same array at each evaluation."""

    def places(params: Params, shape: Sequence[int], at: HostArray, *sizes: Sequence[int]) -> tuple[HostArray, ...]:
        known = params.get("known", (None, None))
        if known[0] is not at:
            known = params["known"] = at, find(params, shape, at, *sizes)
        return known[1]

    return places


def _places(
    shape: Sequence[int], sizes: Sequence[int], at: HostArray, mode: object, axes: Sequence[int], aside: Sequence[int]
) -> tuple[HostArray, HostArray]:
    """Flat indices (batch, window) of the entries of windows in an array, and which belong to windows within it.

    The windows begin at `at`, along these axes, and the axes `aside` are not theirs.
    """
    steps = np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], np.intp)
    window = [size for axis, size in enumerate(sizes) if axis not in aside]
    kept = np.clip(at.astype(np.intp), 0, np.array([shape[axis] - sizes[axis] for axis in axes], np.intp))
    inside = (kept == at).all(-1) | (mode == lax.GatherScatterMode.CLIP)
    first = (kept @ steps[list(axes)]).reshape(inside.shape + (1,) * len(window))
    places = first + np.tensordot(steps, np.indices(sizes), 1).reshape(window)
    return places, np.broadcast_to(inside.reshape(first.shape), places.shape)


@_once
def _gather_places(params: Params, shape: Sequence[int], at: HostArray) -> tuple[HostArray, CallersArray]:
    numbers = params["dimension_numbers"]
    axes = numbers.start_index_map, numbers.collapsed_slice_dims
    places, inside = _places(shape, params["slice_sizes"], at, params["mode"], *axes)
    return np.moveaxis(places, range(at.ndim - 1, places.ndim), numbers.offset_dims), inside.all()


@rule("gather")
def _gather(params: Params, x: HostArray, at: HostArray) -> HostArray:
    places, is_inside = _gather_places(params, x.shape, at)
    own = {name: part for name, part in params.items() if name != "known"}
    return np.reshape(x, -1)[places] if is_inside else _by_jax(lax.gather_p, own, x, at)


@_once
def scatter_places(
    params: Params, shape: Sequence[int], at: HostArray, lengths: Sequence[int]
) -> tuple[HostArray, HostArray]:
    """Positions in an array of the entries of updates of these lengths, and those entries; without those outside."""
    numbers = params["dimension_numbers"]
    axes = numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims
    windows = iter(lengths[axis] for axis in numbers.update_window_dims)
    sizes = [1 if axis in axes[1] else next(windows) for axis in range(len(shape))]
    places, inside = _places(shape, sizes, at, params["mode"], *axes)
    new = np.arange(math.prod(lengths)).reshape(lengths)
    return places[inside], np.moveaxis(new, numbers.update_window_dims, range(at.ndim - 1, new.ndim))[inside]


def _scatter_by(ufunc: np.ufunc | None) -> Rule:
    def scatter(params: Params, x: HostArray, at: HostArray, new: HostArray) -> HostArray:
        changed = np.array(x).reshape(-1)
        places, taken = scatter_places(params, x.shape, at, new.shape)
        if ufunc is None:
            changed[places] = new.reshape(-1)[taken]
        else:
            ufunc.at(changed, places, new.reshape(-1)[taken])
        return changed.reshape(x.shape)

    return scatter


RULES["scatter"] = _scatter_by(None)
UPDATES = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
RULES |= {f"scatter{mark}{name}": _scatter_by(ufunc) for name, ufunc in UPDATES.items() for mark in "-_"}


# Along axes


def _reduce_by(ufunc: np.ufunc) -> Rule:
    return lambda params, x: np.asarray(ufunc.reduce(x, axis=tuple(params["axes"]), dtype=x.dtype))


def _accumulate_by(ufunc: np.ufunc) -> Rule:
    def accumulate(params: Params, x: HostArray) -> HostArray:
        turn = partial(np.flip, axis=params["axis"]) if params["reverse"] else np.asarray
        return turn(ufunc.accumulate(turn(x), params["axis"], dtype=x.dtype))

    return accumulate


ALONG = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
ALONG |= {"and": np.logical_and, "or": np.logical_or}
for _name, _ufunc in ALONG.items():
    RULES |= {f"reduce_{_name}": _reduce_by(_ufunc), f"cum{_name}": _accumulate_by(_ufunc)}


def arrange(x: HostArray, contracted: Sequence[int], batch: Sequence[int]) -> tuple[HostArray, list[int]]:
    """A factor as an array (batch, rest, contracted), and the lengths of the rest."""
    rest = [axis for axis in range(x.ndim) if axis not in (*contracted, *batch)]
    sizes = [math.prod(x.shape[axis] for axis in axes) for axes in (batch, rest, contracted)]
    return x.transpose([*batch, *rest, *contracted]).reshape(sizes), [x.shape[axis] for axis in rest]


@rule("dot_general")
def _product(params: Params, a: HostArray, b: HostArray) -> HostArray:
    contracted, batch = params["dimension_numbers"]
    (left, rows), (right, columns) = (arrange(x, contracted[i], batch[i]) for i, x in enumerate((a, b)))
    found = left @ right.swapaxes(1, 2)
    return found.reshape([*(a.shape[axis] for axis in batch[0]), *rows, *columns])


CALLS = "jit pjit closed_call core_call checkpoint remat remat2 custom_jvp_call custom_vjp_call"
INNER_PROGRAMS = "jaxpr", "call_jaxpr", "fun_jaxpr"  # programs within an equation


def inner_program(equation: CallersArray) -> CallersArray:
    if equation.primitive.name not in CALLS.split():
        return None
    inner = next(part for key in INNER_PROGRAMS if (part := equation.params.get(key)) is not None)
    return inner if hasattr(inner, "consts") else jex.ClosedJaxpr(inner, ())


class Operation(NamedTuple):
    """An equation on values in numbered places; those in `ended` are not used after it."""

    equation: CallersArray
    function: CallersArray
    arguments: list[int]
    results: list[int]
    ended: list[int]


class FlatProgram:
    """The operations that a function's outputs need, in order; those on constants alone are evaluated once."""

    def __init__(self, function: CallersArray, *args: CallersArray) -> None:
        self.constants: list[HostArray | None] = []
        operations: list[Operation] = []
        with double_precision(), np.errstate(all="ignore"):
            closed, outcome = jax.make_jaxpr(function, return_shape=True)(*args)
            self.outcome: Any = outcome
            self.inputs: list[int] = [self._place() for _ in closed.jaxpr.invars]
            self.outputs: list[int] = self._enter(closed, self.inputs, operations)
        self.function: CallersArray = jex.jaxpr_as_fun(closed)
        self.operations: list[Operation] = [*_needed_operations(operations, self.outputs)][::-1]

    def _place(self, constant: CallersArray = None, kind: CallersArray = None) -> int:
        self.constants.append(constant if kind is None else np.asarray(constant, kind.dtype))
        return len(self.constants) - 1

    def _enter(self, closed: CallersArray, inputs: Sequence[int], operations: list[Operation]) -> list[int]:
        """Add the operations of a program whose inputs are in these places; the places of its outputs."""
        jaxpr = closed.jaxpr
        at = dict(zip(jaxpr.invars, inputs))
        at |= {var: self._place(np.asarray(value)) for var, value in zip(jaxpr.constvars, closed.consts)}

        def places(atoms: Sequence[CallersArray]) -> list[int]:
            return [self._place(a.val, a.aval) if isinstance(a, jex.Literal) else at[a] for a in atoms]

        for equation in jaxpr.eqns:
            arguments, inner = places(equation.invars), inner_program(equation)
            if inner is not None:
                results = self._enter(inner, arguments, operations)
            else:
                results = self._add(equation, arguments, operations)
            at.update(zip(equation.outvars, results))
        return places(jaxpr.outvars)

    def _add(self, equation: CallersArray, arguments: list[int], operations: list[Operation]) -> list[int]:
        function, known = on_numpy(equation.primitive, equation.params), [self.constants[i] for i in arguments]
        if all(value is not None for value in known):
            found = function(*known)
            return [self._place(value) for value in (found if equation.primitive.multiple_results else [found])]
        results = [self._place() for _ in equation.outvars]
        operations.append(Operation(equation, function, arguments, results, []))
        return results

    def __call__(self, *inputs: HostArray) -> list[HostArray]:
        """The outputs, in memory of their own."""
        values = self.constants.copy()
        for i, value in zip(self.inputs, inputs, strict=True):
            values[i] = value
        with np.errstate(all="ignore"):
            for operation in self.operations:
                found = operation.function(*[values[i] for i in operation.arguments])
                found = found if operation.equation.primitive.multiple_results else (found,)
                for i, value in zip(operation.results, found):
                    values[i] = value
                for i in operation.ended:
                    values[i] = None
        return [np.array(values[i]) for i in self.outputs]


def _needed_operations(operations: list[Operation], outputs: list[int]) -> Iterator[Operation]:
    """The operations that others or the outputs need, from the last one on."""
    needed = set(outputs)
    for operation in reversed(operations):
        if not needed.isdisjoint(operation.results):
            ended = [i for i in {*operation.arguments, *operation.results} if i not in needed]
            needed.update(operation.arguments)
            yield operation._replace(ended=ended)
