"""Time the Numba kernels beside LAPACK and a stacked Newton method, each pair in one run; print medians and ratios.

Usage::

    OMP_NUM_THREADS=1 python benchmarks/numba_kernels.py                 # everything
    OMP_NUM_THREADS=1 python benchmarks/numba_kernels.py --only newton   # one table: scalar, blocks, batches, newton

Rivals and ours take turns, so that a busy machine disturbs both. NUMBA_NUM_THREADS sets the threads of batches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from scipy.linalg import lapack, solve_banded

from implicitsolve import BlockBanded
from implicitsolve.backends.numba import newton_batch
from implicitsolve.backends.numba._block_lu import block_lu


def medians(runs: dict[str, Callable[[], Any]], seconds: float = 1.0) -> dict[str, float]:
    """Median milliseconds of each, taking turns for about so long, at least 5 times."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(runs))]) < 5:
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: float(np.median(values)) for name, values in times.items()}


def show(title: str, times: dict[str, float], pairs: list[tuple[str, str]]) -> None:
    """One line of a table: milliseconds, and ratios of ours over the rival's."""
    numbers = "  ".join(f"{name} {value:.3f}" for name, value in times.items())
    ratios = "  ".join(f"{a}/{b} {times[a] / times[b]:.2f}" for a, b in pairs)
    print(f"{title}: {numbers}  |  {ratios}")


def scalar() -> None:
    """Tridiagonal systems against gttrf and gttrs."""
    rng = np.random.default_rng(0)
    for N in (1_000, 10_000, 100_000, 1_000_000):
        blocks = rng.standard_normal((1, N, 3, 1, 1))
        blocks[:, :, 1] += 4
        b = rng.standard_normal((1, N, 1, 1))
        rows = blocks[0, :, :, 0, 0]
        diagonals = rows[1:, 0].copy(), rows[:, 1].copy(), rows[:-1, 2].copy()
        lu, factors = lapack.dgttrf(*diagonals)[:-1], block_lu(blocks, 1, 1, pivoting="band")
        right = b.reshape(-1)
        times = medians(
            {
                "gttrf": lambda d=diagonals: lapack.dgttrf(*d),
                "factor": lambda A=blocks: block_lu(A, 1, 1, pivoting="band"),
                "gttrs": lambda lu=lu, b=right: lapack.dgttrs(*lu, b),
                "solve": lambda f=factors, b=b: f.solve(b),
            }
        )
        show(f"tridiagonal N={N}", times, [("factor", "gttrf"), ("solve", "gttrs")])


def banded(blocks: Any, kl: int) -> Any:
    """LAPACK's band storage of a block tridiagonal matrix (T, 3, k, k), with room for the factors."""
    T, _, k, _ = blocks.shape
    ab = np.zeros((3 * kl + 1, T * k), order="F")
    for j in range(3):
        t = np.arange(max(0, 1 - j), min(T, T + 1 - j))
        for r in range(k):
            for c in range(k):
                row, column = t * k + r, (t + j - 1) * k + c
                ab[2 * kl + row - column, column] = blocks[t, j, r, c]
    return ab


def blocks() -> None:
    """Block tridiagonal systems of T = 2e4 against gbsv and solve_banded; dominant and not dominant diagonals."""
    for k in (2, 3, 4, 6, 8, 12):
        for diagonal in (4, 40):
            compare_blocks(20_000 if k <= 8 else 5_000, k, diagonal)


def compare_blocks(T: int, k: int, diagonal: float) -> None:
    """One line of that table."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((1, T, 3, k, k))
    A[:, :, 1] += diagonal * np.eye(k)
    b = rng.standard_normal((1, T, k, 1))
    kl, right = 2 * k - 1, b.reshape(-1)
    ab = banded(A[0], kl)
    times = medians(
        {
            "gbsv": lambda: lapack.dgbsv(kl, kl, ab, right),
            "solve_banded": lambda: solve_banded((kl, kl), ab[kl:], right),
            "band": lambda: block_lu(A, 1, 1, pivoting="band").solve(b),
            "block": lambda: block_lu(A, 1, 1, pivoting="block").solve(b),
        }
    )
    pairs = [("band", "gbsv"), ("block", "gbsv"), ("band", "solve_banded"), ("block", "solve_banded")]
    show(f"k={k} T={T} diagonal+{diagonal}", times, pairs)


def batches() -> None:
    """Many short systems against one solve_banded of all of them stacked."""
    for B, T, k in ((10_000, 8, 2), (1_000, 50, 4), (100_000, 10, 1)):
        compare_batches(B, T, k)


def compare_batches(B: int, T: int, k: int) -> None:
    """One line of that table."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((B, T, 3, k, k))
    A[:, :, 1] += 4 * k * np.eye(k)
    A[:, 0, 0] = A[:, -1, 2] = 0
    b = rng.standard_normal((B, T, k, 1))
    kl, right = 2 * k - 1, b.reshape(-1)
    ab = banded(A.reshape((B * T, 3, k, k)), kl)
    times = medians(
        {
            "stacked": lambda: solve_banded((kl, kl), ab[kl:], right, check_finite=False),
            "band": lambda: block_lu(A, 1, 1, pivoting="band").solve(b),
            "block": lambda: block_lu(A, 1, 1, pivoting="block").solve(b),
        }
    )
    show(f"B={B} T={T} k={k}", times, [("band", "stacked"), ("block", "stacked")])


