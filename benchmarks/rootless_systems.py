"""Systems without roots, by kind, and hard ones with roots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

import implicitsolve as ims
from benchmarks.benchmarks.problems import classic_problems, pde_gallery
from benchmarks.robustness import started
from benchmarks.sparse_problems import lines, planes

Residual = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """A problem and its start."""

    group: str
    name: str
    problem: Any
    x0: Any
    atol: float = 0.0  # to which a system with a root is solved; relative by default

    @property
    def start(self) -> Any:
        """The start, where the problem has one of its own."""
        return self.problem.initial_guess("default", None) if self.x0 is None else self.x0


def second(u: Any) -> Any:
    """Second differences with zeros at both ends."""
    p = np.pad(u, 1)
    return p[2:] - 2 * u + p[:-2]


def plane(u: Any) -> Any:
    """The five-point stencil with zeros around."""
    p = np.pad(u, 1)
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u


def pairs(x: Any, first: Residual, second: Residual) -> Any:
    """Equations of disjoint pairs of unknowns."""
    F = np.empty_like(x)
    F[::2], F[1::2] = first(x), second(x)
    return F


def singular_quartets(x: Any) -> Any:
    """Powell's singular function, whose squares cannot reach -1."""
    a, b, c, d = x[::4], x[1::4], x[2::4], x[3::4]
    F = np.empty_like(x)
    F[::4], F[1::4], F[2::4], F[3::4] = a + 10 * b, c - d, (b - 2 * c) ** 2 + 1, (a - d) ** 2 + 1
    return F


# Functions of one vector. None has a root, but for linear ones whose right-hand side is out of J's range.
FLAT: dict[str, Residual] = {
    "squares": lambda x: x**2 + 1,
    "coupled squares": lambda x: x**2 + 1 + 0.1 * np.roll(x, 1) + 0.1 * np.roll(x, -1),
    "squares and their mean": lambda x: x**2 + np.mean(x**2) + 1 - 0.2 * np.roll(x, 1),
    "steps": lambda x: np.floor(x) + 0.5,
    "signs": lambda x: np.where(x > 0.3, 1.0, -1.0) + 0.1 * np.tanh(np.roll(x, 1)),
    "decay": lambda x: np.exp(-x) + 1e-3,
    "hills": lambda x: 1 / (1 + x**2) + 0.01 * np.roll(np.cos(x), 1) + 0.05,
    "saturation": lambda x: np.tanh(x + 0.2 * np.roll(x, 1)) + 1.2,
    "hinges": lambda x: np.maximum(x, 0) + 0.1 * np.abs(np.roll(x, 1)) + 0.5,
    "ripples": lambda x: x**2 + 0.3 * np.sin(40 * x) + 1 + 0.1 * np.roll(x, 1),
    "Rosenbrock, shifted": lambda x: pairs(
        x, lambda x: 10 * (x[1::2] - x[::2] ** 2), lambda x: (1 - x[::2]) ** 2 + 0.1 + 0.01 * np.mean(x) ** 2
    ),
    "trigonometric, shifted": lambda x: (
        x.size - np.cos(x).sum() + np.arange(1, x.size + 1) * (1 - np.cos(x)) - np.sin(x) + 1.5
    ),
    "variably dimensioned, shifted": lambda x: (x - 1) ** 2 + 0.2 + (np.mean(x) - 1) ** 2,
}
SPARSE: dict[str, Residual] = {
    "Powell's singular, shifted": singular_quartets,
    "Broyden tridiagonal, shifted": lambda x: (3 - 2 * x) * x - np.pad(x, 1)[:-2] - 2 * np.pad(x, 1)[2:] - 4,
    "Bratu beyond the fold": lambda u: second(u) * (u.size + 1) ** 2 + 6 * np.exp(u),
    "Bratu far beyond the fold": lambda u: second(u) + 30 * np.exp(u) / (u.size + 1) ** 2,
    "Riccati on a long interval": lambda u: (
        second(u) * ((u.size + 1) / 4) ** 2 + ((np.pad(u, 1)[2:] - np.pad(u, 1)[:-2]) * (u.size + 1) / 8) ** 2 + 1
    ),
    "Neumann, source with a mean": lambda u: np.diff(np.pad(u, 1, mode="edge"), 2) * u.size + 1 + 0.1 * np.sin(u),
    "periodic, squares": lambda u: np.roll(u, 1) - 2 * u + np.roll(u, -1) - u**2 - 0.5,
}
PLANES: dict[str, Residual] = {
    "Bratu in the plane beyond the fold": lambda u: plane(u) * (len(u) + 1) ** 2 + 10 * np.exp(u),
    "reaction in the plane without a state": lambda u: plane(u) + 0.2 + u**2,
}
JVPS: dict[str, Callable[[Any, Any], Any]] = {
    "squares": lambda x, v: 2 * x * v,
    "saturation": lambda x, v: (v + 0.2 * np.roll(v, 1)) / np.cosh(x + 0.2 * np.roll(x, 1)) ** 2,
    "squares and their mean": lambda x, v: 2 * x * v + 2 * np.mean(x * v) - 0.2 * np.roll(v, 1),
}


