"""Time continuous batching against batches that run to their end, on the sentences of a treebank.

The layer is the implicit GRU with weights uniform in [-0.1, 0.1] ("untrained"), or with recurrent weights three times
as large ("x3"), on the development part of UD English EWT, where each word form has one random vector; and with weights
in [-1, 1] on 400 random sequences of 20 words with 16 unknowns ("hard"), in batches of half the size. All are solved to
max|F| <= 1e-8:

- "as they come": `root` on the next sentences in the order of the file, padded to the longest of them;
- "by length": the same after sorting all sentences;
- "stream": `solve_sequences`.

A product is a residual or a Jacobian product of one sentence, a call is one evaluation of the batch, so that products
over calls is how many sentences a call served. Ways take turns; medians of CPU seconds.

Usage::

    python benchmarks/stream.py                                # table on the terminal
    python benchmarks/stream.py --sentences 500 --batch-size 64
"""

from __future__ import annotations

import os
import sys

THREADS = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv else "1"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = THREADS

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims
from implicitsolve.adapters import gru_parameters, implicit_gru

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _tagging.conllu import read_conllu
from _tagging.files import find_treebank

CLOCK = time.process_time if THREADS == "1" else time.perf_counter
STOP = ims.NonlinearStop(atol=1e-8, rtol=0.0)
Way = Callable[[dict[str, Any]], int]


class Meter:
    """A monitor that adds up what several solves cost."""

    def __init__(self) -> None:
        self.calls = self.products = 0
        self.last = ims.Counts()

    def __call__(self, step: ims.NewtonStep, x: Any, F: Any) -> None:
        """See a step; iteration 0 begins another solve."""
        new = step.counts - self.last if step.iteration else step.counts
        self.calls += new.residuals + new.jvps
        self.last = step.counts
        if step.iteration:
            self.products += step.systems.size + int(step.krylov_iterations.sum())


@dataclass(frozen=True)
class Workload:
    """Sentences as arrays of word vectors, and the layer's parameters."""

    name: str
    sentences: list[Any]
    params: dict[str, Any]

    def build(self, sentences: list[Any]) -> ims.Problem:
        """The problem of some sentences."""
        lengths = [len(sentence) for sentence in sentences]
        inputs = np.zeros((len(sentences), max(lengths), sentences[0].shape[1]))
        for row, sentence in zip(inputs, sentences, strict=True):
            row[: len(sentence)] = sentence
        return implicit_gru(self.params, inputs, lengths=lengths)

    def batches(self, sentences: list[Any], options: dict[str, Any], size: int) -> int:
        """One batch after the other, each to its end; return how many sentences failed."""
        parts = [sentences[first : first + size] for first in range(0, len(sentences), size)]
        return sum(int((~ims.root(self.build(part), **options).success).sum()) for part in parts)

    def ways(self, size: int) -> dict[str, Way]:
        """The rivals."""
        by_length = sorted(self.sentences, key=len, reverse=True)

        def stream(options: dict[str, Any]) -> int:
            solved = ims.drivers.solve_sequences(self.build, self.sentences, batch_size=size, **options)
            return sum(one.status != ims.Status.CONVERGED for one in solved)

        return {
            "as they come": lambda options: self.batches(self.sentences, options, size),
            "by length": lambda options: self.batches(by_length, options, size),
            "stream": stream,
        }


def treebank(name: str, factor: float, sentences: int, k: int) -> Workload:
    """The first sentences of the development part, with weights of which the recurrent ones are `factor` as large."""
    rng = np.random.default_rng(0)
    params = gru_parameters(k, k, rng=rng)
    params = {key: factor * value if key[0] == "U" else value for key, value in params.items()}
    forms = [sentence.forms for sentence in read_conllu(find_treebank()[1])[:sentences]]
    vectors = {form: rng.uniform(-1.0, 1.0, k) for form in dict.fromkeys(word for words in forms for word in words)}
    return Workload(name, [np.stack([vectors[word] for word in words]) for words in forms], params)


def hard(sentences: int = 400, words: int = 20, k: int = 16) -> Workload:
    """Sequences of one length, of which some need ten times the steps of others."""
    rng = np.random.default_rng(0)
    params = gru_parameters(k, k, scale=1.0, rng=rng)
    return Workload("hard", list(rng.standard_normal((sentences, words, k))), params)


def measure(case: Workload, method: str, size: int, repeat: int) -> list[str]:
    """Rows of the table."""
    ways, meters, seconds = case.ways(size), {}, {}
    options = {"method": method, "stop": STOP}
    for way, solve in ways.items():
        meters[way], seconds[way] = Meter(), []
        failed = solve({**options, "monitor": meters[way]})
        if failed:
            print(f"{case.name}, {method}, {way}: {failed} sentences failed", file=sys.stderr)
    for _ in range(repeat):
        for way, solve in ways.items():
            begin = CLOCK()
            solve(options)
            seconds[way].append(CLOCK() - begin)
    rows = []
    for way, meter in meters.items():
        products = meter.products + len(case.sentences)  # the first residual of each
        rows.append(
            f"| {case.name} | {method} | {way} | {products / len(case.sentences):.1f} | {meter.calls} | "
            f"{products / meter.calls:.1f} | {statistics.median(seconds[way]):.2f} |"
        )
    return rows


HEAD = """| weights | method | batches | products per sentence | calls | sentences per call | CPU s |
| --- | --- | --- | ---: | ---: | ---: | ---: |"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1", help="BLAS and Numba threads")
    parser.add_argument("--sentences", type=int, default=1000, help="of the treebank")
    parser.add_argument("--k", type=int, default=100, help="unknowns, and inputs, of a word in the treebank")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args(argv)
    size, repeat = arguments.batch_size, arguments.repeat
    print(HEAD)
    for name, factor in (("untrained", 1.0), ("x3", 3.0)):
        case = treebank(name, factor, arguments.sentences, arguments.k)
        for method in ("anderson", "newton-krylov"):
            print("\n".join(measure(case, method, size, repeat)), flush=True)
    for method in ("anderson", "newton-krylov", "picard"):
        print("\n".join(measure(hard(), method, size // 2, repeat)), flush=True)


if __name__ == "__main__":
    main()
