"""One block tridiagonal system: cyclic reduction with pivoting inside the blocks, factored and solved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.gpu.layers import on_device, on_host
from benchmarks.gpu.rows import Row, timed
from benchmarks.gpu.sizes import Sizes

FACTOR = 1.5  # of the published milliseconds
BOUND = 1e-4  # backward error in float32


def rows(sizes: Sizes, seconds: float) -> Iterator[Row]:
    """Factoring with one solve, and a solve with factors at hand."""
    for T, k, published in sizes.blocks:
        matrix, b = random_system(1, T, k)
        A, right = ims.BlockBandedMatrix(on_device(matrix), lower=1, upper=1), on_device(b)
        name = f"block tridiagonal T={T} k={k} float32"

        def solve(A: Any = A, right: Any = right) -> Any:
            return ims.direct.CyclicReduction().factor(A).solve(right)

        factors = ims.direct.CyclicReduction().factor(A)
        error = backward_error(matrix, on_host(solve()), b)
        facts = {"published ms": published, "growth": float(np.max(factors.growth))}
        asked = FACTOR * published
        yield Row(name, "factor and solve", timed(solve, seconds), error, BOUND, asked, facts)
        again = backward_error(matrix, on_host(factors.solve(right)), b)
        kept = timed(lambda factors=factors, right=right: factors.solve(right), seconds)
        yield Row(name, "solve with factors", kept, again, BOUND, None, {"bytes held": factors.nbytes})


def random_system(B: int, T: int, k: int) -> tuple[Any, Any]:
    """Blocks (B, T, 3, k, k) and a right-hand side (B, T, k); diagonal blocks need row exchanges."""
    rng = np.random.default_rng(0)
    blocks = rng.standard_normal((B, T, 3, k, k)).astype(np.float32) / np.float32(np.sqrt(k))
    blocks[:, :, 1] += 4 * np.eye(k, dtype=np.float32)[rng.permutation(k)]
    return blocks, rng.standard_normal((B, T, k)).astype(np.float32)


def backward_error(blocks: Any, x: Any, b: Any) -> float:
    """Largest ||b - A x|| / (||A|| ||x|| + ||b||) over the systems, in float64 and the maximum norm."""
    B, T, _, k, _ = blocks.shape
    x, b = (part.reshape(B, T, k).astype(np.float64) for part in (x, b))
    around = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    A = blocks.astype(np.float64)
    left = b - sum(np.einsum("btij,btj->bti", A[:, :, j], around[:, j : j + T]) for j in range(3))
    size = np.abs(A).sum(axis=(2, 4)).max(axis=(1, 2))
    scale = size * np.abs(x).max(axis=(1, 2)) + np.abs(b).max(axis=(1, 2))
    return float(np.max(np.abs(left).max(axis=(1, 2)) / scale))
