"""One product of W1 (residual, J v, J^T w) over its three merged matrix products alone, and beside other packages'."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.benchmarks.workloads import WORKLOADS, ImplicitGRU
from benchmarks.peers._layers import NumpyGRU, jax_gru, merged
from benchmarks.peers._measure import Stopwatch

KEYS = ("W1-k200-s1", "W1-k448-s1", "W1-k200-s1-float32", "W1-k448-s1-float32")
CALLS = 4  # in one turn: a call is a few milliseconds


def matrix_products(workload: ImplicitGRU, H: Any) -> Callable[[], Any]:
    """The three products of a residual, into buffers that are there."""
    weights = [merged(workload.params, workload.inputs)[name] for name in ("U_states", "U_gates", "U_candidate")]
    rows = np.ascontiguousarray(H.reshape(-1, H.shape[-1]))
    outs = [np.empty((len(rows), U.shape[1]), H.dtype) for U in weights]

    def run() -> None:
        for U, out in zip(weights, outs):
            np.matmul(rows, U, out=out)

    return run


def at(points: Sequence[Any], function: Callable[[Any], Any]) -> Callable[[], Any]:
    """The function at one point after the other, so that nothing is remembered from the call before."""
    turn = itertools.cycle(points)
    return lambda: function(next(turn))


def ours(workload: ImplicitGRU, points: Sequence[Any], v: Any) -> dict[str, Callable[[], Any]]:
    """A residual, its linearization, and the two products at a point."""
    problem: Any = workload.problem()
    _, J = problem.linearize(points[0])
    return {
        "residual": at(points, problem.residual),
        "linearize": at(points, problem.linearize),
        "JVP": lambda: J.matvec(v),
        "VJP": lambda: J.rmatvec(v),
    }


def halves(workload: ImplicitGRU, points: Sequence[Any], v: Any) -> dict[str, Callable[[], Any]]:
    """The same as the solvers call them: first one half of the positions, then the other."""
    problem: Any = workload.problem()
    parts = [[np.ascontiguousarray(H[:, parity::2]) for parity in (0, 1)] for H in points]
    even, odd = parts[0]
    v_even, v_odd = (np.ascontiguousarray(v[:, parity::2]) for parity in (0, 1))
    first, second = problem.halves.eliminated, problem.halves.kept
    A, C = first.linearize(odd)[1], second.linearize(even)[1]
    return {
        "halves, residual": at(parts, lambda part: (first.apply(part[1]), second.apply(part[0]))),
        "halves, JVP": lambda: (A.matvec(v_odd), C.matvec(v_even)),
        "halves, VJP": lambda: (A.rmatvec(v_even), C.rmatvec(v_odd)),
    }


def jaxs(workload: ImplicitGRU, H: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """JAX's residual, and its JVP and VJP at a point, jitted, with what the point determines computed beforehand."""
    import jax

    from benchmarks.peers._jax import precise

    with precise(H):
        G = jax_gru(workload.params, workload.inputs)
        F = jax.jit(lambda x: x - G(x))
        x, direction = jax.numpy.asarray(H), jax.numpy.asarray(v)
        push, pull = jax.jit(jax.linearize(F, x)[1]), jax.jit(jax.vjp(F, x)[1])

    def waits(function: Callable[[Any], Any], argument: Any) -> Callable[[], Any]:
        def run() -> Any:
            with precise(H):
                return jax.block_until_ready(function(argument))

        return run

    return {"JAX residual": waits(F, x), "JAX JVP": waits(push, direction), "JAX VJP": waits(pull, direction)}


def contenders(key: str) -> dict[str, Callable[[], Any]]:
    """All functions that are timed, the matrix products first."""
    workload: Any = WORKLOADS[key]()
    rng = np.random.default_rng(0)
    H, other, v = (rng.uniform(-0.5, 0.5, workload.x0.shape).astype(workload.x0.dtype) for _ in range(3))
    points = (H, other)
    G = NumpyGRU(workload.params, workload.inputs, H.shape)
    found = {"GEMMs": matrix_products(workload, H), **ours(workload, points, v), **halves(workload, points, v)}
    found["NumPy residual"] = lambda: H - G(H)
    with contextlib.suppress(ImportError):
        found |= jaxs(workload, H, v)
    return found


def measure(key: str, stopwatch: Stopwatch, repeat: int) -> dict[str, Any]:
    """Median seconds of a call, and the ratio to the matrix products next to it."""
    functions = contenders(key)
    for run in functions.values():
        run()
    base, *others = functions
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeat):
        for name in others:
            for each in (base, name):
                seconds[each].append(stopwatch(lambda each=each: [functions[each]() for _ in range(CALLS)]) / CALLS)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    rows = [{"what": name, "median": median, "ratio": median / medians[base]} for name, median in medians.items()]
    return {"key": key, "rows": rows}
