"""``python -m implicitsolve compile``: the kernels that solves load, compiled and kept on disk in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import implicitsolve as ims
from implicitsolve._report import is_installed
from implicitsolve._report._self_test import Check, tried
from implicitsolve._typing import HostArray

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 20)  # 8 is the last that has code of its own; 20 and more call BLAS


def compile_kernels() -> Iterator[Check]:
    """Compile what solves of real systems use, by small ones of each kind."""
    if not is_installed("numba"):
        return
    for name, part in parts().items():
        yield tried(name, part)


def parts() -> dict[str, Callable[[], None]]:
    """What is compiled, by name."""
    types = ("float64", "float32")
    return {
        **{f"block LU, k = {k}, {dtype}": partial(_block_lu, k, dtype) for dtype in types for k in SIZES},
        **{f"layers, {dtype}": partial(_layers, dtype) for dtype in types},
        **{f"newton_batch, {dtype}": partial(_newton_batch, dtype) for dtype in types},
    }


def _block_lu(k: int, dtype: str) -> None:
    """Factor and solve with dense outer blocks, diagonal ones, and two blocks below the diagonal."""
    rng = np.random.default_rng(0)
    for lower, is_diagonal in ((1, False), (1, True), (2, False)):
        blocks = rng.uniform(-0.1, 0.1, (2, 40, lower + 2, k, k)).astype(dtype)
        if is_diagonal:
            blocks *= np.eye(k, dtype=dtype)
        blocks[:, :, lower] += np.eye(k, dtype=dtype)
        b = np.ones((2, 40, k), dtype)
        for pivoting in ("auto", "block", "band"):
            inverse = ims.BlockLU(pivoting=pivoting).factor(ims.BlockBandedMatrix(blocks, lower=lower, upper=1))
            inverse.matvec(b)
            inverse.rmatvec(b)


def _layers(dtype: str) -> None:
    """Solve and differentiate each layer."""
    rng, layers = np.random.default_rng(0), ims.adapters
    inputs = rng.standard_normal((3, 9, 4)).astype(dtype)
    for name, make in (
        ("gru", layers.implicit_gru),
        ("lstm", layers.implicit_lstm),
        ("rnn", layers.implicit_rnn),
        ("elman", layers.elman),
    ):
        parameters = getattr(layers, f"{name}_parameters")(4, 64, scale=0.1, rng=rng)
        layer: Any = make({key: value.astype(dtype) for key, value in parameters.items()}, inputs)
        result = ims.root(layer)
        ims.pull_back(layer, result, np.ones_like(result.x))


def _newton_batch(dtype: str) -> None:
    """One system in each lane, then as a batch."""

    def residual(x: HostArray, p: HostArray, out: HostArray) -> None:
        out[0] = x[0] ** 2 - p[0]
        out[1] = x[1] - x[0]

    ims.newton_batch(residual, np.ones((3, 2), dtype), np.asarray([[4.0], [9.0], [-1.0]]))
