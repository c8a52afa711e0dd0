"""Make the solvers of a workload and let them run."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.benchmarks.workloads import WORKLOADS
from benchmarks.peers._measure import Race, Row, Solver

RIVALS = ("scipy", "numpy", "torchdeq", "torch", "jaxopt", "optimistix", "jax", "casadi", "petsc")
OPTIONAL = ("torch", "torchdeq", "jax", "jaxopt", "optimistix", "lineax", "casadi", "petsc4py")
PACKAGES = ("numpy", "scipy", "numba", *OPTIONAL)
SLOW_SETUP = ("casadi", "W1")  # the sparsity pattern of a Jacobian with 10^8 entries


def offers(rival: str, workload: Any) -> tuple[list[Solver], list[Row]]:
    """The solvers of a rival, or a row that says that it is not installed."""
    try:
        module = importlib.import_module(f"benchmarks.peers.rivals.{rival}")
    except ImportError as error:
        return [], [Row(rival, "", False, f"not installed: {error}")]
    return module.solvers(workload), []


def measure(key: str, rivals: Sequence[str], race: Race, patient: bool = False) -> dict[str, Any]:
    """All rows of a workload, as a record."""
    workload = WORKLOADS[key]()
    solvers, missing = offers("ours", workload)[0], []
    for rival in rivals:
        if (rival, key[:2]) == SLOW_SETUP and not patient:
            missing.append(Row(rival, "", False, "not run: its set-up takes minutes (--patient)"))
            continue
        found, rows = offers(rival, workload)
        solvers += found
        missing += rows
    rows = race.run(workload, solvers) + missing
    return {
        "key": key,
        "name": workload.name,
        "target": float(workload.target),
        "rows": [row.record() for row in rows],
    }


def about(threads: int, clock: str) -> dict[str, Any]:
    """Versions and machine."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "threads": threads,
        "clock": clock,
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": dict(installed()),
    }


def installed() -> Iterator[tuple[str, str]]:
    """Packages that are there, with their versions."""
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "not installed"


def processor() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
