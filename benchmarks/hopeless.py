"""Evaluations until systems without roots are given up, and until hard ones with roots are solved.

A step has made progress if it brings max|F| or ||F||_2, of any system of a batch, below its least in the attempt, or if
it ends on the path of a homotopy. A system without a root is to be given up within 500 evaluations plus 20 for each
such step. A call of F or of a product for all systems of a batch counts once, and so does a step.

Usage::

    python -m benchmarks.hopeless
    python -m benchmarks.hopeless --write docs/performance/hopeless.md
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.rootless_systems import Case, hopeless_cases, layer_cases, solvable_cases
from implicitsolve.nonlinear._homotopy import FARTHEST, ON_PATH

BASE, PER_STEP = 500, 20  # evaluations that are granted, and more for each step with progress
TIMED = 2000  # unknowns of the systems whose own time is measured


@dataclass(frozen=True)
class Outcome:
    """What a solve took."""

    evaluations: int
    steps: int  # with progress
    success: bool
    own: float  # ms of an evaluation beyond the call

    @property
    def excess(self) -> int:
        """Evaluations beyond what is granted."""
        return max(self.evaluations - BASE - PER_STEP * self.steps, 0)


@dataclass
class Watch:
    """Counts the steps with progress of each attempt; a monitor."""

    start: Any  # x0, flat for each system
    norms: list[tuple[int, Any, bool]]

    def __call__(self, step: Any, x: Any, F: Any) -> None:
        """Note both norms of each system, and whether a step ended on a homotopy's path."""
        F = np.asarray(F).reshape(self.start.shape)
        both = np.stack([np.abs(F).max(axis=1), np.linalg.norm(F, axis=1)])
        first = self.norms[0][1][1] if self.norms else both[1]
        moved = np.reshape(x, self.start.shape) - self.start
        tau = np.vecdot(moved, moved - F) / np.vecdot(moved - F, moved - F)
        distance = np.linalg.norm(moved + tau[:, None] * (F - moved), axis=1)
        is_near = np.linalg.norm(moved, axis=1) <= FARTHEST * np.maximum(first, np.linalg.norm(self.start, axis=1))
        length = step.step_length if step.step_length.size == first.size else 0
        self.norms.append((step.iteration, both, bool((is_near & (distance <= ON_PATH * length * first)).any())))

    def steps(self, retries: Sequence[Any]) -> int:
        """Steps with progress."""
        begins = {retry.iteration: retry.method == "Homotopy" for retry in retries}
        least, steps, follows = self.norms[0][1], 0, False
        for iteration, both, is_on_path in self.norms[1:]:
            if iteration - 1 in begins:
                least, follows = self.norms[0][1], begins[iteration - 1]
            steps += bool((both < least).any()) or (follows and is_on_path)
            least = np.fmin(least, both)
        return steps


def solve(case: Case) -> Outcome:
    """Solve by defaults."""
    x0 = np.asarray(case.start, dtype=float)
    watch = Watch(x0.reshape(int(np.prod(x0.shape[: getattr(case.problem, "batch_ndim", 0)])), -1), [])
    stop = ims.NonlinearStop(atol=case.atol)
    result = ims.root(case.problem, case.x0, stop=stop, monitor=watch)
    evaluations, success = result.counts.evaluations, bool(np.all(result.success))
    own = own_time(case, stop, evaluations) if x0.size == TIMED else 0.0
    return Outcome(evaluations, watch.steps(result.retries), success, own)


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


def table(cases: Sequence[Case], *, is_limited: bool = False) -> str:
    """A sum in words, and a row for each case."""
    columns = ["excess", "own ms an evaluation"] if is_limited else ["solved"]
    columns = ["kind", "system", "shape", "evaluations", "steps with progress", *columns]
    lines = ["| " + " | ".join(columns) + " |", "| --- | --- | --- |" + " ---: |" * (len(columns) - 3)]
    outcomes = [solve(case) for case in cases]
    for case, outcome in zip(cases, outcomes):
        last = [f"{outcome.excess or ''}", f"{outcome.own:.2f}" if outcome.own else ""]
        last = last if is_limited else ["yes" if outcome.success else "no"]
        shape = " x ".join(map(str, np.shape(case.start)))
        lines.append(f"| {case.group} | {case.name} | {shape} | {outcome.evaluations} | {outcome.steps} | ")
        lines[-1] += " | ".join(last) + " |"
    text = f"{len(cases)} systems, {sum(outcome.evaluations for outcome in outcomes)} evaluations"
    over = [outcome.excess for outcome in outcomes if outcome.excess]
    if is_limited:
        text += f"; {len(over)} exceed the limit, the worst by {max(over, default=0)}."
    else:
        text += f"; {sum(outcome.success for outcome in outcomes)} solved."
    return text + "\n\n" + "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the Markdown page there")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose kind and name contain this")
    options = parser.parse_args(arguments)
    sets = hopeless_cases(), layer_cases(), solvable_cases()
    rootless, layers, control = ([c for c in cases if options.only in f"{c.group} {c.name}"] for cases in sets)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [
            "# Systems without roots",
            "Evaluations until `root` by defaults ends for a system without a root. A step has made progress if it\n"
            "brings max|F| or ‖F‖, of any system of a batch, below the least of its attempt, or if it ends on the\n"
            "path of a `Homotopy`. The limit is 500 evaluations plus 20 for each such step; a call for all systems\n"
            "of a batch counts once, and so does a step. Written by `python -m benchmarks.hopeless`.",
            table(rootless, is_limited=True),
            "## Layers with large weights",
            "Bounded maps, which have a fixed point. `Homotopy` follows its path for at most 2000 steps, at no charge.",
            table(layers),
            "## Hard systems with roots",
            table(control),
        ]
    page = "\n\n".join(parts)
    print(page)
    if options.write:
        options.write.write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
