"""What must hold: each campaign draws systems from a generator, and returns how many it has solved.

An AssertionError is a promise that was broken; any other exception is one too.
"""

from __future__ import annotations

import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import implicitsolve as ims
from benchmarks.adversary import entries
from benchmarks.adversary.systems import Array, Watched, damaged, hostile, known, method, pattern

RIGHT = 1e-4  # error of x that a success may have
ACCURATE = 3e-4  # error of a derivative that a success may have
SLACK = 5.0  # seconds beyond a limit that a busy machine may take


class Private(BaseException):
    """An exception that nobody should catch."""


def truth(rng: np.random.Generator) -> int:
    """A success is near the only root, by every method, in both precisions, whatever the units of F."""
    system, chosen = known(rng), method(rng)
    scale = 10.0 ** rng.uniform(-100, 100) if rng.random() < 0.3 else 1.0
    F = Watched(lambda x: scale * system.residual(x))
    result = ims.root(F, system.x0.copy(), method=chosen)
    claim = f"{system.kind} by {chosen}, {result.status.name}, error {system.error(result.x):.2g}"
    assert not result.success or system.error(result.x) <= RIGHT, f"false success: {claim}"
    assert not F.wrong, f"{F.wrong[0]}: {claim}"
    assert result.counts.residuals == F.calls, f"{F.calls} calls, counted {result.counts.residuals}: {claim}"
    return 1


def single(rng: np.random.Generator) -> int:
    """A success in float32 is near the root too."""
    system = known(rng)
    x0, units = system.x0.astype(np.float32), np.asarray(system.units)
    is_in_range = bool(np.all((np.abs(x0) < 1e30) & (np.abs(x0) > 1e-30))) and units.size == 1
    if not is_in_range or system.root is None or system.kind == "nearly singular":
        return 0  # rounding to float32 hides how F vanishes at infinity, and what a small singular value says
    F = Watched(lambda x: system.residual(x.astype(float)).astype(np.float32))
    result = ims.root(F, x0)
    claim = f"{system.kind}, {result.status.name}, error {system.error(result.x):.2g}"
    assert result.x.dtype == np.float32, result.x.dtype
    assert not result.success or system.error(result.x) <= 1e-2, f"false success: {claim}"
    assert not F.wrong, F.wrong[0]
    return 1


def limits(rng: np.random.Generator) -> int:
    """Any solve ends within its seconds, or its evaluations, whatever J is."""
    system, chosen = hostile(rng), method(rng)
    F = Watched(system.residual)
    seconds, most = (0.2, None) if rng.random() < 0.5 else (None, int(rng.integers(1, 300)))
    stop = ims.NonlinearStop(max_seconds=seconds, max_evaluations=most)
    begin = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = ims.root(ims.Problem(F, **system.declared(rng)), system.x0, method=chosen, stop=stop)
    took, size = time.monotonic() - begin, np.abs(system.residual(result.x)).max()
    assert took <= (0.2 if seconds else 60) + SLACK, f"{took:.1f} s"
    assert most is None or F.calls <= most + 8, f"{F.calls} calls of at most {most}"
    assert not F.wrong, F.wrong[0]
    nearby = np.abs(system.residual(result.x * (1 + 1e-6)) - system.residual(result.x)).max()
    largest = max(1e-3 * max(1.0, np.abs(system.residual(system.x0)).max()), nearby)
    assert not result.success or size <= largest, f"|F| = {size:.2g}"
    return 1


def points(rng: np.random.Generator) -> int:
    """F, and the problem's other functions, see finite points within the bounds alone."""
    system = known(rng)
    x0, size = system.x0, np.abs(system.x0) + 1e-300
    room = 10.0 ** rng.uniform(-3, 3, (2, *x0.shape)) * size
    some = rng.random((2, *x0.shape)) < 0.7
    lower, upper = np.where(some[0], x0 - room[0], -np.inf), np.where(some[1], x0 + room[1], np.inf)
    if rng.random() < 0.3:
        lower = np.where(rng.random(x0.shape) < 0.5, x0, lower)
    krylov = (ims.GMRES(), ims.LGMRES(), ims.BiCGSTAB(), None)[rng.integers(4)]
    chosen = ("auto", ims.NewtonKrylov(krylov=krylov), "sparse-newton")[rng.integers(3)]
    F = Watched(system.residual, lower, upper)
    result = ims.root(F, x0.copy(), method=chosen, bounds=(lower, upper))
    assert not F.wrong, F.wrong[0]
    inside = bool(((result.x >= lower) & (result.x <= upper)).all())
    assert inside, "x is outside of the bounds"
    assert not result.success or system.error(result.x) <= RIGHT, f"false success: {system.kind}"
    return 1