@numba.njit
def brusselator(x: Any, p: Any, out: Any) -> None:
    """Steady Brusselator in one dimension, for one system x (T, 2); p holds A, B and the two diffusion numbers."""
    A, B, D1, D2 = p[0], p[1], p[2], p[3]
    T = x.shape[0]
    for t in range(T):
        u, v = x[t, 0], x[t, 1]
        u_left, v_left = (x[t - 1, 0], x[t - 1, 1]) if t > 0 else (A, B / A)
        u_right, v_right = (x[t + 1, 0], x[t + 1, 1]) if t < T - 1 else (A, B / A)
        reaction = u * u * v
        out[t, 0] = A + reaction - (B + 1) * u + D1 * (u_left - 2 * u + u_right)
        out[t, 1] = B * u - reaction + D2 * (v_left - 2 * v + v_right)


def stacked_newton(x0: Any, p: Any) -> tuple[Any, int]:
    """Newton's method on all systems at once: analytic band of 5 diagonals, solve_banded."""
    x = x0.copy()
    A, B, D1, D2 = (p[:, i : i + 1] for i in range(4))

    def residual() -> Any:
        u, v = x[..., 0], x[..., 1]
        around_u = np.concatenate([A, u, A], axis=1)
        around_v = np.concatenate([B / A, v, B / A], axis=1)
        reaction = u * u * v
        F = np.empty_like(x)
        F[..., 0] = A + reaction - (B + 1) * u + D1 * (around_u[:, :-2] - 2 * u + around_u[:, 2:])
        F[..., 1] = B * u - reaction + D2 * (around_v[:, :-2] - 2 * v + around_v[:, 2:])
        return F

    F = residual()
    target = np.sqrt(np.finfo(float).eps) * np.abs(F).max(axis=(1, 2))
    steps = 0
    for _ in range(30):
        steps += 1
        u, v = x[..., 0], x[..., 1]
        ab = np.zeros((5, *x.shape))
        ab[2, ..., 0], ab[1, ..., 1] = 2 * u * v - (B + 1) - 2 * D1, u * u
        ab[3, ..., 0], ab[2, ..., 1] = B - 2 * u * v, -u * u - 2 * D2
        ab[4, :, :-1, 0], ab[4, :, :-1, 1] = D1, D2
        ab[0, :, 1:, 0], ab[0, :, 1:, 1] = D1, D2
        right = -F.reshape(-1)
        dx = solve_banded((2, 2), ab.reshape((5, -1)), right, overwrite_ab=True, overwrite_b=True, check_finite=False)
        x += dx.reshape(x.shape)
        F = residual()
        if (np.abs(F).max(axis=(1, 2)) <= target).all():
            break
    return x, steps


def newton() -> None:
    """1e4 Brusselators of T = 8 cells, with their own parameters and starts."""
    rng = np.random.default_rng(0)
    B = 10_000
    low, high = np.asarray([[0.8, 1.0, 0.5, 0.5], [1.2, 1.6, 2.0, 2.0]])
    p = rng.uniform(low, high, (B, 4))
    steady = np.stack([p[:, 0], p[:, 1] / p[:, 0]], axis=1)[:, None, :]
    structure = BlockBanded(1, 1, 2)
    for noise in (0.01, 0.1, 0.3):
        x0 = steady * (1 + noise * rng.standard_normal((B, 8, 2)))
        result, steps = newton_batch(brusselator, x0, p, structure=structure), stacked_newton(x0, p)[1]
        times = medians(
            {
                "stacked": lambda x0=x0: stacked_newton(x0, p),
                "ours": lambda x0=x0: newton_batch(brusselator, x0, p, structure=structure),
            },
            seconds=3.0,
        )
        show(f"Newton, starts off by {noise}", times, [("ours", "stacked")])
        print(
            f"    stacked: {steps} steps; ours: {result.iterations.mean():.1f} steps, {result.counts.residuals / B:.1f}"
            f" residuals, all converged: {result.success.all()}"
        )


TABLES = {"scalar": scalar, "blocks": blocks, "batches": batches, "newton": newton}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES)
    chosen = parser.parse_args().only
    for name, table in TABLES.items():
        if chosen in (None, name):
            table()
