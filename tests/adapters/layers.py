"""Every layer of the adapters, written out position by position: what the tests of them all run over.

All of it is arithmetic on NumPy arrays, real or complex, so that complex steps give exact derivatives.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import implicitsolve as ims
from implicitsolve.adapters import (
    diagonal_gru,
    diagonal_gru_parameters,
    diagonal_lstm,
    diagonal_lstm_parameters,
    elman,
    elman_parameters,
    gru_parameters,
    implicit_gru,
    implicit_lstm,
    implicit_rnn,
    lstm_parameters,
    rnn_parameters,
    stencil_gru,
    stencil_gru_parameters,
)
from tests.helpers.compare import jacobian

Vector = Any
Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One way to call an adapter, and what it computes."""

    build: Callable[..., ims.Problem]  # build(params, inputs, *, lengths=None, **boundaries)
    parameters: Callable[..., Params]  # parameters(d, k, *, scale, rng)
    value: Callable[[Params, Vector, list[Vector]], Vector]  # f(P, x, states at t + offset for each offset)
    offsets: tuple[int, ...]
    boundaries: Callable[[int], dict[str, tuple[int, ...]]]  # boundaries(k): shapes, of one sequence
    edges: Callable[[Params], tuple[list[Vector], list[Vector]]]  # states before 1 and behind n, nearest first
    width: int = 1  # numbers in the state of one position: width * k
    smooth: bool = True
    options: dict[str, Any] = field(default_factory=dict)  # keywords of `build` besides lengths and boundaries

    def residual(self, P: Params, H: Any, lengths: Any) -> Any:
        """H - F(H) for a dict with the parameters, inputs and boundaries; H (B, T, size)."""
        R = np.array(H, dtype=np.result_type(H, *P.values()))
        names = self.boundaries(1)
        for b, n in enumerate(lengths):
            own = {name: _of_system(P[name], len(shape), b) for name, shape in names.items()}
            before, after = self.edges(own)
            states = dict(enumerate(H[b, :n], start=1))
            states |= {1 - j: state for j, state in enumerate(before, start=1)}
            states |= {n + j: state for j, state in enumerate(after, start=1)}
            for t in range(1, n + 1):
                neighbours = [states[t + offset] for offset in self.offsets]
                R[b, t - 1] -= self.value(P, P["inputs"][b, t - 1], neighbours)
        return R


def _of_system(state: Any, ndim: int, b: int) -> Any:
    return state[b] if state.ndim > ndim else state


def derivative(layer: ims.Problem, H: Any) -> Any:
    """dF/dH of a layer at some states."""
    return layer.residual.__self__.transition.linearize(H)[1]  # type: ignore[attr-defined]


@dataclass
class Case:
    """A layer in NumPy and float64: everything in one dict, and a state."""

    adapter: Adapter
    P: Params
    lengths: np.ndarray
    H: np.ndarray
    weights: tuple[str, ...]

    def layer(self, xp: Any = np, dtype: Any = np.float64, **changed: Any) -> ims.Problem:
        A = {name: xp.asarray(value, dtype=dtype) for name, value in (self.P | changed).items()}
        params = {name: A[name] for name in self.weights}
        boundaries = {name: A[name] for name in self.adapter.boundaries(1)}
        return self.adapter.build(params, A["inputs"], lengths=self.lengths, **boundaries, **self.adapter.options)

    @property
    def valid(self) -> np.ndarray:
        return (np.arange(self.H.shape[1]) < self.lengths[:, None])[:, :, None]

    def residual(self) -> np.ndarray:
        return self.adapter.residual(self.P, self.H, self.lengths)

    def jacobian(self) -> np.ndarray:
        return jacobian(lambda H: self.adapter.residual(self.P, H, self.lengths), self.H)

    def replaced(self, name: str, value: np.ndarray) -> np.ndarray:
        return self.adapter.residual(self.P | {name: value}, self.H, self.lengths)


def make(name="implicit_gru", seed=0, B=3, T=4, k=3, d=2, lengths=(4, 1, 3), scale=1.0, boundary="system") -> Case:
    """A random case of one adapter; `boundary`: "zero", "shared", or one for each "system"."""
    rng, adapter = np.random.default_rng(seed), ADAPTERS[name]
    P: Params = adapter.parameters(d, k, scale=scale, rng=rng)
    weights = tuple(P)
    P["inputs"] = rng.standard_normal((B, T, d))
    for edge, shape in adapter.boundaries(k).items():
        shape = (B, *shape) if boundary == "system" else shape
        P[edge] = (0 if boundary == "zero" else 1) * rng.uniform(-1, 1, shape)
    H = rng.uniform(-1, 1, (B, T, adapter.width * k))
    return Case(adapter, P, np.asarray([T] * B if lengths is None else lengths), H, weights)


def sigma(y):
    return 1 / (1 + np.exp(-y))


def relu(y):
    return np.where(y.real > 0, y, 0 * y)


ACTIVATIONS = {"tanh": np.tanh, "logistic": sigma, "relu": relu}


def gates(P, hhat, x):
    """What all gated recurrent units do with the state they start from."""
    z = sigma(P["Wz"] @ x + P["Uz"] @ hhat + P["bz"])
    r = sigma(P["Wr"] @ x + P["Ur"] @ hhat + P["br"])
    return (1 - z) * hhat + z * np.tanh(P["W"] @ x + P["U"] @ (r * hhat) + P["b"])


def gru(P, x, neighbours):
    p, q = neighbours
    sp = sigma(P["Wp"] @ x + P["Up"] @ p + P["bp"])
    sn = sigma(P["Wn"] @ x + P["Un"] @ q + P["bn"])
    s = sp / (sp + sn)
    return gates(P, s * p + (1 - s) * q, x)