def extreme(rng: np.random.Generator) -> int:
    """Subnormal, huge and complex F end in a status, also where the caller lets floating-point errors raise."""
    n, chosen = int(rng.integers(1, 6)), method(rng)
    decade = rng.choice([-320, -310, -300, -160, 0, 150, 300])
    scale = float(10.0**decade) if decade > -320 else 5e-324
    unit = float(10.0 ** rng.choice([-310, -300, -150, 0, 150, 300])) if rng.random() < 0.4 else 1.0
    kind = complex if rng.random() < 0.4 else float
    B, r = np.eye(n) + 0.2 * rng.standard_normal((n, n)), rng.uniform(0.5, 2, n).astype(kind)
    if kind is complex:
        r = r + 1j * rng.uniform(0.5, 2, n)
    c = float(rng.choice([0.0, 0.3]))

    def F(x: Array) -> Array:
        with np.errstate(all="ignore"):
            y = x / unit
            return scale * (B @ (y - r) + c * (y**3 - r**3))

    x0 = (unit * rng.choice([0.0, 1.0, 3.0])) * np.ones(n, dtype=kind)
    watched, is_iterated = Watched(F), bool(rng.random() < 0.3)
    if chosen == "homotopy" and kind is complex:
        return 0
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = ims.Problem(watched, fixed_point=is_iterated)
        result = ims.root(problem, x0, method=chosen, stop=ims.NonlinearStop(max_evaluations=2000))
    with np.errstate(all="ignore"):
        error = float(np.abs(result.x / unit - r).max())
    where = f"{chosen}, F of {scale:g}, x of {unit:g}, {kind.__name__}: {result.status.name}, error {error:.2g}"
    assert not watched.wrong, f"{watched.wrong[0]}: {where}"
    is_coarse = scale * np.abs(r).min() < 1e-300 or c > 0  # F has few digits, or other roots
    assert not result.success or is_coarse or error <= RIGHT, f"false success: {where}"
    return 1


def exceptions(rng: np.random.Generator) -> int:
    """What F raises passes unchanged, whichever evaluation it is."""
    system, chosen = known(rng), method(rng)
    count = max(1, ims.root(system.residual, system.x0.copy(), method=chosen).counts.residuals)
    left = int(rng.integers(count))
    error = (ValueError, MemoryError, RuntimeError, KeyboardInterrupt, Private, StopIteration)[rng.integers(6)]("boom")

    def F(x: Array) -> Array:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return system.residual(x)

    try:
        ims.root(F, system.x0.copy(), method=chosen)
    except BaseException as raised:
        if raised is error and raised.__cause__ is None:
            return 2
        raise
    raise AssertionError(f"{type(error).__name__} was swallowed: {system.kind} by {chosen}")


