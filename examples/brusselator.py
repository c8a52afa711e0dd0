"""Steady states of the Brusselator on a line: a sweep through its Turing bifurcations, and a comparison on a fine grid.

    python examples/brusselator.py --figure turing.png

    u_t = Du u_xx + A - (B + 1) u + u^2 v,    v_t = Dv v_xx + B u - u^2 v,    no flux at both ends.

The uniform state u = A, v = B / A loses stability to stripes as B grows. A sweep in B follows the stripes back to the
uniform state: each solve starts from the line through the last two solutions, and all branches are one batch. Then one
steady state on a fine grid is solved by implicitsolve, by a hand-written Newton's method with SciPy's solve_banded, and
by SciPy's newton_krylov. See docs/examples/brusselator.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse as sps
from numpy.typing import NDArray
from scipy.linalg import solve_banded

import implicitsolve as ims
from _timing import median_times

Array = NDArray[Any]
MODES = (6, 7, 8, 9, 10)  # half waves on the line
ATOL = 1e-7  # of max|F|; on the finest grid rounding alone makes F about 1e-8


@dataclass(frozen=True)
class Brusselator:
    """The equations on a grid of equal cells; a state is an array (..., cells, 2) of u and v."""

    cells: int = 200
    length: float = 30.0
    A: float = 2.0
    Du: float = 1.0
    Dv: float = 8.0

    @property
    def diffusion(self) -> Array:
        """Du / h^2 and Dv / h^2."""
        return np.array([self.Du, self.Dv]) * (self.cells / self.length) ** 2

    def residual(self, x: Array, B: float) -> Array:
        """The right-hand sides of u_t and v_t."""
        u, v = x[..., 0], x[..., 1]
        reaction = u * u * v
        F = np.empty_like(x)
        F[..., 0] = self.A - (B + 1) * u + reaction
        F[..., 1] = B * u - reaction
        for i, diffusion in enumerate(self.diffusion):
            flux = diffusion * np.diff(x[..., i])
            F[..., :-1, i] += flux
            F[..., 1:, i] -= flux
        return F

    def problem(self, B: float, batch_ndim: int = 0) -> ims.Problem:
        """The problem: the residual, and a structure in which cells couple to their neighbours."""
        return ims.Problem(
            lambda x: self.residual(x, B),
            structure=ims.BlockBanded(lower=1, upper=1, block_size=2),
            batch_ndim=batch_ndim,
            take=(lambda indices: self.problem(B, 1)) if batch_ndim else None,  # every system has the same B
        )

    def stripes(self, mode: int, B: float, amplitude: float = 2.0) -> Array:
        """The uniform state plus a cosine with this many half waves: a start for the branch of that mode."""
        wave = np.cos(np.pi * mode * (np.arange(self.cells) + 0.5) / self.cells)
        return np.stack([self.A + amplitude * wave, B / self.A - 0.5 * amplitude * wave], axis=-1)

    def bifurcation(self, mode: int) -> float:
        """B at which the Jacobian of the uniform state is singular along this mode, on this grid."""
        k2 = 4 * np.sin(np.pi * mode / (2 * self.cells)) ** 2 * (self.cells / self.length) ** 2
        return float((1 + self.Du * k2) * (self.A**2 + self.Dv * k2) / (self.Dv * k2))


@dataclass
class Sweep:
    """Solutions of every branch at every B, and their cost."""

    B: Array
    states: Array  # (number of B, branches, cells, 2)
    converged: Array  # (number of B, branches)
    newton_steps: int = 0

    @property
    def amplitude(self) -> Array:
        """Half the height of the stripes of u."""
        return 0.5 * np.ptp(self.states[..., 0], axis=-1)


def sweep(model: Brusselator, modes: Sequence[int], B: Array, predictor: str = "secant") -> Sweep:
    """Follow the branches along B as one batch, from the stripes at B[0].

    Each solve starts from the stripes again (predictor "none"), from the last solution ("last"), or on the line through
    the last two ("secant").
    """
    start = np.stack([model.stripes(mode, B[0]) for mode in modes])
    result = Sweep(B, np.empty((B.size, *start.shape)), np.empty((B.size, len(modes)), dtype=bool))
    for i in range(B.size):
        guess = start if i == 0 or predictor == "none" else result.states[i - 1]
        if i >= 2 and predictor == "secant":
            guess = guess + (B[i] - B[i - 1]) / (B[i - 1] - B[i - 2]) * (guess - result.states[i - 2])
        answer = ims.root(model.problem(B[i], batch_ndim=1), guess, stop=ims.NonlinearStop(atol=ATOL, rtol=0.0))
        result.states[i], result.converged[i] = answer.x, answer.success
        result.newton_steps += int(np.sum(answer.iterations))
    return result


# -------------------------------------------------------------------------------------------------------------- rivals


def band_jacobian(model: Brusselator, x: Array, B: float) -> Array:
    """The Jacobian in LAPACK's band storage, ab[2 + i - j, j], unknowns ordered u0, v0, u1, v1, ..."""
    u, v = x[:, 0], x[:, 1]
    neighbours = np.full((model.cells, 1), 2.0)
    neighbours[[0, -1]] = 1.0
    diagonal = -neighbours * model.diffusion
    diagonal[:, 0] += 2 * u * v - (B + 1)
    diagonal[:, 1] -= u * u
    ab = np.zeros((5, 2 * model.cells))
    ab[0, 2:] = ab[4, :-2] = np.tile(model.diffusion, model.cells - 1)
    ab[1, 1::2] = u * u
    ab[2] = diagonal.ravel()
    ab[3, 0::2] = B - 2 * u * v
    return ab


