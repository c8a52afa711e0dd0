"""What is installed here: versions, machine, threads and backends, or the reason why one is not known."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import array_api_compat
import numpy as np
import scipy

import implicitsolve
from implicitsolve import kernels
from implicitsolve.adapters import kernels as layers
from implicitsolve.kernels._contract import INSTALL, PLUG_INS

Section: TypeAlias = dict[str, str]

OPTIONAL = ("numba", "cupy", "torch", "mpi4py", "matplotlib")
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# Queried in a subprocess: an MPI library that does not find its parts may end the process.
MPI_LIBRARY = """
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0])
"""
DIRECTORIES = re.compile(r"(?<![\w.:/\\])(?:[A-Za-z]:|~)?(?:[\\/][^\\/\s'\":,]+)+(?=[\\/])")


def environment() -> dict[str, Section]:
    """What a reader of a bug report asks first, by section."""
    return {
        "versions": versions(),
        "platform": machine(),
        "backends": {name: backend(name) for name in ("reference", "lapack", *PLUG_INS)},
        "GPU": gpus(),
        "threads": threads(),
    }


def cleaned(text: str) -> str:
    """The first line of a message, without names of folders, of the user or of the machine."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    home = os.path.expanduser("~")  # pathlib raises where there is none
    line = line.replace(home, "~") if len(Path(home).parts) > 1 else line
    return DIRECTORIES.sub("...", line).replace(socket.gethostname() or "\0", "<host>")[:200]


def reason(error: BaseException) -> str:
    """What was raised, on one line."""
    return f"{type(error).__name__}: {cleaned(str(error))}".removesuffix(": ")


def answered(question: Callable[[], str]) -> str:
    """The answer, or why there is none. What a package raises when it is broken can be anything."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return question()
    except Exception as error:  # noqa: BLE001
        return reason(error)


def versions(optional: Sequence[str] | None = None) -> Section:
    """Of this package, of what it needs and of what it can use."""
    return {
        "implicitsolve": implicitsolve.__version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "NumPy": f"{np.__version__} ({answered(lambda: _blas(np))})",
        "SciPy": f"{scipy.__version__} ({answered(lambda: _blas(scipy))})",
        "array-api-compat": array_api_compat.__version__,
        **{name: package(name) for name in (OPTIONAL if optional is None else optional)},
    }


def is_installed(name: str) -> bool:
    """Whether an optional package is there, working or not."""
    return importlib.util.find_spec(name) is not None


def package(name: str) -> str:
    """Version of an optional package, "not installed", or what its import raised."""
    if not is_installed(name):
        return "not installed"
    version = answered(lambda: str(importlib.import_module(name).__version__))
    return f"{version} ({answered(_mpi_library)})" if name == "mpi4py" else version


def _blas(module: Any) -> str:
    blas = module.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{blas['name']} {blas['version']}"


def _mpi_library() -> str:
    requested = subprocess.run(
        [sys.executable, "-c", MPI_LIBRARY], capture_output=True, text=True, timeout=20, check=False
    )
    output = requested.stderr if requested.returncode else requested.stdout
    return cleaned((output.strip().splitlines() or [f"exit status {requested.returncode}"])[-1])


def machine() -> Section:
    """What the solver runs on."""
    affinity = getattr(os, "sched_getaffinity", None)
    usable = os.cpu_count() if affinity is None else len(affinity(0))
    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "CPUs": f"{usable} usable of {os.cpu_count()}",
    }


def has_device() -> bool:
    """Whether CuPy finds a CUDA device."""
    return is_installed("cupy") and answered(lambda: str(_runtime().getDeviceCount() > 0)) == "True"


def gpus() -> Section:
    """The CUDA devices visible to CuPy, and the driver's version."""
    return {"CUDA": answered(_devices) if is_installed("cupy") else "not known without CuPy"}


def _runtime() -> Any:
    return importlib.import_module("cupy").cuda.runtime


def _devices() -> str:
    runtime = _runtime()
    devices = [runtime.getDeviceProperties(i) for i in range(runtime.getDeviceCount())]
    names = [f"{device['name'].decode()}, {device['totalGlobalMem'] / 2**30:.0f} GiB" for device in devices]
    driver, own = (_dotted(version) for version in (runtime.driverGetVersion(), runtime.runtimeGetVersion()))
    return f"{'; '.join(names) or 'no device'} (driver for CUDA {driver}, runtime {own})"


def _dotted(version: int) -> str:
    """CUDA's 13020 as 13.2."""
    return f"{version // 1000}.{version % 1000 // 10}"


def backend(name: str) -> str:
    """The kernels a backend implements, from the registry after loading it; or why it is not available."""
    named = {**vars(kernels), **vars(layers)}
    declared = [kernel for kernel in named.values() if isinstance(kernel, kernels.Kernel)]
    if name == "reference":
        return f"{len(declared)} kernels"
    if name in PLUG_INS:
        if not is_installed(name):
            return f"not installed: {INSTALL[name]}"
        try:
            count = sum(kernel.load(name) for kernel in declared)
        except Exception as error:  # noqa: BLE001
            return reason(error)
    else:
        count = sum(name in kernel.implementations for kernel in declared)
    return f"{count} of {len(declared)} kernels"


def threads(libraries: Sequence[str] = ("numba", "torch")) -> Section:
    """What limits the threads of each library; those of BLAS only where threadpoolctl is installed."""
    found = {name: os.environ.get(name, "not set") for name in THREAD_VARIABLES}
    for name in filter(is_installed, libraries):
        found[name] = answered(partial(_thread_count, name))
    if is_installed("threadpoolctl"):
        found["BLAS and OpenMP"] = answered(_pools)
    return found


def _thread_count(name: str) -> str:
    return str(importlib.import_module(name).get_num_threads())


def _pools() -> str:
    pools = importlib.import_module("threadpoolctl").threadpool_info()
    return ", ".join(sorted(f"{p['internal_api']} {p['version'] or '?'}: {p['num_threads']}" for p in pools))