def derivatives(rng: np.random.Generator) -> int:
    """A derivative that converged is accurate: at any x, with entries dropped from any declaration."""
    n, a, k = int(rng.integers(3, 30)), rng.uniform(3, 6), rng.uniform(0.3, 3)
    P = pattern(rng, n) | np.eye(n, dtype=bool)
    A = np.where(P, rng.uniform(-0.5, 0.5, (n, n)), 0.0) / np.maximum(1, 0.3 * P.sum(axis=1))[:, None] + a * np.eye(n)
    x = rng.standard_normal(n) + rng.choice([-1.0, 0.0, 1.0]) * 10.0 ** rng.uniform(-3, 8)

    def F(x: Array) -> Array:
        return A @ x + 0.5 * a / k * np.sin(k * x) - at

    at = 0.0
    at = F(x)
    J = A + np.diag(0.5 * a * np.cos(k * x))
    W = J.copy()
    if rng.random() < 0.5:
        entries = np.argwhere(W != 0)
        W[tuple(entries[rng.integers(len(entries))])] = 0.0
    declared: dict[str, Any] = [
        {"structure": ims.Sparse(W != 0)},
        {"jac": lambda x: W},
        {"jac": lambda x: scipy.sparse.csr_array(W)},
        {"jvp": lambda x, v: W @ v, "vjp": lambda x, w: W.T @ w},
        {"vjp": lambda x, w: W.T @ w},
        {"linearize": lambda x: (F(x), ims.aslinearoperator(W))},
        {"structure": ims.BlockBanded(0, 0, n)},
        {"structure": "detect"},
    ][rng.integers(8)]
    parameters = {"parameters": {"theta": np.zeros(())}, "parameter_jvp": lambda x, d: -d["theta"]}
    problem = ims.Problem(F, **declared, **parameters, parameter_vjp=lambda x, w: {"theta": -np.sum(w)})
    c = rng.standard_normal(n)
    for call, matrix, argument in ((ims.pull_back, J.T, c), (ims.push_forward, J, {"theta": c})):
        try:
            found: Any = call(problem, x, argument)
        except ValueError:  # a pattern that misses entries
            continue
        value = found.adjoint if call is ims.pull_back else found.tangent
        expected = np.linalg.solve(matrix, c)
        error = np.linalg.norm(value - expected) / np.linalg.norm(expected)
        assert not found.success or error <= ACCURATE, f"{call.__name__}, {list(declared)}: error {error:.2g}"
    return 1


def checkpoints(rng: np.random.Generator) -> int:
    """After a change of any argument a file gives a fresh solve, an error, or a status that is true now."""
    n, c = int(rng.integers(1, 5)), float(rng.uniform(1, 10))
    weight = [1.0]

    def norm(F: Array) -> float:
        return float(weight[0] * np.abs(F).max())

    problem = ims.Problem(lambda x: c * (x**3 - 8))
    stop = ims.NonlinearStop(atol=1e-3, norm=norm if rng.random() < 0.5 else "max")
    x0 = np.full(n, 100.0)
    with tempfile.TemporaryDirectory() as folder:
        path, first = Path(folder) / "file", 10.0 ** rng.uniform(-12, 0)
        weight[0] = first
        ims.drivers.checkpointed(problem, x0, path, stop=stop, every=int(rng.integers(1, 20)))
        match int(rng.integers(6)):
            case 0:
                problem = replace(problem, f_scale=1e9)
            case 1:
                weight[0] = 1.0
            case 2:
                c *= 1.0 + 10.0 ** rng.uniform(-6, 0)
            case 3:
                stop = replace(stop, atol=1e-9)
            case 4:
                problem = replace(problem, bounds=(0.0, 1e3), x_scale=3.0)
            case 5:
                content = bytearray(path.read_bytes())
                content[rng.integers(len(content))] ^= int(rng.integers(1, 256))
                path.write_bytes(bytes(content))
        try:
            result = ims.drivers.checkpointed(problem, x0, path, stop=stop)
        except ValueError:
            return 1
    F = problem.residual(result.x) / (1.0 if problem.f_scale is None else problem.f_scale)
    size = stop.measure(F[None], (n,))[0]
    assert not result.success or size <= 1.01 * stop.atol, f"CONVERGED with a norm of {size:.2g} above {stop.atol:g}"
    return 2


