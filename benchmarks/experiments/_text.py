"""Text as numbered words, and n-gram models of it: the baselines of the language models."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

END, UNKNOWN = 0, 1
"""Numbers of the end of a line, which also stands before its first word, and of all words outside the vocabulary."""


@dataclass(frozen=True)
class Text:
    """Lines of numbered words, each with END behind it, for training and held out."""

    words: tuple[str, ...]
    train: list[np.ndarray[tuple[int], np.dtype[np.int64]]]
    held: list[np.ndarray[tuple[int], np.dtype[np.int64]]]

    @classmethod
    def read(cls, path: Path, *, part: float = 0.9, least: int = 2) -> Text:
        """Take the first part of the lines for training; words that occur there less often than `least` are unknown."""
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        cut = int(part * len(lines))
        counts = Counter(word for line in lines[:cut] for word in line)
        kept = sorted(
            (word for word, n in counts.items() if n >= least and word != "<unk>"), key=lambda w: (-counts[w], w)
        )
        words = ("</s>", "<unk>", *kept)
        numbers = {word: i for i, word in enumerate(words)}
        numbered = [np.asarray([*(numbers.get(w, UNKNOWN) for w in line), END]) for line in lines]
        return cls(words, [n for n in numbered[:cut] if n.size > 1], [n for n in numbered[cut:] if n.size > 1])


class KneserNey:
    """Interpolated Kneser-Ney of some order: one discount for each order, n1 / (n1 + 2 n2)."""

    def __init__(self, lines: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]], order: int, size: int) -> None:
        self.order, self.size = order, size
        counts: dict[tuple[int, ...], int] = Counter()
        for line in lines:
            padded = (END,) * (order - 1) + tuple(line.tolist())
            counts.update(padded[i - order + 1 : i + 1] for i in range(order - 1, len(padded)))
        self.levels = []
        for _ in range(order):
            found = Counter(counts.values())
            discount = found[1] / (found[1] + 2 * found[2]) if found[1] else 0.5
            totals, kinds = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
            for gram, count in counts.items():
                totals[gram[:-1]] += count
                kinds[gram[:-1]] += 1
            self.levels.append((dict(counts), totals, kinds, discount))
            shorter: dict[tuple[int, ...], int] = defaultdict(int)
            for gram in counts:
                shorter[gram[1:]] += 1  # before how many words it stands
            counts = shorter
        self.levels.reverse()  # unigrams first

    def probability(self, history: tuple[int, ...], word: int) -> float:
        """P(word | history), of which the last order - 1 words count."""
        p = 1.0 / self.size
        for n, (counts, totals, kinds, discount) in enumerate(self.levels):
            context = history[len(history) - n :]
            total = totals[context]
            if total:
                p = (max(counts.get((*context, word), 0) - discount, 0.0) + discount * kinds[context] * p) / total
        return p

    def perplexity(self, lines: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> float:
        """Of all words of some lines, their ends included."""
        logs, count = 0.0, 0
        for line in lines:
            padded = (END,) * (self.order - 1) + tuple(line.tolist())
            for i in range(self.order - 1, len(padded)):
                logs += np.log(self.probability(padded[i - self.order + 1 : i], padded[i]))
            count += line.size
        return float(np.exp(-logs / count))
