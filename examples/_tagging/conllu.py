"""Reading and writing of CoNLL-U treebanks, with errors that name the file and the line.

Only what tagging needs is interpreted (ID, FORM and the column of the tags); every line is kept as
it stands, so that a prediction file differs from its source in the column of the tags alone.
Format: https://universaldependencies.org/format.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import UserError
from .files import atomic_write

__all__ = ["COLUMNS", "Sentence", "TreebankError", "read_conllu", "write_conllu"]

COLUMNS = {"upos": 3, "xpos": 4}
"""Zero-based columns that hold tags: the universal tag set, and the treebank's own."""

FORM = 1
COLUMN_COUNT = 10

_WORD = re.compile(r"[1-9][0-9]*\Z", re.ASCII)
_RANGE = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)\Z", re.ASCII)
_EMPTY = re.compile(r"(0|[1-9][0-9]*)\.([1-9][0-9]*)\Z", re.ASCII)


class TreebankError(UserError):
    """A treebank that cannot be read; the message starts with ``file:line``."""


@dataclass(frozen=True)
class Sentence:
    """One sentence: its lines as read, and the words among them.

    Attributes
    ----------
    lines : tuple of str
        Comments and rows without line ends, in the order of the file.
    word_lines : tuple of int
        Which of `lines` are words. Multiword tokens (``1-2``) and empty nodes (``1.1``) are not.
    forms, tags : tuple of str
        One for each word.
    """

    lines: tuple[str, ...]
    word_lines: tuple[int, ...]
    forms: tuple[str, ...]
    tags: tuple[str, ...]


def read_conllu(path: Path, column: str = "xpos") -> list[Sentence]:
    """Read a treebank.

    Parameters
    ----------
    path : Path
        A UTF-8 file; lines may end as on Unix or as on Windows.
    column : {"xpos", "upos"}
        Which column holds the tags.

    Returns
    -------
    list of Sentence
        At least one.

    Raises
    ------
    TreebankError
        If the file is missing, empty or malformed; the message names the file and the line.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TreebankError(f"{path}: cannot be read: {error.strerror}") from error
    sentences = []
    block: list[tuple[int, str]] = []
    for number, line in _decoded_lines(raw, path):
        if line:
            block.append((number, line))
        elif block:
            sentences.append(_parse_sentence(block, path, COLUMNS[column]))
            block = []
    if block:  # the last sentence without its empty line
        sentences.append(_parse_sentence(block, path, COLUMNS[column]))
    if not sentences:
        raise TreebankError(f"{path}:1: no sentence in this file (expected CoNLL-U)")
    return sentences


def write_conllu(
    path: Path, sentences: Sequence[Sentence], tags: Sequence[Sequence[str]], column: str = "xpos"
) -> None:
    """Write `sentences` with their tags replaced; a file at `path` is replaced when all is written.

    Parameters
    ----------
    path : Path
        Where to write.
    sentences : sequence of Sentence
        As read; all other columns, comments, multiword tokens and empty nodes are kept.
    tags : sequence of sequence of str
        One tag for each word of each sentence.
    column : {"xpos", "upos"}
        Which column to replace.
    """
    with atomic_write(path) as file:
        for sentence, predicted in zip(sentences, tags, strict=True):
            file.write(_render(sentence, predicted, COLUMNS[column]).encode())


def _render(sentence: Sentence, tags: Sequence[str], column: int) -> str:
    lines = list(sentence.lines)
    for index, tag in zip(sentence.word_lines, tags, strict=True):
        cells = lines[index].split("\t")
        cells[column] = tag
        lines[index] = "\t".join(cells)
    return "\n".join(lines) + "\n\n"


def _decoded_lines(raw: bytes, path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text); decoded line by line, so that a bad byte has a line number."""
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            yield number, line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise TreebankError(f"{path}:{number}: not UTF-8: byte {error.start + 1}: {error.reason}") from error


def _parse_sentence(block: list[tuple[int, str]], path: Path, column: int) -> Sentence:
    order = _IdOrder()
    word_lines: list[int] = []
    forms: list[str] = []
    tags: list[str] = []
    rows_started = False
    for index, (number, line) in enumerate(block):
        where = f"{path}:{number}"
        if line.startswith("#") and not rows_started:
            continue
        cells = line.split("\t")
        if len(cells) != COLUMN_COUNT:
            raise TreebankError(f"{where}: {COLUMN_COUNT} columns separated by tabs expected, got {len(cells)}")
        rows_started = True
        try:
            is_word = order.accept(cells[0])
        except ValueError as error:
            raise TreebankError(f"{where}: {error}") from None
        if not is_word:
            continue
        if not cells[FORM]:
            raise TreebankError(f"{where}: the form (column {FORM + 1}) is empty")
        if cells[column] in ("", "_"):
            raise TreebankError(f"{where}: word {cells[0]} has no tag in column {column + 1}")
        word_lines.append(index)
        forms.append(cells[FORM])
        tags.append(cells[column])
    last_number = block[-1][0]
    if not word_lines:
        raise TreebankError(f"{path}:{last_number}: a sentence without words")
    if order.covered > len(word_lines):
        raise TreebankError(
            f"{path}:{last_number}: a multiword token ends at word {order.covered}, the sentence at {len(word_lines)}"
        )
    return Sentence(tuple(line for _, line in block), tuple(word_lines), tuple(forms), tuple(tags))


class _IdOrder:
    """The order of the IDs of one sentence: words 1, 2, ...; ``a-b`` before word a; ``a.1``, ``a.2`` after word a."""

    def __init__(self) -> None:
        self.word = 0  # the last word seen
        self.empty = 0  # the last empty node after it
        self.covered = 0  # where the last multiword token ends

    def accept(self, identifier: str) -> bool:
        """Check the next ID; true for a word, false for a multiword token or an empty node."""
        if _WORD.match(identifier):
            self._expect(int(identifier) == self.word + 1, identifier, f"word {self.word + 1}")
            self.word, self.empty = self.word + 1, 0
            return True
        if found := _RANGE.match(identifier):
            first, last = int(found[1]), int(found[2])
            self._expect(first == self.word + 1 and first > self.covered, identifier, f"word {self.word + 1}")
            self._expect(last > first, identifier, f"a range that ends after {first}")
            self.covered = last
            return False
        if found := _EMPTY.match(identifier):
            word, count = int(found[1]), int(found[2])
            expected = f"{self.word}.{self.empty + 1}"
            self._expect(word == self.word and count == self.empty + 1, identifier, f"empty node {expected}")
            self.empty = count
            return False
        raise ValueError(f"the ID {identifier!r} is not of the form 3, 3-4 or 3.1")

    @staticmethod
    def _expect(condition: bool, identifier: str, expected: str) -> None:
        if not condition:
            raise ValueError(f"IDs out of order: {expected} expected, got {identifier}")
