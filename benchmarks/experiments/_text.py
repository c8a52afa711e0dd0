"""Text as numbered words, and n-gram models of it: the baselines of the language models."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WIKITEXT = "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip"
SHA256 = "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"
END, UNKNOWN = 0, 1
"""Numbers of the end of a line, which also stands before its first word, and of all words outside the vocabulary."""


@dataclass(frozen=True)
class Text:
    """Lines of numbered words, each with END behind it: to train on, to choose on, and to report on."""

    words: tuple[str, ...]
    train: list[np.ndarray[tuple[int], np.dtype[np.int64]]]
    choice: list[np.ndarray[tuple[int], np.dtype[np.int64]]]
    held: list[np.ndarray[tuple[int], np.dtype[np.int64]]]

    @classmethod
    def read(
        cls, path: Path, *, parts: tuple[float, float] = (0.8, 0.9), least: int = 2, lines: int | None = None
    ) -> Text:
        """Read a file, cut at two parts of its lines, or a folder of ``wiki.train.tokens``, ``valid`` and ``test``."""
        if path.is_dir():
            return cls.of(*(_lines(path / f"wiki.{name}.tokens") for name in ("train", "valid", "test")), least=least)
        found = _lines(path)[:lines]
        first, second = (int(part * len(found)) for part in parts)
        return cls.of(found[:first], found[first:second], found[second:], least=least)

    @classmethod
    def of(cls, *parts: list[list[str]], least: int = 2) -> Text:
        """Words that occur less often than `least` in the first part are unknown."""
        counts = Counter(word for line in parts[0] for word in line)
        kept = [word for word, n in counts.items() if n >= least and word != "<unk>"]
        words = ("</s>", "<unk>", *sorted(kept, key=lambda word: (-counts[word], word)))
        numbers = {word: i for i, word in enumerate(words)}
        return cls(
            words,
            *([np.asarray([*(numbers.get(w, UNKNOWN) for w in line), END]) for line in part if line] for part in parts),
        )


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text(encoding="utf-8").splitlines()]


def fetched() -> Path:
    """Download all of WikiText-2 (Merity et al. 2016, CC BY-SA) once; the archive's SHA-256 is checked."""
    import pooch

    files = pooch.retrieve(WIKITEXT, f"sha256:{SHA256}", processor=pooch.Unzip(), path=pooch.os_cache("implicitsolve"))
    return Path(files[0]).parent


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
