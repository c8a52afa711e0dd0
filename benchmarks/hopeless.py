"""Evaluations until systems without roots are given up, and until hard ones with roots are solved.

A step has made progress if it brings max|F| or ||F||_2, of any system of a batch, below its least in the attempt.
A system without a root is to be given up within 500 evaluations plus 20 for each such step. A call of F or of a product
for all systems of a batch counts once, and so does a step.

Usage::

    python -m benchmarks.hopeless
    python -m benchmarks.hopeless --write docs/performance/hopeless.md
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import implicitsolve as ims
from benchmarks.robustness import started
from benchmarks.sparse_problems import lines, planes
from implicitsolve.testing import classic_problems, pde_gallery

BASE, PER_STEP = 500, 20  # evaluations that are granted, and more for each step with progress
TIMED = 2000  # unknowns of the systems whose own time is measured
Residual = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """A problem and its start."""

    group: str
    name: str
    problem: Any
    x0: Any
    atol: float = 0.0  # to which a system with a root is solved; relative by default

    def __str__(self) -> str:
        shape = "x".join(map(str, np.shape(self.start)))
        return f"{self.name}, {shape}"

    @property
    def start(self) -> Any:
        """The start, where the problem has one of its own."""
        return self.problem.initial_guess("default", None) if self.x0 is None else self.x0


@dataclass(frozen=True)
class Outcome:
    """What a solve took."""

    evaluations: int
    steps: int  # with progress
    attempts: int
    success: bool
    own: float  # ms of an evaluation beyond the call

    @property
    def excess(self) -> int:
        """Evaluations beyond what is granted."""
        return self.evaluations - BASE - PER_STEP * self.steps


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
    """Maps without fixed points, and layers with weights so large that most of them are given up."""
    for n in (10, 100, 1000):
        for seed in (0, 1):
            yield Case("fixed point", f"moves up, {seed}", without_fixed_point(n, seed), np.zeros(n))
        yield Case("fixed point", "rectified", rectified(n), np.zeros(n))
        yield Case("fixed point", "translation", translation(n), flat_start(n))
    for kind in ("rnn", "gru"):
        yield Case("layer", f"{kind.upper()}, weights 3", layer(kind, 3.0), None)


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
    for scale in (0.5, 1.0, 2.0):
        cases.append(Case("solvable", f"GRU, weights {scale:g}", layer("gru", scale), None))
        cases.append(Case("solvable", f"RNN, weights {scale:g}", layer("rnn", scale), None))
    return cases


def progress(norms: Sequence[tuple[int, Any]], restarts: set[int]) -> int:
    """Steps after which a norm was below its least in the attempt."""
    start = least = norms[0][1]
    steps = 0
    for iteration, both in norms[1:]:
        if iteration - 1 in restarts:
            least = start
        steps += bool((both < least).any())
        least = np.fmin(least, both)
    return steps


def solve(case: Case) -> Outcome:
    """Solve by defaults."""
    norms: list[tuple[int, Any]] = []
    systems = np.shape(case.start)[: getattr(case.problem, "batch_ndim", 0)]

    def watch(step: Any, x: Any, F: Any) -> None:
        rows = np.asarray(F).reshape(int(np.prod(systems)), -1)
        norms.append((step.iteration, np.stack([np.abs(rows).max(axis=1), np.linalg.norm(rows, axis=1)])))

    stop = ims.NonlinearStop(atol=case.atol) if case.atol else ims.NonlinearStop()
    result = ims.root(case.problem, case.x0, stop=stop, monitor=watch)
    restarts = {retry.iteration for retry in result.retries}
    success = bool(np.all(result.success))
    own = own_time(case, stop, result.counts.evaluations) if np.size(case.start) == TIMED else 0.0
    return Outcome(result.counts.evaluations, progress(norms, restarts), 1 + len(result.retries), success, own)


def own_time(case: Case, stop: Any, evaluations: int) -> float:
    """Milliseconds of an evaluation beyond the call of F: the better of two runs."""
    F = case.problem if callable(case.problem) else case.problem.residual
    times: list[float] = []
    for _ in range(2):
        begin = time.process_time()
        ims.root(case.problem, case.x0, stop=stop)
        times.append(time.process_time() - begin)
    begin = time.process_time()
    for _ in range(20):
        F(case.start)
    call = (time.process_time() - begin) / 20
    return 1e3 * (min(times) / evaluations - call)


def rows(cases: Sequence[Case], *, is_limited: bool) -> tuple[list[str], str]:
    """Rows of a table, and their sum in words."""
    lines = ["| kind | system | shape | evaluations | steps with progress | excess | solved | own ms an evaluation |"]
    lines.append("| --- | --- | --- | ---: | ---: | ---: | --- | ---: |")
    outcomes: list[Outcome] = []
    for case in cases:
        outcome = solve(case)
        outcomes.append(outcome)
        excess = f"{max(outcome.excess, 0) or ''}" if is_limited else ""
        shape, own = " x ".join(map(str, np.shape(case.start))), f"{outcome.own:.2f}" if outcome.own else ""
        cells = [case.group, case.name, shape, f"{outcome.evaluations}", f"{outcome.steps}"]
        lines.append("| " + " | ".join([*cells, excess, "yes" if outcome.success else "no", own]) + " |")
    total, solved = sum(outcome.evaluations for outcome in outcomes), sum(outcome.success for outcome in outcomes)
    text = f"{len(cases)} systems, {total} evaluations, {solved} solved."
    if is_limited:
        over = [outcome.excess for outcome in outcomes if outcome.excess > 0]
        text += f" {len(over)} exceed the limit, the worst by {max(over, default=0)}."
    return lines, text


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the Markdown page there")
    options = parser.parse_args(arguments)
    every = hopeless_cases()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rootless = rows([case for case in every if case.group != "layer"], is_limited=True)
        layers = rows([case for case in every if case.group == "layer"], is_limited=False)
        control = rows(solvable_cases(), is_limited=False)
    page = "\n\n".join(
        [
            "# Systems without roots",
            "Evaluations until `root` by defaults gives up a system without a root. A step has made progress if it\n"
            "brings max|F| or ‖F‖, of any system of a batch, below the least of its attempt. The limit is 500\n"
            "evaluations plus 20 for each such step; a call for all systems of a batch counts once, and so does a\n"
            "step. Written by `python -m benchmarks.hopeless`.",
            rootless[1],
            "\n".join(rootless[0]),
            "## Layers with large weights",
            "Bounded maps, which have a fixed point: `Homotopy` follows its path for up to 2000 steps.",
            "\n".join(layers[0]),
            "## Hard systems with roots",
            control[1],
            "\n".join(control[0]),
        ]
    )
    print(page)
    if options.write:
        options.write.write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
