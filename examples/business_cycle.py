"""A real-business-cycle model under perfect foresight: the whole path at once, and many shocks as one batch.

    python examples/business_cycle.py --figure responses.png

A household chooses consumption c, hours n and next period's capital K' with

    c^-sigma = beta c'^-sigma (alpha y' / K' + 1 - delta),   c + K' = y + (1 - delta) K,   chi n^phi = c^-sigma w,

y = z K^alpha n^(1 - alpha) and w = (1 - alpha) y / n. Productivity z starts off its mean and returns. Capital is given
at the start and consumption and hours are those of the steady state after the last period: a two-point boundary value
problem in time, which is stacked and solved for all periods together. See docs/examples/business_cycle.md.
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
import scipy.linalg
import scipy.optimize
import scipy.sparse as sps
from numpy.typing import NDArray

import implicitsolve as ims
from _timing import median_times

Array = NDArray[Any]
STOP = ims.NonlinearStop(atol=1e-10, rtol=0.0)  # the equations are relative errors: no units


@dataclass(frozen=True)
class Economy:
    """Parameters, and the equations of one period; x[..., t, :] = log c_t, log K_{t+1}, log l_t."""

    alpha: float = 0.36
    beta: float = 0.99
    delta: float = 0.025
    sigma: float = 2.0
    phi: float = 1.0
    rho: float = 0.95
    hours: float = 1 / 3  # in the steady state; chi follows
    capital: float = 1.0  # at the start, relative to the steady state

    @property
    def steady_state(self) -> Array:
        """Logarithms of c, K and n for constant z = 1."""
        K_per_hour = (self.alpha / (1 / self.beta - 1 + self.delta)) ** (1 / (1 - self.alpha))
        c_per_hour = K_per_hour**self.alpha - self.delta * K_per_hour
        return np.log(self.hours * np.array([c_per_hour, K_per_hour, 1.0]))

    @property
    def log_chi(self) -> float:
        """Logarithm of the weight of leisure for which the steady state has these hours."""
        c, K, n = self.steady_state
        return float(np.log(1 - self.alpha) + self.alpha * (K - n) - self.phi * n - self.sigma * c)

    def productivity(self, shocks: Any, T: int) -> Array:
        """log z, of shape (*shape of shocks, T)."""
        return np.asarray(shocks)[..., None] * self.rho ** np.arange(T)

    def _terms(self, x: Array, log_z: Array) -> tuple[Array, ...]:
        """Logarithm of the capital in use; output; the discount factor and the rental rate of the next period."""
        c, K_next, n = np.moveaxis(x, -1, 0)
        steady_c, steady_K, steady_n = self.steady_state
        K = np.concatenate([np.full_like(c[..., :1], steady_K + np.log(self.capital)), K_next[..., :-1]], axis=-1)
        c_next = np.concatenate([c[..., 1:], np.full_like(c[..., :1], steady_c)], axis=-1)
        n_next = np.concatenate([n[..., 1:], np.full_like(c[..., :1], steady_n)], axis=-1)
        z_next = np.concatenate([log_z[..., 1:], np.zeros_like(log_z[..., :1])], axis=-1)
        y = np.exp(log_z + self.alpha * K + (1 - self.alpha) * n)
        discount = self.beta * np.exp(self.sigma * (c - c_next))
        rental = self.alpha * np.exp(z_next + (1 - self.alpha) * (n_next - K_next))
        return K, y, discount, rental

    def residual(self, x: Array, log_z: Array) -> Array:
        """Euler equation, resources in units of output, and hours, for x of shape (*batch, T, 3)."""
        c, K_next, n = np.moveaxis(x, -1, 0)
        K, y, discount, rental = self._terms(x, log_z)
        euler = 1 - discount * (rental + 1 - self.delta)
        resources = (np.exp(c) + np.exp(K_next) - (1 - self.delta) * np.exp(K)) / y - 1
        hours = self.log_chi + self.phi * n + self.sigma * c - np.log((1 - self.alpha) * y) + n
        return np.stack([euler, resources, hours], axis=-1)

    def blocks(self, x: Array, log_z: Array) -> Array:
        """The Jacobian by hand, (*batch, T, 3, 3, 3): for the previous, current and next period's unknowns."""
        c, K_next, _ = np.moveaxis(x, -1, 0)
        K, y, discount, rental = self._terms(x, log_z)
        share = (np.exp(c) + np.exp(K_next) - (1 - self.delta) * np.exp(K)) / y
        D = np.zeros((*x.shape[:-1], 3, 3, 3))
        before, now, after = np.moveaxis(D, -3, 0)
        now[..., 0, 0] = -self.sigma * discount * (rental + 1 - self.delta)
        after[..., 0, 0] = -now[..., 0, 0]
        now[..., 0, 1] = discount * rental * (1 - self.alpha)
        after[..., 0, 2] = -now[..., 0, 1]
        before[..., 1, 1] = -(1 - self.delta) * np.exp(K) / y - self.alpha * share
        now[..., 1, 0] = np.exp(c) / y
        now[..., 1, 1] = np.exp(K_next) / y
        now[..., 1, 2] = -(1 - self.alpha) * share
        before[..., 2, 1] = -self.alpha
        now[..., 2, 0] = self.sigma
        now[..., 2, 2] = self.phi + self.alpha
        return D

    def problem(self, log_z: Array, *, give_blocks: bool = False) -> ims.Problem:
        """The path for log z of shape (T,), or a batch of paths for (B, T)."""
        return ims.Problem(
            lambda x: self.residual(x, log_z),
            structure=ims.BlockBanded(lower=1, upper=1, block_size=3),
            blocks=(lambda x: self.blocks(x, log_z)) if give_blocks else None,
            batch_ndim=log_z.ndim - 1,
            take=(lambda indices: self.problem(log_z[indices], give_blocks=give_blocks)) if log_z.ndim == 2 else None,
        )

    def start(self, log_z: Array) -> Array:
        """The steady state in every period."""
        return np.broadcast_to(self.steady_state, (*log_z.shape, 3)).copy()

    def solve(self, log_z: Array, *, give_blocks: bool = False) -> ims.NonlinearResult:
        """Solve from the steady state."""
        return ims.root(self.problem(log_z, give_blocks=give_blocks), self.start(log_z), stop=STOP)

    def decay(self) -> float:
        """Factor by which a small deviation of capital shrinks each period: the stable root of the linearized model."""
        x = np.tile(self.steady_state, (3, 1))
        before, now, after = self.blocks(x, np.zeros(3))[1]
        zero, one = np.zeros((3, 3)), np.eye(3)  # (after s^2 + now s + before) v = 0, as a pencil of twice the size
        pencil = np.block([[zero, one], [-before, -now]]), np.block([[one, zero], [zero, after]])
        roots = np.abs(scipy.linalg.eigvals(*pencil))
        return float(np.max(roots[roots < 1]))


