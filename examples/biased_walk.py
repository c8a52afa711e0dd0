"""Find where a random walk begins to drift: an implicit GRU on generated data, compared with the Bayes-optimal error.

    python examples/biased_walk.py --figure walk.png

A walk x_i = x_{i-1} + eps_i starts to drift by b v a step at an unknown time t'; every element is to be labelled
"before" or "after" (Kazi and Thompson, ACL 2017, section 3.1). The generator is known, so the posterior of t' is, and
with it the smallest error that any model can have: the floor printed with the layer's error.
See docs/examples/biased_walk.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import implicitsolve as ims
from _tagging.errors import UserError
from _tagging.files import atomic_write, check_writable
from _tagging.optimisers import Adam
from _walks import LAWS, LONGEST, Law, Rate, Walks, bayes_floor, draw, posterior
from implicitsolve import adapters

Array = NDArray[Any]
FLOOR_WALKS = 20_000
POSITION_UNIT = 10.0
"""Positions reach tens of units. W could undo a division by a constant, but Adam's steps are tamer with it."""
TEST_BATCH, CLIP = 64, 0.1


@dataclass
class Work:
    """The cost of the solves, and how many walks were not solved."""

    batches: int = 0
    walks: int = 0
    steps: int = 0
    products: int = 0
    adjoint_products: int = 0
    unsolved: int = 0
    unsolved_adjoint: int = 0


@dataclass(frozen=True)
class Model:
    """Implicit GRU and logistic regression on its states; float32 parameters by name."""

    parameters: dict[str, Array]

    @classmethod
    def initial(cls, state: int, dimension: int, rng: np.random.Generator) -> Model:
        """Draw parameters.

        The bias of z keeps the layer well conditioned at first: z = 0 is a pure average of both neighbours, for which
        I - J is as badly conditioned as a Laplacian.
        """
        parameters = {}
        for gate in ("", "z", "r", "p", "n"):
            parameters[f"W{gate}"] = 0.3 * rng.standard_normal((state, dimension))
            parameters[f"U{gate}"] = 0.3 * state**-0.5 * rng.standard_normal((state, state))
            parameters[f"b{gate}"] = np.full(state, 1.0 if gate == "z" else 0.0)
        parameters |= {"hs": np.zeros(state), "he": np.zeros(state), "out_w": np.zeros(state), "out_b": np.zeros(1)}
        return cls({name: value.astype(np.float32) for name, value in parameters.items()})

    def solve(self, walks: Walks, tolerance: float) -> tuple[ims.Problem, ims.NonlinearResult, Array]:
        """Solve the layer to max|H - F(H)| <= tolerance; return the problem, the result and P(y_i = 1), (B, T)."""
        p = self.parameters
        layer = {name: value for name, value in p.items() if name[0] in "WUb"}
        inputs = (walks.positions / POSITION_UNIT).astype(np.float32)
        problem = adapters.implicit_gru(layer, inputs, lengths=walks.lengths, hs=p["hs"], he=p["he"])
        result = ims.root(problem, stop=ims.NonlinearStop(atol=tolerance, rtol=0.0))
        return problem, result, 0.5 + 0.5 * np.tanh(0.5 * (result.x @ p["out_w"] + p["out_b"]))

    def gradient(self, walks: Walks, work: Work) -> dict[str, Array]:
        """Gradient of the mean logistic loss over the elements of the walks that were solved; adds to `work`."""
        problem, result, probability = self.solve(walks, 1e-3)
        is_used = walks.is_step & result.success[:, None]
        errors = ((probability - walks.labels) * is_used / max(int(is_used.sum()), 1)).astype(np.float32)
        cotangent = errors[:, :, None] * self.parameters["out_w"]
        adjoint = ims.pull_back(problem, result, cotangent, stop=ims.LinearStop(rtol=1e-2))
        work.batches += 1
        work.walks += walks.lengths.size
        work.steps += int(np.max(result.iterations))
        work.products += result.counts.residuals + result.counts.jvps
        work.adjoint_products += adjoint.linear.matvecs
        work.unsolved += int(np.sum(~result.success))
        work.unsolved_adjoint += int(np.sum(~np.asarray(adjoint.linear.success)))
        gradients = {name: value for name, value in adjoint.gradients.items() if name != "inputs"}
        gradients |= {"out_w": np.einsum("bt,btk->k", errors, result.x), "out_b": errors.sum(keepdims=True)[0]}
        return _clipped(gradients)

    def predict(self, walks: Walks) -> tuple[Array, int]:
        """P(y_i = 1), (B, T), and how many walks were not solved; in parts that stay in the cache."""
        probability, unsolved = np.zeros(walks.labels.shape), 0
        for first in range(0, walks.lengths.size, TEST_BATCH):
            part = slice(first, first + TEST_BATCH)
            _, result, probability[part] = self.solve(walks.part(part), 1e-4)
            unsolved += int(np.sum(~result.success))
        return probability, unsolved


