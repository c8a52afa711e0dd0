"""The layers' equations in the operations of another array library, which differentiates them to any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from implicitsolve.adapters.kernels._gates import halves

Array: TypeAlias = Any
Arrays: TypeAlias = Mapping[str, Array]
Neighbours: TypeAlias = Sequence[Array]


@dataclass(frozen=True)
class Equations:
    """The functions of the layers in one library `xp`, of weights under the adapters' names.

    Libraries differ in the activations, in ``linear(x, W)`` and ``linear(x, W, b)``, which are x W^T + b, in `shares`,
    sigma(a_j) / sum_l sigma(a_l) along the first axis, in ``zeros(like, shape)``, in ``positions(states)``, 0, ...,
    T - 1 for states (..., T, size), and in ``at(line, indices)``, entries along the last axis but one.
    """

    xp: Any
    sigmoid: Callable[[Array], Array]
    relu: Callable[[Array], Array]
    linear: Callable[..., Array]
    shares: Callable[[Array], Array]
    zeros: Callable[[Array, tuple[int, ...]], Array]
    positions: Callable[[Array], Array]
    at: Callable[[Array, Array], Array]

    def activate(self, name: str, x: Array) -> Array:
        known = {"tanh": self.xp.tanh, "logistic": self.sigmoid, "relu": self.relu, "identity": lambda x: x}
        return known[name](x)

    def implicit_gru(self, w: Arrays, x: Array, near: Neighbours) -> Array:
        arguments = [self._affine(w, gate, x, h) for gate, h in zip("pn", near, strict=True)]
        return self.gru(w, x, [self._mix(arguments, near)])

    def stencil_gru(self, w: Arrays, x: Array, near: Neighbours) -> Array:
        switch = zip(w["Ws"], w["bs"], w["Us"], near, strict=True)
        arguments = [self.linear(x, W, b) + self.linear(h, U) for W, b, U, h in switch]
        return self.gru(w, x, [self._mix(arguments, near)])

    def implicit_lstm(self, w: Arrays, x: Array, near: Neighbours) -> Array:
        hidden = [halves(state)[0] for state in near]
        arguments = [self._affine(w, gate, x, h) for gate, h in zip("pn", hidden, strict=True)]
        arguments = [self.xp.concatenate([a, a], axis=-1) for a in arguments]
        return self.lstm(w, x, [self._mix(arguments, near)])

    def gru(self, w: Arrays, x: Array, near: Neighbours) -> Array:
        (h,) = near
        z, r = (self.sigmoid(self._affine(w, gate, x, h)) for gate in "zr")
        return (1 - z) * h + z * self.xp.tanh(self._affine(w, "", x, r * h))

    def lstm(self, w: Arrays, x: Array, near: Neighbours) -> Array:
        h, c = halves(near[0])
        i, f, o = (self.sigmoid(self._affine(w, gate, x, h)) for gate in "ifo")
        c = f * c + i * self.xp.tanh(self._affine(w, "g", x, h))
        return self.xp.concatenate([o * self.xp.tanh(c), c], axis=-1)

    def rnn(self, w: Arrays, x: Array, near: Neighbours) -> Array:
        """What `implicit_rnn` and `elman` apply their activation to."""
        total = self.linear(x, w["V"], w["b"]) if "b" in w else self.linear(x, w["V"])
        for W, h in zip([w["W"]] if "W" in w else [*w["P"], *w["N"]], near, strict=True):
            total = total + self.linear(h, W)
        return total

    def recurrence(self, layer: str, w: Arrays, activation: str = "tanh", offsets: Sequence[int] = ()) -> Recurrence:
        """The residual of a layer, by the name of its adapter, for weights of these shapes."""
        sides: Sequence[int] = ()
        if layer == "implicit_rnn":
            sides = *range(-1, -w["P"].shape[0] - 1, -1), *range(1, w["N"].shape[0] + 1)
        known: dict[str, Any] = {
            "implicit_gru": (self.implicit_gru,),
            "stencil_gru": (self.stencil_gru, ("hs",), ("he",), offsets),
            "implicit_rnn": (self.rnn, ("hs",), ("he",), sides, activation),
            "implicit_lstm": (self.implicit_lstm, ("hs", "cs"), ("he", "ce")),
            "elman": (self.rnn, ("h0",), (), (-1,), activation),
            "diagonal_gru": (self.gru, ("h0",), (), (-1,)),
            "diagonal_lstm": (self.lstm, ("h0", "c0"), (), (-1,)),
            "lifted_net": (lambda w, x, near: near[0] @ w["A"].T + x @ w["B"].T, (), (), (), activation),
        }
        return Recurrence(self, *known[layer])

    def _affine(self, w: Arrays, gate: str, x: Array, h: Array) -> Array:
        """W x + U h + b of one gate; a vector U stands for a diagonal matrix."""
        U = w["U" + gate]
        return self.linear(x, w["W" + gate], w["b" + gate]) + (self.linear(h, U) if U.ndim == 2 else U * h)

    def _mix(self, arguments: Sequence[Array], near: Neighbours) -> Array:
        """The sum of s_j h_j, s_j = sigma(a_j) / sum_l sigma(a_l)."""
        return (self.shares(self.xp.stack(list(arguments))) * self.xp.stack(list(near))).sum(0)


@dataclass(frozen=True)
class Recurrence:
    """The residual states - phi(function(w, inputs, neighbours)) of a layer of sequences."""

    equations: Equations
    function: Callable[[Arrays, Array, Neighbours], Array]
    before: Sequence[str] = ("hs",)  # names of the boundary states, side by side where there are several
    after: Sequence[str] = ("he",)
    offsets: Sequence[int] = (-1, 1)
    activation: str = "identity"

    def depths(self) -> tuple[int, int]:
        """Number of states beyond either end on which positions depend."""
        return max([0, *(-offset for offset in self.offsets)]), max([0, *self.offsets])

    def residual(self, states: Array, w: Arrays, given: Arrays, lengths: Array | None) -> Array:
        """For states (..., T, size), with "inputs" and boundary states in `given`; (B, n) without offsets."""
        eq, xp = self.equations, self.equations.xp
        if not self.offsets:
            return states - eq.activate(self.activation, self.function(w, given["inputs"], (states,)))
        inside = None if lengths is None else (eq.positions(states) < lengths[..., None])[..., None]
        inputs = given["inputs"] if inside is None else xp.where(inside, given["inputs"], 0.0)
        value = eq.activate(self.activation, self.function(w, inputs, self._neighbours(states, given, lengths)))
        return states - (value if inside is None else xp.where(inside, value, 0.0))

    def _neighbours(self, states: Array, given: Arrays, lengths: Array | None) -> list[Array]:
        """The states at each offset from every position; those after a sequence follow its own end."""
        eq, T, (lower, upper) = self.equations, states.shape[-2], self.depths()
        before, after = self._edge(self.before, lower, given, states), self._edge(self.after, upper, given, states)
        line = eq.xp.concatenate([eq.xp.flip(before, (-2,)), states, after], axis=-2)
        found: list[Array] = []
        for offset in self.offsets:
            if offset < 0 or lengths is None:
                found.append(line[..., lower + offset : lower + offset + T, :])
                continue
            at, ends = eq.positions(states) + offset, lengths[..., None]
            behind = T + at - ends
            behind = eq.xp.where(behind < T + upper, behind, T + upper - 1)
            found.append(eq.at(line, (eq.xp.where(at < ends, at, behind) + lower)[..., None]))
        return found

    def _edge(self, names: Sequence[str], depth: int, given: Arrays, states: Array) -> Array:
        """States beyond one end (..., depth, size), zeros where they are not given."""
        k = states.shape[-1] // max(1, len(names))
        wanted = (*states.shape[:-2], depth, k)
        found: list[Array] = []
        for name in names:
            value = given.get(name)
            value = self.equations.zeros(states, (depth, k)) if value is None else value
            value = value if tuple(value.shape[-2:]) == (depth, k) else value[..., None, :]
            found.append(self.equations.xp.broadcast_to(value, wanted))
        none = self.equations.zeros(states, wanted)
        return self.equations.xp.concatenate(found, axis=-1) if found else none
