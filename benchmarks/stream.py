"""Count what a batch that is refilled saves in training: forward and adjoint solves, against batches run to their end.

The workloads, in the order in which they arrive, and solved as accurately as in training (max|F| <= 1e-3, adjoints to
1e-2) and more accurately (1e-4 both):

- "tagger": sentences of UD English EWT by the layer of a trained tagger (``--tagger``);
- "walks": biased random walks by the layer of a trained labeller (``--walks``);
- "hard": random sequences of 20 positions with 16 unknowns, by an implicit GRU with weights uniform in [-1, 1].

The ways:

- "plain": `root` and `pull_back` on the next sequences, padded to the longest of them;
- "by length": the same after sorting all of them;
- "stream": `stream_gradients` for `--step` sequences at a time, in the order in which they arrive.

A product is a residual or a product with J or its adjoint. A call evaluates the whole batch, and one with a part of
its slots in use takes a call too; one of more systems than slots counts as that many calls. Width is the part of the
slots in use while sequences wait, and of all steps, over the forward and the adjoint solves.

Usage::

    python examples/pos_tagging.py --epochs 5 --save tagger.npz
    python -m benchmarks.experiments.walks --bias 0.5 --models inn:100 --walks 4000 --epochs 1 --folder walks
    python benchmarks/stream.py --tagger tagger.npz --walks walks/CHECKPOINT.pt
"""

from __future__ import annotations

import os
import sys

THREADS = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv else "1"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = THREADS

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims
from implicitsolve.adapters import gru_parameters, implicit_gru
from implicitsolve.elimination import Half

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _tagging.batches import collate
from _tagging.conllu import read_conllu
from _tagging.files import find_treebank
from _tagging.model import LAYER
from _tagging.model_file import load_model
from _walks import Law, draw

CLOCK = time.process_time if THREADS == "1" else time.perf_counter
ACCURACIES = {"training": (1e-3, 1e-2), "1e-4": (1e-4, 1e-4)}


class Counted:
    """A coupling whose products are counted."""

    def __init__(self, coupling: Any, meter: Meter) -> None:
        self.inner, self.meter = coupling, meter

    def matvec(self, v: Any) -> Any:
        """Count it."""
        self.meter.half(v)
        return self.inner.matvec(v)

    def rmatvec(self, w: Any) -> Any:
        """Count it."""
        self.meter.half(w)
        return self.inner.rmatvec(w)

    def diagonals(self) -> Any:
        """Not counted."""
        return self.inner.diagonals()

    def take(self, indices: Any) -> Counted:
        """Of some systems."""
        return Counted(self.inner.take(indices), self.meter)


