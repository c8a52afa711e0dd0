"""Report of `python -m implicitsolve`: versions, machine and backends, and solves with known answers, part by part."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import socket
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import array_api_compat
import numpy as np
import scipy

import implicitsolve as ims
from implicitsolve import kernels
from implicitsolve.adapters import kernels as layers
from implicitsolve.kernels._contract import INSTALL, PLUG_INS

Section: TypeAlias = dict[str, str]

OPTIONAL = ("numba", "cupy", "torch", "jax", "mpi4py", "matplotlib")
THREAD_VARIABLES = [f"{name}_NUM_THREADS" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA")]
THREAD_VARIABLES += ["VECLIB_MAXIMUM_THREADS"]
DIRECTORIES = re.compile(r"(?<![\w.:/\\])(?:[A-Za-z]:|~)?(?:[\\/][^\\/\s'\":,]+)+(?=[\\/])")


def environment() -> dict[str, Section]:
    return {
        "versions": versions(),
        "platform": machine(),
        "backends": {name: backend(name) for name in ("reference", "lapack", *PLUG_INS)},
        "GPU": {"CUDA": ask(_devices) if is_installed("cupy") else "not known without CuPy"},
        "threads": threads(),
    }


def lines_of(sections: Mapping[str, Section]) -> list[str]:
    """Sections as lines: a title, and below it names with their values."""
    width = max(len(name) for section in sections.values() for name in section)
    return [
        line
        for title, section in sections.items()
        for line in (title, *(f"  {n:{width}}  {v}" for n, v in section.items()))
    ]


def anonymize(text: str) -> str:
    """The first line of a message, without names of folders, of the user or of the machine."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    home = os.path.expanduser("~")  # pathlib raises where there is none
    line = line.replace(home, "~") if len(Path(home).parts) > 1 else line
    return DIRECTORIES.sub("...", line).replace(socket.gethostname() or "\0", "<host>")[:200]


def reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {anonymize(str(error))}".removesuffix(": ")


