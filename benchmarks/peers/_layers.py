"""The implicit GRU of W1 as a user of each library writes it: three merged matrix products, and a stable switch.

The switch is sigma(a) / (sigma(a) + sigma(e)) = (1 + exp(-e)) / (1 + exp(-e) + 1 + exp(-a)), with bounded exponents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

BOUND = 60.0  # exp(60) is finite in single precision


def merged(params: dict[str, Any], inputs: Any) -> dict[str, Any]:
    """Weights side by side, and what the inputs add to each product: computed once for all residuals."""
    weights = {"states": ("p", "n"), "gates": ("z", "r"), "candidate": ("",)}
    arrays: dict[str, Any] = {}
    for name, gates in weights.items():
        arrays["U_" + name] = np.vstack([params["U" + gate] for gate in gates]).T.copy()
        W, b = (np.concatenate([params[kind + gate] for gate in gates]) for kind in ("W", "b"))
        arrays["x_" + name] = inputs @ W.T + b
    return arrays


class NumpyGRU:
    """F(H) of shape (B, T, k) in NumPy; it writes into buffers of its own, so that a call allocates nothing large."""

    def __init__(self, params: dict[str, Any], inputs: Any, shape: tuple[int, ...]) -> None:
        self.arrays = merged(params, inputs)
        twice = (*shape[:-1], 2 * shape[-1])
        self.pair, self.gates = (np.empty(twice, inputs.dtype) for _ in range(2))
        self.before, self.behind = (np.zeros(shape, inputs.dtype) for _ in range(2))
        self.mixed, self.reset, self.candidate = (np.empty(shape, inputs.dtype) for _ in range(3))

    def product(self, x: Any, name: str, out: Any) -> None:
        """One large matrix product, not one for each sequence."""
        np.matmul(x.reshape(-1, x.shape[-1]), self.arrays["U_" + name], out=out.reshape(-1, out.shape[-1]))

    def __call__(self, H: Any) -> Any:
        """F(H); the array is overwritten by the next call."""
        a, k = self.arrays, H.shape[-1]
        p, q, g = self.before, self.behind, self.mixed
        p[:, 1:], q[:, :-1] = H[:, :-1], H[:, 1:]
        self.product(H, "states", self.pair)
        gates = self.gates
        gates[...] = a["x_states"]
        gates[:, 1:, :k] += self.pair[:, :-1, :k]
        gates[:, :-1, k:] += self.pair[:, 1:, k:]
        np.clip(gates, -BOUND, BOUND, out=gates)
        np.negative(gates, out=gates)
        np.exp(gates, out=gates)
        gates += 1.0
        u, v = gates[..., :k], gates[..., k:]
        u += v
        v /= u
        np.subtract(p, q, out=g)
        g *= v
        g += q
        self.product(g, "gates", gates)
        gates += a["x_gates"]
        gates *= 0.5
        np.tanh(gates, out=gates)
        gates += 1.0
        gates *= 0.5
        z, r = gates[..., :k], gates[..., k:]
        np.multiply(r, g, out=self.reset)
        h = self.candidate
        self.product(self.reset, "candidate", h)
        h += a["x_candidate"]
        np.tanh(h, out=h)
        h -= g
        h *= z
        h += g
        return h


def jax_gru(params: dict[str, Any], inputs: Any) -> Callable[[Any], Any]:
    """F(H) in JAX, to be jitted."""
    import jax
    import jax.numpy as jnp

    a = {name: jnp.asarray(value) for name, value in merged(params, inputs).items()}

    def function(H: Any) -> Any:
        k = H.shape[-1]
        zero = jnp.zeros_like(H[:, :1])
        p = jnp.concatenate([zero, H[:, :-1]], axis=1)
        q = jnp.concatenate([H[:, 1:], zero], axis=1)
        pair = H @ a["U_states"]
        first = a["x_states"][..., :k] + jnp.concatenate([zero, pair[:, :-1, :k]], axis=1)
        second = a["x_states"][..., k:] + jnp.concatenate([pair[:, 1:, k:], zero], axis=1)
        u, v = (1 + jnp.exp(-jnp.clip(e, -BOUND, BOUND)) for e in (first, second))
        g = q + (p - q) * v / (u + v)
        gates = jax.nn.sigmoid(g @ a["U_gates"] + a["x_gates"])
        z, r = gates[..., :k], gates[..., k:]
        return g + z * (jnp.tanh((r * g) @ a["U_candidate"] + a["x_candidate"]) - g)

    return function


def torch_gru(params: dict[str, Any], inputs: Any) -> Callable[[Any], Any]:
    """F(H) in torch."""
    import torch

    a = {name: torch.from_numpy(value) for name, value in merged(params, inputs).items()}

    def function(H: Any) -> Any:
        k = H.shape[-1]
        zero = torch.zeros_like(H[:, :1])
        p = torch.cat([zero, H[:, :-1]], dim=1)
        q = torch.cat([H[:, 1:], zero], dim=1)
        pair = H @ a["U_states"]
        first = a["x_states"][..., :k] + torch.cat([zero, pair[:, :-1, :k]], dim=1)
        second = a["x_states"][..., k:] + torch.cat([pair[:, 1:, k:], zero], dim=1)
        u, v = (1 + torch.exp(-e.clamp(-BOUND, BOUND)) for e in (first, second))
        g = torch.lerp(q, p, v / (u + v))
        gates = torch.sigmoid(torch.matmul(g, a["U_gates"]) + a["x_gates"])
        z, r = gates[..., :k], gates[..., k:]
        return torch.lerp(g, torch.tanh((r * g) @ a["U_candidate"] + a["x_candidate"]), z)

    return function