# -------------------------------------------------------------------------------------------------------------- rivals


def factorized_jacobian(blocks: Array) -> Any:
    """SciPy's sparse LU of the stacked Jacobian."""
    T = len(blocks)
    columns = (np.arange(T)[:, None] + [-1, 0, 1]).ravel()[1:-1]
    starts = np.concatenate([[0], 2 + 3 * np.arange(T - 1), [3 * T - 2]])
    J = sps.bsr_array((blocks.reshape(-1, 3, 3)[1:-1], columns, starts), shape=(3 * T, 3 * T))
    return sps.linalg.splu(J.tocsc())


def newton_sparse(economy: Economy, log_z: Array) -> tuple[Array, str]:
    """Newton's method on the stacked system with the Jacobian by hand and SciPy's sparse LU."""
    x = economy.start(log_z)
    for step in range(30):
        F = economy.residual(x, log_z)
        if np.max(np.abs(F)) <= STOP.atol:
            return x, f"converged, {step} steps"
        x = x - factorized_jacobian(economy.blocks(x, log_z)).solve(F.ravel()).reshape(x.shape)
    return x, "FAILED: 30 steps"


def newton_krylov(economy: Economy, log_z: Array, limit: float, factorized: bool) -> tuple[Array, str]:
    """SciPy's newton_krylov for `limit` seconds at most; if `factorized`, with the exact Jacobian at the start as M."""
    began, calls, inverse, x = time.perf_counter(), 0, None, economy.start(log_z)
    last = x
    if factorized:
        inverse = sps.linalg.LinearOperator((x.size, x.size), factorized_jacobian(economy.blocks(x, log_z)).solve)

    def residual(x: Array) -> Array:
        nonlocal calls
        calls += 1
        if time.perf_counter() - began > limit:
            raise TimeoutError
        return economy.residual(x, log_z)

    def keep(x: Array, F: Array) -> None:
        nonlocal last
        last = x.reshape(last.shape).copy()

    try:
        x = scipy.optimize.newton_krylov(residual, x, f_tol=STOP.atol, inner_M=inverse, callback=keep)
        return x, f"converged, {calls} residuals"
    except TimeoutError:
        return last, f"FAILED: stopped after {limit:g} s"
    except (scipy.optimize.NoConvergence, ValueError, OverflowError) as error:
        return last, f"FAILED: {type(error).__name__} after {calls} residuals"