def batches(rng: np.random.Generator) -> int:
    """The answer of a system depends neither on its neighbors nor on the way through a stream."""
    n, count = int(rng.integers(1, 6)), int(rng.integers(2, 400))
    B, r = rng.standard_normal((count, n, n)) + 3 * np.eye(n), rng.uniform(0.5, 2, (count, n))
    spoilt = rng.random(count) < 0.2

    def batch(rows: Array) -> ims.Problem:
        def F(x: Array) -> Array:
            value = np.einsum("bij,bj->bi", B[rows], x**3 - r[rows] ** 3 + x - r[rows])
            return np.where(spoilt[rows][:, None], np.nan, value)

        return ims.Problem(F, batch_ndim=1, take=lambda part: batch(rows[part]))

    x0 = r + 10.0 ** rng.uniform(-1, 2) * rng.standard_normal((count, n))
    chosen = ("auto", "newton-krylov", "broyden")[rng.integers(3)]
    whole = ims.root(batch(np.arange(count)), x0, method=chosen)
    stream = ims.drivers.solve_stream(
        batch(np.arange(count)), x0, batch_size=int(rng.integers(1, count + 1)), method=chosen
    )
    for result in (whole, stream):
        assert not result.success[spoilt].any(), "success of a system whose F is NaN"
        good = np.asarray(result.success)
        if good.any():
            error = np.abs(result.x - r)[good].max()
            assert error <= 1e-3, f"error {error:.2g} in a batch by {chosen}"
    return 2 * count


def threads(rng: np.random.Generator) -> int:
    """Solves in threads have the bits of solves one after the other."""
    systems = [known(rng) for _ in range(3)]
    alone = [ims.root(system.residual, system.x0.copy()).x for system in systems]
    found: list[Any] = [None] * len(systems)

    def solve(i: int) -> None:
        with np.errstate(all="ignore"):
            found[i] = ims.root(systems[i].residual, systems[i].x0.copy()).x

    workers = [threading.Thread(target=solve, args=(i,)) for i in range(len(systems))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(np.array_equal(a, b) for a, b in zip(alone, found, strict=True)), "other bits in threads"
    return 2 * len(systems)


A = np.array([2.0, 3.0])
factor = 1.0


def of_globals(x: Array) -> Array:
    """What `compiled` solves."""
    return factor * (x * x + 0.1 * x - A)


def compiled(rng: np.random.Generator) -> int:
    """`newton_batch` solves the system that Python evaluates now, whatever has changed since it was compiled."""
    global A, factor
    change = rng.integers(3)
    if change == 0:
        A = rng.uniform(1, 9, 2).round(1)
    elif change == 1:
        A[:] = rng.choice([2.0, 5.0, 7.0], 2)
    else:
        factor = float(rng.choice([1.0, 2.0]))
    result = ims.newton_batch(of_globals, rng.uniform(0.5, 3, (5, 2)))
    for x, status in zip(result.x, result.status, strict=True):
        size = np.abs(of_globals(x)).max()
        assert status != ims.Status.CONVERGED or size <= 1e-6, f"CONVERGED with |F| = {size:.2g}"
    return 5


def linear(rng: np.random.Generator) -> int:
    """`linear_solve` reports true residuals of singular and badly scaled systems too."""
    n = int(rng.integers(2, 40))
    A = damaged(rng, rng.standard_normal((n, n)) + 2 * np.eye(n))
    b = A @ rng.standard_normal(n) if rng.random() < 0.5 else rng.standard_normal(n)
    solver = (None, ims.GMRES(), ims.LGMRES(), ims.BiCGSTAB())[rng.integers(4)]
    with np.errstate(all="raise"):
        result = ims.linear_solve(A, b, method=solver)
    with np.errstate(all="ignore"):
        size, limit = np.linalg.norm(b - A @ result.x), 1e-6 * np.linalg.norm(b)
    rounding = 1e-13 * n * np.abs(A).max() * np.abs(result.x).max()
    assert not result.success or size <= 1.01 * limit + rounding, f"residual {size:.2g} above {limit:.2g} by {solver}"
    return 1


Campaign = Callable[[np.random.Generator], int]
ALL = (
    truth, limits, points, extreme, exceptions, derivatives, single, batches, checkpoints, linear, threads,
    entries.takes, entries.streams, entries.float32, entries.signals,
)  # fmt: skip
RARELY = compiled, entries.locales, entries.jax, entries.petsc, entries.ranks  # which take seconds
CAMPAIGNS: dict[str, Campaign] = {campaign.__name__: campaign for campaign in ALL}
RARE: dict[str, Campaign] = {campaign.__name__: campaign for campaign in RARELY}
