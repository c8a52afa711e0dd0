"""Epochs of training, evaluation on the development part, and what both report."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .batches import Batch, collate, split_into_batches
from .errors import UserError
from .features import UNKNOWN, Encoded
from .model import Floats, Forward, SolverOptions, SparseRows, Tagger, Work
from .optimisers import OPTIMISERS
from .progress import track

__all__ = ["STARTS", "EpochReport", "Evaluation", "TrainingOptions", "evaluate", "train"]

STARTS = ("zeros", "one-step", "cached")
EVALUATION_WORDS = 2048


@dataclass(frozen=True)
class TrainingOptions:
    """Settings of the optimisation.

    Parameters
    ----------
    epochs : int
    batch_words : int
        Words in a batch, about; the loss is the mean over them.
    optimiser : {"adam", "adagrad", "sgd"}
    rate : float, optional
        Learning rate; by default the optimiser's own.
    decay : float
        Factor of the rate after each epoch. Whenever the development perplexity rises it is also halved ([K17] 3.2).
    dropout : float
        Fraction of the inputs set to zero while training.
    word_dropout : float
        A word seen c times is replaced by the unknown word with probability word_dropout / (word_dropout + c), so that
        the unknown word learns from rare ones.
    start : {"zeros", "one-step", "cached"}
        Where the solver starts; "cached" is the sentence's solution of the epoch before ([K17] 5).
    seed : int
    """

    epochs: int = 8
    batch_words: int = 640
    optimiser: str = "adam"
    rate: float | None = None
    decay: float = 0.8
    dropout: float = 0.2
    word_dropout: float = 0.25
    start: str = "one-step"
    seed: int = 0


@dataclass
class Score:
    """Sums over words."""

    words: int = 0
    correct: int = 0
    loss: float = 0.0
    work: Work = field(default_factory=Work)

    def add(self, forward: Forward, work: Work) -> None:
        """Count one batch."""
        self.words += forward.batch.words
        self.correct += forward.correct
        self.loss += forward.loss
        self.work += work

    @property
    def accuracy(self) -> float:
        """Fraction of the words tagged rightly."""
        return self.correct / max(self.words, 1)

    @property
    def perplexity(self) -> float:
        """exp of the mean loss."""
        return math.exp(min(self.loss / max(self.words, 1), 700.0))


@dataclass(frozen=True)
class Evaluation:
    """Score on a corpus, the tags predicted for each of its sentences, and the time it took."""

    score: Score
    tags: list[list[str]]
    seconds: float


@dataclass(frozen=True)
class EpochReport:
    """One epoch: `train` as seen during the epoch (with dropout), `dev` after it.

    `seconds` and `cpu_seconds` are of training, on the wall and summed over cores; `dev.seconds` comes on top.
    """

    epoch: int
    rate: float
    seconds: float
    cpu_seconds: float
    train: Score
    dev: Evaluation

    def as_dict(self) -> dict[str, float | int]:
        """Plain numbers, for JSON."""
        work, dev = self.train.work, self.dev.score
        return {
            "epoch": self.epoch,
            "rate": self.rate,
            "seconds": round(self.seconds, 2),
            "cpu_seconds": round(self.cpu_seconds, 2),
            "dev_seconds": round(self.dev.seconds, 2),
            "train_accuracy": self.train.accuracy,
            "train_perplexity": self.train.perplexity,
            "dev_accuracy": dev.accuracy,
            "dev_perplexity": dev.perplexity,
            "batches": work.batches,
            **{f"{name}_per_batch": round(value, 2) for name, value in work.per_batch().items()},
            "sentences": work.sentences,
            "unsolved": work.unsolved,
            "unsolved_adjoint": work.unsolved_adjoint,
            "dev_unsolved": dev.work.unsolved,
        }


def evaluate(tagger: Tagger, corpus: Sequence[Encoded], solver: SolverOptions) -> Evaluation:
    """Tag every sentence of a corpus and score it."""
    began = time.perf_counter()
    score = Score()
    tags: list[list[str]] = [[] for _ in corpus]
    for sentences in split_into_batches(corpus, EVALUATION_WORDS):
        forward = tagger.forward(collate(corpus, sentences), solver)
        score.add(forward, forward.work)
        best = forward.log_probabilities.argmax(axis=1)
        ends = np.cumsum(forward.batch.lengths)[:-1]
        for sentence, numbers in zip(sentences, np.split(best, ends), strict=True):
            tags[sentence] = [tagger.encoder.tags[number] for number in numbers]
    return Evaluation(score, tags, time.perf_counter() - began)


def train(
    tagger: Tagger,
    corpus: Sequence[Encoded],
    dev: Sequence[Encoded],
    options: TrainingOptions,
    solver: SolverOptions,
) -> Iterator[EpochReport]:
    """Change the parameters of `tagger` in place, epoch by epoch; yield after each.

    Sentences whose forward solve fails are left out of the gradient, those whose adjoint solve fails
    are not; the report counts both.

    Raises
    ------
    UserError
        If the loss or a gradient is no longer finite.
    """
    rng = np.random.default_rng(options.seed)
    optimiser = OPTIMISERS[options.optimiser]()
    rate = optimiser.default_rate if options.rate is None else options.rate
    dropout = _Dropout(options, corpus, len(tagger.encoder.tables["word"]), rng)
    cache = _StateCache(corpus, tagger.sizes.state) if options.start == "cached" else None
    best = math.inf
    for epoch in range(1, options.epochs + 1):
        began, cpu_began = time.perf_counter(), time.process_time()
        score = Score()
        for sentences in track(split_into_batches(corpus, options.batch_words, rng), f"epoch {epoch}"):
            batch = collate(corpus, sentences)
            start = options.start if cache is None else cache.read(batch)
            numbers, keep = dropout.words(batch), dropout.inputs(batch, tagger.sizes.input)
            forward = tagger.forward(batch, solver, start=start, numbers=numbers, keep=keep)
            gradients, adjoint_work = tagger.gradient(forward, solver)
            _check_finite(forward, gradients, epoch)
            optimiser.step(tagger.parameters, gradients, rate)
            score.add(forward, forward.work + adjoint_work)
            if cache is not None:
                cache.write(batch, forward.states)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        report = EpochReport(epoch, rate, seconds, cpu_seconds, score, evaluate(tagger, dev, solver))
        yield report
        perplexity = report.dev.score.perplexity
        rate *= options.decay if perplexity <= best else 0.5
        best = min(best, perplexity)


def _check_finite(forward: Forward, gradients: Mapping[str, Floats | SparseRows], epoch: int) -> None:
    values = (g.values if isinstance(g, SparseRows) else g for g in gradients.values())
    if not (math.isfinite(forward.loss) and all(np.isfinite(value).all() for value in values)):
        raise UserError(
            f"training diverged in epoch {epoch}: the loss or its gradient is not finite; try a smaller --rate"
        )


class _Dropout:
    """Random changes of a training batch: rare words become unknown, inputs become zero."""

    def __init__(self, options: TrainingOptions, corpus: Sequence[Encoded], size: int, rng: np.random.Generator):
        counts = np.bincount(np.concatenate([sentence.numbers[:, 0] for sentence in corpus]), minlength=size)
        self.to_unknown = options.word_dropout / np.maximum(options.word_dropout + counts, 1e-30)
        self.rate = options.dropout
        self.rng = rng

    def words(self, batch: Batch) -> NDArray[np.int32]:
        """Table entries (B, T, 7) with some words unknown; their affixes stay."""
        numbers = batch.numbers.copy()
        word = numbers[:, :, 0]
        word[self.rng.random(word.shape) < self.to_unknown[word]] = UNKNOWN
        return numbers

    def inputs(self, batch: Batch, width: int) -> Floats | None:
        """Mask (B, T, width): 0, or 1 / (1 - rate) so that the mean stays."""
        if self.rate == 0.0:
            return None
        is_kept = self.rng.random((*batch.tags.shape, width), dtype=np.float32) >= self.rate
        return is_kept * np.float32(1 / (1 - self.rate))


class _StateCache:
    """The last solution of every sentence, zero at first: 4 k bytes a word."""

    def __init__(self, corpus: Sequence[Encoded], state: int):
        lengths = [len(sentence) for sentence in corpus]
        self.first = np.cumsum(lengths) - lengths
        self.states = np.zeros((sum(lengths), state), dtype=np.float32)

    def read(self, batch: Batch) -> Floats:
        """States (B, T, k) of a batch."""
        x = np.zeros((*batch.tags.shape, self.states.shape[1]), dtype=np.float32)
        x[batch.is_word] = self.states[self._rows(batch)]
        return x

    def write(self, batch: Batch, states: Floats) -> None:
        """Keep the states (words, k) of a batch."""
        self.states[self._rows(batch)] = states

    def _rows(self, batch: Batch) -> NDArray[np.int64]:
        return (self.first[batch.sentences, None] + np.arange(batch.tags.shape[1]))[batch.is_word]