@dataclass
class Meter:
    """Calls of batches of `size` slots, and products, of a layer's functions; slots in use."""

    size: int
    calls: float = 0.0
    products: float = 0.0
    waited: list[int] = field(default_factory=list)
    all: list[int] = field(default_factory=list)

    def half(self, x: Any) -> None:
        """Count half an evaluation: that of every second position."""
        self.calls += 0.5 * -(-x.shape[0] // self.size)
        self.products += 0.5 * x.shape[0]

    def see(self, step: ims.NewtonStep, x: Any = None, F: Any = None) -> None:
        """See a step of a stream."""
        if step.iteration:
            used = step.systems.size + step.started
            self.all.append(used)
            self.waited += [used] if step.waiting else []

    def of(self, problem: ims.Problem) -> ims.Problem:
        """A layer's problem, counted."""
        halves: Any = problem.halves

        def counted(half: Half) -> Half:
            def apply(x: Any) -> Any:
                self.half(x)
                return half.apply(x)

            def linearize(x: Any) -> Any:
                self.half(x)
                value, coupling = half.linearize(x)
                return value, Counted(coupling, self)

            return Half(apply=apply, linearize=linearize)

        def pull(couplings: Any, states: Any, e: Any, w: Any, wrt: Any) -> Any:
            self.half(e)
            self.half(w)
            return halves.pull(tuple(c.inner for c in couplings), states, e, w, wrt)

        take: Any = problem.take
        seen = replace(halves, eliminated=counted(halves.eliminated), kept=counted(halves.kept), pull=pull)
        return replace(problem, halves=seen, take=lambda rows: self.of(take(rows)))


@dataclass(frozen=True)
class Workload:
    """Sequences, and how to build the layer's problem of some of them."""

    name: str
    lengths: Any
    build: Callable[[Any], ims.Problem]

    def problems(self, order: Any, size: int) -> list[ims.Problem]:
        """Problems of so many sequences each."""
        return [self.build(order[first : first + size]) for first in range(0, len(order), size)]


def loss(x: Any, systems: Any = None) -> Any:
    """Cotangent of a loss: about as large everywhere, and no solution of anything."""
    return np.sign(x)


def plain(problem: ims.Problem, forward: ims.NonlinearStop, adjoint: ims.LinearStop, meter: Meter) -> int:
    """A batch to its end; return how many systems failed."""
    result = ims.root(problem, stop=forward)
    found = ims.pull_back(problem, result, loss(result.x), stop=adjoint)
    return int((~np.asarray(found.success)).sum())


def stream(problem: ims.Problem, forward: ims.NonlinearStop, adjoint: ims.LinearStop, meter: Meter) -> int:
    """The same in a batch that is refilled."""
    found = ims.drivers.stream_gradients(
        problem,
        loss,
        batch_size=meter.size,
        stop=forward,
        adjoint_stop=adjoint,
        adjoint_monitor=meter.see,
    )
    for step in found.solution.steps:  # a monitor would have the whole state computed in each
        meter.see(step)
    return int((~np.asarray(found.success)).sum())


def hard(count: int) -> Workload:
    """Sequences of one length, of which some need ten times the steps of others."""
    rng = np.random.default_rng(0)
    params, inputs = gru_parameters(16, 16, scale=1.0, rng=rng), rng.standard_normal((count, 20, 16))
    return Workload("hard", np.full(count, 20), lambda which: implicit_gru(params, inputs[which]))


def tagger(path: Path, count: int) -> Workload:
    """Sentences of the development part."""
    model, _ = load_model(path)
    sentences = read_conllu(find_treebank()[1])[:count]
    corpus = [model.encoder.encode(sentence.forms, sentence.tags) for sentence in sentences]
    p = model.parameters

    def build(which: Any) -> ims.Problem:
        batch = collate(corpus, which)
        inputs = model._inputs(batch, batch.numbers)
        return implicit_gru({n: p[n] for n in LAYER}, inputs, lengths=batch.lengths, hs=p["hs"], he=p["he"])

    return Workload("tagger", np.asarray([len(sentence) for sentence in corpus]), build)


def walks(path: Path, count: int) -> Workload:
    """Walks that the labeller was not trained on."""
    import torch

    state = torch.load(path, weights_only=False)
    p = {name.removeprefix("layer."): value.numpy() for name, value in state["best"]["parameters"].items()}
    drawn = draw(Law(0.5), count, np.random.default_rng(7))
    inputs = (drawn.positions / 10.0).astype(np.float32)

    def build(which: Any) -> ims.Problem:
        lengths = drawn.lengths[which]
        given = inputs[which, : lengths.max()]
        return implicit_gru({n: p[n] for n in LAYER}, given, lengths=lengths, hs=p["hs"], he=p["he"])

    return Workload("walks", drawn.lengths, build)


def measure(case: Workload, accuracy: str, size: int, step: int) -> list[str]:
    """Rows of the table."""
    atol, rtol = ACCURACIES[accuracy]
    stops = ims.NonlinearStop(atol=atol, rtol=0.0), ims.LinearStop(rtol=rtol)
    arrival, sorted_ = np.arange(len(case.lengths)), np.argsort(-case.lengths, kind="stable")
    ways = {"plain": (plain, arrival, size), "by length": (plain, sorted_, size), "stream": (stream, arrival, step)}
    rows, first = [], 0.0
    for way, (solve, order, part) in ways.items():
        meter, seconds, failed = Meter(size), 0.0, 0
        for problem in case.problems(order, part):
            began = CLOCK()
            failed += solve(meter.of(problem), *stops, meter)
            seconds += CLOCK() - began
        calls, first = meter.calls * size / order.size, first or meter.calls
        width = f"{np.mean(meter.waited) / size:.2f}, {np.mean(meter.all) / size:.2f}" if meter.all else "–"
        rows.append(
            f"| {case.name} | {accuracy} | {way} | {meter.products / order.size:.1f} | {calls:.1f} | "
            f"{meter.calls / first:.2f} | {width} | {failed} | {seconds:.1f} |"
        )
    return rows


HEAD = """| layer | accuracy | batches | products per sequence | slots x calls | of plain | width | failed | CPU s |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1", help="BLAS and Numba threads")
    parser.add_argument("--tagger", type=Path, help="model of examples/pos_tagging.py")
    parser.add_argument("--walks", type=Path, help="checkpoint of benchmarks.experiments.walks")
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--step", type=int, default=1000, help="sequences in a step of the optimizer")
    arguments = parser.parse_args(argv)
    cases = [tagger(arguments.tagger, arguments.sequences)] if arguments.tagger else []
    cases += [walks(arguments.walks, arguments.sequences)] if arguments.walks else []
    print(HEAD)
    for case in [*cases, hard(arguments.sequences)]:
        for accuracy in ACCURACIES:
            print("\n".join(measure(case, accuracy, arguments.batch_size, arguments.step)), flush=True)


if __name__ == "__main__":
    main()
