"""Batches of sentences of about equal length, padded to the longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .features import FLAG_COUNT, TABLES, Encoded

__all__ = ["Batch", "collate", "split_into_batches"]


@dataclass(frozen=True)
class Batch:
    """B sentences padded to length T.

    Attributes
    ----------
    sentences : (B,) int
        Which sentences of the corpus these are.
    lengths : (B,) int
    numbers : (B, T, 7) int
        Table entries; 0 at padded positions.
    flags : (B, T, 8) float32
    tags : (B, T) int
        -1 at padded positions and for tags that the training part does not have.
    """

    sentences: NDArray[np.int64]
    lengths: NDArray[np.int64]
    numbers: NDArray[np.int32]
    flags: NDArray[np.float32]
    tags: NDArray[np.int32]

    @property
    def is_word(self) -> NDArray[np.bool_]:
        """(B, T), false at padded positions."""
        return np.arange(self.tags.shape[1]) < self.lengths[:, None]

    @property
    def words(self) -> int:
        """How many positions are not padding."""
        return int(self.lengths.sum())


def collate(corpus: Sequence[Encoded], sentences: NDArray[np.int64]) -> Batch:
    """Pad the chosen sentences to a common length."""
    lengths = np.asarray([len(corpus[i]) for i in sentences])
    shape = len(sentences), int(lengths.max())
    numbers = np.zeros((*shape, len(TABLES)), dtype=np.int32)
    flags = np.zeros((*shape, FLAG_COUNT), dtype=np.float32)
    tags = np.full(shape, -1, dtype=np.int32)
    for row, i in enumerate(sentences):
        n = lengths[row]
        numbers[row, :n], flags[row, :n], tags[row, :n] = corpus[i].numbers, corpus[i].flags, corpus[i].tags
    return Batch(sentences, lengths, numbers, flags, tags)


def split_into_batches(
    corpus: Sequence[Encoded], words: int, rng: np.random.Generator | None = None
) -> list[NDArray[np.int64]]:
    """Divide a corpus into batches of about `words` words, each of sentences of about equal length.

    Without `rng` the order is by length; with it, sentences of equal length are mixed, lengths are
    blurred by a tenth, and the batches come in random order.
    """
    lengths = np.asarray([len(sentence) for sentence in corpus], dtype=np.float64)
    if rng is None:
        order = np.argsort(lengths, kind="stable")
    else:
        order = np.argsort(lengths * rng.uniform(0.9, 1.1, lengths.shape) + rng.uniform(0, 1, lengths.shape))
    first_word = np.cumsum(lengths[order]) - lengths[order]
    number = (first_word // words).astype(int)
    batches = np.split(order, np.flatnonzero(np.diff(number)) + 1)
    if rng is not None:
        rng.shuffle(batches)
    return batches
