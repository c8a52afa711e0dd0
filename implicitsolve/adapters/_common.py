"""Checks of arguments and conversion between array libraries, shared by all adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import device

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import array_namespace, copy_array, is_array
from implicitsolve._typing import Array, DType, HostArray, Indices
from implicitsolve.stopping import check_generator, check_limit, check_tolerance

Shapes: TypeAlias = Callable[[int, int], dict[str, tuple[int, ...]]]
"""Names and shapes of parameters for d inputs and k states of one position."""
Matrix: TypeAlias = Any
"""An array, a sparse matrix or a `BlockBandedMatrix`."""
Lengths: TypeAlias = Sequence[int] | Array | int | None
"""Positions of each sequence, or of the only one; None means all."""

# A state that is not finite gives a residual that is not finite, and no warning: the solver detects it and backtracks.
quiet = np.errstate(over="ignore", invalid="ignore")


class ByFields:
    """A dataclass that is pickled by its fields: cached values are recomputed."""

    def __getstate__(self) -> dict[str, Any]:
        return {part.name: getattr(self, part.name) for part in fields(self)}  # type: ignore[arg-type]


def check_names(caller: str, params: object, expected: Sequence[str]) -> Mapping[str, Array]:
    if not isinstance(params, Mapping):
        raise TypeError(f"{caller}: `params` must be a mapping of names to arrays, got {type(params).__name__}")
    missing = [name for name in expected if name not in params]
    unknown = [str(name) for name in params if name not in expected]
    if missing or unknown:
        found = {"lacks": missing, "has unknown": unknown}
        wrong = " and ".join(f"{what} {', '.join(names)}" for what, names in found.items() if names)
        raise ValueError(f"{caller}: `params` {wrong}; expected {', '.join(expected)}")
    return params


def check_inputs(caller: str, inputs: Array, sample: str = "T, d") -> None:
    """Check that `inputs` is a real floating-point array, of one sample or a batch."""
    if not is_array(inputs):
        raise TypeError(f"{caller}: `inputs` must be an array, got {type(inputs).__name__}")
    check_no_grad(caller, "inputs", inputs)
    ndim = len(sample.split(", "))
    if inputs.ndim not in (ndim, ndim + 1) or 0 in inputs.shape:
        shapes = f"(B, {sample}) or ({sample}{',' * (ndim == 1)})"
        raise ValueError(f"{caller}: `inputs` must have shape {shapes}, none of them 0, got {inputs.shape}")
    xp = array_namespace(inputs)
    if inputs.dtype not in (xp.float32, xp.float64):
        raise TypeError(f"{caller}: `inputs` must have dtype float32 or float64, got {inputs.dtype}")


def check_array(
    caller: str, name: str, value: Array, shape: tuple[int, ...] | None, like: Array, of: str = "the inputs"
) -> Array:
    """Check an array's library, shape (unless None) and dtype against those of `like`; messages say `of` what."""
    if not is_array(value):
        raise TypeError(f"{caller}: `{name}` must be an array, got {type(value).__name__}")
    if type(value) is not type(like) and array_namespace(value) is not array_namespace(like):
        expected, got = (array_namespace(x).__name__ for x in (like, value))
        raise TypeError(f"{caller}: `{name}` must be an array of the library of {of}, {expected}, got {got}")
    check_no_grad(caller, name, value)
    if shape is not None and tuple(value.shape) != shape:
        raise ValueError(f"{caller}: `{name}` must have shape {shape}, got {tuple(value.shape)}")
    if value.dtype != like.dtype:
        raise TypeError(f"{caller}: `{name}` must have the dtype of {of}, {like.dtype}, got {value.dtype}")
    return value


def check_no_grad(caller: str, name: str, value: Array) -> None:
    """Check that no gradient is expected of a tensor of torch: the solvers would lose it."""
    if getattr(value, "requires_grad", False):
        raise TypeError(
            f"{caller}: `{name}` must not require grad, since gradients are lost here: take the modules of "
            f"implicitsolve.torch, or detach it"
        )


def check_lengths(caller: str, lengths: Lengths, B: int, T: int, is_single: bool) -> Indices:
    """Lengths of B sequences on the host, each from 1 to T; None means T for all. A single sequence has an integer."""
    if lengths is None:
        return np.full(B, T, dtype=np.intp)
    try:
        host = to_host(lengths) if is_array(lengths) else np.asarray(lengths)
    except ValueError as error:
        raise ValueError(f"{caller}: `lengths` must be integers, one for each sequence: {error}") from None
    if host.dtype.kind not in "iu":
        raise TypeError(f"{caller}: `lengths` must be integers, got dtype {host.dtype}")
    expected = () if is_single else (B,)
    if host.shape != expected:
        raise ValueError(f"{caller}: `lengths` must have shape {expected}, one for each sequence, got {host.shape}")
    host = host.reshape(B)
    wrong = np.flatnonzero((host < 1) | (host > T))
    if wrong.size:
        b = int(wrong[0])
        raise ValueError(f"{caller}: `lengths` must be from 1 to T = {T}, got {int(host[b])} for sequence {b}")
    return host.astype(np.intp)


def draw(
    caller: str, shapes: Shapes, d: int, k: int, scale: float, rng: np.random.Generator, dtype: DType
) -> dict[str, HostArray]:
    """Draw the parameters of these shapes uniformly from [-scale, scale], in order."""
    for size, value in (("d", d), ("k", k)):
        check_limit(caller, size, value, least=1)
    check_generator(caller, rng)
    check_tolerance(caller, "scale", scale)
    try:
        name = np.dtype(dtype).name
    except (TypeError, ValueError):
        name = ""
    if name not in ("float32", "float64"):
        raise TypeError(f"{caller}: `dtype` must be float32 or float64, got {dtype}")
    return {name: rng.uniform(-scale, scale, shape).astype(dtype) for name, shape in shapes(d, k).items()}


def read_parameters(caller: str, params: object, inputs: Array, shapes: Shapes, *, size: str) -> dict[str, Array]:
    """Check names, shapes, library and dtype, and copy; k is the last length of the parameter that `size` names."""
    check_inputs(caller, inputs)
    d = inputs.shape[-1]
    given = check_names(caller, params, list(shapes(d, 1)))
    value = check_array(caller, size, given[size], None, inputs)
    if value.ndim == 0 or value.shape[-1] == 0:
        shape = "(k,)" if len(shapes(d, 1)[size]) == 1 else "(k, k)"
        raise ValueError(f"{caller}: `{size}` must have shape {shape} with k at least 1, got {tuple(value.shape)}")
    expected = shapes(d, value.shape[-1]).items()
    checked = {name: check_array(caller, name, given[name], shape, inputs) for name, shape in expected}
    return {name: copy_array(value) for name, value in checked.items()}


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    return array_namespace(like).zeros(shape, dtype=like.dtype, device=device(like))
