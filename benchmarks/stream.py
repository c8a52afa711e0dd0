"""Time continuous batching against batches that run to their end, on the sentences of a treebank.

The layer is the implicit GRU with weights uniform in [-0.1, 0.1] ("untrained"), or with recurrent weights three times as
large ("x3"); each word form has one random vector. All solve every sentence of the development part of UD English EWT,
in the order of the file, to max|F| <= 1e-8:

- "as they come": `root` on the next sentences, padded to the longest of them;
- "by length": the same after sorting all sentences;
- "stream": `solve_sequences`.

A product is a residual or a Jacobian product of one sentence, a call is one evaluation of the batch, so that products
over calls is how many sentences a call served. Ways take turns; medians of CPU seconds.

Usage::

    python benchmarks/stream.py                                # table on the terminal
    python benchmarks/stream.py --sentences 500 --method newton-krylov
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


@dataclass
class Took:
    """What a way has cost."""

    calls: int = 0
    products: int = 0
    failed: int = 0

    def add(self, result: ims.NonlinearResult) -> None:
        """Count one batch."""
        self.calls += result.counts.residuals + result.counts.jvps
        self.products += int((1 + result.iterations + result.krylov_iterations).sum())
        self.failed += int((~result.success).sum())


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

    def ways(self, method: Any, size: int) -> dict[str, Callable[[], Took]]:
        """The rivals."""

        def batches(sentences: list[Any]) -> Took:
            took = Took()
            for first in range(0, len(sentences), size):
                took.add(ims.root(self.build(sentences[first : first + size]), method=method, stop=STOP))
            return took

        def stream() -> Took:
            took, last = Took(), ims.result.Counts()

            def monitor(step: ims.NewtonStep, x: Any, F: Any) -> None:
                nonlocal last
                if step.iteration == 0:
                    count(last)
                last = step.counts

            def count(counts: Any) -> None:
                took.calls += counts.residuals + counts.jvps

            for one in ims.solve_sequences(self.build, self.sentences, batch_size=size, method=method, stop=STOP):
                took.failed += one.status != ims.Status.CONVERGED
            return took

        return {
            "as they come": lambda: batches(self.sentences),
            "by length": lambda: batches(sorted(self.sentences, key=len, reverse=True)),
            "stream": stream,
        }