def flat_start(n: int) -> Any:
    """Between 0.1 and 0.9."""
    return np.linspace(0.1, 0.9, n)


def near_identity(n: int, weight: float, shift: float, seed: int = 0) -> Residual:
    """x + tanh of a dense product, with one equation that has no root."""
    rng = np.random.default_rng(seed)
    A, b = weight * rng.standard_normal((n, n)) / n**0.5, rng.standard_normal(n)

    def F(x: Any) -> Any:
        value = x + np.tanh(A @ x) - b
        value[-1] = x[-1] ** 2 + np.mean(x) ** 2 + shift
        return value

    return F


def dense_linear(n: int) -> Residual:
    """A dense matrix of rank n - 1, and a right-hand side out of its range."""
    rng = np.random.default_rng(1)
    A = np.eye(n) + 0.3 * rng.standard_normal((n, n)) / n**0.5
    A[-1], b = A[0], np.ones(n)
    b[-1] = -1.0
    return lambda x: A @ x - b


def on_a_graph(n: int) -> Residual:
    """Squares coupled by a random graph."""
    rng = np.random.default_rng(2)
    A = scipy.sparse.csr_array(scipy.sparse.random(n, n, 3 / n, random_state=rng))
    return lambda x: x**2 + 1 + 0.2 * (A @ x)


def blocks(n: int, k: int) -> Any:
    """A line of n blocks, each coupled to both neighbours, in each of which one equation has no root."""
    rng = np.random.default_rng(3)
    W, U, b = (rng.standard_normal(shape) / k**0.5 for shape in ((k, k), (k, k), (n, k)))

    def F(h: Any) -> Any:
        p = np.pad(h, ((1, 1), (0, 0)))
        value = h - np.tanh(p[:-2] @ W + 0.5 * p[2:] @ U + b)
        value[:, -1] = h[:, -1] ** 2 + 0.1 * h[:, 0] + 1
        return value

    return F


def flat_cases() -> Iterator[Case]:
    """Systems of which nothing is declared, or products alone."""
    for name, F in FLAT.items():
        for n in (10, 60, 300, 2000):
            yield Case("nothing declared", name, F, flat_start(n))
    for n in (10, 60, 300, 1000):
        yield Case("dense", "near I, a square without a root", near_identity(n, 0.5, 1.0), np.zeros(n))
        yield Case("dense", "farther from I", near_identity(n, 3.0, 1.0), np.full(n, 0.5))
        yield Case("dense", "linear of rank N - 1", dense_linear(n), np.zeros(n))
        yield Case("dense", "H-equation, c = 1.2", h_equation(n, 1.2), np.ones(n))
    for name, jvp in JVPS.items():
        for n in (60, 2000):
            yield Case("products", name, ims.Problem(FLAT[name], jvp=jvp), flat_start(n))
    for name in ("squares", "squares and their mean", "saturation"):
        yield Case("nothing declared", name, FLAT[name], flat_start(100_000))


def h_equation(n: int, c: float) -> Residual:
    """Chandrasekhar's, with no real solution for c > 1."""
    mu = (np.arange(n) + 0.5) / n
    K = 0.5 * c / n * mu[:, None] / (mu[:, None] + mu)
    return lambda H: H - 1 / (1 - K @ H)


def sparse_cases() -> Iterator[Case]:
    """Systems with a sparse J, detected, declared, or switched off."""
    for name, F in SPARSE.items():
        for n in (20, 300, 2000):
            yield Case("sparse", name, F, np.full(n, 0.1) + 0.1 * np.sin(np.arange(n)))
    for name, F in PLANES.items():
        for m in (8, 45):
            yield Case("sparse", name, F, np.full((m, m), 0.1))
    for n in (200, 2000):
        yield Case("sparse", "squares on a random graph", on_a_graph(n), flat_start(n))
    yield Case("sparse", "Broyden tridiagonal, shifted", SPARSE["Broyden tridiagonal, shifted"], np.full(100_000, 0.1))
    yield Case("sparse", "Bratu beyond the fold", SPARSE["Bratu beyond the fold"], np.zeros(100_000))
    for name in ("Bratu beyond the fold", "Broyden tridiagonal, shifted", "periodic, squares"):
        plain = ims.Problem(SPARSE[name], structure="none")
        yield Case("sparsity switched off", name, plain, np.full(2000, 0.1))
    for name in ("Bratu beyond the fold", "Riccati on a long interval"):
        for n in (300, 2000):
            declared = ims.Problem(SPARSE[name], structure=ims.BlockBanded(1, 1))
            yield Case("declared blocks", name, declared, np.full(n, 0.1))
    for n, k in ((20, 4), (100, 20), (10, 80)):
        declared = ims.Problem(blocks(n, k), structure=ims.BlockBanded(1, 1, block_size=k))
        yield Case("declared blocks", f"line of blocks of {k}", declared, np.zeros((n, k)))