def ask(question: Callable[[], str]) -> str:
    """The answer, or why there is none: a broken package may raise any exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return question()
    except Exception as error:  # noqa: BLE001
        return reason(error)


def versions(optional: Sequence[str] | None = None) -> Section:
    """Versions of this package, of its dependencies, and of the optional packages."""
    return {
        "implicitsolve": ims.__version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "NumPy": f"{np.__version__} ({ask(lambda: _blas(np))})",
        "SciPy": f"{scipy.__version__} ({ask(lambda: _blas(scipy))})",
        "array-api-compat": array_api_compat.__version__,
        **{name: package(name) for name in (OPTIONAL if optional is None else optional)},
    }


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def package(name: str) -> str:
    return ask(lambda: str(importlib.import_module(name).__version__)) if is_installed(name) else "not installed"


def _blas(module: Any) -> str:
    blas = module.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{blas['name']} {blas['version']}"


def machine() -> Section:
    affinity = getattr(os, "sched_getaffinity", None)
    usable = os.cpu_count() if affinity is None else len(affinity(0))
    cpus = f"{usable} usable of {os.cpu_count()}"
    return {"system": platform.platform(), "processor": platform.machine(), "CPUs": cpus}


def has_device() -> bool:
    return is_installed("cupy") and ask(lambda: str(_runtime().getDeviceCount() > 0)) == "True"


def _runtime() -> Any:
    return importlib.import_module("cupy").cuda.runtime


def _devices() -> str:
    runtime = _runtime()
    devices = [runtime.getDeviceProperties(i) for i in range(runtime.getDeviceCount())]
    names = [f"{device['name'].decode()}, {device['totalGlobalMem'] / 2**30:.0f} GiB" for device in devices]
    numbers = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    driver, own = (f"{number // 1000}.{number % 1000 // 10}" for number in numbers)  # 13020 is 13.2
    return f"{'; '.join(names) or 'no device'} (driver for CUDA {driver}, runtime {own})"


def backend(name: str) -> str:
    """The kernels a backend implements, from the registry after loading it; or why it is not available."""
    named = {**vars(kernels), **vars(layers)}
    declared = [kernel for kernel in named.values() if isinstance(kernel, kernels.Kernel)]
    if name in PLUG_INS and not is_installed(name):
        return f"not installed: {INSTALL[name]}"
    if name == "reference":
        return f"{len(declared)} kernels"

    def count() -> str:
        has = [kernel.load(name) if name in PLUG_INS else name in kernel.implementations for kernel in declared]
        return f"{sum(has)} of {len(declared)} kernels"

    return ask(count)


def threads() -> Section:
    """The limits of threads of each library; those of BLAS only if threadpoolctl is installed."""
    found = {name: os.environ.get(name, "not set") for name in THREAD_VARIABLES}
    return found | ({"BLAS and OpenMP": ask(_pools)} if is_installed("threadpoolctl") else {})


def _pools() -> str:
    pools = importlib.import_module("threadpoolctl").threadpool_info()
    return ", ".join(sorted(f"{p['internal_api']} {p['version'] or '?'}: {p['num_threads']}" for p in pools))


TIGHT = ims.NonlinearStop(rtol=0.0, atol=1e-12)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 20)  # 8 is the last that has code of its own; 16 and more call BLAS


@dataclass(frozen=True, kw_only=True)
class Check:
    """Outcome of one part; `reason` is "" where it passed."""

    name: str
    ok: bool
    reason: str
    seconds: float


def list_parts() -> dict[str, Callable[[], None]]:
    """The parts by name; what is not installed has none."""
    backends = ["reference", "lapack", *(name for name in ("numba",) if is_installed(name))]
    backends += ["cupy"] if has_device() else []
    return {
        "newton_krylov": check_newton_krylov,
        "batch, a status for each system": check_batch,
        "implicit GRU, adjoint and gradients": check_layer_gradients,
        **{f"block LU by {name} against dense": partial(check_block_lu, name) for name in backends},
        **({"gradients in torch": check_torch} if is_installed("torch") else {}),
        **({"gradients in JAX": check_jax} if is_installed("jax") else {}),
    }


def try_part(name: str, part: Callable[[], None]) -> Check:
    start, found = time.perf_counter(), ""
    try:
        part()
    except Exception as error:  # noqa: BLE001 (a part that fails in any way leaves the others alone)
        found = reason(error)
    return Check(name=name, ok=not found, reason=found, seconds=round(time.perf_counter() - start, 3))


def agree(what: str, found: Any, expected: Any, bound: float) -> None:
    """Raise an AssertionError unless the largest difference is at most `bound`, which NaN is not."""
    error = float(np.max(np.abs(np.asarray(found) - np.asarray(expected))))
    if not error <= bound:
        raise AssertionError(f"{what} differs by {error:.1e}, at most {bound:.0e} was expected")


def check_newton_krylov() -> None:
    """x^3 + x = 10 for many unknowns."""
    agree("x", ims.newton_krylov(lambda x: x**3 + x - 10, np.ones(30), f_tol=1e-12), 2.0, 1e-10)


def check_batch() -> None:
    """x^2 = a has a root, none, and no value."""
    a = np.asarray([[4.0], [-1.0], [np.nan]])
    result = ims.root(ims.Problem(lambda x: x**2 - a, batch_ndim=1), np.ones((3, 1)))
    expected = [True, False, False]
    if result.success.tolist() != expected:
        raise AssertionError(f"success is {result.success.tolist()}, expected {expected}")
    agree("x", result.x[0], 2.0, 1e-6)
    if result.status[2] != ims.Status.NONFINITE:
        raise AssertionError(f"the status of a residual without value is {result.status[2]}")


def check_layer_gradients() -> None:
    """<J v, w> = <v, J^H w>, and a gradient against central differences of solutions."""
    rng = np.random.default_rng(0)  # as many states as make Numba's kernels pay
    params, inputs = ims.adapters.gru_parameters(4, 32, scale=0.3, rng=rng), rng.standard_normal((3, 5, 4))
    cotangent, direction = rng.standard_normal((3, 5, 32)), rng.standard_normal(inputs.shape)

    def solve(step: float) -> tuple[ims.Problem, ims.NonlinearResult]:
        layer = ims.adapters.implicit_gru(params, inputs + step * direction)
        return layer, ims.root(layer, stop=TIGHT).raise_for_status()

    layer, result = solve(0.0)
    agree("the adjoint", ims.testing.dot_test(ims.jacobian(layer, result.x)), 0.0, 1e-12)
    reverse = ims.pull_back(layer, result, cotangent, stop=ims.LinearStop(rtol=1e-10)).raise_for_status()
    expected = np.sum(cotangent * (solve(1e-4)[1].x - solve(-1e-4)[1].x)) / 2e-4
    agree("the gradient", np.sum(reverse.gradients["inputs"] * direction) / expected, 1.0, 1e-5)


def check_block_lu(backend: str) -> None:
    """Two block tridiagonal systems."""
    rng = np.random.default_rng(2)
    blocks, b = rng.standard_normal((2, 20, 3, 3, 3)), rng.standard_normal((2, 20, 3))
    blocks[:, :, 1] += 8 * np.eye(3)
    dense = ims.BlockBandedMatrix(blocks, lower=1, upper=1).todense()
    expected = np.linalg.solve(dense, b.reshape(2, 60, 1)).reshape(b.shape)
    if backend == "cupy":
        cupy: Any = importlib.import_module("cupy")
        blocks, b = cupy.asarray(blocks), cupy.asarray(b)
    A = ims.BlockBandedMatrix(blocks, lower=1, upper=1)
    x: Any = ims.linear_solve(A, b, method=ims.BlockLU(backend=backend)).raise_for_status().x
    agree("x", x.get() if backend == "cupy" else x, expected, 1e-10)


def check_torch() -> None:
    """d sqrt(a) / da at 4."""
    torch: Any = importlib.import_module("torch")
    bridge: Any = importlib.import_module("implicitsolve.torch")
    a = torch.tensor([4.0], dtype=torch.float64, requires_grad=True)
    bridge.solve(lambda x, a: x**2 - a, torch.ones_like(a), a, stop=TIGHT).sum().backward()
    agree("the gradient", a.grad.item(), 0.25, 1e-6)


def check_jax() -> None:
    """d sqrt(a) / da at 4, in JAX's default precision."""
    jax: Any = importlib.import_module("jax")
    bridge: Any = importlib.import_module("implicitsolve.jax")
    gradient = jax.grad(lambda a: bridge.root(lambda x, a: x**2 - a, a, a).x)(4.0)
    agree("the gradient", gradient, 0.25, 1e-4)