def _clipped(gradients: dict[str, Array]) -> dict[str, Array]:
    """Scale to a norm of at most CLIP: where I - J is nearly singular a single walk has a huge gradient."""
    norm = np.sqrt(sum(float(np.sum(value * value)) for value in gradients.values()))
    if not np.isfinite(norm):
        raise UserError("training diverged: a gradient is not finite; try a smaller --rate")
    return {name: value * np.float32(min(1.0, CLIP / max(norm, 1e-30))) for name, value in gradients.items()}


def train(law: Law, options: argparse.Namespace, rng: np.random.Generator) -> tuple[Model, Work]:
    """Train on fresh walks for `options.seconds`, or `options.steps` steps; the rate falls linearly to zero."""
    model = Model.initial(options.state, law.dimension, rng)
    optimiser, work = Adam(), Work()
    began = shown = time.perf_counter()
    done = 0.0
    while done < 1.0:
        gradients = model.gradient(draw(law, options.batch, rng), work)
        optimiser.step(model.parameters, gradients, options.rate * (1.0 - done))
        now = time.perf_counter()
        done = work.batches / options.steps if options.steps else (now - began) / options.seconds
        if now - shown > 5.0:
            print(f"  {work.walks} walks, {100 * min(done, 1.0):.0f} %", file=sys.stderr, flush=True)
            shown = now
    return model, work


# -------------------------------------------------------------------------------------------------------------- output


