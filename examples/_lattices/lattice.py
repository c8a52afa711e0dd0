"""Word lattices: pruning, expansion to longer histories, and the best word sequences."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple


class Arc(NamedTuple):
    """From one node of a lattice to another, with a word ("" for none) and scores, which are natural logarithms."""

    source: int
    target: int
    word: str
    acoustic: float = 0.0
    language: float = 0.0


class Hypothesis(NamedTuple):
    """A word sequence of a lattice, and the score of the best path with these words."""

    words: tuple[str, ...]
    score: float


@dataclass(frozen=True)
class Lattice:
    """An acyclic graph of words; every path from the start to the end is a hypothesis.

    The score of a path is ``acoustic_scale * acoustic + language_scale * language`` summed over its arcs, plus
    `word_penalty` for each word. Nodes are any integers. A graph with a cycle, without a path from `start` to `end`, or
    with a score that is not finite raises a ValueError.
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

    def score(self, arc: Arc) -> float:
        """The sum of an arc's scores, scaled."""
        scaled = self.acoustic_scale * arc.acoustic + self.language_scale * arc.language
        return scaled + (self.word_penalty if arc.word else 0.0)

    def n_best(self, n: int = 1) -> list[Hypothesis]:
        """The n best word sequences, or all if there are fewer, best first; each has the score of its best path.

        A best-first search of word prefixes, whose bound, the best score of any completion, is exact: it extends at
        most n prefixes of each length.
        """
        check_at_least_one("n_best", "n", n)
        remaining, number = self._remaining, itertools.count()
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

    def posteriors(self) -> list[float]:
        """Probability that the spoken path goes along each arc, in the order of `arcs`: exp(score), normalized."""
        ahead = dict.fromkeys(self._order, -math.inf) | {self.start: 0.0}
        behind = dict.fromkeys(self._order, -math.inf) | {self.end: 0.0}
        for node in self._order:
            for arc in self._leaving[node]:
                ahead[arc.target] = log_sum(ahead[arc.target], ahead[node] + self.score(arc))
        for node in reversed(self._order):
            for arc in self._leaving[node] if node != self.end else ():
                behind[node] = log_sum(behind[node], self.score(arc) + behind[arc.target])
        total = ahead[self.end]
        return [math.exp(ahead[arc.source] + self.score(arc) + behind[arc.target] - total) for arc in self.arcs]

    def minimum_bayes_risk(self, n: int = 100) -> tuple[tuple[str, ...], float]:
        """The word sequence, of the n best, with the fewest wrong words to be expected, and that expectation.

        Wrong words are those inserted, left out or replaced; a sequence's probability is that of its best path among
        the n.
        """
        found = self.n_best(n)
        least = found[0].score
        weights = [math.exp(hypothesis.score - least) for hypothesis in found]
        risks = [
            sum(weight * edit_distance(one.words, other.words) for weight, other in zip(weights, found)) / sum(weights)
            for one in found
        ]
        best = min(range(len(found)), key=risks.__getitem__)
        return found[best].words, risks[best]

    def pruned(self, beam: float) -> Lattice:
        """Without the arcs whose best path scores worse than the best of all by more than `beam`, which is >= 0."""
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

        Paths and scores stay the same; nodes become 0, 1, ..., and the end is a node of its own. Returned are the new
        lattice and the last words of each of its nodes, none for the end. The number of nodes may grow like that of
        different rho-grams: prune large lattices first.
        """
        check_at_least_one("expanded", "rho", rho)
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


def log_sum(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def edit_distance(words: Sequence[str], others: Sequence[str]) -> int:
    """Words inserted, left out or replaced, the fewest (Levenshtein's distance)."""
    row = list(range(len(others) + 1))
    for i, word in enumerate(words, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(others, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


def check_at_least_one(caller: str, name: str, value: int) -> None:
    """Raise a ValueError if a count is not positive."""
    if value < 1:
        raise ValueError(f"{caller}: `{name}` must be at least 1, got {value}")