def stencil_value(P, x, neighbours):
    s = [sigma(W @ x + U @ h + b) for W, U, b, h in zip(P["Ws"], P["Us"], P["bs"], neighbours)]
    return gates(P, sum(one * h for one, h in zip(s, neighbours)) / sum(s), x)


def lstm(P, x, neighbours):
    (hp, cp), (hq, cq) = (np.split(state, 2) for state in neighbours)
    sp = sigma(P["Wp"] @ x + P["Up"] @ hp + P["bp"])
    sn = sigma(P["Wn"] @ x + P["Un"] @ hq + P["bn"])
    s = sp / (sp + sn)
    hhat, chat = s * hp + (1 - s) * hq, s * cp + (1 - s) * cq
    i, f, o, g = (P["W" + gate] @ x + P["U" + gate] @ hhat + P["b" + gate] for gate in "ifog")
    c = sigma(f) * chat + sigma(i) * np.tanh(g)
    return np.concatenate([sigma(o) * np.tanh(c), c])


def rnn(activation, P, x, neighbours):
    weights = [*P["P"], *P["N"]]
    return activation(sum(W @ h for W, h in zip(weights, neighbours)) + P["V"] @ x + P["b"])


def elman_value(activation, P, x, neighbours):
    return activation(P["W"] @ neighbours[0] + P["V"] @ x + P.get("b", 0))


def diagonal(P):
    """The same parameters with diagonal matrices for recurrent weights."""
    return {name: np.diag(value) if name[0] == "U" else value for name, value in P.items()}


def diagonal_lstm_value(P, x, neighbours):
    h, c = np.split(neighbours[0], 2)
    i, f, o, g = (P["W" + gate] @ x + P["U" + gate] * h + P["b" + gate] for gate in "ifog")
    c = sigma(f) * c + sigma(i) * np.tanh(g)
    return np.concatenate([sigma(o) * np.tanh(c), c])


def implicit_gru_adapter() -> Adapter:
    return Adapter(
        build=implicit_gru,
        parameters=gru_parameters,
        value=gru,
        offsets=(-1, 1),
        boundaries=lambda k: {"hs": (k,), "he": (k,)},
        edges=lambda P: ([P["hs"]], [P["he"]]),
    )


def lstm_adapter() -> Adapter:
    return Adapter(
        build=implicit_lstm,
        parameters=lstm_parameters,
        value=lstm,
        offsets=(-1, 1),
        boundaries=lambda k: dict.fromkeys(("hs", "cs", "he", "ce"), (k,)),
        edges=lambda P: ([np.concatenate([P["hs"], P["cs"]])], [np.concatenate([P["he"], P["ce"]])]),
        width=2,
    )


def stencil_adapter(*offsets: int) -> Adapter:
    lower, upper = max(0, -min(offsets)), max(0, *offsets)
    return Adapter(
        build=stencil_gru,
        parameters=partial(stencil_gru_parameters, offsets=offsets),
        value=stencil_value,
        offsets=offsets,
        boundaries=lambda k: {"hs": (lower, k), "he": (upper, k)},
        edges=lambda P: (list(P["hs"]), list(P["he"])),
        options={"offsets": offsets},
    )


def rnn_adapter(lower: int, upper: int, activation: str) -> Adapter:
    return Adapter(
        build=implicit_rnn,
        parameters=partial(rnn_parameters, lower=lower, upper=upper),
        value=partial(rnn, ACTIVATIONS[activation]),
        offsets=(*range(-1, -lower - 1, -1), *range(1, upper + 1)),
        boundaries=lambda k: {"hs": (lower, k), "he": (upper, k)},
        edges=lambda P: (list(P["hs"]), list(P["he"])),
        smooth=activation != "relu",
        options={"activation": activation},
    )


def elman_adapter(activation: str) -> Adapter:
    return Adapter(
        build=elman,
        parameters=elman_parameters,
        value=partial(elman_value, ACTIVATIONS[activation]),
        offsets=(-1,),
        boundaries=lambda k: {"h0": (k,)},
        edges=lambda P: ([P["h0"]], []),
        smooth=activation != "relu",
        options={"activation": activation},
    )


def diagonal_gru_adapter() -> Adapter:
    return Adapter(
        build=diagonal_gru,
        parameters=diagonal_gru_parameters,
        value=lambda P, x, neighbours: gates(diagonal(P), neighbours[0], x),
        offsets=(-1,),
        boundaries=lambda k: {"h0": (k,)},
        edges=lambda P: ([P["h0"]], []),
    )


def diagonal_lstm_adapter() -> Adapter:
    return Adapter(
        build=diagonal_lstm,
        parameters=diagonal_lstm_parameters,
        value=diagonal_lstm_value,
        offsets=(-1,),
        boundaries=lambda k: dict.fromkeys(("h0", "c0"), (k,)),
        edges=lambda P: ([np.concatenate([P["h0"], P["c0"]])], []),
        width=2,
    )


ADAPTERS: dict[str, Adapter] = {
    "implicit_gru": implicit_gru_adapter(),
    "stencil_gru": stencil_adapter(-1, 1),
    "stencil_gru-wide": stencil_adapter(2, -1, -3),
    "stencil_gru-causal": stencil_adapter(-2, -1),
    "implicit_rnn": rnn_adapter(1, 1, "tanh"),
    "implicit_rnn-wide": rnn_adapter(2, 3, "logistic"),
    "implicit_rnn-anticausal": rnn_adapter(0, 2, "tanh"),
    "implicit_lstm": lstm_adapter(),
    "diagonal_gru": diagonal_gru_adapter(),
    "diagonal_lstm": diagonal_lstm_adapter(),
    "elman": elman_adapter("tanh"),
    "elman-relu": elman_adapter("relu"),
}
