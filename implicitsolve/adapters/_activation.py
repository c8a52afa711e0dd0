"""Activation functions by name: the function of each number, and its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from implicitsolve.adapters._common import Array, array_namespace


class Activation(NamedTuple):
    """A function of each number, and its derivative by the function's value."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]


def _tanh(a: Array) -> Array:
    return array_namespace(a).tanh(a)


def _tanh_slope(h: Array) -> Array:
    return 1.0 - h * h


def _logistic(a: Array) -> Array:
    h = array_namespace(a).exp(-a)  # infinite where the value is 0
    h += 1.0
    return 1.0 / h


def _logistic_slope(h: Array) -> Array:
    return h - h * h


def _relu(a: Array) -> Array:
    xp = array_namespace(a)
    return xp.maximum(a, xp.zeros_like(a))


def _relu_slope(h: Array) -> Array:
    return array_namespace(h).astype(h > 0.0, h.dtype)


def _identity(a: Array) -> Array:
    return a


def _identity_slope(h: Array) -> Array:
    return array_namespace(h).ones_like(h)


ACTIVATIONS = {
    "tanh": Activation(_tanh, _tanh_slope),
    "logistic": Activation(_logistic, _logistic_slope),
    "relu": Activation(_relu, _relu_slope),
    "identity": Activation(_identity, _identity_slope),
}
