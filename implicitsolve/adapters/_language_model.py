"""An Elman network with a softmax as language model: perplexity, gradients, and scores for the arcs of lattices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from implicitsolve import Problem, pull_back
from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._typing import Array, Indices
from implicitsolve.adapters._approximate import FULL, approximate_fixed_point
from implicitsolve.adapters._common import check_array, check_inputs, check_names, check_size, zeros
from implicitsolve.adapters._lattice import Arc, Lattice
from implicitsolve.adapters._rnn import elman

NAMES = ("E", "W", "V", "b", "U", "c")
CHUNK = 2**22  # numbers in a table of scores


@dataclass(frozen=True, eq=False)
class ElmanLanguageModel:
    """P(word | words before it) = softmax(U h + c), where h is the state of an Elman network after these words.

    The input of a word is its row of E, and ``h_t = phi(W h_{t-1} + V x_{t-1} + b)`` begins with h_0 = 0. A sentence is
    a list of words; the model adds `begin`, whose row of E is the first input, and `end`, which it predicts last.

    Parameters
    ----------
    params : mapping of str to Array
        E of shape (words, d), W (k, k), V (k, d), b (k,), U (words, k) and c (words,).
    vocabulary : sequence of str
        The words of the rows of E and U.
    begin, end, unknown : str, optional
        Words of the vocabulary; the last stands for all others. Defaults "<s>", "</s>" and "<unk>".
    activation : {"tanh", "logistic", "relu", "identity"}, optional
        phi. Default "tanh".

    Raises
    ------
    TypeError, ValueError
        If an array has another name, shape or dtype than these, a word occurs twice, or `begin`, `end` or `unknown`
        is missing.

    Notes
    -----
    With ``rho=None`` the functions run the network itself. With an integer they take the `approximate_fixed_point`
    of rho iterations, which depends on the last rho words alone; `begin` counts as one of them.

    References
    ----------
    Wang & Ragni, *Approximate Fixed-Points in Recurrent Neural Networks*, equations 1 to 5.

    Examples
    --------
    >>> import numpy as np
    >>> from implicitsolve.adapters import Arc, ElmanLanguageModel, Lattice
    >>> words, rng = ["<s>", "</s>", "<unk>", "a", "cat", "hat"], np.random.default_rng(0)
    >>> model = ElmanLanguageModel(ElmanLanguageModel.parameters(len(words), 4, 8, scale=0.5, rng=rng), words)
    >>> round(model.perplexity([["a", "cat"], ["a", "hat"]]), 1)
    4.9
    >>> lattice = Lattice([Arc(0, 1, "a", -1.0), Arc(1, 2, "cat", -2.0), Arc(1, 2, "hat", -2.1)], 0, 2)
    >>> (rescored,) = model.rescore([lattice], rho=2)
    >>> [words for words, score in rescored.n_best(2)]
    [('a', 'cat'), ('a', 'hat')]
    """

    params: Mapping[str, Array]
    vocabulary: Sequence[str]
    begin: str = "<s>"
    end: str = "</s>"
    unknown: str = "<unk>"
    activation: str = "tanh"

    def __post_init__(self) -> None:
        name = "ElmanLanguageModel"
        check_names(name, self.params, NAMES)
        E, words = self.params["E"], len(self.vocabulary)
        check_inputs(name, E, "words, d")
        self._network(E[None, :1, :], None)
        shapes = {"E": (words, E.shape[1]), "U": (words, self.params["W"].shape[0]), "c": (words,)}
        for key, shape in shapes.items():
            check_array(name, key, self.params[key], shape, E)
        if len(self._numbers) != words:
            raise ValueError(f"{name}: `vocabulary` must have different words, got {words - len(self._numbers)} twice")
        for what in ("begin", "end", "unknown"):
            if getattr(self, what) not in self._numbers:
                raise ValueError(f"{name}: `{what}` must be a word of the vocabulary, got {getattr(self, what)!r}")

    @staticmethod
    def parameters(
        words: int, d: int, k: int, *, scale: float = 0.05, rng: np.random.Generator, dtype: Any = np.float64
    ) -> dict[str, Array]:
        """Draw parameters uniformly from [-scale, scale], as the paper does.

        Parameters
        ----------
        words, d, k : int
            Sizes of the vocabulary, of the inputs and of the states.
        scale, rng, dtype : float, numpy.random.Generator, dtype
            As of `elman_parameters`.

        Returns
        -------
        dict of str to numpy.ndarray
        """
        shapes = ((words, d), (k, k), (k, d), (k,), (words, k), (words,))
        return {name: rng.uniform(-scale, scale, shape).astype(dtype) for name, shape in zip(NAMES, shapes)}

    def numbers(self, words: Iterable[str]) -> Indices:
        """Return the rows of words in E and U."""
        return np.asarray([self._number(word) for word in words], np.intp)

    def perplexity(self, sentences: Sequence[Sequence[str]], *, rho: int | None = None) -> float:
        """Perplexity exp(-mean log P) over all words of the sentences and their ends.

        Parameters
        ----------
        sentences : sequence of sequences of str
        rho : int, optional
            Order of the approximate fixed point. Default: the network itself.

        Returns
        -------
        float
        """
        _, states, targets, _ = self._states("perplexity", sentences, rho)
        return float(np.exp(-self._log_probabilities(states, np.arange(len(targets)), targets).mean()))

    def loss(
        self, sentences: Sequence[Sequence[str]], *, rho: int | None = None, propagation: str = FULL
    ) -> tuple[float, dict[str, Array]]:
        """-log P of all words and ends, mean over the sentences, and its gradients.

        Parameters
        ----------
        sentences, rho
            As of `perplexity`.
        propagation : {"full", "skipped"}, optional
            As of `ApproximateFixedPoint.pull_back`; without `rho` the gradients are those of backpropagation
            through time.

        Returns
        -------
        float
            The loss.
        dict of str to Array
            Its gradients by all parameters.
        """
        found, states, targets, (problem, ids, places) = self._states("loss", sentences, rho)
        xp, U, count = array_namespace(states), self.params["U"], len(sentences)
        scores = self._scores(states)
        chosen = from_host(np.arange(len(targets)), scores), from_host(targets, scores)
        value = -float(xp.sum(scores[chosen])) / count
        slope = xp.exp(scores)
        slope[chosen] -= 1.0
        slope /= count
        cotangent = zeros((*ids.shape, U.shape[1]), U)
        cotangent[places] = slope @ U
        if rho is None:
            gradients = pull_back(problem, found, cotangent).gradients
        else:
            gradients = found.pull_back(cotangent, propagation=propagation).gradients
        words, d = self.params["E"].shape
        E = np.zeros((words, d))
        np.add.at(E, ids.ravel(), to_host(gradients["inputs"]).reshape(-1, d))  # zero where padded
        own = {name: gradients[name] for name in ("W", "V", "b")}
        return value, {"E": from_host(E, U), **own, "U": slope.T @ states, "c": xp.sum(slope, axis=0)}

    def rescore(self, lattices: Sequence[Lattice], rho: int) -> list[Lattice]:
        """Expand lattices to arcs of order rho + 1, and give every arc the model's log P as language score.

        Parameters
        ----------
        lattices : sequence of Lattice
            Rescored in one batch; large ones are best `pruned` before.
        rho : int
            Words of history, at least 1.

        Returns
        -------
        list of Lattice
            With the acoustic scores and scales of the originals; the last arc of every path has the score of `end`.

        Notes
        -----
        The state after rho iterations is that of the network restarted rho words before. It depends on these words
        alone, so that it is computed once for the batch, as is what several histories begin with. That takes at most
        2 rho k (k + d) operations for each different history, and the softmax 2 k for each word of the vocabulary.
        """
        rho = check_size("rescore", "rho", rho)
        if not lattices:
            return []
        begin = self._numbers[self.begin]
        expansions = [lattice.expanded(rho) for lattice in lattices]
        known: dict[tuple[int, ...], int] = {}
        asked: list[tuple[int, int]] = []
        for lattice, before in expansions:
            shown = [(begin, *map(self._number, words))[-rho:] for words in before]
            for arc in lattice.arcs:
                if arc.word or arc.target == lattice.end:
                    row = known.setdefault(shown[arc.source], len(known))
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

    def _network(self, inputs: Array, lengths: Any, h0: Array = None) -> Problem:
        params = {name: self.params[name] for name in ("W", "V", "b")}
        return elman(params, inputs, activation=self.activation, lengths=lengths, h0=h0)

    def _states(self, caller: str, sentences: Sequence[Sequence[str]], rho: int | None) -> tuple[Any, ...]:
        """The states of all sentences, those of words as rows, the words that follow, and where all this stands."""
        if not len(sentences) or any(isinstance(words, str) for words in sentences):
            raise ValueError(f"{caller}: `sentences` must be sequences of words, at least one")
        lengths = np.asarray([len(words) + 1 for words in sentences])
        ids = np.zeros((len(sentences), lengths.max() + 1), np.intp)
        for row, words in zip(ids, sentences):
            row[: len(words) + 2] = self.numbers([self.begin, *words, self.end])
        E = self.params["E"]
        inputs = array_namespace(E).take(E, from_host(ids[:, :-1].ravel(), E), axis=0)
        problem = self._network(inputs.reshape(len(ids), -1, E.shape[1]), lengths)
        substitute: Any = problem.substitute
        found: Any = substitute() if rho is None else approximate_fixed_point(problem, rho)
        on_host = np.nonzero(np.arange(lengths.max()) < lengths[:, None])
        places = tuple(from_host(indices, E) for indices in on_host)
        states = (found if rho is None else found.x)[places]
        return found, states, ids[:, 1:][on_host], (problem, ids[:, :-1], places)

    def _after(self, histories: Sequence[tuple[int, ...]]) -> Array:
        """States of the network restarted before each history; its words one after the other, parts in common once."""
        E = self.params["E"]
        xp, k = array_namespace(E), self.params["W"].shape[0]
        found, states = zeros((len(histories), k), E), zeros((1, k), E)
        parts: dict[tuple[int, ...], int] = {(): 0}
        for j in range(1, 1 + max(map(len, histories))):
            longer = dict.fromkeys(history[:j] for history in histories if len(history) >= j)
            parents, words = np.asarray([(parts[part[:-1]], part[-1]) for part in longer], np.intp).T
            inputs = xp.take(E, from_host(words, E), axis=0)[:, None, :]
            before = xp.take(states, from_host(parents, E), axis=0)
            run: Any = self._network(inputs, None, before).substitute
            states = run()[:, 0, :]
            parts = {part: i for i, part in enumerate(longer)}
            ending = [(i, parts[history]) for i, history in enumerate(histories) if len(history) == j]
            if ending:
                into, at = np.asarray(ending, np.intp).T
                found[from_host(into, E), :] = xp.take(states, from_host(at, E), axis=0)
        return found

    def _scores(self, states: Array) -> Array:
        """Log P of all words."""
        xp = array_namespace(states)
        scores = states @ self.params["U"].T + self.params["c"]
        scores -= xp.max(scores, axis=1, keepdims=True)
        scores -= xp.log(xp.sum(xp.exp(scores), axis=1, keepdims=True))
        return scores

    def _log_probabilities(self, states: Array, rows: Indices, words: Indices) -> np.ndarray[Any, Any]:
        """Log P of these words after the states of these rows."""
        found = np.empty(len(rows))
        order = np.argsort(rows, kind="stable")
        size = max(1, CHUNK // len(self.vocabulary))
        for first in range(0, states.shape[0], size):
            low, high = np.searchsorted(rows[order], (first, first + size))
            own = order[low:high]
            scores = self._scores(states[first : first + size, :])
            at, word = from_host(rows[own] - first, scores), from_host(words[own], scores)
            found[own] = to_host(scores[at, word])
        return found
