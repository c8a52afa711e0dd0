"""What a layer's residual and products cost beside the matrix products in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import implicitsolve as ims
from implicitsolve import adapters

from .tools import CPU, least, unit

Shapes = tuple[tuple[int, int], ...]
SIZES = {200: (20, 40), 448: (20, 25)}  # k: sequences and positions

# For each layer its function and its parameters', and its matrix products on the state, inputs by outputs in units of
# k. Those of one vector are one product with stacked weights.
LAYERS: dict[str, tuple[Callable[..., ims.Problem], Callable[..., Any], Shapes]] = {
    "implicit_gru": (adapters.implicit_gru, adapters.gru_parameters, ((1, 2), (1, 2), (1, 1))),
    "implicit_lstm": (adapters.implicit_lstm, adapters.lstm_parameters, ((1, 2), (1, 4))),
    "implicit_rnn": (adapters.implicit_rnn, adapters.rnn_parameters, ((1, 2),)),
    "elman": (adapters.elman, adapters.elman_parameters, ((1, 1),)),
    "stencil_gru": (
        partial(adapters.stencil_gru, offsets=(-1, 1)),
        adapters.stencil_gru_parameters,
        ((1, 2), (1, 2), (1, 1)),
    ),
    "lifted_net": (adapters.lifted_net, None, ((1, 1),)),
}


def products(
    shapes: tuple[tuple[int, int], ...], rows: int, k: int, dtype: str, *, adjoint: bool
) -> Callable[[], None]:
    """The matrix products of one residual, or of one adjoint product, into memory that is there."""
    rng = np.random.default_rng(1)
    jobs = []
    for inputs, outputs in shapes:
        n, m = (outputs * k, inputs * k) if adjoint else (inputs * k, outputs * k)
        weights = rng.uniform(-0.1, 0.1, (n, m)).astype(dtype)
        jobs.append((rng.uniform(-1, 1, (rows, n)).astype(dtype), weights, np.empty((rows, m), dtype)))

    def run() -> None:
        for states, weights, out in jobs:
            np.matmul(states, weights, out=out)

    return run


def layer(name: str, B: int, T: int, k: int, dtype: str) -> ims.Problem:
    """The problem, with weights uniform in [-0.1, 0.1]."""
    build, draw, _ = LAYERS[name]
    rng = np.random.default_rng(0)
    if name == "lifted_net":
        A, inputs = rng.uniform(-0.1, 0.1, (k, k)) / k**0.5, rng.standard_normal((B * T, k))
        return build(A.astype(dtype), A.astype(dtype), inputs.astype(dtype))
    return build(draw(k, k, scale=0.1, rng=rng, dtype=np.dtype(dtype)), rng.standard_normal((B, T, k)).astype(dtype))


def calls(name: str, k: int, dtype: str) -> dict[str, Callable[[], Any]]:
    """The functions of a layer at a state, and the matrix products in them alone."""
    B, T = SIZES[k]
    problem = layer(name, B, T, k, dtype)
    rng = np.random.default_rng(0)
    shape = problem.initial_guess("zeros", None).shape
    H, v = (rng.uniform(-1, 1, shape).astype(dtype) for _ in range(2))
    J = problem.linearize(H)[1]
    shapes = LAYERS[name][2]
    return {
        "residual": lambda: problem.residual(H),
        "linearize": lambda: problem.linearize(H),
        "jvp": lambda: J.matvec(v),
        "vjp": lambda: J.rmatvec(v),
        "matrix products": products(shapes, B * T, k, dtype, adjoint=False),
        "adjoint matrix products": products(shapes, B * T, k, dtype, adjoint=True),
    }


Ratios = dict[tuple[str, int, str], dict[str, float]]


class Layers:
    """CPU seconds over those of the matrix products alone: all are measured in turns, and the least of each counts."""

    params = (tuple(LAYERS), tuple(SIZES), ("float64", "float32"))
    param_names = ("layer", "k", "dtype")
    timeout = 300

    def setup_cache(self) -> Ratios:
        """Measure all."""
        ratios = {}
        for case in itertools.product(*self.params):
            seconds = least(calls(*case), turns=7)
            alone, adjoint = seconds.pop("matrix products"), seconds.pop("adjoint matrix products")
            ratios[case] = {what: s / (adjoint if what == "vjp" else alone) for what, s in seconds.items()}
        return ratios

    @unit("matrix products")
    def track_residual(self, ratios: Ratios, *case: Any) -> float:
        """H - F(H)."""
        return ratios[case]["residual"]

    @unit("matrix products")
    def track_linearize(self, ratios: Ratios, *case: Any) -> float:
        """H - F(H), and what the products need."""
        return ratios[case]["linearize"]

    @unit("matrix products")
    def track_jvp(self, ratios: Ratios, *case: Any) -> float:
        """J v."""
        return ratios[case]["jvp"]

    @unit("matrix products")
    def track_vjp(self, ratios: Ratios, *case: Any) -> float:
        """J^T w."""
        return ratios[case]["vjp"]


class LayersTime:
    """Seconds of a function of a layer, k = 200, float64."""

    timer = CPU
    params = (tuple(LAYERS), ("residual", "jvp", "vjp", "matrix products"))
    param_names = ("layer", "function")

    def setup(self, name: str, function: str) -> None:
        """Build the layer, and call the function once."""
        self.call = calls(name, 200, "float64")[function]
        self.call()

    def time_call(self, name: str, function: str) -> None:
        """One call."""
        self.call()
