"""Campaigns against what stands beside `root`: streams, `take`, float32, signals, locales, JAX, PETSc and MPI.

Those that need a package, or a program, that is not there solve nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import locale
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import implicitsolve as ims
from benchmarks.adversary.systems import Array, Watched, known, method

RIGHT, RIGHT_IN_SINGLE = 1e-4, 1e-2  # errors of x that a success may have
RANKS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


class Interruption(BaseException):
    """What a signal handler raises."""


class Refusal(Exception):  # noqa: N818 (it is no error of the library)
    """What F raises."""


def _cubes(numbers: Array, calls: list[int], choose: Any = None, fails: int | None = None) -> ims.Problem:
    """x^3 + x = c for each number of a batch, whose call `fails` raises; `take` may choose wrong rows."""

    def F(x: Array) -> Array:
        calls.append(len(x))
        if fails is not None and len(calls) > fails:
            raise Refusal(fails)
        return x**3 + x - numbers

    def take(rows: Array) -> ims.Problem:
        return _cubes(numbers[rows if choose is None else choose(rows)], calls, choose, fails)

    return ims.Problem(F, batch_ndim=1, take=take)


def _in_parts(rng: np.random.Generator, problem: ims.Problem, x0: Array) -> Any:
    """The systems of a batch at once, as a stream, or in chunks."""
    chosen = ("auto", "newton-krylov", "anderson", "broyden")[rng.integers(4)]
    match int(rng.integers(3)):
        case 0:
            return ims.root(problem, x0, method=chosen)
        case 1:
            return ims.drivers.solve_stream(problem, x0, method=chosen, batch_size=int(rng.integers(1, len(x0) + 1)))
    with ThreadPoolExecutor(1) as executor:
        return ims.drivers.solve_batch(problem, x0, method=chosen, chunks=int(rng.integers(1, 5)), executor=executor)


def _drawn_cubes(rng: np.random.Generator) -> tuple[Array, Array]:
    numbers = rng.uniform(1, 20, (int(rng.integers(2, 60)), int(rng.integers(1, 4))))
    return numbers, 1.0 + 10.0 ** rng.uniform(-8, 3, (len(numbers), 1)) * rng.standard_normal(numbers.shape)


def takes(rng: np.random.Generator) -> int:
    """A `take` that returns other systems raises, or does no harm."""
    numbers, x0 = _drawn_cubes(rng)
    wrong = {
        "permuted": rng.permutation,
        "reversed": lambda rows: rows[::-1],
        "sorted": np.sort,
        "the first": lambda rows: np.arange(len(rows)),
        "one": lambda rows: rows[:1],
        "few": lambda rows: rows[:-1],
        "many": lambda rows: np.append(rows, 0),
        "right": lambda rows: rows,
    }
    kind = list(wrong)[rng.integers(len(wrong))]
    problem = _cubes(numbers, [], wrong[kind])
    try:
        result = ims.root(problem, x0, method=("auto", "newton-krylov", "anderson")[rng.integers(3)])
    except ValueError:
        if kind == "right":
            raise
        return len(x0)
    error = np.abs(result.x**3 + result.x - numbers).max(axis=1) / np.abs(result.x).max(axis=1)
    assert not result.success[error > 1e-3].any(), f"false success where `take` returns them {kind}"
    return len(x0)


def streams(rng: np.random.Generator) -> int:
    """Batches, streams and chunks pass what F raises at any call, and count their calls."""
    numbers, x0 = _drawn_cubes(rng)
    seed, calls = int(rng.integers(2**32)), list[int]()
    result = _in_parts(np.random.default_rng(seed), _cubes(numbers, calls), x0)
    error = np.abs(result.x**3 + result.x - numbers).max(axis=1) / np.abs(result.x).max(axis=1)
    assert not result.success[error > 1e-3].any(), "false success"
    assert result.counts.residuals == len(calls), f"{len(calls)} calls, counted {result.counts.residuals}"
    fails = int(rng.integers(len(calls)))
    with contextlib.suppress(Refusal):
        _in_parts(np.random.default_rng(seed), _cubes(numbers, [], fails=fails), x0)
        raise AssertionError(f"an exception at call {fails} of {len(calls)} was swallowed")
    return 2 * len(x0)


def float32(rng: np.random.Generator) -> int:
    """Matrices, starts, bounds and parameters drawn in float32: results stay so, and no success or derivative lies."""
    n, kind = int(rng.integers(1, 25)), np.float32
    A = rng.standard_normal((n, n), dtype=kind) / kind(n) + 3 * np.eye(n, dtype=kind)
    A[rng.random((n, n)) < rng.random()] = 0
    A += kind(n) * np.eye(n, dtype=kind) / kind(4)
    theta = (rng.standard_normal(n, dtype=kind) + kind(1)) * kind(10.0 ** rng.uniform(-2, 6))
    scale, rounds = kind(np.abs(theta).max()), bool(rng.random() < 0.5)

    def F(x: Array, theta: Array) -> Array:
        at = theta.astype(kind) if rounds else theta
        return np.asarray(A @ x + kind(0.5) * np.sin(x) - np.sin(at) - at / scale, dtype=kind)

    declared: dict[str, Any] = [
        {},
        {"structure": ims.Sparse(A != 0)},
        {"jac": lambda x, theta: scipy.sparse.csr_array(A + np.diag(kind(0.5) * np.cos(x)))},
        {"bounds": (np.full(n, -50, kind), np.full(n, 50, kind))},
        {"structure": ims.BlockBanded(0, 0, n)},
    ][rng.integers(5)]
    if "jac" in declared:
        declared = {"jac": lambda x, jac=declared["jac"]: jac(x, theta)}
    problem = ims.Problem(F, parameters={"theta": theta}, **declared)
    x0 = rng.standard_normal(n, dtype=kind)
    result = ims.root(problem, x0)
    assert result.x.dtype == result.fun.dtype == kind, result.x.dtype
    start = result.x if result.success else x0  # there may be more than one root
    exact = ims.root(
        lambda x: A.astype(float) @ x + 0.5 * np.sin(x) - np.sin(theta.astype(float)) - theta / scale,
        start.astype(float),
    )
    error = np.abs(result.x - exact.x).max() / np.abs(exact.x).max()
    claim = f"{list(declared)}, theta of {scale:.2g}, {result.status.name}, error {error:.2g}"
    assert not (result.success and exact.success) or error <= RIGHT_IN_SINGLE, f"false success: {claim}"
    if not (result.success and exact.success):
        return 2
    J = A + np.diag(0.5 * np.cos(exact.x))
    slope, c = np.cos(theta.astype(float)) + 1 / scale, rng.standard_normal(n, dtype=kind)
    back, forward = ims.pull_back(problem, result, c), ims.push_forward(problem, result, {"theta": c})
    expected = slope * np.linalg.solve(J.T, c), np.linalg.solve(J, slope * c)
    for found, value, right in zip((back, forward), (back.gradients["theta"], forward.tangent), expected, strict=True):
        error = np.linalg.norm(value - right) / np.linalg.norm(right)
        assert not found.success or error <= 3e-2, f"{type(found).__name__}: error {error:.2g}: {claim}"
    return 4


def signals(rng: np.random.Generator) -> int:
    """What a signal handler raises passes unchanged at any time, and leaves nothing behind."""
    system, chosen = known(rng), method(rng)
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return 0
    clean = ims.root(system.residual, system.x0.copy(), method=chosen)
    fired = [0]

    def handler(number: int, frame: Any) -> None:
        fired[0] += 1
        raise Interruption(number)

    before, hook = signal.signal(signal.SIGALRM, handler), sys.unraisablehook
    raised, dropped = False, list[object]()
    sys.unraisablehook = dropped.append  # Python itself drops what is raised in callbacks of weak references
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, 10.0 ** rng.uniform(-4, -1.5))
            ims.root(system.residual, system.x0.copy(), method=chosen)
        finally:  # where the signal may come, too
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interruption:
        raised = True
    finally:
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook
    assert raised == (fired[0] > len(dropped)), f"the exception of a signal was swallowed: {system.kind} by {chosen}"
    again = ims.root(system.residual, system.x0.copy(), method=chosen)
    assert np.array_equal(clean.x, again.x, equal_nan=True), f"other bits after a signal: {system.kind} by {chosen}"
    return 3


def locales(rng: np.random.Generator) -> int:
    """Decimal commas change neither results nor what is printed or stored."""
    if shutil.which("localedef") is None:
        return 0
    system, said = known(rng), list[tuple[str, ...]]()
    before, path = locale.setlocale(locale.LC_ALL), os.environ.get("LOCPATH")
    with tempfile.TemporaryDirectory() as folder:
        name = ("de_DE", "fr_FR", "ar_SA", "tr_TR")[rng.integers(4)]
        made = subprocess.run(
            ["localedef", "-i", name, "-f", "UTF-8", f"{folder}/{name}.UTF-8"], check=False, capture_output=True
        )
        if made.returncode > 1:  # 1: warnings
            return 0
        os.environ["LOCPATH"] = folder
        try:
            for each in ("C", f"{name}.UTF-8"):
                locale.setlocale(locale.LC_ALL, each)
                result = ims.root(system.residual, system.x0.copy())
                file = Path(folder) / f"solve {each}"
                stored = ims.drivers.checkpointed(ims.Problem(system.residual), system.x0, file)
                again = ims.drivers.checkpointed(ims.Problem(system.residual), system.x0, file)
                assert np.array_equal(stored.x, again.x, equal_nan=True)
                said.append(
                    (repr(result), result.summary(), str(ims.NonlinearStop(atol=1e-5)), repr(result.x.tolist()))
                )
        finally:
            locale.setlocale(locale.LC_ALL, before)
            os.environ.pop("LOCPATH") if path is None else os.environ.__setitem__("LOCPATH", path)
    assert said[0] == said[1], f"{name} prints something else: {said}"
    return 4


def jax(rng: np.random.Generator) -> int:
    """The JAX entry: roots, statuses, and derivatives by `grad`, `jvp`, `vmap` and `jit`."""
    if importlib.util.find_spec("jax") is None:
        return 0
    import jax
    import jax.numpy as jnp

    import implicitsolve.jax as entry

    jax.config.update("jax_enable_x64", True)
    n, has_root = int(rng.integers(1, 8)), bool(rng.random() < 0.8)
    A = rng.standard_normal((n, n)) / n + 3 * np.eye(n)
    x0, t = jnp.asarray(10.0 ** rng.uniform(-3, 2) * rng.standard_normal(n)), jnp.asarray(rng.uniform(0.5, 2, n))

    def F(x: Any, t: Any) -> Any:
        return jnp.asarray(A) @ x + jnp.sin(x) - t if has_root else x**2 + t

    def solve(t: Any) -> Any:
        return entry.root(F, x0, t)

    compiles = jax.jit if rng.random() < 0.5 else lambda function: function
    result = compiles(solve)(t)
    if not has_root:
        assert not bool(result.success), "success without a root"
        return 1
    exact = ims.root(lambda x: A @ x + np.sin(x) - np.asarray(t), np.asarray(x0))
    error = np.abs(np.asarray(result.x) - exact.x).max()
    assert not (bool(result.success) and exact.success) or error <= RIGHT, f"false success: error {error:.2g}"
    c = rng.standard_normal(n)
    slope = np.linalg.inv(A + np.diag(np.cos(exact.x)))
    match int(rng.integers(3)):
        case 0:
            found, expected = compiles(jax.grad(lambda t: (jnp.asarray(c) * solve(t).x).sum()))(t), slope.T @ c
        case 1:
            forward = compiles(lambda t: jax.jvp(lambda t: solve(t).x, (t,), (jnp.asarray(c),))[1])
            found, expected = forward(t), slope @ c
        case _:
            several = jnp.stack([t, 2 * t, t + 1])
            found = compiles(jax.vmap(lambda t: solve(t).x))(several)
            expected = np.stack([np.asarray(solve(one).x) for one in several])
    error = np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected)
    assert not np.isfinite(np.asarray(found)).all() or error <= 3e-4, (
        f"derivative or batch with an error of {error:.2g}"
    )
    return 2


def petsc(rng: np.random.Generator) -> int:
    """PETSc's SNES as a method: no false success, no point that is not finite, exceptions that pass."""
    if importlib.util.find_spec("petsc4py") is None:
        return 0
    from implicitsolve.petsc import PETScSNES

    solved = 0
    for _ in range(20):
        system = known(rng)
        if system.x0.ndim != 1 or system.x0.size > 100:
            continue
        options = {
            "ksp_gmres_restart": int(rng.integers(5, 60)),
            "snes_type": ("newtonls", "newtontr")[rng.integers(2)],
        }
        structure = (None, "none", ims.BlockBanded(0, 0, system.x0.size))[rng.integers(3)]
        calls, fails = [0], int(rng.integers(1, 60))

        def F(x: Array, system: Any = system, calls: list[int] = calls, fails: int = fails) -> Array:
            calls[0] += 1
            if calls[0] == fails:
                raise Refusal(fails)
            return system.residual(x)

        watched = Watched(system.residual)
        if options["snes_type"] == "newtontr" and structure is None:
            structure = "none"
        try:
            chosen = PETScSNES(options)
            result = ims.root(ims.Problem(watched, structure=structure), system.x0.copy(), method=chosen)
        except (TypeError, ValueError):  # what this method does not take
            continue
        claim = f"{system.kind}, {options}, {structure}: {result.status.name}, error {system.error(result.x):.2g}"
        assert not result.success or system.error(result.x) <= RIGHT, f"false success: {claim}"
        assert not watched.wrong, f"{watched.wrong[0]}: {claim}"
        with contextlib.suppress(Refusal):
            ims.root(ims.Problem(F, structure=structure), system.x0.copy(), method=chosen)
            assert calls[0] < fails, f"an exception at call {fails} was swallowed: {claim}"
        solved += 2
    return solved


def ranks(rng: np.random.Generator) -> int:
    """Lines and planes whose points are on several ranks of MPI have the roots and gradients of one process."""
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None or importlib.util.find_spec("petsc4py") is None or importlib.util.find_spec("mpi4py") is None:
        return 0
    script = Path(__file__).with_name("ranks.py")
    command = [mpiexec, "-n", str(int(rng.integers(2, 5))), sys.executable, str(script), str(int(rng.integers(2**31)))]
    environment = os.environ | RANKS | {"PYTHONPATH": str(script.parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-600:]
    return int(done.stdout.split()[-1])
