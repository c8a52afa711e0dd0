"""Doctests of packages whose optional dependency is missing are not collected."""

from __future__ import annotations

from importlib.util import find_spec

OPTIONAL = {
    "matplotlib": "implicitsolve/diagnostics/_plots.py",
    "torch": "implicitsolve/torch/*",
    "numba": "implicitsolve/backends/numba/*",
    "cupy": "implicitsolve/backends/cupy/*",
}

collect_ignore_glob = [files for name, files in OPTIONAL.items() if find_spec(name) is None]
