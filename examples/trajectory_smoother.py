"""Where a drone flew: the most probable trajectory from thrust and radar, compared with scipy.optimize.least_squares.

    python examples/trajectory_smoother.py --figure trajectory.png

The state of a step is position and velocity in the plane. Thrust is known and air drag is quadratic; gusts disturb
both. A radar at the origin measures range and bearing, with noise, and has two gaps. The trajectory of
greatest posterior density is a root of the gradient of its negative logarithm, whose Jacobian is block tridiagonal with
blocks of 4: a step is coupled only to its neighbours. The inverse of that Jacobian is the covariance of the states
(Laplace's approximation): four solves with its block LU give the uncertainty of one step.
See docs/examples/trajectory_smoother.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse as sps
from numpy.typing import NDArray

import implicitsolve as ims
from _timing import median_times

Array = NDArray[Any]
STOP = ims.NonlinearStop(atol=1e-7, rtol=0.0)
STRUCTURE = ims.BlockBanded(lower=1, upper=1, block_size=4)
DT, DRAG = 0.5, 0.01  # s, 1/m
GUSTS = np.array([0.05, 0.05, 0.15, 0.15])  # standard deviations of what a step adds: m, m, m/s, m/s
RADAR = np.array([3.0, 0.02])  # of range and bearing: m, rad
PRIOR = np.array([10.0, 10.0, 3.0, 3.0])  # of the first state


def move(x: Array, thrust: Array) -> Array:
    """The next state without gusts, for states (..., 4) and thrust (..., 2)."""
    v = x[..., 2:]
    speed = np.linalg.norm(v, axis=-1, keepdims=True)
    return np.concatenate([x[..., :2] + DT * v, v + DT * (thrust - DRAG * speed * v)], axis=-1)


def look(x: Array) -> Array:
    """Range and bearing without noise."""
    return np.stack([np.hypot(x[..., 0], x[..., 1]), np.arctan2(x[..., 1], x[..., 0])], axis=-1)


@dataclass(frozen=True)
class Flight:
    """The data: the planned first state, thrust (T - 1, 2), radar (T, 2) where `seen`; and the truth (T, 4)."""

    first: Array
    thrust: Array
    radar: Array
    seen: Array
    truth: Array

    @classmethod
    def draw(cls, T: int, rng: np.random.Generator) -> Flight:
        """Draw a flight along a figure of eight that is flown blind."""
        t = np.arange(T + 1) * DT
        plan = np.stack([150 + 100 * np.sin(t / 15), 120 + 70 * np.sin(2 * t / 15)], axis=1)
        v = np.diff(plan, axis=0) / DT
        thrust = np.diff(v, axis=0) / DT + DRAG * np.linalg.norm(v[:-1], axis=1, keepdims=True) * v[:-1]
        first = np.concatenate([plan[0], v[0]])
        truth = [first + PRIOR * rng.standard_normal(4)]
        for t in range(T - 1):
            truth.append(move(truth[t], thrust[t]) + GUSTS * rng.standard_normal(4))
        seen = np.ones(T, dtype=bool)
        gap = min(60, T // 8)
        seen[T // 4 :][:gap] = seen[2 * T // 3 :][:gap] = False
        radar = look(np.array(truth)) + RADAR * rng.standard_normal((T, 2))
        return cls(first, thrust[: T - 1], radar, seen, np.array(truth))

    def errors(self, x: Array) -> tuple[Array, Array, Array]:
        """Residuals of states x (T, 4) in standard deviations: first state, every step, every radar measurement."""
        sightings = self.radar - look(x)
        sightings[:, 1] = np.remainder(sightings[:, 1] + np.pi, 2 * np.pi) - np.pi
        return (x[0] - self.first) / PRIOR, (x[1:] - move(x[:-1], self.thrust)) / GUSTS, (sightings / RADAR)[self.seen]

    def cost(self, x: Array) -> float:
        """Negative logarithm of the posterior density, up to a constant."""
        return 0.5 * sum(float(np.sum(error**2)) for error in self.errors(x))

    def gradient(self, x: Array) -> Array:
        """Gradient of the cost, (T, 4): the residual whose root is sought."""
        first, steps, sightings = self.errors(x)
        e, w = steps / GUSTS, sightings / RADAR
        g = np.zeros_like(x)
        g[0] = first / PRIOR
        g[1:] += e
        v, e_v = x[:-1, 2:], e[:, 2:]
        speed = np.linalg.norm(v, axis=1, keepdims=True)
        drag = DRAG * (speed * e_v + v * np.sum(v * e_v, axis=1, keepdims=True) / speed)
        g[:-1, :2] -= e[:, :2]
        g[:-1, 2:] -= e_v + DT * (e[:, :2] - drag)
        position = x[self.seen, :2]
        r = np.linalg.norm(position, axis=1, keepdims=True)
        across = position[:, ::-1] * [-1.0, 1.0]
        g[self.seen, :2] -= (w[:, :1] * position + w[:, 1:] * across / r) / r
        return g

    def problem(self) -> ims.Problem:
        """The problem that the solver is given."""
        return ims.Problem(self.gradient, structure=STRUCTURE)

    def precision(self, x: Array) -> ims.BlockBandedMatrix:
        """The Jacobian of the gradient, whose inverse is the covariance of the states."""
        return ims.jacobian(self.problem(), x)

    def covariance(self, x: Array, steps: Array) -> Array:
        """Covariances (len(steps), 4, 4) of the states of some steps: blocks of the inverse, four solves for each."""
        columns = np.zeros((*x.shape, steps.size, 4))
        columns[steps, :, np.arange(steps.size)] = np.eye(4)
        inverse = ims.BlockLU().factor(self.precision(x))
        solved = inverse.matmat(columns.reshape(x.size, -1)).reshape(columns.shape)
        return solved[steps, :, np.arange(steps.size)]

    def dead_reckoning(self) -> Array:
        """The states that the thrust alone predicts, (T, 4)."""
        x = [self.first]
        for thrust in self.thrust:
            x.append(move(x[-1], thrust))
        return np.array(x)

    def fixes(self) -> Array:
        """Positions by the radar alone, (T, 2), with straight lines across the gaps."""
        r, bearing = self.radar[self.seen].T
        t = np.arange(self.seen.size)
        return np.stack([np.interp(t, t[self.seen], r * f(bearing)) for f in (np.cos, np.sin)], axis=1)

    def start(self) -> Array:
        """The initial guess: position from radar, velocity from thrust."""
        return np.concatenate([self.fixes(), self.dead_reckoning()[:, 2:]], axis=1)


def least_squares(flight: Flight, x: Array, tight: bool) -> Any:
    """SciPy's least_squares on the same cost, with the sparsity of its Jacobian; its inner LSMR is `tight` or loose."""
    T, seen = len(x), np.flatnonzero(flight.seen)
    state = sps.eye_array(T, format="csr")
    coupled = sps.vstack([state[:1], state[1:] + state[:-1]])
    sparsity = sps.vstack([sps.kron(coupled, np.ones((4, 4))), sps.kron(state[seen], [[1, 1, 0, 0], [1, 1, 0, 0]])])

    def errors(x: Array) -> Array:
        return np.concatenate([error.ravel() for error in flight.errors(x.reshape(T, 4))])

    inner = {"atol": 1e-12, "btol": 1e-12, "maxiter": 100 * T, "regularize": False} if tight else {}
    return scipy.optimize.least_squares(errors, x.ravel(), jac_sparsity=sparsity, tr_options=inner)