def newton_by_hand(model: Brusselator, x: Array, B: float) -> tuple[Array, str]:
    """Newton's method with full steps, written by hand for this problem."""
    for step in range(50):
        F = model.residual(x, B)
        if np.max(np.abs(F)) <= ATOL:
            return x, f"converged, {step} steps"
        ab = band_jacobian(model, x, B)
        x = x - solve_banded((2, 2), ab, F.ravel(), overwrite_ab=True, check_finite=False).reshape(x.shape)
    return x, "FAILED: 50 steps"


def newton_krylov(model: Brusselator, x: Array, B: float, limit: float, factorized: bool) -> tuple[Array, str]:
    """SciPy's newton_krylov for `limit` seconds at most; if `factorized`, preconditioned by the exact Jacobian at x."""
    began, calls, inverse, last = time.perf_counter(), 0, None, x
    if factorized:
        ab, N = band_jacobian(model, x, B), 2 * model.cells
        LU = sps.linalg.splu(sps.dia_array((ab, [2, 1, 0, -1, -2]), shape=(N, N)).tocsc())
        inverse = sps.linalg.LinearOperator((N, N), LU.solve)

    def residual(x: Array) -> Array:
        nonlocal calls
        calls += 1
        if time.perf_counter() - began > limit:
            raise TimeoutError
        return model.residual(x, B)

    def keep(x: Array, F: Array) -> None:
        nonlocal last
        last = x.reshape(model.cells, 2).copy()

    try:
        x = scipy.optimize.newton_krylov(residual, x, f_tol=ATOL, inner_M=inverse, callback=keep)
        return x, f"converged, {calls} residuals"
    except TimeoutError:
        return last, f"FAILED: stopped after {limit:g} s"
    except (scipy.optimize.NoConvergence, ValueError, OverflowError) as error:
        return last, f"FAILED: {type(error).__name__} after {calls} residuals"


def compare(model: Brusselator, B: float, limit: float) -> None:
    """Print the time and the final max|F| of every solver for one steady state on a fine grid."""
    x0 = model.stripes(8, B)
    print(f"one steady state, {model.cells} cells, B = {B:g}, from a cosine with max|F| = {size(model, x0, B):.2g}")

    def ours() -> tuple[Array, str]:
        result = ims.root(model.problem(B), x0, stop=ims.NonlinearStop(atol=ATOL, rtol=0.0))
        verdict = "converged" if result.success else f"FAILED: {result.status.name}"
        return result.x, f"{verdict}, {result.iterations} steps, {result.counts.residuals} residuals"

    measured = median_times(
        {
            "implicitsolve: residual and structure": ours,
            "by hand: solve_banded, exact Jacobian": lambda: newton_by_hand(model, x0, B),
            "SciPy newton_krylov, exact LU at x0": lambda: newton_krylov(model, x0, B, limit, factorized=True),
        }
    )
    default = {"SciPy newton_krylov, defaults": lambda: newton_krylov(model, x0, B, limit, factorized=False)}
    measured |= median_times(default, repeats=0)
    baseline = next(iter(measured.values()))[1]
    for name, ((x, outcome), seconds) in measured.items():
        ratio = f"{1e3 * seconds:9.1f} ms {seconds / baseline:8.1f}x"
        print(f"  {name:38} {ratio}   max|F| {size(model, x, B):.1e}   {outcome}")


