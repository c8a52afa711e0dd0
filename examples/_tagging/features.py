"""Features of a word (mathematics of Kazi and Thompson 2017, section 3.2) and their look-up tables.

A word is described by its lower-cased form, its prefixes and suffixes of length 2, 3 and 4, and eight
binary flags. Everything outside a table shares one unknown entry, number 0.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .conllu import Sentence

__all__ = ["AFFIXES", "FLAG_COUNT", "TABLES", "Encoded", "Encoder", "Vocabulary"]

AFFIXES = {
    "prefix2": slice(None, 2),
    "prefix3": slice(None, 3),
    "prefix4": slice(None, 4),
    "suffix2": slice(-2, None),
    "suffix3": slice(-3, None),
    "suffix4": slice(-4, None),
}
TABLES = ("word", *AFFIXES)
UNKNOWN = 0
FLAG_COUNT = 8


@dataclass(frozen=True)
class Vocabulary:
    """Strings with numbers 1, 2, ...; 0 stands for everything else."""

    entries: tuple[str, ...]

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {entry: i for i, entry in enumerate(self.entries, start=1)}

    def __len__(self) -> int:
        return len(self.entries) + 1

    def number(self, entry: str) -> int:
        """Return the number of `entry`, 0 if it is not in the table."""
        return self._numbers.get(entry, UNKNOWN)

    @classmethod
    def of_most_common(cls, entries: Iterable[str], *, size: int | None = None, least: int = 1) -> Vocabulary:
        """Take the `size` most common entries that occur `least` times; ties go to the alphabet."""
        counts = Counter(entries)
        kept = sorted((e for e, n in counts.items() if n >= least), key=lambda e: (-counts[e], e))
        return cls(tuple(kept[:size]))


@dataclass(frozen=True)
class Encoded:
    """One sentence as arrays: `numbers` (n, 7) table entries, `flags` (n, 8), `tags` (n,) with -1 for unknown."""

    numbers: NDArray[np.int32]
    flags: NDArray[np.float32]
    tags: NDArray[np.int32]

    def __len__(self) -> int:
        return self.numbers.shape[0]


@dataclass(frozen=True)
class Encoder:
    """The tables of all features, and the list of tags."""

    tables: dict[str, Vocabulary]
    tags: tuple[str, ...]

    @classmethod
    def from_sentences(cls, sentences: Sequence[Sentence], *, least: int = 1, affixes: int = 2000) -> Encoder:
        """Count the training sentences: words that occur `least` times, the `affixes` most common of each affix."""
        words = [form.lower() for sentence in sentences for form in sentence.forms]
        tables = {"word": Vocabulary.of_most_common(words, least=least)}
        for name, part in AFFIXES.items():
            length = int(name[-1])
            found = (word[part] for word in words if len(word) >= length)
            tables[name] = Vocabulary.of_most_common(found, size=affixes)
        tags = sorted({tag for sentence in sentences for tag in sentence.tags})
        return cls(tables, tuple(tags))

    def encode(self, forms: Sequence[str], tags: Sequence[str] | None = None) -> Encoded:
        """Encode one sentence; a tag that the training part does not have becomes -1 and always counts as wrong."""
        known = {tag: i for i, tag in enumerate(self.tags)}
        return Encoded(
            numbers=np.asarray([self._numbers(form) for form in forms], dtype=np.int32),
            flags=np.asarray([_flags(form) for form in forms], dtype=np.float32),
            tags=np.asarray([known.get(tag, -1) for tag in tags or [""] * len(forms)], dtype=np.int32),
        )

    @functools.cached_property
    def _seen(self) -> dict[str, list[int]]:
        return {}

    def _numbers(self, form: str) -> list[int]:
        """Table entries of a form; each form is looked up once."""
        if form not in self._seen:
            word = form.lower()
            numbers = [self.tables["word"].number(word)]
            for name, part in AFFIXES.items():
                long_enough = len(word) >= int(name[-1])
                numbers.append(self.tables[name].number(word[part]) if long_enough else UNKNOWN)
            self._seen[form] = numbers
        return self._seen[form]


@functools.cache
def _flags(form: str) -> tuple[bool, ...]:
    """The eight binary features: four of case, four of the kinds of characters."""
    letters = [c for c in form if c.isalpha()]
    is_other = [not c.isalnum() for c in form]
    has_digit = any(c.isdigit() for c in form)
    return (
        form[0].isupper(),
        bool(letters) and all(c.isupper() for c in letters),
        bool(letters) and all(c.islower() for c in letters),
        any(c.isupper() for c in form[1:]),
        has_digit,
        has_digit and not letters,
        any(is_other),
        "-" in form,
    )
