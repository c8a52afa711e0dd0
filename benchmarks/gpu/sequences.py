"""Causal layers on long sequences: the recurrence itself, with a test of the residual at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.gpu.layers import on_device, on_host
from benchmarks.gpu.rows import Row, relative, timed
from benchmarks.gpu.sizes import Sizes

ASKED = 1.0  # milliseconds


def rows(sizes: Sizes, seconds: float) -> Iterator[Row]:
    """An Elman network and a GRU of each size, beside the recurrence in float64 on the CPU."""
    for B, T, k in sizes.sequences:
        for name, problem, expected in (("Elman", *elman(B, T, k)), ("GRU", *gru(B, T, k))):
            result = ims.root(problem)
            facts = {"residuals": result.counts.residuals, "max|F|": float(np.max(result.residual_norm))}
            ms = timed(lambda problem=problem: ims.root(problem), seconds)
            error = relative(on_host(result.x), expected)
            yield Row(f"{name} B={B} T={T} k={k} float32", "root", ms, error, 1e-4, ASKED, facts)


def elman(B: int, T: int, k: int) -> tuple[Any, Any]:
    """The problem, and its states."""
    rng = np.random.default_rng(0)
    shapes = {"W": (k, k), "V": (k, k), "b": (k,)}
    params = {name: (rng.uniform(-1, 1, shape) / np.sqrt(k)).astype(np.float32) for name, shape in shapes.items()}
    inputs = rng.standard_normal((B, T, k)).astype(np.float32)
    W, V, b = (params[name].astype(np.float64) for name in "WVb")
    x, h = inputs @ V.T + b, np.zeros((B, k))
    states = np.empty((B, T, k))
    for t in range(T):
        states[:, t] = h = np.tanh(x[:, t] + h @ W.T)
    on = {name: on_device(value) for name, value in params.items()}
    return ims.adapters.elman(on, on_device(inputs)), states


def gru(B: int, T: int, k: int) -> tuple[Any, Any]:
    """The same for a GRU: the stencil GRU of the previous position alone."""
    rng = np.random.default_rng(1)
    weights = ims.adapters.stencil_gru_parameters(k, k, offsets=(-1,), scale=1 / np.sqrt(k), rng=rng, dtype=np.float32)
    inputs = rng.standard_normal((B, T, k)).astype(np.float32)
    exact = {name: value.astype(np.float64) for name, value in weights.items()}
    host: Any = ims.adapters.stencil_gru(exact, inputs.astype(np.float64), offsets=(-1,))
    on = {name: on_device(value) for name, value in weights.items()}
    return ims.adapters.stencil_gru(on, on_device(inputs), offsets=(-1,)), host.substitute()
