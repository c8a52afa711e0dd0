"""Doctests of packages whose optional dependency is missing are not collected; each file is run by one worker."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

OPTIONAL = {
    "matplotlib": "implicitsolve/diagnostics/_plots.py",
    "torch": "implicitsolve/torch/*",
    "jax": "implicitsolve/jax/*",
    "petsc4py": "implicitsolve/petsc/*",
    "numba": "implicitsolve/backends/numba/*",
    "cupy": "implicitsolve/backends/cupy/*",
}

collect_ignore_glob = [files for name, files in OPTIONAL.items() if find_spec(name) is None]


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests go to one worker, so that two do not compile the same kernels at the same time."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture(autouse=True, scope="session")
def _doctests_are_the_user_s(doctest_namespace: dict[str, Any]) -> None:
    """Functions in examples belong to the user, and not to the module of their docstring: traces tell them apart."""
    doctest_namespace["__name__"] = "__main__"
