"""Train an implicit GRU in PyTorch to read a noisy switch, compared with Bayes' rule.

    python examples/torch_training.py --seconds 12

A switch is on or off and flips at random; its position (+1 or -1) is observed with normal noise. Every element of a
sequence is to be labelled "on" or "off". From the past alone no method does better than the Bayes filter, and from both
sides none better than the Bayes smoother; both are known exactly (the forward-backward recursions of a hidden Markov
chain). One implicit GRU uses both sides. See docs/how_to/torch.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import implicitsolve as ims
from implicitsolve.torch import ImplicitGRU, SolveOptions

Array = NDArray[Any]
TURN, NOISE = 0.2, 1.2  # probability of flipping, standard deviation of the observation
SHORTEST, LONGEST = 20, 40
TEST_SEQUENCES, TEST_SEED = 500, 999


@dataclass(frozen=True)
class Batch:
    """Sequences padded to one length: observations (B, T), whether the switch was on (B, T), lengths (B,)."""

    seen: Array
    is_on: Array
    lengths: Array

    @classmethod
    def draw(cls, count: int, rng: np.random.Generator) -> Batch:
        """Draw `count` sequences."""
        lengths = rng.integers(SHORTEST, LONGEST + 1, count)
        turns = rng.random((count, LONGEST)) < TURN
        turns[:, 0] = rng.random(count) < 0.5
        is_on = np.cumsum(turns, axis=1) % 2 == 1
        seen = 2.0 * is_on - 1.0 + NOISE * rng.standard_normal(is_on.shape)
        return cls(seen, is_on, lengths)

    @property
    def is_element(self) -> Array:
        """(B, T), false where padded."""
        return np.arange(LONGEST) < self.lengths[:, None]

    def error(self, logits: Array) -> float:
        """Share of the elements whose label has the wrong sign."""
        return float(np.mean(((logits > 0) != self.is_on)[self.is_element]))


def filter_logits(seen: Array) -> Array:
    """Log odds of "on" given the past and the present (B, T): the forward recursion."""
    logits = np.zeros((len(seen), 1))
    columns = []
    for t in range(seen.shape[1]):
        logits = _turned(logits) + 2.0 * seen[:, t : t + 1] / NOISE**2
        columns.append(logits)
    return np.concatenate(columns, axis=1)


def smoother_logits(batch: Batch) -> Array:
    """Log odds of "on" given the whole sequence (B, T): forwards, and backwards without the present."""
    evidence = np.where(batch.is_element, batch.seen, 0.0)
    backward = filter_logits(evidence[:, ::-1])[:, ::-1] - 2.0 * evidence / NOISE**2
    return filter_logits(evidence) + backward


def _turned(logits: Array) -> Array:
    """Log odds after a possible flip of the switch."""
    p = 1.0 / (1.0 + np.exp(-logits))
    p = p * (1.0 - TURN) + (1.0 - p) * TURN
    return np.log(p) - np.log1p(-p)


class Reader(nn.Module):
    """An implicit GRU with trainable states beyond both ends, and a logistic regression on its states."""

    def __init__(self, k: int, generator: torch.Generator) -> None:
        super().__init__()
        options = SolveOptions(
            method=ims.NewtonKrylov(retry=False),
            stop=ims.NonlinearStop(atol=1e-3, max_iterations=10),  # training needs no more
            adjoint_method=ims.GMRES(),
            adjoint_stop=ims.LinearStop(rtol=1e-2, max_iterations=200),
            on_failure="ignore",  # `forward` returns which sequences were not solved
        )
        self.layer = ImplicitGRU(1, k, scale=0.3, generator=generator, solve_options=options)
        nn.init.ones_(self.layer.bz)  # with z = 0 a state is the mean of its neighbours, and I - J nearly singular
        self.hs, self.he = nn.Parameter(torch.zeros(k)), nn.Parameter(torch.zeros(k))
        self.readout = nn.Linear(k, 1)

    def forward(self, seen: Tensor, lengths: Array) -> tuple[Tensor, Array]:
        """Log odds of "on", (B, T), and which sequences were solved, (B,)."""
        states, result = self.layer(seen[:, :, None], lengths, hs=self.hs, he=self.he, return_result=True)
        return self.readout(states)[:, :, 0], result.success


def train(model: Reader, options: argparse.Namespace, rng: np.random.Generator) -> tuple[int, int]:
    """Train on fresh sequences, for so many seconds or steps; the rate falls linearly to zero.

    Sequences that were not solved are left out of the loss. Return the steps, and how many sequences that were.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    began, step, done, unsolved = time.perf_counter(), 0, 0.0, 0
    while done < 1.0:
        batch = Batch.draw(options.batch, rng)
        seen, is_on = (torch.from_numpy(x.astype(np.float32)) for x in (batch.seen, batch.is_on))
        for group in optimizer.param_groups:
            group["lr"] = options.rate * (1.0 - done)
        optimizer.zero_grad()
        logits, solved = model(seen, batch.lengths)
        weight = torch.from_numpy((batch.is_element & solved[:, None]).astype(np.float32))
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits, is_on, weight, reduction="sum"
        ) / weight.sum().clamp(min=1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        unsolved += int(np.sum(~solved))
        done = step / options.steps if options.steps else (time.perf_counter() - began) / options.seconds
    return step, unsolved


def run(options: argparse.Namespace) -> dict[str, float]:
    """Train, print the errors per element, and return them."""
    torch.manual_seed(options.seed)
    model = Reader(options.state, torch.Generator().manual_seed(options.seed))
    test = Batch.draw(TEST_SEQUENCES, np.random.default_rng(TEST_SEED))
    began = time.perf_counter()
    steps, unsolved = train(model, options, np.random.default_rng(options.seed))
    seconds = time.perf_counter() - began
    print(f"{steps} steps of {options.batch} sequences in {seconds:.1f} s, {unsolved} sequences not solved")
    with torch.inference_mode():
        logits, solved = model(torch.from_numpy(test.seen.astype(np.float32)), test.lengths)
    print(f"errors per element of {TEST_SEQUENCES} others, {np.sum(~solved)} of them not solved:")
    errors = {
        "the sign of what is seen": test.error(test.seen),
        "Bayes filter (past alone)": test.error(filter_logits(test.seen)),
        "implicit GRU": test.error(logits.numpy()),
        "Bayes smoother (both sides)": test.error(smoother_logits(test)),
    }
    for name, error in errors.items():
        print(f"  {name:28} {error:.4f}")
    return errors


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; argparse ends the program with status 2 if it is wrong."""
    parser = argparse.ArgumentParser(prog="torch_training", description="Train an implicit GRU in PyTorch.")
    parser.add_argument("--seconds", type=float, default=12.0, help="of training (default %(default)s)")
    parser.add_argument("--steps", type=int, default=0, help="of training, in place of --seconds: repeatable")
    parser.add_argument("--state", type=int, default=16, help="numbers in a state (default %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="sequences in a step (default %(default)s)")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    options = parser.parse_args(arguments)
    for name in ("seconds", "state", "batch", "rate"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name}: a positive number expected, got {getattr(options, name)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    run(parse(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