def save_figure(path: Path, walks: Walks, model_P: Array, bayes_P: Array) -> str:
    """Draw one walk, its change point, and both probabilities; return a summary."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "figure skipped: matplotlib is not installed"
    long = np.flatnonzero(walks.lengths >= 0.75 * LONGEST)
    middle = np.abs(walks.changes / walks.lengths - 0.5)
    chosen = int(long[middle[long].argmin()]) if long.size else int(walks.lengths.argmax())
    n = int(walks.lengths[chosen])
    i = np.arange(1, n + 1)
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for j in range(min(walks.positions.shape[2], 5)):
        above.plot(i, walks.positions[chosen, :n, j], ".-", label=f"coordinate {j + 1}")
    below.plot(i, model_P[chosen, :n], "o-", label="implicit GRU")
    below.plot(i, bayes_P[chosen, :n], "k--", label="Bayes posterior")
    below.axhline(0.5, color="grey", linewidth=0.5)
    for axes in (above, below):
        axes.axvline(walks.changes[chosen], color="C3", linestyle=":", label="true change point t'")
        axes.legend(loc="upper left", fontsize="small")
    above.set_ylabel("position")
    below.set(xlabel="step", ylabel="P(after the change)", ylim=(-0.05, 1.05))
    with atomic_write(path) as file:
        figure.savefig(file, dpi=100, format="png")
    return f"figure: {path}"


def run(options: argparse.Namespace) -> None:
    """Train, measure, print, and write the requested files."""
    for path in (options.figure, options.json):
        if path is not None:
            check_writable(path)
    law = Law(options.bias, options.law, options.dimension, options.norm)
    training_rng, test_rng, floor_rng = np.random.default_rng(options.seed).spawn(3)
    print(f"law of v: {law.law}, dimension {law.dimension}, norm {law.norm:.4g}; b = {law.bias:g}", flush=True)
    floor = bayes_floor(law, options.floor_walks, floor_rng)
    model, work = train(law, options, training_rng)
    print(describe(work))
    test = draw(law, options.test_walks, test_rng)
    model_P, unsolved = model.predict(test)
    if unsolved:
        print(f"NOT CONVERGED: {unsolved} test walks")
    bayes_P = posterior(law, test)
    error, bayes_error = (
        Rate.of((((P > 0.5) != test.labels) & test.is_step).sum(axis=1), test.lengths) for P in (model_P, bayes_P)
    )
    print(f"error per element, implicit GRU:           {error}  ({options.test_walks} test walks)")
    print(f"error per element, Bayes rule, same walks: {bayes_error}")
    print(f"Bayes floor of this law:                   {floor}  ({options.floor_walks} walks)")
    if options.json is not None:
        results = {
            "example": "biased_walk",
            "options": {
                name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()
            },
            "work": dataclasses.asdict(work),
            "test_unsolved": unsolved,
            "error": dataclasses.asdict(error),
            "bayes_error_same_walks": dataclasses.asdict(bayes_error),
            "bayes_floor": dataclasses.asdict(floor),
        }
        with atomic_write(options.json) as file:
            file.write((json.dumps(results, indent=2) + "\n").encode())
        print(f"results: {options.json}")
    if options.figure is not None:
        print(save_figure(options.figure, test, model_P, bayes_P))


def describe(work: Work) -> str:
    """A summary of the cost of training."""
    steps, products, adjoint = (
        f"{total / work.batches:.1f}" for total in (work.steps, work.products, work.adjoint_products)
    )
    text = f"trained on {work.walks} walks in {work.batches} batches; "
    text += f"per batch {steps} steps, {products} products, {adjoint} adjoint products"
    if work.unsolved or work.unsolved_adjoint:
        text += f"\nNOT CONVERGED: {work.unsolved} walks (left out), {work.unsolved_adjoint} adjoint solves (used)"
    return text


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse ends the program with status 2 if it is wrong."""
    parser = argparse.ArgumentParser(prog="biased_walk", description="Implicit GRU on biased random walks.")
    add = parser.add_argument
    add("--seconds", type=float, default=60.0, help="of training (default %(default)s)")
    add("--steps", type=int, help="number of training steps, instead of --seconds: then the result is reproducible")
    add("--bias", type=float, default=Law.bias, help="b (default %(default)s)")
    add("--law", choices=LAWS, default=Law.law, help="of v (default %(default)s)")
    add("--dimension", type=int, default=Law.dimension, help="of v (default %(default)s)")
    add("--norm", type=float, default=Law.norm, help="of v, or its scale (default sqrt(2): v = (1, 1))")
    add("--state", type=int, default=40, help="k (default %(default)s)")
    add("--batch", type=int, default=32, help="walks in a batch (default %(default)s)")
    add("--rate", type=float, default=8e-3, help="of Adam, at the start (default %(default)s)")
    add("--test-walks", type=int, default=5000, help="default %(default)s")
    add("--floor-walks", type=int, default=FLOOR_WALKS, help="default %(default)s")
    add("--seed", type=int, default=0)
    add("--figure", type=Path, metavar="PNG", help="draw one test walk (needs matplotlib)")
    add("--json", type=Path, metavar="FILE", help="write the results")
    options = parser.parse_args(arguments)
    for name in ("seconds", "dimension", "state", "batch", "rate", "test_walks", "floor_walks"):
        if not 0 < getattr(options, name) < float("inf"):
            parser.error(f"--{name.replace('_', '-')}: a positive number expected, got {getattr(options, name)}")
    for name in ("bias", "norm", "seed"):
        if not 0 <= getattr(options, name) < float("inf"):
            parser.error(f"--{name}: a number of at least 0 expected, got {getattr(options, name)}")
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps: at least 1 expected, got {options.steps}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = parse(arguments)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # training checks what it uses
            run(options)
    except UserError as error:
        print(f"biased_walk: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("biased_walk: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
