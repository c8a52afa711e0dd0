"""Training in a batch that stays full while weights change (Kazi and Thompson 2017, section 5), beside ones that end.

The implicit GRU of ``walks.py`` is trained on walks, each seen once, with a step of Adam for every `--batch` gradients.
The ways:

- "separate": batch after batch, by `root` and then `pull_back`, as in ``walks.py``;
- "drained": batch after batch by `solve_stream`, states and then adjoints, each to the end of its slowest walk;
- "full": two streams, of states and of adjoints, that take turns, so that each call has all of its slots. Another walk
  takes the slot of one that has ended, and the weights change as soon as a batch of adjoints has. Walks in flight go
  on under the new weights: states from where they are, adjoints with the derivatives at their states anew.

A walk that has been solved keeps its states until its gradient is applied, some updates later: its staleness. All ways
have the same number of calls, or of CPU seconds, over which the rate falls to zero. A call evaluates the layer, or a
product with the adjoint of its derivative, for at most a batch of walks.

    python -m benchmarks.experiments.asynchronous --calls 20000 --seeds 0 1 2
    python -m benchmarks.experiments.asynchronous --seconds 20 --seeds 0 1 2 --json asynchronous_time.json
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import implicitsolve as ims
from _walks import Law, Walks, draw
from benchmarks.experiments._layers import EXACT
from benchmarks.experiments._run import command, write_json
from benchmarks.experiments.walks import INN, UNIT, error_of
from implicitsolve.adapters import implicit_gru
from implicitsolve.elimination._even_odd import reduced_jacobian

LAYER = tuple(kind + gate for gate in ("", "z", "r", "p", "n") for kind in "WUb")
MOST_STEPS = 200  # of a walk's states or adjoint
FORWARD = ims.NonlinearStop(atol=1e-3, rtol=0.0, max_iterations=MOST_STEPS)
ADJOINT = ims.NonlinearStop(norm="2", atol=0.0, rtol=1e-2, max_iterations=MOST_STEPS)  # as in `EXACT`


class Spent(Exception):  # noqa: N818 (a condition that ends a run)
    """All calls, all time, or all walks, are used up."""


@dataclass
class Meter:
    """Calls of the layer, what they evaluated, and walks that were used and not."""

    calls: int = 0
    evaluations: int = 0
    used: int = 0
    unsolved: int = 0
    updates: int = 0
    staleness: list[int] = field(default_factory=list)  # updates from the solution of each walk to its gradient
    in_flight: list[int] = field(default_factory=list)  # updates from the start of each walk to its solution

    def see(self, systems: int, calls: int = 1) -> None:
        """Count calls with so many systems."""
        self.calls += calls
        self.evaluations += calls * systems

    def see_all(self, counts: ims.Counts, evaluations: int) -> None:
        """Count the calls of a solve."""
        self.calls += counts.evaluations
        self.evaluations += evaluations


class Turns:
    """Two threads of which one runs at a time."""

    def __init__(self) -> None:
        self.condition, self.turn, self.is_over = threading.Condition(), "states", False

    def give(self, other: str) -> None:
        """Let the other one run, until it gives the turn back."""
        own = "adjoints" if other == "states" else "states"
        with self.condition:
            self.turn = other
            self.condition.notify_all()
            self.condition.wait_for(lambda: self.turn == own or self.is_over)
        if self.is_over:
            raise Spent

    def end(self) -> None:
        """Let both end."""
        with self.condition:
            self.is_over = True
            self.condition.notify_all()


@dataclass
class Solved:
    """Walks that were solved together, with what their adjoints need: derivatives of both halves, and cotangents."""

    numbers: Any  # of the walks, in the order in which they were solved
    couplings: tuple[Any, Any]
    cotangents: tuple[Any, Any]
    inverse: Any  # approximate, of the Jacobian

    def residual(self, numbers: Any, y: Any) -> Any:
        """Of the adjoints of the kept positions of some of these walks, with the approximate inverse."""
        places = np.searchsorted(self.numbers, numbers)
        eliminated, kept = (coupling.take(places) for coupling in self.couplings)
        others = self.cotangents[0][places] + kept.rmatvec(y)
        return self.inverse.take(places).rmatvec(y - self.cotangents[1][places] - eliminated.rmatvec(others))


class Trainer:
    """A layer and its optimizer, and the walks between their solution and the update with their gradients."""

    def __init__(self, model: INN, walks: Walks, options: argparse.Namespace) -> None:
        self.model, self.walks, self.options, self.meter = model, walks, options, Meter()
        self.inputs = (walks.positions / UNIT).astype(np.float32)
        self.optimizer = torch.optim.Adam(model.parameters())
        owners = {name: getattr(model.layer, name) for name in LAYER} | {"hs": model.hs, "he": model.he}
        self.parameters = owners | {"w": model.readout.weight, "c": model.readout.bias}
        self.weights = {name: value.detach().numpy() for name, value in self.parameters.items()}  # views
        self.begun = np.full(len(walks.lengths), -1)  # updates before each walk, and before its solution
        self.ended = self.begun.copy()
        self.order: list[int] = []  # walks in the order in which they were solved
        self.states: list[Any] = []
        self.groups: list[Solved] = []  # of those without an adjoint
        self.norms: dict[int, float] = {}  # of the first residuals of adjoints
        self.starts: dict[int, Any] = {}
        self.open: set[int] = set()  # places in `order` of walks without an adjoint
        self.ready: dict[int, Any] = {}  # adjoints, by these places, that wait for an update
        self.turns: Turns | None = None
        self.needed = 1  # solved walks with which the stream of adjoints can go on
        self.began = time.process_time()

    @property
    def seconds(self) -> float:
        """CPU time since the start of the training."""
        return time.process_time() - self.began

    @property
    def share(self) -> float:
        """Of the calls, or of the time, that are used up."""
        limit = self.options.seconds
        return self.seconds / limit if limit else self.meter.calls / self.options.calls

    def layer(self, walks: Any) -> ims.Problem:
        """The problem of some walks with the present weights."""
        w = self.weights
        params = {name: w[name] for name in LAYER}
        return implicit_gru(params, self.inputs[walks], lengths=self.walks.lengths[walks], hs=w["hs"], he=w["he"])

    def errors(self, walks: Any, states: Any) -> Any:
        """dL/d(log odds), of the sum of the losses of all elements."""
        odds = states @ self.weights["w"][0] + self.weights["c"]
        difference = 1 / (1 + np.exp(-odds)) - self.walks.labels[walks]
        return np.where(self.walks.is_step[walks], difference, 0.0).astype(np.float32)

    def linearize(self, walks: Any, e: Any) -> tuple[Any, Any, Any]:
        """Residual of the kept positions, all states, and the derivatives of both halves: one call."""
        halves: Any = self.layer(walks).halves
        others, eliminated = halves.eliminated.linearize(e)
        value, kept = halves.kept.linearize(others)
        self.meter.see(walks.size)
        return e - value, merged(others, e), (eliminated, kept)

    def keep(self, numbers: Any, walks: Any, states: Any, couplings: tuple[Any, Any]) -> None:
        """What the adjoints of solved walks need."""
        G = self.errors(walks, states)[..., None] * self.weights["w"][0]
        inverse = self.jacobian(walks, couplings).approximate_inverse()
        self.groups.append(Solved(numbers, couplings, (G[:, ::2], G[:, 1::2]), inverse))

    def jacobian(self, walks: Any, couplings: tuple[Any, Any]) -> Any:
        """Of the kept positions."""
        halves: Any = self.layer(walks[:1]).halves
        shape = self.inputs.shape[1] // 2, self.model.layer.state_size
        return reduced_jacobian(halves, *couplings, shape, (walks.size,), np.dtype(np.float32))

    def guess(self, walks: Any) -> Any:
        """Where walks begin: by one step of the recurrences, for a batch of walks together."""
        for walk in walks.tolist():
            if walk not in self.starts:
                batch = np.arange(walk, min(walk + self.options.batch, len(self.walks.lengths)))
                found = ims.adapters.initial_guess(self.layer(batch))[:, 1::2]
                self.meter.see(batch.size, 3)
                self.starts |= dict(zip(batch.tolist(), found))
        return np.stack([self.starts[walk] for walk in walks.tolist()])

    def forward(self, walks: Any) -> ims.Problem:
        """States of every second position, less where they begin; the others follow from them."""

        def linearize(u: Any) -> tuple[Any, Any]:
            self.begun[walks] = np.where(self.begun[walks] < 0, self.meter.updates, self.begun[walks])
            F, states, couplings = self.linearize(walks, self.guess(walks) + u)
            done = np.flatnonzero((np.abs(F).max(axis=(1, 2)) <= FORWARD.atol) & (self.ended[walks] < 0))
            if done.size:
                numbers = len(self.order) + np.arange(done.size)
                self.keep(numbers, walks[done], states[done], tuple(c.take(done) for c in couplings))
                self.open.update(numbers.tolist())
                self.order += walks[done].tolist()
                self.states += list(states[done])
                self.ended[walks[done]] = self.meter.updates
            if self.turns is not None and len(self.order) >= self.needed:
                self.turns.give("adjoints")
            return F, self.jacobian(walks, couplings)

        take = lambda rows: self.forward(walks[rows])  # noqa: E731
        return ims.Problem(lambda u: linearize(u)[0], linearize=linearize, batch_ndim=1, fixed_point=True, take=take)

    def adjoint(self, numbers: Any) -> ims.Problem:
        """Adjoints of the same positions, of walks in the order in which they are solved."""

        def residual(y: Any) -> Any:
            self.needed = int(numbers.max()) + 1
            if len(self.order) < self.needed:
                self.turns.give("states")
            F = np.empty_like(y)
            for group in self.groups:
                if (places := np.flatnonzero(np.isin(numbers, group.numbers))).size:
                    F[places] = group.residual(numbers[places], y[places])
            self.meter.see(numbers.size)
            for number, norm, value in zip(numbers.tolist(), np.linalg.norm(F, axis=(1, 2)), y):
                if norm <= ADJOINT.rtol * self.norms.setdefault(number, norm) and number in self.open:
                    self.open.remove(number)
                    self.ready[number] = value.copy()
            if len(self.ready) >= self.options.batch:
                self.update()
                self.renew(int(numbers.min()))
            return F

        return ims.Problem(residual, batch_ndim=1, fixed_point=True, take=lambda rows: self.adjoint(numbers[rows]))

    def update(self) -> None:
        """Take a step of Adam with the gradients that wait."""
        numbers = np.asarray(sorted(self.ready))
        walks, states = np.asarray(self.order)[numbers], np.stack([self.states[i] for i in numbers])
        y = np.stack([self.ready[i] for i in numbers])
        layer: Any = self.layer(walks)
        errors = self.errors(walks, states)
        G = errors[..., None] * self.weights["w"][0]
        kept = layer.halves.kept.linearize(states[:, ::2])[1]
        adjoint = merged(G[:, ::2] + kept.rmatvec(y), y)
        gradients = {name: -value for name, value in layer.parameter_vjp(states, adjoint).items()}
        self.meter.see(walks.size, 2)
        self.apply(gradients, walks, states, errors)
        self.meter.staleness += (self.meter.updates - 1 - self.ended[walks]).tolist()
        self.meter.in_flight += (self.ended - self.begun)[walks].tolist()
        self.ready = {}

    def renew(self, first: int) -> None:
        """Derivatives and cotangents, with new weights, of walks without an adjoint: one call for each batch."""
        self.open = {number for number in self.open if number >= first}  # of those before, the solve has failed
        numbers, self.groups = np.asarray(sorted(self.open), int), []
        for i in range(0, numbers.size, self.options.batch):
            some = numbers[i : i + self.options.batch]
            walks, states = np.asarray(self.order)[some], np.stack([self.states[number] for number in some])
            self.keep(some, walks, states, self.linearize(walks, np.ascontiguousarray(states[:, 1::2]))[2])

    def apply(self, gradients: dict[str, Any], walks: Any, states: Any, errors: Any) -> None:
        """A step of Adam; the gradient is the mean over all elements."""
        if self.share > 1:
            raise Spent
        own = {"w": np.einsum("bt,btk->k", errors, states)[None], "c": errors.sum()[None]}
        for name, parameter in self.parameters.items():
            value = (own[name] if name in own else gradients[name]) / self.walks.lengths[walks].sum()
            parameter.grad = torch.from_numpy(np.ascontiguousarray(value, np.float32))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.rate * max(0.0, 1 - self.share)
        self.optimizer.step()
        self.meter.updates += 1
        self.meter.used += walks.size

    def batches(self) -> Iterator[Any]:
        """Walks in batches."""
        numbers = np.arange(len(self.walks.lengths))
        yield from (numbers[i : i + self.options.batch] for i in range(0, numbers.size, self.options.batch))

    def stream(self, build: Callable[[Any], ims.Problem], numbers: Any, stop: ims.NonlinearStop) -> None:
        """Solve some systems in so many slots."""
        start = np.zeros((numbers.size, self.inputs.shape[1] // 2, self.model.layer.state_size), np.float32)
        size, method = self.options.batch, ims.Anderson()
        found = ims.drivers.solve_stream(build(numbers), start, batch_size=size, method=method, stop=stop)
        self.meter.unsolved += int((~np.asarray(found.success)).sum())

    def separate(self) -> None:
        """Batch after batch, by `root` and `pull_back`."""
        for rows in self.batches():
            found = ims.root(self.layer(rows), stop=EXACT.stop)
            self.meter.see_all(found.counts, sum(step.systems.size for step in found.steps))
            self.meter.see(rows.size, 3)  # its start
            good = np.flatnonzero(found.success)
            walks, states = rows[good], found.x[good]
            self.meter.unsolved += rows.size - good.size
            errors = self.errors(walks, states)
            G = errors[..., None] * self.weights["w"][0]
            pulled = ims.pull_back(self.layer(walks), states, G, stop=EXACT.adjoint_stop)
            self.meter.see_all(pulled.counts, int(np.sum(pulled.linear.iterations)))
            self.meter.see(walks.size, 2)
            self.apply(pulled.gradients, walks, states, errors)

    def drained(self) -> None:
        """Batch after batch, first the states and then the adjoints."""
        for rows in self.batches():
            first = len(self.order)
            self.stream(self.forward, rows, FORWARD)
            if len(self.order) > first:
                self.stream(self.adjoint, np.arange(first, len(self.order)), ADJOINT)
            if self.ready:
                self.update()
            self.groups, self.open = [], set()

    def full(self) -> None:
        """All walks as two streams."""
        self.turns = Turns()
        numbers = np.arange(len(self.walks.lengths))

        def run(build: Callable[[Any], ims.Problem], stop: ims.NonlinearStop) -> None:
            try:
                self.stream(build, numbers, stop)
            finally:
                self.turns.end()  # type: ignore[union-attr]

        with ThreadPoolExecutor(1) as other:
            adjoints = other.submit(run, self.adjoint, ADJOINT)
            run(self.forward, FORWARD)
            adjoints.result()


def merged(even: Any, odd: Any) -> Any:
    """Positions 0, 2, ... and 1, 3, ... as one array."""
    whole = np.empty((even.shape[0], even.shape[1] + odd.shape[1], even.shape[2]), even.dtype)
    whole[:, ::2], whole[:, 1::2] = even, odd
    return whole


WAYS = {"separate": Trainer.separate, "drained": Trainer.drained, "full": Trainer.full}


def trained(way: str, seed: int, walks: Walks, options: argparse.Namespace) -> tuple[Trainer, float]:
    """The trainer of one layer at its end, and its CPU seconds."""
    model = INN(walks.positions.shape[-1], options.states, torch.Generator().manual_seed(seed))
    trainer = Trainer(model, walks, options)
    try:
        WAYS[way](trainer)
    except Spent:
        return trainer, trainer.seconds
    raise SystemExit(f"{way}: all {options.walks} walks are used up before the calls or the time; raise --walks")


def measure(way: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train and test one layer."""
    law = Law(options.bias, options.law, options.dimension, options.norm)
    train_rng, _, test_rng = np.random.default_rng(options.data_seed).spawn(3)
    walks, tested = draw(law, options.walks, train_rng), draw(law, options.tested, test_rng)
    trained(way, seed, walks, argparse.Namespace(**vars(options) | {"calls": 100, "seconds": None}))  # compiles kernels
    trainer, seconds = trained(way, seed, walks, options)
    error, unsolved = error_of(trainer.model, tested)
    meter = trainer.meter
    return {
        "way": way,
        "seed": seed,
        "test error": dataclasses.asdict(error),
        "test unsolved": unsolved,
        "walks": meter.used,
        "unsolved": meter.unsolved,
        "updates": meter.updates,
        "calls": meter.calls,
        "width": meter.evaluations / (meter.calls * options.batch),
        **{
            name: {"mean": float(np.mean(updates or 0)), "most": int(np.max(updates or 0))}
            for name, updates in {"staleness": meter.staleness, "updates in flight": meter.in_flight}.items()
        },
        "seconds": seconds,
    }


