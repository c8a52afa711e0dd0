"""The implicit GRU, written out position by position in complex arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.adapters import gru_parameters, implicit_gru
from tests.helpers.compare import jacobian

WEIGHTS = ("W", "U", "b", "Wz", "Uz", "bz", "Wr", "Ur", "br", "Wp", "Up", "bp", "Wn", "Un", "bn")


def sigma(y):
    return 1 / (1 + np.exp(-y))


def switch(P, p, q, x):
    sp = sigma(P["Wp"] @ x + P["Up"] @ p + P["bp"])
    sn = sigma(P["Wn"] @ x + P["Un"] @ q + P["bn"])
    return sp / (sp + sn)


def gru(P, hhat, x):
    z = sigma(P["Wz"] @ x + P["Uz"] @ hhat + P["bz"])
    r = sigma(P["Wr"] @ x + P["Ur"] @ hhat + P["br"])
    return (1 - z) * hhat + z * np.tanh(P["W"] @ x + P["U"] @ (r * hhat) + P["b"])


def cell(P, p, q, x):
    s = switch(P, p, q, x)
    return gru(P, s * p + (1 - s) * q, x)


def per_system(state, b):
    return state[b] if state.ndim == 2 else state


def residual(P, H, lengths):
    """H - F(H) for a dict with the parameters, inputs, hs and he; H (B, T, k)."""
    R = np.array(H, dtype=np.result_type(H, *P.values()))
    for b, n in enumerate(lengths):
        h = [per_system(P["hs"], b), *H[b, :n], per_system(P["he"], b)]
        for t in range(n):
            R[b, t] -= cell(P, h[t], h[t + 2], P["inputs"][b, t])
    return R


@dataclass
class Case:
    """A layer in NumPy and float64: everything in one dict, and a state."""

    P: dict[str, Any]
    lengths: np.ndarray
    H: np.ndarray

    def layer(self, xp: Any = np, dtype: Any = np.float64, **changed: Any) -> ims.Problem:
        A = {name: xp.asarray(value, dtype=dtype) for name, value in (self.P | changed).items()}
        params = {name: A[name] for name in WEIGHTS}
        return implicit_gru(params, A["inputs"], lengths=self.lengths, hs=A["hs"], he=A["he"])

    @property
    def valid(self) -> np.ndarray:
        return (np.arange(self.H.shape[1]) < self.lengths[:, None])[:, :, None]

    def jacobian(self) -> np.ndarray:
        return jacobian(lambda H: residual(self.P, H, self.lengths), self.H)

    def replaced(self, name: str, value: np.ndarray) -> np.ndarray:
        return residual(self.P | {name: value}, self.H, self.lengths)


def make(seed=0, B=3, T=4, k=3, d=2, lengths=(4, 1, 3), scale=1.5, boundary="system") -> Case:
    rng = np.random.default_rng(seed)
    P: dict[str, Any] = gru_parameters(d, k, scale=scale, rng=rng)
    P["inputs"] = rng.standard_normal((B, T, d))
    shape = {"zero": (k,), "shared": (k,), "system": (B, k)}[boundary]
    P |= {name: (0 if boundary == "zero" else 1) * rng.uniform(-1, 1, shape) for name in ("hs", "he")}
    return Case(P, np.asarray([T] * B if lengths is None else lengths), rng.uniform(-1, 1, (B, T, k)))


@st.composite
def cases(draw) -> Case:
    B, T, k, d = (draw(st.integers(1, high)) for high in (4, 6, 4, 3))
    lengths = draw(st.none() | st.lists(st.integers(1, T), min_size=B, max_size=B))
    boundary = draw(st.sampled_from(["zero", "shared", "system"]))
    scale = draw(st.sampled_from([0.1, 2.0, 30.0]))
    return make(draw(st.integers(0, 2**32 - 1)), B, T, k, d, lengths, scale, boundary)
