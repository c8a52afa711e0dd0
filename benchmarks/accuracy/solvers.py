"""Solvers by name, each of which takes systems and returns what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import numpy as np
import scipy.optimize

import implicitsolve as ims
from benchmarks.accuracy.systems import Mixed, System, increasing, vanishing

Answer = tuple[Any, bool, float, int]  # x, success, estimated error and evaluations
Solver = Callable[[Sequence[System]], list[Answer]]
LARGEST_DENSE = 40  # unknowns of the systems with a dense Jacobian
FAILURES = scipy.optimize.NoConvergence, ValueError, ArithmeticError, np.linalg.LinAlgError


def one_by_one(solve: Callable[[Any, Any], Any]) -> Solver:
    """``solve(F, x0)``, which returns x, success and estimated error, for one system after the other."""

    def answers(found: Sequence[System]) -> list[Answer]:
        return [answer(system) for system in found]

    def answer(system: System) -> Answer:
        calls = 0

        def F(x: Any) -> Any:
            nonlocal calls
            calls += 1
            return system.residual(np.asarray(x))

        try:
            x, success, error = solve(F, system.x0.copy())
        except FAILURES:
            return system.x0, False, np.nan, calls
        return x, bool(success), error, calls

    return answers


def ours(method: str) -> Solver:
    """`root` by a method's name; `BlockNewton` with a structure of bands where these are narrow, else of one block."""

    def solve(F: Any, x0: Any) -> Any:
        problem = F
        if method == "block-newton":
            k = 1 if x0.ndim == 1 and x0.size > LARGEST_DENSE else x0.size
            problem = ims.Problem(F, structure=ims.BlockBanded(int(k == 1), int(k == 1), block_size=k))
        result = ims.root(problem, x0, method=method)
        return result.x, result.success, np.nan if result.error is None else result.error

    return one_by_one(solve)


def peer(method: str) -> Solver:
    """A method of `scipy.optimize.root` by defaults."""

    def solve(F: Any, x0: Any) -> Any:
        found = scipy.optimize.root(lambda x: F(x.reshape(x0.shape)).ravel(), x0.ravel(), method=method)
        return found.x.reshape(x0.shape), found.success, np.nan

    return one_by_one(solve)


def drop_in(F: Any, x0: Any) -> Any:
    """`newton_krylov` by its defaults, which are SciPy's."""
    x, result = ims.newton_krylov(F, x0, full_output=True)
    return x, result.success, np.nan


def by_torch(found: Sequence[System]) -> list[Answer]:
    """`implicitsolve.torch.solve`, with exact products."""
    import torch

    import implicitsolve.torch as imt

    def answer(system: System) -> Answer:
        def F(x: Any) -> Any:
            return system.residual(x, torch)

        x, result = imt.solve(F, torch.asarray(system.x0), on_failure="ignore", return_result=True)
        error = np.nan if result.error is None else result.error
        return x.numpy(), bool(result.success), error, result.counts.evaluations

    return [answer(system) for system in found]


def by_jax(found: Sequence[System]) -> list[Answer]:
    """`implicitsolve.jax.root`, with exact products."""
    import jax
    import jax.numpy as jnp

    import implicitsolve.jax as imj

    def answer(system: System) -> Answer:
        result = imj.root(lambda x: system.residual(x, jnp), jnp.asarray(system.x0))
        calls = int(result.residuals) + int(result.products)
        return np.asarray(result.x), bool(result.success), float(result.error), calls

    with jax.enable_x64(True):
        return [answer(system) for system in found]


def batches(found: Sequence[System], key: Callable[[Mixed], Any]) -> Iterator[tuple[list[int], list[Mixed], Any]]:
    """Systems of dense kinds with the same key and size: their places, equations and starts."""
    dense = [i for i, system in enumerate(found) if isinstance(system.residual, Mixed)]

    def full_key(i: int) -> Any:
        return found[i].x0.size, key(found[i].residual)

    for _, places in groupby(sorted(dense, key=full_key), full_key):
        rows = list(places)
        yield rows, [found[i].residual for i in rows], np.stack([found[i].x0 for i in rows])


def per_place(rows: list[int], result: Any) -> dict[int, Answer]:
    """The answers of a batch of these places; evaluations of one system are not known."""
    return {row: (result.x[i], bool(result.success[i]), float(result.error[i]), 0) for i, row in enumerate(rows)}


