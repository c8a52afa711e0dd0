"""The layers' functions in operations of JAX, from which derivatives of any order are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

import implicitsolve as ims

Array: TypeAlias = Any
Arrays: TypeAlias = Mapping[str, Array]
Options: TypeAlias = Mapping[str, Any]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "identity": lambda x: x,
}


@dataclass(frozen=True)
class Cell:
    """What a layer's residual is made of.

    Attributes
    ----------
    function : callable
        ``function(w, x, neighbours, activation)`` are the states for the inputs x and the neighbours' states.
    before, after : tuple of str
        Names of the boundary states on either side, side by side where there are several.
    offsets : callable
        The neighbours, from the parameters and options.
    """

    function: Callable[[Arrays, Array, Sequence[Array], Callable[[Array], Array]], Array]
    before: tuple[str, ...] = ("hs",)
    after: tuple[str, ...] = ("he",)
    offsets: Callable[[Arrays, Options], tuple[int, ...]] = lambda w, options: (-1, 1)

    def depths(self, w: Arrays, options: Options) -> tuple[int, int]:
        """States that positions take beyond either end."""
        offsets = self.offsets(w, options)
        return max(0, -min(offsets, default=0)), max(0, *offsets, 0)

    def residual(self, x: Array, w: Arrays, given: Arrays, lengths: Array, options: Options) -> Array:
        """x - F(x) for x of shape (B, T, size), with boundary states of shape (B, depth, k)."""
        phi, inputs = ACTIVATIONS[options.get("activation", "tanh")], given["inputs"]
        if inputs.ndim == 2:  # nothing but the inputs of a lifted net
            return x - self.function(w, inputs, (x,), phi)
        is_inside = (jnp.arange(x.shape[1]) < lengths[:, None])[..., None]
        lower, upper = self.depths(w, options)
        edges = _edge(self.before, lower, given, x), _edge(self.after, upper, given, x)
        near = _neighbours(x, self.offsets(w, options), *edges, lengths)
        return x - jnp.where(is_inside, self.function(w, jnp.where(is_inside, inputs, 0), near, phi), 0)


def _edge(names: Sequence[str], depth: int, given: Arrays, x: Array) -> Array:
    """States beyond one end (B, depth, size), zero where they are not given."""
    zeros = jnp.zeros((x.shape[0], depth, x.shape[2] // max(1, len(names))), x.dtype)
    parts = [given.get(name, zeros) for name in names]
    return jnp.concatenate(parts, axis=-1) if parts else zeros


def _neighbours(x: Array, offsets: Sequence[int], before: Array, after: Array, lengths: Array) -> list[Array]:
    """The states at each offset from every position; `after` follows each sequence's own end."""
    T, lower = x.shape[1], before.shape[1]
    line = jnp.concatenate([before[:, ::-1], x, after], axis=1)
    found: list[Array] = []
    for offset in offsets:
        at, ends = jnp.arange(T) + offset, lengths[:, None]
        at = jnp.where(at < ends, at, jnp.minimum(T + at - ends, line.shape[1] - lower - 1)) + lower
        found.append(jnp.take_along_axis(line, at[..., None], axis=1))
    return found


def _affine(w: Arrays, gate: str, x: Array, h: Array) -> Array:
    return x @ w["W" + gate].T + h @ w["U" + gate].T + w["b" + gate]


def _mixed(arguments: Sequence[Array], neighbours: Sequence[Array]) -> Array:
    """The sum of s_j h_j, s_j = sigma(a_j) / sum_l sigma(a_l)."""
    shares = jax.nn.softmax(jax.nn.log_sigmoid(jnp.stack(arguments)), axis=0)
    return (shares * jnp.stack(neighbours)).sum(axis=0)


def _gated(w: Arrays, x: Array, hhat: Array) -> Array:
    """The state of a GRU whose previous state is hhat."""
    z, r = (jax.nn.sigmoid(_affine(w, gate, x, hhat)) for gate in "zr")
    return (1 - z) * hhat + z * jnp.tanh(_affine(w, "", x, r * hhat))


def _gru(w: Arrays, x: Array, near: Sequence[Array], phi: Any) -> Array:
    return _gated(w, x, _mixed([_affine(w, gate, x, h) for gate, h in zip("pn", near)], near))


def _stencil(w: Arrays, x: Array, near: Sequence[Array], phi: Any) -> Array:
    switch = zip(w["Ws"], w["Us"], w["bs"], near)
    return _gated(w, x, _mixed([x @ W.T + h @ U.T + b for W, U, b, h in switch], near))


def _lstm(w: Arrays, x: Array, near: Sequence[Array], phi: Any) -> Array:
    hidden = [jnp.split(state, 2, axis=-1)[0] for state in near]
    arguments = [jnp.tile(_affine(w, gate, x, h), 2) for gate, h in zip("pn", hidden)]
    hhat, chat = jnp.split(_mixed(arguments, near), 2, axis=-1)
    i, f, o = (jax.nn.sigmoid(_affine(w, gate, x, hhat)) for gate in "ifo")
    c = f * chat + i * jnp.tanh(_affine(w, "g", x, hhat))
    return jnp.concatenate([o * jnp.tanh(c), c], axis=-1)


def _rnn(w: Arrays, x: Array, near: Sequence[Array], phi: Any) -> Array:
    matrices = [*w["P"], *w["N"]] if "P" in w else [w["W"]]
    return phi(sum((h @ W.T for W, h in zip(matrices, near)), x @ w["V"].T + w.get("b", 0)))


def _lifted(w: Arrays, x: Array, near: Sequence[Array], phi: Any) -> Array:
    return phi(near[0] @ w["A"].T + x @ w["B"].T)


def _both_sides(w: Arrays, options: Options) -> tuple[int, ...]:
    return *range(-1, -w["P"].shape[0] - 1, -1), *range(1, w["N"].shape[0] + 1)


CELLS: dict[Callable[..., Any], Cell] = {
    ims.adapters.implicit_gru: Cell(_gru),
    ims.adapters.stencil_gru: Cell(_stencil, offsets=lambda w, options: tuple(options["offsets"])),
    ims.adapters.implicit_rnn: Cell(_rnn, offsets=_both_sides),
    ims.adapters.implicit_lstm: Cell(_lstm, ("hs", "cs"), ("he", "ce")),
    ims.adapters.elman: Cell(_rnn, ("h0",), (), lambda w, options: (-1,)),
    ims.adapters.lifted_net: Cell(_lifted, (), (), lambda w, options: ()),
}