def main() -> None:
    """Train in each way with each seed."""
    parser = command("asynchronous", "Training in a batch that stays full.")
    add = parser.add_argument
    add("--bias", type=float, default=0.5, help="b (default %(default)s)")
    add("--law", default="common", help="of v (default %(default)s)")
    add("--dimension", type=int, default=3, help="of v (default %(default)s)")
    add("--norm", type=float, default=math.sqrt(3), help="of v (default sqrt(3))")
    add("--states", type=int, default=50, help="k (default %(default)s)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    add("--walks", type=int, default=20_000, help="at most, each seen once (default %(default)s)")
    add("--tested", type=int, default=5_000, help="walks (default %(default)s)")
    add("--calls", type=int, default=20_000, help="of the layer and its adjoint (default %(default)s)")
    add("--seconds", type=float, help="of CPU time, in place of a number of calls")
    add("--batch", type=int, default=20, help="gradients of a step, and slots (default %(default)s)")
    add("--rate", type=float, default=0.01, help="of Adam at first (default %(default)s)")
    add("--clip", type=float, default=0.1, help="gradient's norm at most (default %(default)s)")
    add("--data-seed", type=int, default=0, help="of the walks (default %(default)s)")
    add("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS), help="default: all")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs: list[dict[str, Any]] = []
    for seed, way in itertools.product(options.seeds, options.ways):
        runs.append(measure(way, seed, options))
        write_json(options.json, {"runs": runs}, options)
        print(runs[-1], flush=True)


if __name__ == "__main__":
    main()
