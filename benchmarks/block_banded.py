"""Time block LU against LAPACK's band solver gbsv on the same block tridiagonal matrices, one thread, one run.

The rival gets its band storage for free. All are called in turn, and medians are compared, so that what else the
machine does falls on all alike. `auto` is what ``BlockLU()`` chooses, in column "choice"; "kept" is a solve with
existing factors, over a solve with LAPACK's.

Usage::

    python benchmarks/block_banded.py              # table on the terminal
    python benchmarks/block_banded.py --repeat 21
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import lapack

from implicitsolve import BlockBandedMatrix, BlockLU, CyclicReduction
from implicitsolve.kernels import _lapack

SIZES = [(1, 30000), (2, 15000), (4, 7500), (8, 3750), (16, 1875), (32, 937), (32, 1024), (64, 468), (128, 234)]


def problem(T: int, k: int) -> tuple[BlockBandedMatrix, Any, Any]:
    """A well-conditioned block tridiagonal matrix, its storage for gbsv, and a right-hand side."""
    rng = np.random.default_rng(0)
    blocks = rng.normal(size=(T, 3, k, k))
    blocks[:, 1] += 6 * k**0.5 * np.eye(k)
    kl = 2 * k - 1
    return (
        BlockBandedMatrix(blocks, lower=1, upper=1),
        _lapack.band_storage(blocks, 1, 1, 2 * kl),
        rng.normal(size=(T, k)),
    )


def medians(calls: dict[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Median seconds of each call; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeat):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure(T: int, k: int, repeat: int) -> str:
    """One row of the table."""
    A, ab, b = problem(T, k)
    kl, flat = 2 * k - 1, b.reshape(-1)
    if k == 1:
        d = [
            np.ascontiguousarray(A.blocks[part, j, 0, 0])
            for part, j in ((slice(1, None), 0), (slice(None), 1), (slice(-1), 2))
        ]
        kept_lapack = lapack.dgttrf(*d)[:5]
    lu, pivots, _ = lapack.dgbtrf(ab, kl, kl)
    kept = BlockLU().factor(A)
    calls: dict[str, Callable[[], Any]] = {
        "gbsv": lambda: lapack.dgbsv(kl, kl, ab, flat),
        "auto": lambda: BlockLU().factor(A).solve(b),
        "no numba": lambda: BlockLU(backend="lapack").factor(A).solve(b),
        "in blocks": lambda: BlockLU(pivoting="block").factor(A).solve(b),
        "gbtrs": (lambda: lapack.dgttrs(*kept_lapack, flat))
        if k == 1
        else (lambda: lapack.dgbtrs(lu, kl, kl, flat, pivots)),
        "kept": lambda: kept.solve(b),
    }
    if k <= 32:
        calls["cyclic"] = lambda: CyclicReduction().factor(A).solve(b)
    t = medians(calls, repeat)
    ratios = [
        f"{t['gbsv'] / t[name]:8.2f}" if name in t else " " * 8 for name in ("auto", "no numba", "in blocks", "cyclic")
    ]
    module = type(kept._factored.factors).__module__
    return (
        f"{k:4d} {T:6d} {1e3 * t['gbsv']:9.2f} {1e3 * t['auto']:9.2f} {' '.join(ratios)} "
        f"{1e3 * t['gbtrs']:8.3f} {1e3 * t['kept']:8.3f} {t['gbtrs'] / t['kept']:6.2f}  "
        f"{'numba' if 'numba' in module else 'lapack'}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--k", type=int, nargs="*", default=[k for k, _ in SIZES])
    arguments = parser.parse_args()
    print("            milliseconds          gbsv's time over that of              solve alone, ms")
    print("   k      T      gbsv      auto     auto no numba in blocks  cyclic    gbtrs     kept  ratio  choice")
    for k, T in SIZES:
        if k in arguments.k:
            print(measure(T, k, arguments.repeat), flush=True)


if __name__ == "__main__":
    main()