def size(model: Brusselator, x: Array, B: float) -> float:
    """Largest residual, computed independently of the solvers."""
    return float(np.max(np.abs(model.residual(x, B))))


# -------------------------------------------------------------------------------------------------------------- output


def save_figure(path: Path, model: Brusselator, branches: Sweep, modes: Sequence[int]) -> str:
    """Draw the bifurcation diagram and the strongest stripes; return what was done, in words."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "figure skipped: matplotlib is not installed"
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    diagram, pattern = figure.subplots(1, 2, width_ratios=(3, 2))
    for j, mode in enumerate(modes):
        amplitude = np.where(branches.converged[:, j], branches.amplitude[:, j], np.nan)
        diagram.plot(branches.B, amplitude, f"C{j}.-", label=f"{mode} half waves")
        diagram.plot(model.bifurcation(mode), 0.0, f"C{j}v", markersize=10, clip_on=False)
    diagram.plot([], [], "kv", markersize=10, label="bifurcation, by formula")
    diagram.set(xlabel="B", ylabel="amplitude of u", title="Branches of stripes", ylim=(0, None))
    diagram.legend(fontsize="small")
    z = (np.arange(model.cells) + 0.5) * model.length / model.cells
    last = int(np.argmax(branches.B))
    for i, name in enumerate("uv"):
        pattern.plot(z, branches.states[last, len(modes) // 2, :, i], f"k{'-:'[i]}", label=name)
    title = f"{modes[len(modes) // 2]} half waves at B = {branches.B[last]:g}"
    pattern.set(xlabel="position", ylabel="concentration", title=title, ylim=(0, 1.2 * pattern.get_ylim()[1]))
    pattern.legend(fontsize="small", loc="upper center", ncols=2)
    figure.savefig(path, dpi=100)
    return f"figure: {path}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse ends the program with status 2 if it is wrong."""
    parser = argparse.ArgumentParser(prog="brusselator", description="Turing bifurcations of the Brusselator.")
    add = parser.add_argument
    add("--cells", type=int, default=200, help="of the sweep (default %(default)s)")
    add("--points", type=int, default=61, help="values of B in the sweep (default %(default)s)")
    add("--B", type=float, default=4.0, help="largest B (default %(default)s)")
    add("--fine-cells", type=int, default=20_000, help="of the comparison (default %(default)s)")
    add("--limit", type=float, default=20.0, help="seconds that newton_krylov may take (default %(default)s)")
    add("--figure", type=Path, metavar="PNG", help="draw the bifurcation diagram (needs matplotlib)")
    options = parser.parse_args(arguments)
    for name, least in (("cells", 100), ("points", 3), ("fine_cells", 50)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')}: at least {least} expected, got {getattr(options, name)}")
    if not 3.2 <= options.B <= 5:
        parser.error(f"--B: a number from 3.2 to 5 expected, got {options.B}")
    if options.figure is not None and not options.figure.resolve().parent.is_dir():
        parser.error(f"--figure: the folder of {options.figure} does not exist")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parse(arguments)
    model = Brusselator(options.cells)
    B = np.linspace(options.B, 2.8, options.points)
    print(f"sweep from B = {B[0]:g} to {B[-1]:g} in {B.size} values, {len(MODES)} branches of {options.cells} cells")
    branches = None
    for predictor in ("none", "last", "secant"):
        began = time.perf_counter()
        branches = sweep(model, MODES, B, predictor)
        took = time.perf_counter() - began
        solved = f"{branches.converged.sum()} of {branches.converged.size} solved"
        print(f"  start {predictor:6}  {branches.newton_steps:5} Newton steps  {1e3 * took:8.1f} ms   {solved}")
    compare(Brusselator(options.fine_cells), 3.5, options.limit)
    if options.figure is not None:
        print(save_figure(options.figure, model, branches, MODES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
