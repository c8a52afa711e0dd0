"""Doctests of packages whose optional dependency is missing are not collected; each file is run by one worker."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

OPTIONAL = {  # files, and the package that they need
    "implicitsolve/diagnostics/_plots.py": "matplotlib",
    "implicitsolve/torch/*": "torch",
    "implicitsolve/jax/*": "jax",
    "implicitsolve/tracing/*": "jax",
    "implicitsolve/petsc/*": "petsc4py",
    "implicitsolve/backends/numba/*": "numba",
    "implicitsolve/backends/cupy/*": "cupy",
}

collect_ignore_glob = [files for files, name in OPTIONAL.items() if find_spec(name) is None]


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests go to one worker, so that two do not compile the same kernels at the same time."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture(autouse=True, scope="session")
def _doctests_are_the_user_s(doctest_namespace: dict[str, Any]) -> None:
    """Examples assume two imports; their functions belong to the user, not to the module: traces tell them apart."""
    doctest_namespace |= {"__name__": "__main__", "np": import_module("numpy"), "ims": import_module("implicitsolve")}