def compare(economy: Economy, T: int, limit: float) -> None:
    """Print the time and the largest equation error of every solver for one long path."""
    log_z = economy.productivity(0.1, T)

    def ours(give_blocks: bool) -> tuple[Array, str]:
        result = economy.solve(log_z, give_blocks=give_blocks)
        verdict = "converged" if result.success else f"FAILED: {result.status.name}"
        return result.x, f"{verdict}, {result.iterations} steps"

    print(f"one path of {T} periods, productivity 10 % up")
    measured = median_times(
        {
            "implicitsolve, residual and structure": lambda: ours(False),
            "implicitsolve, Jacobian blocks given": lambda: ours(True),
            "by hand: SciPy sparse LU, exact Jacobian": lambda: newton_sparse(economy, log_z),
            "SciPy newton_krylov, exact LU at the start": lambda: newton_krylov(economy, log_z, limit, factorized=True),
        }
    )
    default = {"SciPy newton_krylov, defaults": lambda: newton_krylov(economy, log_z, limit, factorized=False)}
    for name, ((x, outcome), seconds) in (measured | median_times(default, repeats=0)).items():
        error = np.max(np.abs(economy.residual(x, log_z)))
        print(f"  {name:43} {1e3 * seconds:9.1f} ms   max|F| {error:.1e}   {outcome}")


# -------------------------------------------------------------------------------------------------------------- output


def responses(economy: Economy, x: Array, log_z: Array) -> dict[str, Array]:
    """Per cent off the steady state, for every shown variable and paths (B, T)."""
    c, K_next, n = np.moveaxis(x - economy.steady_state, -1, 0)
    K = np.concatenate([np.zeros_like(c[..., :1]), K_next[..., :-1]], axis=-1)
    y = log_z + economy.alpha * K + (1 - economy.alpha) * n
    steady_c, steady_K, _ = np.exp(economy.steady_state)
    steady_y = steady_c + economy.delta * steady_K
    investment = (np.exp(y) * steady_y - np.exp(c) * steady_c) / (economy.delta * steady_K)
    logs = {"productivity": log_z, "output": y, "consumption": c, "hours": n, "capital": K}
    shown = {name: 100 * np.expm1(value) for name, value in logs.items()}
    return shown | {"investment": 100 * (investment - 1)}