def list_compilations() -> dict[str, Callable[[], None]]:
    """What is compiled, by name: what solves of real systems use, by small ones of each kind."""
    if not is_installed("numba"):
        return {}
    types = ("float64", "float32")
    return {
        **{f"block LU, k = {k}, {dtype}": partial(compile_block_lu, k, dtype) for dtype in types for k in SIZES},
        **{f"layers, {dtype}": partial(compile_layers, dtype) for dtype in types},
        **{f"newton_batch, {dtype}": partial(compile_newton_batch, dtype) for dtype in types},
    }


def compile_block_lu(k: int, dtype: str) -> None:
    """Factor and solve with one or two blocks below the diagonal."""
    rng = np.random.default_rng(0)
    for lower in (1, 2):
        blocks = rng.uniform(-0.1, 0.1, (2, 40, lower + 2, k, k)).astype(dtype)
        blocks[:, :, lower] += np.eye(k, dtype=dtype)
        for pivoting in ("block", "band"):
            inverse = ims.BlockLU(pivoting=pivoting).factor(ims.BlockBandedMatrix(blocks, lower=lower, upper=1))
            inverse.matvec(np.ones((2, 40, k), dtype))
            inverse.rmatvec(np.ones((2, 40, k), dtype))


def compile_layers(dtype: str) -> None:
    rng, layers = np.random.default_rng(0), ims.adapters
    inputs = rng.standard_normal((3, 9, 4)).astype(dtype)
    makers = {"gru": layers.implicit_gru, "lstm": layers.implicit_lstm, "rnn": layers.implicit_rnn}
    for name, make in (makers | {"elman": layers.elman}).items():
        parameters = getattr(layers, f"{name}_parameters")(4, 64, scale=0.1, rng=rng)
        layer: Any = make({key: value.astype(dtype) for key, value in parameters.items()}, inputs)
        result = ims.root(layer)
        ims.pull_back(layer, result, np.ones_like(result.x))


def compile_newton_batch(dtype: str) -> None:
    """In lanes, and as a batch."""
    ims.newton_batch(lambda x, p: x**2 - p, np.ones((3, 2), dtype), np.asarray([[4.0], [9.0], [-1.0]]))
