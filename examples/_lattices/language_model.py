"""An Elman network with a softmax as language model: perplexity, gradients, and scores for the arcs of lattices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _lattices.lattice import Arc, Lattice, check_at_least_one
from implicitsolve import Problem, pull_back
from implicitsolve.adapters import approximate_fixed_point, elman

Array = NDArray[Any]
SCORES = 2**22  # numbers in a table of scores, about: rows are scored in parts of this size


def shapes(words: int, d: int, k: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters for this vocabulary, inputs of d and states of k numbers."""
    return {"E": (words, d), "W": (k, k), "V": (k, d), "b": (k,), "U": (words, k), "c": (words,)}


@dataclass(frozen=True, eq=False)
class ElmanLanguageModel:
    """P(word | words before it) = softmax(U h + c), where h is the state of an Elman network after these words.

    The input of a word is its row of E, and ``h_t = phi(W h_{t-1} + V x_{t-1} + b)`` begins with h_0 = 0. A sentence is
    a list of words; the model adds `begin`, whose row of E is the first input, and `end`, which it predicts last;
    `unknown` stands for all words that the vocabulary, those of the rows of E and U, does not have.

    With ``rho=None`` the functions run the network itself. With an integer they take the `approximate_fixed_point` of
    rho iterations, which depends on the last rho words alone; `begin` counts as one of them (Wang & Ragni, *Approximate
    Fixed-Points in Recurrent Neural Networks*, equations 1 to 5).
    """

    params: Mapping[str, Array]
    vocabulary: Sequence[str]
    begin: str = "<s>"
    end: str = "</s>"
    unknown: str = "<unk>"
    activation: str = "tanh"

    def __post_init__(self) -> None:
        words, (d, k) = len(self.vocabulary), (self.params[name].shape[-1] for name in "EW")
        for name, shape in shapes(words, d, k).items():
            if self.params[name].shape != shape:
                got = self.params[name].shape
                raise ValueError(f"ElmanLanguageModel: `{name}` must have shape {shape}, got {got}")
        if len(self._numbers) != words:
            raise ValueError("ElmanLanguageModel: `vocabulary` must have different words")
        for word in (self.begin, self.end, self.unknown):
            if word not in self._numbers:
                raise ValueError(f"ElmanLanguageModel: `vocabulary` must have the word {word!r}")

    @staticmethod
    def parameters(words: int, d: int, k: int, *, scale: float = 0.05, rng: np.random.Generator) -> dict[str, Array]:
        """Draw parameters uniformly from [-scale, scale], as the paper does."""
        return {name: rng.uniform(-scale, scale, shape) for name, shape in shapes(words, d, k).items()}

    def numbers(self, words: Iterable[str]) -> Array:
        """Rows of words in E and U."""
        return np.asarray([self._number(word) for word in words], np.intp)

    def perplexity(self, sentences: Sequence[Sequence[str]], *, rho: int | None = None) -> float:
        """Perplexity exp(-mean log P) over all words of the sentences and their ends."""
        batch = self._batch("perplexity", sentences)
        states = self._solution(batch, rho)[1][batch.places]
        return float(np.exp(-self._log_probabilities(states, np.arange(len(states)), batch.targets).mean()))

    def loss(
        self, sentences: Sequence[Sequence[str]], *, rho: int | None = None, propagation: str = "full"
    ) -> tuple[float, dict[str, Array]]:
        """-log P of all words and ends, mean over the sentences, and its gradients by all parameters.

        They go through all rho iterations, or with ``propagation="skipped"`` through the last one alone; without `rho`
        they are those of backpropagation through time.
        """
        batch, U, count = self._batch("loss", sentences), self.params["U"], len(sentences)
        found, x = self._solution(batch, rho)
        states = x[batch.places]
        scores = self._scores(states)
        chosen = np.arange(len(states)), batch.targets
        value = -float(scores[chosen].sum()) / count
        slope = np.exp(scores)
        slope[chosen] -= 1.0
        slope /= count
        cotangent = np.zeros_like(x)
        cotangent[batch.places] = slope @ U
        if rho is None:
            gradients = pull_back(batch.problem, found, cotangent).gradients
        else:
            gradients = found.pull_back(cotangent, propagation=propagation).gradients
        E = np.zeros_like(self.params["E"])
        np.add.at(E, batch.words, gradients["inputs"])  # zero where padded
        own = {name: gradients[name] for name in ("W", "V", "b")}
        return value, {"E": E, **own, "U": slope.T @ states, "c": slope.sum(axis=0)}

    def rescore(self, lattices: Sequence[Lattice], rho: int) -> list[Lattice]:
        """Expand lattices to arcs of order rho + 1, and give every arc the model's log P as language score.

        The last arc of every path has the score of `end`. Acoustic scores and scales remain. The state after rho
        iterations is that of the network restarted rho words before. It depends on these words alone, so that it is
        computed once for all lattices, as is what several histories begin with. That takes at most 2 rho k (k + d)
        operations for each different history, and the softmax 2 k for each word of the vocabulary.
        """
        check_at_least_one("rescore", "rho", rho)
        if not lattices:
            return []
        begin = self._numbers[self.begin]
        expansions = [lattice.expanded(rho) for lattice in lattices]
        known: dict[tuple[int, ...], int] = {}
        asked: list[tuple[int, int]] = []
        for lattice, before in expansions:
            histories = [(begin, *map(self._number, words))[-rho:] for words in before]
            for arc in lattice.arcs:
                if arc.word or arc.target == lattice.end:
                    row = known.setdefault(histories[arc.source], len(known))
                    asked.append((row, self._number(arc.word or self.end)))
        rows, words = np.asarray(asked, np.intp).T
        found = iter(self._log_probabilities(self._after(list(known)), rows, words).tolist())

        def scored(lattice: Lattice) -> Iterable[Arc]:
            for arc in lattice.arcs:
                is_scored = arc.word or arc.target == lattice.end
                yield arc._replace(language=next(found) if is_scored else 0.0)

        return [replace(lattice, arcs=list(scored(lattice))) for lattice, _ in expansions]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.vocabulary)}

    def _number(self, word: str) -> int:
        return self._numbers.get(word, self._numbers[self.unknown])

    def _network(self, words: Array, lengths: Array | None = None, h0: Array | None = None) -> Problem:
        params = {name: self.params[name] for name in ("W", "V", "b")}
        return elman(params, self.params["E"][words], activation=self.activation, lengths=lengths, h0=h0)

    def _batch(self, caller: str, sentences: Sequence[Sequence[str]]) -> Batch:
        if not len(sentences) or any(isinstance(words, str) for words in sentences):
            raise ValueError(f"{caller}: `sentences` must be sequences of words, at least one")
        lengths = np.asarray([len(words) + 1 for words in sentences])
        numbers = np.zeros((len(sentences), lengths.max() + 1), np.intp)
        for row, words in zip(numbers, sentences):
            row[: len(words) + 2] = self.numbers([self.begin, *words, self.end])
        places = np.nonzero(np.arange(lengths.max()) < lengths[:, None])
        problem = self._network(numbers[:, :-1], lengths)
        return Batch(problem=problem, words=numbers[:, :-1], places=places, targets=numbers[:, 1:][places])

    @staticmethod
    def _solution(batch: Batch, rho: int | None) -> tuple[Any, Array]:
        """What can be differentiated, and the states, (B, T, k)."""
        if rho is None:
            x: Any = batch.problem.substitute()
            return x, x
        found = approximate_fixed_point(batch.problem, rho)
        return found, found.x

    def _after(self, histories: Sequence[tuple[int, ...]]) -> Array:
        """States of the network restarted before each history; its words one after the other, parts in common once."""
        k = self.params["W"].shape[0]
        found, states = np.zeros((len(histories), k)), np.zeros((1, k), self.params["W"].dtype)
        parts: dict[tuple[int, ...], int] = {(): 0}
        for j in range(1, 1 + max(map(len, histories))):
            longer = dict.fromkeys(history[:j] for history in histories if len(history) >= j)
            parents, words = np.asarray([(parts[part[:-1]], part[-1]) for part in longer], np.intp).T
            states = self._network(words[:, None], h0=states[parents]).substitute()[:, 0, :]
            parts = {part: i for i, part in enumerate(longer)}
            for i, history in enumerate(histories):
                if len(history) == j:
                    found[i] = states[parts[history]]
        return found

    def _scores(self, states: Array) -> Array:
        """Log P of all words."""
        scores = states @ self.params["U"].T + self.params["c"]
        scores -= scores.max(axis=1, keepdims=True)
        return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def _log_probabilities(self, states: Array, rows: Array, words: Array) -> Array:
        """Log P of these words after the states of these rows."""
        found = np.empty(len(rows))
        order = np.argsort(rows, kind="stable")
        size = max(1, SCORES // len(self.vocabulary))
        for first in range(0, len(states), size):
            low, high = np.searchsorted(rows[order], (first, first + size))
            own = order[low:high]
            found[own] = self._scores(states[first : first + size])[rows[own] - first, words[own]]
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Padded sentences: the network as a problem, its words, where their states are, and the words that follow."""

    problem: Problem
    words: Array
    places: tuple[Array, ...]
    targets: Array