# -------------------------------------------------------------------------------------------------------------- output


def rms(error: Array) -> float:
    """Root mean square length of the rows, in metres."""
    return float(np.sqrt(np.mean(np.sum(error[:, :2] ** 2, axis=1))))


def save_figure(path: Path, flight: Flight, x: Array) -> str:
    """Draw the flight in the plane, and the error of the smoothed position with its band; return what was done."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "figure skipped: matplotlib is not installed"
    t = DT * np.arange(len(x))
    gap = len(x) // 4
    part = slice(max(0, gap - 40), min(gap + 100, len(x)))
    fixes = np.where(flight.seen[:, None], flight.fixes(), np.nan)
    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    plane, error = figure.subplots(1, 2)
    plane.plot(*fixes[part].T, ".", color="0.7", label="radar fixes")
    plane.plot(*flight.dead_reckoning()[part, :2].T, "C1:", label="thrust alone")
    plane.plot(*flight.truth[part, :2].T, "k--", linewidth=1, label="truth")
    plane.plot(*x[part, :2].T, "C0", label="smoothed")
    steps = np.arange(part.start, part.stop, 5)
    angle = np.linspace(0.0, 2 * np.pi, 50)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for i, covariance in zip(steps, flight.covariance(x, steps), strict=True):
        ellipse = x[i, :2, None] + 2 * np.linalg.cholesky(covariance[:2, :2]) @ circle
        plane.plot(*ellipse, "C0", linewidth=0.5, label=None if i > steps[0] else "2 sigma")
    plane.set(xlabel="east (m)", ylabel="north (m)", aspect="equal", title=f"{t[part][0]:g} s to {t[part][-1]:g} s")
    steps = np.arange(0, len(x), 4)
    band = 2 * np.sqrt(flight.covariance(x, steps)[:, 0, 0])
    error.plot(t, fixes[:, 0] - flight.truth[:, 0], ".", color="0.7", markersize=4, label="radar fixes")
    error.fill_between(t[steps], -band, band, color="C0", alpha=0.25, label="2 sigma, as computed")
    error.plot(t, x[:, 0] - flight.truth[:, 0], "C0", label="smoothed")
    error.set(xlabel="time (s)", ylabel="error east (m)", title="whole flight, two gaps in the radar")
    for axes in (plane, error):
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=5)
    figure.savefig(path, dpi=100)
    return f"figure: {path}"


def run(options: argparse.Namespace) -> None:
    """Draw a flight, smooth it, and print the result."""
    flight = Flight.draw(options.steps, np.random.default_rng(options.seed))
    x0 = flight.start()
    measured = median_times({"implicitsolve": lambda: ims.root(flight.problem(), x0, stop=STOP)})
    result, seconds = measured["implicitsolve"]
    x = result.x
    known, gaps = (rms((x - flight.truth)[where]) for where in (flight.seen, ~flight.seen))
    print(f"{options.steps} steps, {flight.seen.sum()} of them seen by the radar; rms error of the position in metres:")
    print(f"  thrust alone {rms(flight.dead_reckoning() - flight.truth):.1f}, ", end="")
    print(f"radar fixes {rms((flight.fixes() - flight.truth[:, :2])[flight.seen]):.2f}, ", end="")
    print(f"smoothed {known:.2f} where seen, {gaps:.2f} in the gaps")

    def row(name: str, seconds: float, x: Array, outcome: str) -> None:
        gradient = np.max(np.abs(flight.gradient(x)))
        found = f"cost {flight.cost(x):.6f}   max|gradient| {gradient:.1e}"
        print(f"  {name:33} {1e3 * seconds:8.1f} ms   {found}   {outcome}", flush=True)

    outcome = f"{result.status.name}, {result.iterations} steps, {result.counts.residuals} gradients"
    row("implicitsolve", seconds, x, outcome)
    rivals = {
        "SciPy least_squares, tight LSMR": lambda: least_squares(flight, x0, tight=True),
        "SciPy least_squares, defaults": lambda: least_squares(flight, x0, tight=False),
    }
    for name, (answer, seconds) in median_times(rivals, repeats=0).items():
        row(name, seconds, answer.x.reshape(x.shape), f"status {answer.status}, {answer.nfev} steps")

    steps = np.arange(0, len(x), 4)
    errors = (x - flight.truth)[steps]
    squares = np.einsum("ni,nij,nj->n", errors, np.linalg.inv(flight.covariance(x, steps)), errors)
    print(f"squared error of a state in units of its covariance: mean {squares.mean():.2f}, 4 expected")
    if options.figure is not None:
        print(save_figure(options.figure, flight, x))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse ends the program with status 2 if it is wrong."""
    parser = argparse.ArgumentParser(prog="trajectory_smoother", description="Smooth the trajectory of a drone.")
    parser.add_argument("--steps", type=int, default=800, help="of half a second (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    parser.add_argument("--figure", type=Path, metavar="PNG", help="draw the trajectory (needs matplotlib)")
    options = parser.parse_args(arguments)
    if options.steps < 100:
        parser.error(f"--steps: at least 100 expected, got {options.steps}")
    if options.seed < 0:
        parser.error(f"--seed: a number of at least 0 expected, got {options.seed}")
    if options.figure is not None and not options.figure.resolve().parent.is_dir():
        parser.error(f"--figure: the folder of {options.figure} does not exist")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    run(parse(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