def save_figure(path: Path, economy: Economy, periods: int = 80) -> str:
    """Draw responses to four shocks and their linear approximation; return what was done, in words."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "figure skipped: matplotlib is not installed"
    shocks = np.array([0.2, 0.1, -0.1, -0.2])
    tiny = 1e-5
    log_z = economy.productivity(np.append(shocks, tiny), 400)
    shown = responses(economy, economy.solve(log_z).raise_for_status().x, log_z)
    figure = Figure(figsize=(9.5, 5.0), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True)
    for axes, name in zip(panels.flat, shown, strict=True):
        axes.axhline(0.0, color="grey", linewidth=0.5)
        for j, shock in enumerate(shocks):
            axes.plot(shown[name][j, :periods], f"C{j}", label=f"log z = {shock:+g} at first")
        linear = shown[name][-1, :periods, None] * shocks / tiny
        axes.plot(linear, "k:", linewidth=1, label=["linearized", *[None] * (shocks.size - 1)])
        axes.set_title(name, fontsize="medium")
    for axes in panels[1]:
        axes.set_xlabel("period (quarter)")
    figure.supylabel("% off the steady state", fontsize="medium")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    figure.savefig(path, dpi=100)
    return f"figure: {path}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse ends the program with status 2 if it is wrong."""
    parser = argparse.ArgumentParser(prog="business_cycle", description="Perfect-foresight paths of an RBC model.")
    add = parser.add_argument
    add("--periods", type=int, default=4000, help="of the long path (default %(default)s)")
    add("--shocks", type=int, default=500, help="paths in the batch (default %(default)s)")
    add("--limit", type=float, default=10.0, help="seconds that newton_krylov may take (default %(default)s)")
    add("--figure", type=Path, metavar="PNG", help="draw impulse responses (needs matplotlib)")
    options = parser.parse_args(arguments)
    for name, least in (("periods", 200), ("shocks", 2)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: at least {least} expected, got {getattr(options, name)}")
    if options.figure is not None and not options.figure.resolve().parent.is_dir():
        parser.error(f"--figure: the folder of {options.figure} does not exist")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parse(arguments)
    economy = Economy()
    compare(economy, options.periods, options.limit)

    log_z = economy.productivity(np.linspace(-0.3, 0.3, options.shocks), 200)
    few = log_z[:: max(1, options.shocks // 20)]
    measured = median_times(
        {
            "batch": lambda: economy.solve(log_z),
            "one by one": lambda: [newton_sparse(economy, path) for path in few],
        },
        repeats=3,
    )
    (result, batch), (_, one) = measured.values()
    error = np.max(np.abs(economy.residual(result.x, log_z)))
    print(f"{options.shocks} shocks from -30 % to +30 %, 200 periods each; {np.sum(result.success)} solved")
    print(f"  implicitsolve, one batch: {1e3 * batch / options.shocks:.3f} ms a path   max|F| {error:.1e}")
    print(f"  by hand, path by path:    {1e3 * one / len(few):.3f} ms a path ({len(few)} of them timed)")

    poor = Economy(capital=0.9)
    K = poor.solve(np.zeros(600)).raise_for_status().x[:, 1] - poor.steady_state[1]
    print(
        f"10 % too little capital: {K[200] / K[199]:.6f} of the gap is left after a period, late in the path; ", end=""
    )
    print(f"{poor.decay():.6f} in the linearized model")
    simple = Economy(delta=1.0, sigma=1.0)
    log_z = simple.productivity(0.1, 400)
    _, K_next, n = simple.solve(log_z).raise_for_status().x.T
    K = np.append(simple.steady_state[1], K_next[:-1])
    exact = np.log(simple.alpha * simple.beta) + log_z + simple.alpha * K + (1 - simple.alpha) * n
    print(f"full depreciation, log utility: |log K' - log(alpha beta y)| <= {np.max(np.abs(K_next - exact)[:300]):.1e}")
    if options.figure is not None:
        print(save_figure(options.figure, economy))
    return 0


if __name__ == "__main__":
    sys.exit(main())
