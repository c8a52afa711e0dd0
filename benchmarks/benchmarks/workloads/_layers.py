"""W1 and W5: recurrent layers whose states are all solved for at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ._base import Array, Workload

if TYPE_CHECKING:
    import implicitsolve as ims


def logistic(a: Array) -> Array:
    """1 / (1 + exp(-a)), without overflow."""
    return 0.5 * np.tanh(0.5 * a) + 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class ImplicitGRU(Workload):
    """W1: an implicit GRU on B sequences of T positions with k states and 100 inputs, zero boundaries.

    With p and q the states of the previous and the next position, every position has h = (1-z)*g + z*c, where ::

        s = sigma(a) / (sigma(a) + sigma(e))    a = Wp x + Up p + bp    e = Wn x + Un q + bn    g = s*p + (1-s)*q
        z = sigma(Wz x + Uz g + bz)    r = sigma(Wr x + Ur g + br)    c = tanh(W x + U (r*g) + b)

    Inputs are standard normal, weights and biases uniform in [-0.1, 0.1], recurrent ones (U) times s.
    """

    params: dict[str, Array]
    inputs: Array

    @classmethod
    def draw(
        cls, B: int, T: int, k: int, s: float, dtype: Any = np.float64, *, width: int = 100, seed: int = 0
    ) -> ImplicitGRU:
        """Draw one with `width` inputs; it starts at zero."""
        rng = np.random.default_rng(seed)
        params = {}
        for gate in ("p", "n", "z", "r", ""):
            for kind, shape in (("W", (k, width)), ("U", (k, k)), ("b", (k,))):
                scale = 0.1 * s if kind == "U" else 0.1
                params[kind + gate] = rng.uniform(-scale, scale, shape).astype(dtype)
        inputs = rng.standard_normal((B, T, width)).astype(dtype)
        target = 1e-8 if np.dtype(dtype) == np.float64 else 1e-4
        name = f"W1 k={k} s={s:g} {np.dtype(dtype).name}"
        return cls(name=name, x0=np.zeros((B, T, k), dtype), target=target, params=params, inputs=inputs)

    @cached_property
    def _projected(self) -> dict[str, Array]:
        """W x + b of every gate."""
        P = self.params
        return {gate: self.inputs @ P["W" + gate].T + P["b" + gate] for gate in ("p", "n", "z", "r", "")}

    @cached_property
    def _weights(self) -> tuple[Array, Array, Array]:
        """Recurrent weights that multiply the states, their mixture and r * mixture, as columns."""
        P = self.params
        return np.vstack([P["Up"], P["Un"]]).T.copy(), np.vstack([P["Uz"], P["Ur"]]).T.copy(), P["U"].T.copy()

    def residual(self, x: Array) -> Array:
        """H - F(H): three matrix products."""
        k, projected, (U_states, U_gates, U) = x.shape[-1], self._projected, self._weights
        p, q = np.zeros_like(x), np.zeros_like(x)
        p[:, 1:], q[:, :-1] = x[:, :-1], x[:, 1:]
        product = x @ U_states
        a, e = np.broadcast_to(projected["p"], x.shape).copy(), np.broadcast_to(projected["n"], x.shape).copy()
        a[:, 1:] += product[:, :-1, :k]
        e[:, :-1] += product[:, 1:, k:]
        s = logistic(np.logaddexp(0, -e) - np.logaddexp(0, -a))
        g = s * p + (1 - s) * q
        product = g @ U_gates
        z, r = logistic(projected["z"] + product[..., :k]), logistic(projected["r"] + product[..., k:])
        return x - g - z * (np.tanh(projected[""] + (r * g) @ U) - g)

    def problem(self) -> ims.Problem:
        """The adapter's."""
        from implicitsolve.adapters import implicit_gru

        return implicit_gru(self.params, self.inputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Elman(Workload):
    """W5: an Elman network h_t = tanh(W h_{t-1} + V x_t + b), h_0 = 0, on B sequences of T positions with k states.

    Weights are uniform in [-0.1, 0.1], inputs standard normal.
    """

    params: dict[str, Array]
    inputs: Array

    @classmethod
    def draw(cls, B: int, T: int, k: int, dtype: Any = np.float64, seed: int = 0) -> Elman:
        """Draw one; it starts at zero."""
        rng = np.random.default_rng(seed)
        shapes = {"W": (k, k), "V": (k, k), "b": (k,)}
        params = {name: rng.uniform(-0.1, 0.1, shape).astype(dtype) for name, shape in shapes.items()}
        inputs = rng.standard_normal((B, T, k)).astype(dtype)
        target = 1e-8 if np.dtype(dtype) == np.float64 else 1e-4
        name = f"W5 {np.dtype(dtype).name}"
        return cls(name=name, x0=np.zeros((B, T, k), dtype), target=target, params=params, inputs=inputs)

    def residual(self, x: Array) -> Array:
        """H - F(H): two matrix products."""
        a = self.inputs @ self.params["V"].T + self.params["b"] + np.zeros_like(x)
        a[:, 1:] += x[:, :-1] @ self.params["W"].T
        return x - np.tanh(a)

    def problem(self) -> ims.Problem:
        """The adapter's."""
        from implicitsolve.adapters import elman

        return elman(self.params, self.inputs)