def without_fixed_point(n: int, seed: int = 0) -> Any:
    """A map that moves every point up."""
    rng = np.random.default_rng(seed)
    W, c = rng.standard_normal((n, n)) / n**0.5, rng.standard_normal(n)
    return ims.Problem(lambda x: -(W @ np.tanh(x)) - 4 - c**2 - 0.1 * x**2, fixed_point=True)


def rectified(n: int, seed: int = 0) -> Any:
    """A network of rectified units whose states grow without bound."""
    rng = np.random.default_rng(seed)
    W, c = np.abs(rng.standard_normal((n, n))) * 2 / n, np.abs(rng.standard_normal(n))
    return ims.Problem(lambda x: x - np.maximum(W @ x, 0) - c, fixed_point=True)


def translation(n: int) -> Any:
    """A rotation by small angles and a shift along its axis."""
    return ims.Problem(lambda x: 0.1 * np.sin(x - np.roll(x, 1)) - 1, fixed_point=True)


def layer(kind: str, scale: float) -> Any:
    """An implicit layer with large weights: bounded, so that it has a fixed point, but one that is hard to find."""
    rng = np.random.default_rng(4)
    inputs = rng.standard_normal((1, 20, 3))
    parameters = {"gru": ims.adapters.gru_parameters, "rnn": ims.adapters.rnn_parameters}[kind]
    build = {"gru": ims.adapters.implicit_gru, "rnn": ims.adapters.implicit_rnn}[kind]
    return build(parameters(3, 8, scale=scale, rng=rng), inputs)


def fixed_point_cases() -> Iterator[Case]:
    """Maps without fixed points."""
    for n in (10, 100, 1000):
        for seed in (0, 1):
            yield Case("fixed point", f"moves up, {seed}", without_fixed_point(n, seed), np.zeros(n))
        yield Case("fixed point", "rectified", rectified(n), np.zeros(n))
        yield Case("fixed point", "translation", translation(n), flat_start(n))


def batch(F: Residual) -> Residual:
    """The same for each row."""
    return lambda x: np.stack([F(row) for row in x]) if len(x) else x


def batch_cases() -> Iterator[Case]:
    """Batches in which no system has a root."""
    for systems, n in ((5, 10), (5, 20), (3, 60)):
        scales = np.linspace(0.5, 2, systems)[:, None]
        for name in ("coupled squares", "hinges", "hills", "squares and their mean", "Rosenbrock, shifted"):
            problem = ims.Problem(batch(FLAT[name]), batch_ndim=1)
            yield Case("batch", name, problem, scales * flat_start(n))
    for systems, n in ((4, 200), (20, 50)):
        declared = ims.Problem(batch(SPARSE["Bratu beyond the fold"]), structure=ims.BlockBanded(1, 1), batch_ndim=1)
        yield Case("batch", "Bratu beyond the fold, declared", declared, 0.1 * np.ones((systems, n)))


def hopeless_cases() -> list[Case]:
    """All systems that are to be given up."""
    return [*flat_cases(), *sparse_cases(), *fixed_point_cases(), *batch_cases()]


def layer_cases() -> list[Case]:
    """Layers with weights so large that most of them are given up."""
    return [Case("layer", f"{kind.upper()}, weights 3", layer(kind, 3.0), None) for kind in ("rnn", "gru")]


def solvable_cases() -> list[Case]:
    """Hard systems with roots."""
    classic = classic_problems()
    cases = [
        Case("solvable", f"{p.name} from {factor} x0", p.residual, started(p, factor), p.tolerance())
        for p, factor in ((p, factor) for p in classic for factor in (10, 100))
        if p.size >= 6
    ]
    cases += [Case("solvable", p.name, p.residual, p.x0, p.tolerance()) for p in pde_gallery()]
    far = [lines.cosh_with_mean(1000), lines.boundary_layer(2000), planes.driven_cavity(24), lines.h_equation(300)]
    cases += [Case("solvable", p.name, p.residual, p.x0, p.tolerance()) for p in far]
    for seed in range(4):
        rng = np.random.default_rng(seed)
        W, c = 4 * rng.standard_normal((20, 20)) / 20**0.5, rng.standard_normal(20)
        affine = ims.Problem(lambda x, W=W, c=c: x - (W @ x + c), fixed_point=True)
        cases.append(Case("solvable", f"affine map of spectral radius 4, {seed}", affine, np.zeros(20)))
    for kind, scale in itertools.product(("gru", "rnn"), (0.5, 1.0, 2.0)):
        cases.append(Case("solvable", f"{kind.upper()}, weights {scale:g}", layer(kind, scale), None))
    return cases
