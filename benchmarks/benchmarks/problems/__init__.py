"""Nonlinear systems with a standard start, and a known root where there is one: for the tests and the benchmarks."""

from __future__ import annotations

from .classic import burkardt_problems, classic_problems
from .differential import pde_gallery
from .problem import GalleryProblem


def everything(size: str = "small") -> list[GalleryProblem]:
    """All three sets: classic, Burkardt's, and `pde_gallery` in the given size."""
    return [*classic_problems(), *burkardt_problems(), *pde_gallery(size)]


def get(name: str, size: str = "small") -> GalleryProblem:
    """Find the problem of a name, such as "mgh04-wood" or "bratu-2d"; the size is that of `pde_gallery`."""
    problems = {problem.name: problem for problem in everything(size)}
    if name not in problems:
        raise KeyError(f"no gallery problem {name!r}; there are {', '.join(problems)}")
    return problems[name]


__all__ = ["GalleryProblem", "burkardt_problems", "classic_problems", "everything", "get", "pde_gallery"]