def by_batches(solve: Callable[..., Any]) -> Solver:
    """``solve(problem, x0)`` for batches of all dense systems of a size."""

    def answers(found: Sequence[System]) -> list[Answer]:
        known: dict[int, Answer] = {}
        for rows, equations, x0 in batches(found, lambda _: 0):
            known |= per_place(rows, solve(batch_of(equations), x0))
        return [known.get(i, (system.x0, False, np.nan, 0)) for i, system in enumerate(found)]

    return answers


def batch_of(equations: Sequence[Mixed]) -> ims.Problem:
    """One problem of systems of the same size."""
    r, B, A, rows, units = (
        np.stack([getattr(e, name) for e in equations]) for name in ("r", "B", "A", "rows", "units")
    )
    kinds, ends = (np.asarray([getattr(e, name) for e in equations]) for name in ("phi", "g"))

    def phi(u: Any) -> Any:
        return np.stack([function(u) for function in increasing(np)])[kinds, np.arange(len(u))]

    def F(x: Any) -> Any:
        u = x / units
        value = phi(u) - phi(r)
        for i in np.flatnonzero(ends >= 0):
            value[i, 0] = vanishing(np)[ends[i]](u[i, 0])
        return rows * (np.einsum("bij,bj->bi", B, value) + np.einsum("bij,bj->bi", A, u - r))

    return ims.Problem(F, batch_ndim=1, take=lambda some: batch_of([equations[i] for i in some]))


def in_chunks(problem: Any, x0: Any) -> Any:
    """`solve_batch` in two chunks, on a thread."""
    with ThreadPoolExecutor(1) as executor:
        return ims.drivers.solve_batch(problem, x0, executor=executor, chunks=2)


def compiled(found: Sequence[System]) -> list[Answer]:
    """`newton_batch`, for batches of dense systems with the same functions."""
    import numba

    from implicitsolve.backends.numba import newton_batch

    phis, ends = ([numba.njit(f) for f in functions(np)] for functions in (increasing, vanishing))
    known: dict[int, Answer] = {}
    for rows, equations, x0 in batches(found, lambda e: (e.phi, e.g)):
        parts = [(e.r, e.rows, e.units, e.B, e.A) for e in equations]
        data = np.stack([np.concatenate([np.ravel(part) for part in each]) for each in parts])
        F = loops(phis[equations[0].phi], ends[max(equations[0].g, 0)], equations[0].g >= 0)
        known |= per_place(rows, newton_batch(F, x0, data))
    return [known.get(i, (system.x0, False, np.nan, 0)) for i, system in enumerate(found)]


def loops(phi: Any, g: Any, ends: bool) -> Any:
    """The equations as loops that Numba compiles."""

    def F(x: Any, p: Any, out: Any) -> None:
        n = x.size
        for i in range(n):
            out[i] = 0.0
        for j in range(n):
            u, r = x[j] / p[2 * n + j], p[j]
            value = phi(u) - phi(r)
            if ends and j == 0:
                value = g(u)
            for i in range(n):
                place = 3 * n + i * n + j
                out[i] += p[n + i] * (p[place] * value + p[n * n + place] * (u - r))

    return F


def solver(name: str) -> Solver:
    """The solver of a name: a method of `root`, or one of these."""
    named: dict[str, Solver] = {
        "hybr": peer("hybr"),
        "lm": peer("lm"),
        "drop-in": one_by_one(drop_in),
        "SciPy's newton_krylov": one_by_one(lambda F, x0: (scipy.optimize.newton_krylov(F, x0), True, np.nan)),
        "torch": by_torch,
        "jax": by_jax,
        "batch": by_batches(ims.root),
        "solve_batch": by_batches(in_chunks),
        "newton_batch": compiled,
    }
    return named[name] if name in named else ours(name)


ALL = (
    "auto", "newton-krylov", "sparse-newton", "block-newton", "broyden", "pseudo-transient", "homotopy", "anderson",
    "picard", "causal-newton", "substitution", "batch", "solve_batch", "newton_batch", "torch", "jax", "hybr", "lm",
    "drop-in", "SciPy's newton_krylov",
)  # fmt: skip
