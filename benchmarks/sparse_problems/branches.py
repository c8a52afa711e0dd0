"""Random residuals with branches, entries that vanish at the start, and one-sided ends, on lines, fields and networks.

Each is solved with nothing declared, and with the pattern of all branches declared. A solution is compared with that of
Newton's method with the exact dense J, and the adjoint solution there with that of the dense J.

Usage::

    python -m benchmarks.sparse_problems.branches --count 200
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import implicitsolve as ims

LENGTH = 1e-6  # of differences for the dense J
TERMS: dict[str, Callable[..., Any]] = {  # of x and four neighbors
    "upwind": lambda x, a, b, c, d: 0.5 * np.where(x > 0, x * (x - a), x * (b - x)),
    "larger": lambda x, a, b, c, d: 0.8 * np.maximum(a, b),
    "product": lambda x, a, b, c, d: 0.5 * a * b + 0.3 * np.abs(c - d),
    "valve": lambda x, a, b, c, d: np.where(x > 0.2, (x - 0.2) * c, 0.7 * (x - 0.2) * a),
    "cube": lambda x, a, b, c, d: 0.4 * a * b * c + 0.5 * np.clip(d, -0.3, 0.3),
    "flow": lambda x, a, b, c, d: 0.5 * (a - b) * np.abs(a - b) + 0.3 * np.maximum(c - x, 0.0),
}


@dataclass(frozen=True)
class Branched:
    """A residual, a start, and the pattern of all branches."""

    residual: Callable[[Any], Any]
    x0: Any
    pattern: Any
    name: str


@dataclass(frozen=True)
class Outcome:
    """What one residual took."""

    name: str
    success: bool
    evaluations: int
    search: int
    declared: int
    distance: float  # from the solution by the dense J
    gradient: float  # distance of the adjoint solutions, over the size of the dense one

    @property
    def ratio(self) -> float:
        """Evaluations beyond the search, over those with the pattern declared."""
        return (self.evaluations - self.search) / self.declared


def branched(seed: int) -> Branched:
    """One of them."""
    random = np.random.default_rng(seed)
    n, kind = int(random.integers(64, 300)), str(random.choice(["line", "fields", "permuted", "network"]))
    ends, start = random.integers(2, 9, 2), str(random.choice(["zero", "small", "random"]))
    names = random.choice(list(TERMS), int(random.integers(1, 3)), replace=False)
    offsets = np.array([-1, 1, 3 if kind == "line" else 2, -2])
    if kind == "network":
        near = random.integers(0, n, (4, n))
        is_inside = np.ones(near.shape, dtype=bool)
    else:
        near = np.arange(n) + offsets[:, None] * (2 if kind == "fields" else 1)
        is_inside = (near >= 0) & (near < n)
    near = np.where(is_inside, near, 0)
    weights, b = random.uniform(-0.4, 0.4, (2, n)), random.normal(size=n)
    if kind == "fields":
        weights[1, ::2] = 0.0  # the fields have different terms

    def ordered(x: Any) -> Any:
        neighbors = np.where(is_inside, x[near], 0.0)
        f = 3 * x - b + weights[0] * np.sin(neighbors[0]) + weights[1] * np.sin(neighbors[1])
        for name in names:
            f = f + TERMS[name](x, *neighbors)
        f[0] = 2 * x[0] - 0.5 * x[ends[0]] - b[0]
        f[-1] = 2 * x[-1] + 0.5 * x[-1 - ends[1]] - 0.3 * x[-2] - b[-1]
        return f

    pattern = np.eye(n, dtype=bool)
    rows = np.broadcast_to(np.arange(n), near.shape)
    pattern[rows[is_inside], near[is_inside]] = True
    pattern[[0, -1]] = False
    pattern[0, [0, ends[0]]] = pattern[-1, [-1, -1 - ends[1], -2]] = True
    order = random.permutation(n) if kind == "permuted" else np.arange(n)
    x0 = {"zero": np.zeros(n), "small": np.full(n, 1e-3), "random": random.normal(size=n)}[start]

    def residual(y: Any) -> Any:
        x = np.empty_like(y)
        x[order] = y
        return ordered(x)[order]

    name = f"{seed}: {kind}, {n} unknowns, {' and '.join(names)}, x0 {start}"
    return Branched(residual, x0[order], pattern[np.ix_(order, order)], name)


def dense_jacobian(F: Callable[[Any], Any], x: Any) -> Any:
    """Central differences, unknown by unknown, so short that few kinks of F lie within."""
    J = np.empty((x.size, x.size))
    for j in range(x.size):
        e = np.zeros_like(x)
        e[j] = LENGTH
        J[:, j] = (F(x + e) - F(x - e)) / (2 * LENGTH)
    return J


def measure(case: Branched) -> Outcome:
    """Solve it both ways, and compare solution and gradient."""
    F, x0 = case.residual, case.x0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = ims.root(F, x0)
        declared = ims.root(ims.Problem(F, structure=ims.Sparse(case.pattern)), x0)
    search = 0 if result.detection is None else result.detection.evaluations
    distance = gradient = np.nan
    if result.success:
        J, c = dense_jacobian(F, result.x), np.random.default_rng(1).normal(size=x0.size)
        distance = float(np.abs(np.linalg.solve(J, F(result.x))).max())
        is_known = result.detection is not None and result.detection.structure is not None
        problem = ims.Problem(F, structure=None if is_known else "detect")
        reference, found = np.linalg.solve(J.T, c), ims.pull_back(problem, result, c)
        away = np.linalg.norm(found.adjoint - reference) / np.linalg.norm(reference)
        gradient = float(away) if found.success else np.inf
    evaluations = result.counts.residuals
    return Outcome(case.name, result.success, evaluations, search, declared.counts.residuals, distance, gradient)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(arguments)
    found = [measure(branched(seed)) for seed in range(options.first, options.first + options.count)]
    for one in found:
        if not (one.success and one.ratio <= 1.5 and one.distance <= 1e-6 and one.gradient <= 1e-6):
            print(one)
    ratios = np.array([one.ratio for one in found])
    mean, bad = np.exp(np.log(ratios).mean()), np.count_nonzero(ratios > 1.5)
    print(f"solved: {sum(one.success for one in found)} of {len(found)}")
    print(f"evaluations beyond the search over those declared: {mean:.2f} in the mean, above 1.5 in {bad}")
    print(f"search: {np.mean([one.search for one in found]):.0f} evaluations in the mean")
    print(f"largest distance of x {np.nanmax([one.distance for one in found]):.1e}")
    print(f"largest distance of gradients {np.nanmax([one.gradient for one in found]):.1e}")


if __name__ == "__main__":
    main()
