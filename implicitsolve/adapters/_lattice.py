"""Word lattices: files of HTK and OpenFst, pruning, expansion to longer histories, and the best word sequences."""

from __future__ import annotations

import gzip
import heapq
import itertools
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import IO, NamedTuple, TypeAlias

from implicitsolve.adapters._common import check_size

File: TypeAlias = str | os.PathLike[str]
SILENT = frozenset({"!NULL", "!SENT_START", "!SENT_END", "<s>", "</s>", "<eps>", "<sil>", "<epsilon>"})


class Arc(NamedTuple):
    """From one node of a lattice to another, with a word.

    Attributes
    ----------
    source, target : int
        The nodes.
    word : str
        "" for none.
    acoustic, language : float
        Scores, which are natural logarithms.
    """

    source: int
    target: int
    word: str
    acoustic: float = 0.0
    language: float = 0.0


class Hypothesis(NamedTuple):
    """A word sequence of a lattice.

    Attributes
    ----------
    words : tuple of str
        The words.
    score : float
        That of the best path with these words.
    """

    words: tuple[str, ...]
    score: float


@dataclass(frozen=True)
class Lattice:
    """An acyclic graph of words; every path from the start to the end is a hypothesis.

    The score of a path is ``acoustic_scale * acoustic + language_scale * language`` summed over its arcs, plus
    `word_penalty` for each word.

    Parameters
    ----------
    arcs : sequence of Arc
        Nodes are any integers.
    start, end : int
        First and last node of every path.
    acoustic_scale, language_scale, word_penalty : float, optional
        Defaults 1, 1 and 0; the readers take those of the file. ``dataclasses.replace`` changes them.

    Raises
    ------
    ValueError
        If the graph has a cycle, no path, or a score that is not finite.

    Examples
    --------
    >>> from implicitsolve.adapters import Arc, Lattice
    >>> arcs = [Arc(0, 1, "a", -1.0), Arc(0, 1, "the", -1.5), Arc(1, 2, "cat", -2.0), Arc(1, 2, "hat", -2.1)]
    >>> [" ".join(words) for words, score in Lattice(arcs, 0, 2).n_best(3)]
    ['a cat', 'a hat', 'the cat']
    """

    arcs: Sequence[Arc]
    start: int
    end: int
    acoustic_scale: float = 1.0
    language_scale: float = 1.0
    word_penalty: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "arcs", tuple(self.arcs))
        if not all(math.isfinite(self.score(arc)) for arc in self.arcs):
            raise ValueError("Lattice: `arcs` must have finite scores")
        try:
            order = self._order
        except CycleError as error:
            raise ValueError(f"Lattice: `arcs` must have no cycle, got one through nodes {error.args[1]}") from None
        if self.start not in order or self._remaining.get(self.start, -math.inf) == -math.inf:
            raise ValueError(f"Lattice: `arcs` must lead from `start` {self.start} to `end` {self.end}, got no path")

    @classmethod
    def read_slf(cls, file: File, *, silent: Collection[str] = SILENT) -> Lattice:
        """Read a lattice in the standard lattice format of HTK, with words on its links or nodes.

        Parameters
        ----------
        file : path
            Text, compressed if the name ends in ".gz".
        silent : collection of str, optional
            Words that count as none. Default: those for silence and for the beginning and end of a sentence.

        Returns
        -------
        Lattice
            With the acoustic and language-model scores ``a`` and ``l`` as natural logarithms, whatever the base in
            the file, and its ``acscale``, ``lmscale`` and ``wdpenalty``. Other fields are ignored.

        Raises
        ------
        ValueError
            If the file is incomplete, contains sublattices, or is no lattice.
        """
        header: dict[str, str] = {}
        nodes: dict[int, str] = {}
        links: list[dict[str, str]] = []
        for line in _lines(file):
            pairs: list[tuple[str, str]] = _FIELD.findall(line)
            fields = {_SHORT.get(name, name): value.strip('"') for name, value in pairs}
            if "J" in fields:
                links.append(fields)
            elif "I" in fields:
                nodes[int(fields["I"])] = fields.get("W", "")
            elif not line.startswith("#"):
                header |= fields
        counts = header.get("N"), header.get("L")
        if counts != (str(len(nodes)), str(len(links))) or not nodes or "SUBLAT" in header:
            got = f"{len(nodes)} nodes and {len(links)} links of N={counts[0]} L={counts[1]}"
            raise ValueError(f"read_slf: `file` must be one lattice, complete and without sublattices, got {got}")
        log = _natural(float(header.get("base", math.e)))

        def arc(link: Mapping[str, str]) -> Arc:
            target = int(link["E"])
            word = link.get("W", nodes[target])
            scores = (log(float(link[name])) if name in link else 0.0 for name in "al")
            return Arc(int(link["S"]), target, "" if word in silent else word, *scores)

        arcs = [arc(link) for link in links]
        start, end = (int(header[key]) if key in header else None for key in ("start", "end"))
        start = _only(nodes, {arc.target for arc in arcs}) if start is None else start
        end = _only(nodes, {arc.source for arc in arcs}) if end is None else end
        if nodes[start] not in ("", *silent):  # its word belongs to no link
            arcs.append(Arc(before := min(nodes) - 1, start, nodes[start]))
            start = before
        scales = (
            float(header.get(key, default)) for key, default in (("acscale", 1), ("lmscale", 1), ("wdpenalty", 0))
        )
        return cls(arcs, start, end, *scales)

    @classmethod
    def read_openfst(
        cls, file: File, *, symbols: File | None = None, acceptor: bool = True, silent: Collection[str] = SILENT
    ) -> Lattice:
        """Read a lattice in the text format of OpenFst, as ``fstprint`` writes it.

        Parameters
        ----------
        file : path
            As of `read_slf`.
        symbols : path, optional
            Table of words and their numbers. Default: the file contains words.
        acceptor : bool, optional
            Whether arcs have one label (default), else two, of which the second is the word.
        silent : collection of str, optional
            As of `read_slf`; the label 0 is silent too.

        Returns
        -------
        Lattice
            With the weights, which are -log, as acoustic scores. Its end is a node of its own, to which arcs with the
            final weights lead.

        Raises
        ------
        ValueError
            If a line has a wrong number of fields, or the file is no lattice.
        """
        table = [line.split() for line in _lines(symbols)] if symbols is not None else []
        names = {number: word for word, number in table}
        labels = 1 if acceptor else 2
        arcs: list[Arc] = []
        finals: list[tuple[int, float]] = []
        for line in _lines(file):
            fields = line.split()
            if len(fields) not in (1, 2, labels + 2, labels + 3):
                kind = "an acceptor" if acceptor else "a transducer"
                raise ValueError(f"read_openfst: `file` must have lines of {kind}, got {line!r}")
            if len(fields) <= 2:
                finals.append((int(fields[0]), -float(fields[1]) if len(fields) == 2 else 0.0))
                continue
            label = fields[labels + 1]
            word = names.get(label, label)
            score = -float(fields[-1]) if len(fields) == labels + 3 else 0.0
            arcs.append(Arc(int(fields[0]), int(fields[1]), "" if label == "0" or word in silent else word, score))
        if not arcs or not finals:
            raise ValueError("read_openfst: `file` must have arcs and final states")
        end = 1 + max(max(arc.source, arc.target) for arc in arcs)
        closing = [Arc(state, end, "", score) for state, score in finals]
        return cls([arc for arc in (*arcs, *closing) if arc.acoustic > -math.inf], arcs[0].source, end)

    def score(self, arc: Arc) -> float:
        """The sum of an arc's scores, scaled."""
        scaled = self.acoustic_scale * arc.acoustic + self.language_scale * arc.language
        return scaled + (self.word_penalty if arc.word else 0.0)

    def n_best(self, n: int = 1) -> list[Hypothesis]:
        """The n best word sequences, or all if there are fewer, best first; each has the score of its best path.

        Parameters
        ----------
        n : int, optional
            Default 1.

        Returns
        -------
        list of Hypothesis

        Notes
        -----
        Best-first search of word prefixes, whose bound, the best score of any completion, is exact: it extends at most
        n prefixes of each length.
        """
        n, remaining, number = check_size("n_best", "n", n), self._remaining, itertools.count()
        found: list[Hypothesis] = []
        heap: list[tuple[float, int, tuple[str, ...], dict[int, float]]] = []

        def push(words: tuple[str, ...], entered: Mapping[int, float]) -> None:
            reached: dict[int, float] = {}
            for node, score in entered.items():
                for other, silent in self._silent[node].items():
                    reached[other] = max(score + silent, reached.get(other, -math.inf))
            bound = max(score + remaining[node] for node, score in reached.items())
            if bound > -math.inf:
                heapq.heappush(heap, (-bound, next(number), words, reached))

        push((), {self.start: 0.0})
        while heap and len(found) < n:
            bound, _, words, reached = heapq.heappop(heap)
            if not reached:
                found.append(Hypothesis(words, -bound))
                continue
            if self.end in reached:
                heapq.heappush(heap, (-reached[self.end], next(number), words, {}))
            following: dict[str, dict[int, float]] = {}
            for node, score in reached.items():
                for arc in self._leaving[node]:
                    if arc.word:
                        entered, total = following.setdefault(arc.word, {}), score + self.score(arc)
                        entered[arc.target] = max(total, entered.get(arc.target, -math.inf))
            for word, entered in following.items():
                push((*words, word), entered)
        return found

    def pruned(self, beam: float) -> Lattice:
        """Without the arcs whose best path scores worse than the best of all by more than `beam`.

        Parameters
        ----------
        beam : float
            Not negative, in the unit of the scores.

        Returns
        -------
        Lattice
        """
        if not beam >= 0:
            raise ValueError(f"pruned: `beam` must not be negative, got {beam!r}")
        reached = dict.fromkeys(self._order, -math.inf) | {self.start: 0.0}
        for node in self._order:
            for arc in self._leaving[node]:
                reached[arc.target] = max(reached[arc.target], reached[node] + self.score(arc))
        margin = 1e-9 * (1.0 + abs(self._remaining[self.start]))  # rounding must not break the best path
        least = self._remaining[self.start] - beam - margin
        kept = [
            arc for arc in self.arcs if reached[arc.source] + self.score(arc) + self._remaining[arc.target] >= least
        ]
        return replace(self, arcs=kept)

    def expanded(self, rho: int) -> tuple[Lattice, list[tuple[str, ...]]]:
        """Split nodes until each determines the last rho words, or all since the start: arcs of order rho + 1.

        Parameters
        ----------
        rho : int
            At least 1.

        Returns
        -------
        Lattice
            With the same paths and scores, and nodes 0, 1, ...; its end is a node of its own.
        list of tuple of str
            The last words of each node; those of the end are empty.

        Notes
        -----
        The number of nodes may grow like that of different rho-grams: prune large lattices first.
        """
        rho = check_size("expanded", "rho", rho)
        numbers: dict[tuple[int, tuple[str, ...]], int] = {(self.start, ()): 0}
        waiting: dict[int, list[tuple[str, ...]]] = {self.start: [()]}
        arcs: list[Arc] = []
        for node in self._order:
            for history in waiting.get(node, ()):
                for arc in self._leaving[node]:
                    if self._remaining[arc.target] == -math.inf:
                        continue
                    following = (*history, arc.word)[-rho:] if arc.word else history
                    place = arc.target, following
                    if place not in numbers:
                        numbers[place] = len(numbers)
                        waiting.setdefault(arc.target, []).append(following)
                    arcs.append(arc._replace(source=numbers[node, history], target=numbers[place]))
        end = len(numbers)
        arcs += [Arc(numbers[self.end, history], end, "") for history in waiting[self.end]]
        return replace(self, arcs=arcs, start=0, end=end), [*(history for _, history in numbers), ()]

    @cached_property
    def _order(self) -> tuple[int, ...]:
        """Nodes in topological order."""
        graph: TopologicalSorter[int] = TopologicalSorter()
        for arc in self.arcs:
            graph.add(arc.target, arc.source)
        return tuple(graph.static_order())

    @cached_property
    def _leaving(self) -> dict[int, list[Arc]]:
        leaving: dict[int, list[Arc]] = {node: [] for node in self._order}
        for arc in self.arcs:
            leaving[arc.source].append(arc)
        return leaving

    @cached_property
    def _remaining(self) -> dict[int, float]:
        """Best score from each node to the end, -inf where no path leads there."""
        best: dict[int, float] = {}
        for node in reversed(self._order):
            scores = (self.score(arc) + best[arc.target] for arc in self._leaving[node])
            best[node] = max(scores, default=-math.inf) if node != self.end else 0.0
        return best

    @cached_property
    def _silent(self) -> dict[int, dict[int, float]]:
        """Best scores from each node to all that it reaches by arcs that have no word, itself among them."""
        found: dict[int, dict[int, float]] = {}
        for node in reversed(self._order):
            own = found[node] = {node: 0.0}
            for arc in self._leaving[node]:
                for other, score in found[arc.target].items() if not arc.word else ():
                    own[other] = max(self.score(arc) + score, own.get(other, -math.inf))
        return found


# ------------------------------------------------------------------------------------------------------------- details

_FIELD = re.compile(r'(\w+)=("[^"]*"|\S+)')
_SHORT = {"NODES": "N", "LINKS": "L", "START": "S", "END": "E", "WORD": "W", "acoustic": "a", "language": "l"}


def _lines(file: File) -> Iterator[str]:
    """Lines of a text file that are not empty."""
    opened: Callable[..., IO[str]] = gzip.open if os.fspath(file).endswith(".gz") else open
    with opened(file, "rt", encoding="utf-8") as text:
        yield from (line.strip() for line in text if line.strip())


def _natural(base: float) -> Callable[[float], float]:
    """Natural logarithm of a score in a file of this base, where 0 stands for probabilities."""
    return (lambda score: score * math.log(base)) if base else math.log


def _only(nodes: Collection[int], others: Collection[int]) -> int:
    """The node that is not among the others."""
    left = [node for node in nodes if node not in others]
    if len(left) != 1:
        raise ValueError(f"read_slf: `file` must tell its start and end, got candidates {left}")
    return left[0]
