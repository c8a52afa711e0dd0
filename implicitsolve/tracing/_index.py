"""Entries of an array that are read or write_entries under a key, without changing what others hold."""

from __future__ import annotations

import operator
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from implicitsolve._typing import CallersArray
from implicitsolve.tracing._functions import UntraceableError, Value, count_operation, is_tracer

Key: TypeAlias = CallersArray


def is_basic(key: Key) -> bool:
    """Whether NumPy gives a view for this key."""
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is None or part is Ellipsis or isinstance(part, slice) or is_integer(part) for part in parts)


def is_integer(part: Key) -> bool:
    """Whether part of a key is a number."""
    return isinstance(part, int | np.integer) and not isinstance(part, bool)


def is_tracer_mask(key: Key) -> bool:
    """Whether the key is a mask that depends on the unknowns."""
    return is_tracer(key) and key.dtype == bool


def plain(key: Key) -> Key:
    """A key of JAX: lists are arrays."""
    if isinstance(key, tuple):
        return tuple(plain(part) for part in key)
    return np.asarray(key) if isinstance(key, list) else key


def replace_entries(base: Value, key: Key, value: Value) -> Value:
    """`base` with other entries under a key, or at the places that a function picks from an array of them."""
    if not (is_tracer(base) or is_tracer(value) or is_tracer_mask(key)):
        base = np.array(base)
        if callable(key):
            base.reshape(-1)[key(np.arange(base.size).reshape(base.shape))] = value
        else:
            base[key] = value
        return base
    count_operation()
    base = jnp.asarray(base)
    if callable(key):
        places = key(np.arange(base.size).reshape(base.shape))
        return base.reshape(-1).at[places].set(value).reshape(base.shape)
    if is_tracer_mask(key):
        if np.ndim(value) and value.shape != base.shape:
            raise UntraceableError("values are assigned under a mask that depends on the unknowns: use np.where")
        return jnp.where(key.reshape(key.shape + (1,) * (base.ndim - key.ndim)), value, base)
    return write_entries(base, key, value) if is_basic(key) else base.at[plain(key)].set(value)


def spread_over(value: Value, shape: tuple[int, ...]) -> Value:
    """A value for each entry of an array: leading axes of length 1 that it has no room for are dropped."""
    value = jnp.asarray(value)
    return jnp.broadcast_to(value.reshape(value.shape[max(0, value.ndim - len(shape)) :]), shape)


def write_entries(base: Value, key: Key, value: Value) -> Value:
    """`base` with `value` under integers and slices: an updated slice, or a choice from padding where it has steps."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at, count = parts.index(Ellipsis), sum(part is not None for part in parts) - 1
    parts[at : at + 1] = [slice(None)] * (base.ndim - count)
    kept = [part for part in parts if not is_integer(part)]
    value = spread_over(value, np.empty(base.shape, bool)[key].shape)
    value = jnp.squeeze(value, tuple(i for i, part in enumerate(kept) if part is None))
    axes = [part for part in parts if part is not None]
    value = jnp.expand_dims(value, tuple(i for i, part in enumerate(axes) if is_integer(part)))
    spans: list[range] = []
    for i, (part, n) in enumerate(zip(axes, base.shape, strict=True)):
        span = range(n)[part] if isinstance(part, slice) else range(n)[operator.index(part) :][:1]
        if span.step < 0:
            value, span = jnp.flip(value, i), span[::-1]
        spans.append(span)
    if 0 in value.shape:
        return base
    if all(span.step == 1 or len(span) == 1 for span in spans):
        return lax.dynamic_update_slice(base, value, [span.start for span in spans])
    around = [(span.start, n - 1 - span[-1], span.step - 1) for span, n in zip(spans, base.shape, strict=True)]
    spread = lax.pad(value, jnp.zeros((), base.dtype), around)
    return jnp.where(lax.pad(jnp.ones(value.shape, bool), jnp.zeros((), bool), around), spread, base)
