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
Solver = Callable[[Sequence[System]], Sequence[Answer | None]]  # None: the system is of a kind that is not put to it
LARGEST_DENSE = 40  # unknowns of the systems with a dense Jacobian
FAILURES = scipy.optimize.NoConvergence, ValueError, ArithmeticError, np.linalg.LinAlgError, TypeError


def one_by_one(solve: Callable[..., Any]) -> Solver:
    """``solve(F, x0)``, or with bounds, which returns x, success and estimated error, for one system after the other.

    A solver that has no bounds, or no complex numbers, fails where these are asked for.
    """

    def answers(found: Sequence[System]) -> list[Answer]:
        return [answer(system) for system in found]

    def answer(system: Any) -> Answer:
        calls, bounds = 0, getattr(system, "bounds", None)

        def F(x: Any) -> Any:
            nonlocal calls
            calls += 1
            return system.residual(np.asarray(x))

        try:
            x, success, error = solve(F, system.x0.copy()) if bounds is None else solve(F, system.x0.copy(), bounds)
        except FAILURES:
            return system.x0, False, np.nan, calls
        return x, bool(success), error, calls

    return answers


def ours(method: str) -> Solver:
    """`root` by a method's name; `BlockNewton` with a structure of bands where these are narrow, else of one block."""

    def solve(F: Any, x0: Any, bounds: Any = None) -> Any:
        problem = F
        if method == "block-newton":
            k = 1 if x0.ndim == 1 and x0.size > LARGEST_DENSE else x0.size
            problem = ims.Problem(F, structure=ims.BlockBanded(int(k == 1), int(k == 1), block_size=k))
        result = ims.root(problem, x0, method=method, bounds=bounds)
        return result.x, result.success, np.nan if result.error is None else result.error

    return one_by_one(solve)


def peer(method: str) -> Solver:
    """A method of `scipy.optimize.root` by defaults."""

    def solve(F: Any, x0: Any) -> Any:
        kind = complex if np.iscomplexobj(x0) else float  # complex numbers as pairs

        def pairs(v: Any) -> Any:
            return np.asarray(F(v.view(kind).reshape(x0.shape).astype(x0.dtype)), dtype=kind).ravel().view(float)

        found = scipy.optimize.root(pairs, x0.ravel().astype(kind).view(float), method=method)
        return found.x.view(kind).reshape(x0.shape), found.success, np.nan

    return one_by_one(solve)


def drop_in(F: Any, x0: Any) -> Any:
    """`newton_krylov` by its defaults, which are SciPy's."""
    x, result = ims.newton_krylov(F, x0, full_output=True)
    return x, result.success, np.nan if result.native.error is None else result.native.error


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

    def F(x: Any, choice: Any, parts: Any, g: int, has_A: bool) -> Any:
        r, B, A, rows, units = parts
        u = x / units
        phi = lambda v: jax.lax.switch(choice[0], increasing(jnp), v)  # noqa: E731
        value = phi(u) - phi(r)
        if g:
            value = value.at[0].set(jax.lax.switch(choice[1], vanishing(jnp), u[0]))
        return rows * (B @ value + A @ (u - r) if has_A else B @ value)

    def answer(system: System) -> Answer:
        e, x0 = system.residual, jnp.asarray(system.x0)
        if isinstance(e, Mixed):  # compiled once for each size
            choice = jnp.asarray([e.phi, max(e.g, 0)])
            result = imj.root(F, x0, choice, (e.r, e.B, e.A, e.rows, e.units), bool(e.g >= 0), bool(e.A.any()))
        else:
            result = imj.root(lambda x: e(x, jnp), x0)
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

    def answers(found: Sequence[System]) -> list[Answer | None]:
        known: dict[int, Answer] = {}
        for rows, equations, x0 in batches(found, lambda _: 0):
            known |= per_place(rows, solve(batch_of(equations), x0))
        return [known.get(i) for i in range(len(found))]

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


def compiled(found: Sequence[System]) -> list[Answer | None]:
    """`newton_batch`, for batches of dense systems."""
    from implicitsolve.backends.numba import newton_batch

    known: dict[int, Answer] = {}
    F = loops()
    for rows, equations, x0 in batches(found, lambda _: 0):
        parts = [(e.r, e.rows, e.units, e.B, e.A, e.phi, e.g) for e in equations]
        data = np.stack([np.concatenate([np.ravel(part) for part in each]) for each in parts])
        known |= per_place(rows, newton_batch(F, x0, data))
    return [known.get(i) for i in range(len(found))]


def loops() -> Any:
    """The equations as loops that Numba compiles, once for all functions."""
    import numba

    p0, p1, p2, p3, p4, p5, p6, p7 = (numba.njit(f) for f in increasing(np))
    g0, g1, g2, g3, g4, g5, g6, g7 = (numba.njit(f) for f in vanishing(np))

    @numba.njit
    def phi(k: Any, x: Any) -> Any:
        if k < 4:
            return (p0(x) if k == 0 else p1(x)) if k < 2 else (p2(x) if k == 2 else p3(x))
        return (p4(x) if k == 4 else p5(x)) if k < 6 else (p6(x) if k == 6 else p7(x))

    @numba.njit
    def g(k: Any, x: Any) -> Any:
        if k < 4:
            return (g0(x) if k == 0 else g1(x)) if k < 2 else (g2(x) if k == 2 else g3(x))
        return (g4(x) if k == 4 else g5(x)) if k < 6 else (g6(x) if k == 6 else g7(x))

    def F(x: Any, p: Any, out: Any) -> None:
        n = x.size
        chosen, end = p[3 * n + 2 * n * n], p[3 * n + 2 * n * n + 1]
        for i in range(n):
            out[i] = 0.0
        for j in range(n):
            u, r = x[j] / p[2 * n + j], p[j]
            value = g(end, u) if end >= 0 and j == 0 else phi(chosen, u) - phi(chosen, r)
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
