"""A tour in under a minute, without data: a grid, a batch, a layer and its gradient, beside SciPy.

    python examples/tour.py --figure tour.png

Each system is solved by one call with default options: Bratu's problem on a line and on a grid in the plane; a reaction
on a network; Kepler's equation for 10,000 planets as one batch; and a layer of implicit recurrent units, whose
gradient is compared with a difference quotient. The table shows calls of the residual and median elapsed times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse
from numpy.typing import NDArray

import implicitsolve as ims
from _timing import median_times

Array = NDArray[Any]
SOLVERS = {"implicitsolve": ims.newton_krylov, "scipy.optimize": scipy.optimize.newton_krylov}
REPEATS = 3


def bratu_line(u: Array) -> Array:
    """-u'' = exp(u) on the unit interval, u = 0 at both ends; multiplied by h^2."""
    p, h = np.pad(u, 1), 1 / (u.size + 1)
    return 2 * u - p[2:] - p[:-2] - h**2 * np.exp(u)


def bratu(u: Array) -> Array:
    """-laplace(u) = 5 exp(u) in the unit square, u = 0 on the boundary; multiplied by h^2."""
    p, h = np.pad(u, 1), 1 / (u.shape[0] + 1)
    neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    return 4 * u - neighbors - 5 * h**2 * np.exp(u)


def network(nodes: int) -> Callable[[Array], Array]:
    """Diffusion along the random edges of a network, and a cubic reaction with a source at each node."""
    rng = np.random.default_rng(0)
    edges = rng.integers(0, nodes, (2, 2 * nodes))
    A = scipy.sparse.coo_array((np.ones(2 * nodes), (edges[0], edges[1])), shape=(nodes, nodes)).tocsr()
    A = A + A.T
    laplacian = scipy.sparse.diags_array(A.sum(axis=1)) - A
    source = rng.normal(size=nodes)
    return lambda x: laplacian @ x + x + x**3 - source


def kepler(planets: int) -> ims.Problem:
    """E - e sin(E) = M for many planets: a batch of systems with one unknown each."""
    rng = np.random.default_rng(0)
    e, M = rng.uniform(0.0, 0.9, (planets, 1)), rng.uniform(0.0, np.pi, (planets, 1))
    return ims.Problem(lambda E: E - e * np.sin(E) - M, batch_ndim=1)


class Counted:
    """A residual that counts its calls."""

    def __init__(self, residual: Callable[[Array], Array]) -> None:
        self.residual, self.calls = residual, 0

    def __call__(self, x: Array) -> Array:
        """F(x)."""
        self.calls += 1
        return self.residual(x)


def compared(name: str, residual: Callable[[Array], Array], x0: Array, f_tol: float) -> str:
    """A row of the table: calls and milliseconds of both libraries' `newton_krylov` to max|F| <= f_tol."""
    counted = {name: Counted(residual) for name in SOLVERS}
    runs = {name: partial(solver, counted[name], x0, f_tol=f_tol) for name, solver in SOLVERS.items()}
    times = median_times(runs, repeats=REPEATS)
    if any(np.max(np.abs(residual(x))) > f_tol for x, _ in times.values()):
        raise RuntimeError(f"{name}: a returned x does not satisfy the tolerance {f_tol}")
    ours, theirs = (seconds for _, seconds in times.values())
    calls = [F.calls // (REPEATS + 1) for F in counted.values()]
    return f"{name:34}{calls[0]:12d}{1e3 * ours:12.1f}{calls[1]:12d}{1e3 * theirs:12.1f}{theirs / ours:14.1f}"


def layer() -> str:
    """An implicit GRU on 8 sequences of 20 steps; the gradient of sum(x^2) along a random direction."""
    rng = np.random.default_rng(0)
    params, inputs = ims.adapters.gru_parameters(8, 16, rng=rng), rng.standard_normal((8, 20, 8))
    direction = {name: rng.standard_normal(value.shape) for name, value in params.items()}
    stop = ims.NonlinearStop(rtol=1e-12)

    def loss(step: float) -> float:
        moved = {name: value + step * direction[name] for name, value in params.items()}
        return float(np.sum(ims.root(ims.adapters.implicit_gru(moved, inputs), stop=stop).x ** 2))

    problem = ims.adapters.implicit_gru(params, inputs)
    result = ims.root(problem, stop=stop).raise_for_status()
    gradients = ims.pull_back(problem, result, 2 * result.x, stop=ims.LinearStop(rtol=1e-10)).gradients
    exact = sum(float(np.vdot(gradients[name], part)) for name, part in direction.items())
    quotient = (loss(1e-5) - loss(-1e-5)) / 2e-5
    return (
        f"implicit GRU, states {result.x.shape}: {result.counts.residuals} residuals; directional derivative "
        f"{exact:.6f} by the adjoint, {quotient:.6f} by differences"
    )


def draw(u: Array, path: Path) -> None:
    """The solution on the grid, and how the solve converged."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    image = left.imshow(u, origin="lower", extent=(0, 1, 0, 1))
    left.set(title="Solution of Bratu's problem in the plane", xlabel="x", ylabel="y")
    figure.colorbar(image, ax=left, label="u")
    norms = [float(np.max(step.residual_norm)) for step in ims.root(bratu, np.zeros(u.shape)).steps]
    right.semilogy(norms, "o-")
    right.set(title="Convergence from u = 0", xlabel="Newton step", ylabel="largest entry of F")
    right.xaxis.get_major_locator().set_params(integer=True)
    right.grid(alpha=0.3)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=64, help="cells of the grid in each direction")
    parser.add_argument("--nodes", type=int, default=3000, help="nodes of the network")
    parser.add_argument("--planets", type=int, default=10_000, help="systems of the batch")
    parser.add_argument("--figure", type=Path, help="where to save the figure")
    options = parser.parse_args(arguments)

    print(f"{'newton_krylov(F, x0)':34}{'implicitsolve':>24}{'scipy.optimize':>24}{'ratio':>14}")
    print(" " * 34 + 2 * f"{'calls of F':>12}{'time in ms':>12}" + f"{'of the times':>14}")
    print(compared("Bratu on a line of 1000 points", bratu_line, np.zeros(1000), 1e-10))
    print(compared(f"Bratu on {options.cells} x {options.cells} cells", bratu, np.zeros((options.cells,) * 2), 1e-8))
    name = f"network of {options.nodes} nodes"
    print(compared(name, network(options.nodes), np.zeros(options.nodes), 1e-8))

    batch = ims.root(kepler(options.planets), np.full((options.planets, 1), np.pi / 2))
    solved = int(np.count_nonzero(batch.success))
    print(f"Kepler's equation: {solved} of {options.planets} solved in {batch.counts.residuals} calls for all at once")
    print(layer())
    if options.figure:
        draw(ims.newton_krylov(bratu, np.zeros((options.cells,) * 2), f_tol=1e-8), options.figure)
        print(f"figure: {options.figure}")


if __name__ == "__main__":
    main()
