"""Systems with sparse Jacobians that declare nothing: residuals as callers bring them.

Unlike the entries of `benchmarks.benchmarks.problems` these are plain NumPy functions, as cheap as NumPy makes them,
so that elapsed times show what a solver itself takes.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.benchmarks.problems import GalleryProblem as SparseProblem
from benchmarks.sparse_problems import lines, networks, planes


def sparse_gallery(size: str = "small") -> list[SparseProblem]:
    """Return all: about 30 problems with some hundreds ("quick"), thousands ("small") or ten thousands of unknowns."""
    n = {"quick": 24, "small": 48, "full": 128}[size]
    line = {"quick": 400, "small": 1000, "full": 10000}[size]
    cube = {"quick": 9, "small": 16, "full": 32}[size]
    plane: list[Callable[[int], SparseProblem]] = [
        planes.p_laplacian,
        planes.allen_cahn,
        planes.gray_scott,
        planes.cahn_hilliard,
        planes.swift_hohenberg,
        planes.brusselator,
        planes.convection_diffusion,
        planes.upwind,
        planes.minimal_surface,
        planes.poisson_boltzmann,
        planes.radiation,
        planes.obstacle,
        planes.porous_medium,
        planes.ginzburg_landau,
        planes.food_web,
        planes.driven_cavity,
    ]
    return [
        planes.bratu(1, line),
        planes.bratu(2, n),
        planes.bratu(3, cube),
        planes.permuted_bratu(line),
        planes.reaction_cube(cube),
        *(make(n) for make in plane),
        *lines.line_problems(line),
        *networks.network_problems(line),
    ]
