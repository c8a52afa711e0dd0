"""Rescoring word lattices with a recurrent network, in parallel, by approximate fixed points (Wang and Ragni).

A lattice is an acyclic graph whose arcs bear words and acoustic scores. A recurrent network needs the whole history
of an arc, and so has no place in it; rho iterations from zero need the last rho words, which a lattice expanded to
that order tells. All states of the expanded lattice are iterated at once. The best path is checked against all paths,
one by one.

    python -m benchmarks.experiments.lattice --load results/language/full5-k100-seed0.pt --rho 5
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import implicitsolve as ims
from _tagging.files import DATA_VARIABLE, SHARED_DATA
from benchmarks.experiments._run import command, write_json
from benchmarks.experiments._text import END, Text

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Arc:
    """From one node to a later one, with a word and its acoustic log score."""

    source: int
    target: int
    word: int
    score: float


@dataclass(frozen=True)
class Lattice:
    """Nodes 0, ..., last in topological order; paths lead from the first to the last."""

    arcs: tuple[Arc, ...]
    last: int

    @classmethod
    def around(cls, line: Array, words: int, alternatives: int, rng: np.random.Generator) -> Lattice:
        """A line's words, each with others beside it, and arcs that leave out a word now and then."""
        arcs: list[Arc] = []
        for i, word in enumerate(line.tolist()):
            others = rng.integers(END + 1, words, alternatives) if word != END else []
            arcs += [Arc(i, i + 1, int(w), float(rng.normal(0.0, 2.0))) for w in (word, *others)]
            if i + 2 <= line.size and rng.random() < 0.3:
                arcs.append(Arc(i, i + 2, int(line[i + 1]), float(rng.normal(-2.0, 2.0))))
        return cls(tuple(arcs), line.size)

    def paths(self, node: int = 0) -> Iterator[tuple[Arc, ...]]:
        """All of them, from a node to the last."""
        if node == self.last:
            yield ()
        for arc in self.arcs:
            if arc.source == node:
                for rest in self.paths(arc.target):
                    yield arc, *rest


@dataclass(frozen=True)
class Network:
    """An Elman network with embedded words and a softmax."""

    E: Array
    W: Array
    V: Array
    b: Array
    U: Array
    c: Array

    @classmethod
    def random(cls, words: int, k: int, rng: np.random.Generator) -> Network:
        """One that has not been trained."""
        shapes = ((words, k), (k, k), (k, k), (k,), (words, k), (words,))
        return cls(*(rng.uniform(-1, 1, shape) for shape in shapes))

    def function(self, previous: Array, words: Array) -> Array:
        """The states after words, for the states before them."""
        return 1.0 / (1.0 + np.exp(-(previous @ self.W.T + self.E[words] @ self.V.T + self.b)))

    def scores(self, states: Array) -> Array:
        """Log P of every word after a state."""
        logits = states @ self.U.T + self.c
        logits = logits - logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


class Expanded:
    """A lattice whose nodes tell the last rho words, the start among them.

    Attributes
    ----------
    places : list of (node, history)
        Topologically ordered.
    words, parents : ndarray
        The last word of each, and some place before it, -1 where there is none: of the states before, the last
        rho - 1 words matter, which all of them share.
    arcs : list of (from, to, word, score)
        Between places.
    """

    def __init__(self, lattice: Lattice, rho: int) -> None:
        self.places: list[tuple[int, tuple[int, ...]]] = [(0, (END,))]
        numbers = {self.places[0]: 0}
        parents, self.arcs = [-1], []
        leaving: dict[int, list[Arc]] = {}
        for arc in lattice.arcs:
            leaving.setdefault(arc.source, []).append(arc)
        waiting: dict[int, list[int]] = {0: [0]}
        for node in range(lattice.last + 1):
            for place in waiting.get(node, []):
                for arc in leaving.get(node, []):
                    following = arc.target, (*self.places[place][1], arc.word)[-rho:]
                    if following not in numbers:
                        numbers[following] = len(self.places)
                        self.places.append(following)
                        parents.append(place)
                        waiting.setdefault(arc.target, []).append(numbers[following])
                    self.arcs.append((place, numbers[following], arc.word, arc.score))
        self.words = np.asarray([history[-1] for _, history in self.places])
        self.parents = np.asarray(parents)
        self.ends = [number for (node, _), number in numbers.items() if node == lattice.last]

    def states(self, network: Network, rho: int) -> Array:
        """After rho iterations, all at once."""
        has_parent = (self.parents >= 0)[:, None]

        def residual(H: Array) -> Array:
            return H - network.function(np.where(has_parent, H[self.parents], 0.0), self.words)

        problem = ims.Problem(residual, fixed_point=True)
        start = np.zeros((len(self.places), len(network.b)))
        return ims.adapters.approximate_fixed_point(problem, rho, x0=start).x

    def best(self, network: Network, rho: int, weight: float) -> tuple[float, tuple[int, ...]]:
        """The largest sum of acoustic scores and `weight` times log P, and the words of that path."""
        log_P = network.scores(self.states(network, rho))
        totals = np.full(len(self.places), -np.inf)
        totals[0] = 0.0
        back: dict[int, tuple[int, int]] = {}
        order = sorted(range(len(self.arcs)), key=lambda i: self.places[self.arcs[i][0]][0])
        for source, target, word, score in (self.arcs[i] for i in order):
            total = totals[source] + score + weight * log_P[source, word]
            if total > totals[target]:
                totals[target], back[target] = total, (source, word)
        place = max(self.ends, key=lambda end: totals[end])
        best, words = float(totals[place]), []
        while place in back:
            place, word = back[place]
            words.append(word)
        return best, tuple(reversed(words))


def by_enumeration(lattice: Lattice, network: Network, rho: int, weight: float) -> tuple[float, tuple[int, ...]]:
    """The same by scoring every path, word by word, with the network restarted rho words before."""
    best: tuple[float, tuple[int, ...]] = (-np.inf, ())
    for path in lattice.paths():
        words, total = [END], 0.0
        for arc in path:
            h = np.zeros(len(network.b))
            for word in words[-rho:]:
                h = network.function(h[None], np.asarray([word]))[0]
            total += arc.score + weight * network.scores(h)[arc.word]
            words.append(arc.word)
        best = max(best, (total, tuple(words[1:])))
    return best


def main() -> None:
    """Rescore lattices around held-out lines."""
    data = Path(os.environ.get(DATA_VARIABLE, SHARED_DATA)) / "wikitext-2" / "valid.txt"
    parser = command("lattice", "Rescoring word lattices by approximate fixed points.")
    add = parser.add_argument
    add("--data", type=Path, default=data, help="the text of the language model (default %(default)s)")
    add("--load", type=Path, required=True, help="a checkpoint of benchmarks.experiments.language")
    add("--rho", type=int, default=5, help="iterations (default %(default)s)")
    add("--words", type=int, default=12, help="of each line (default %(default)s)")
    add("--lattices", type=int, default=20, help="how many (default %(default)s)")
    add("--alternatives", type=int, default=2, help="beside each word (default %(default)s)")
    add("--weight", type=float, default=1.0, help="of the language model (default %(default)s)")
    add("--check", type=int, default=5, help="words of lattices whose paths are all enumerated (default %(default)s)")
    options = parser.parse_args()
    state = torch.load(options.load, weights_only=False)
    text = Text.read(options.data, least=state["settings"]["least"])
    network = Network(**{name: state["model"][name].double().numpy() for name in ("E", "W", "V", "b", "U", "c")})
    rng, found = np.random.default_rng(options.seed), []
    lines = [line for line in text.held if line.size > options.words][: options.lattices]
    for line in lines:
        lattice = Lattice.around(line[: options.words], len(text.words), options.alternatives, rng)
        began = time.perf_counter()
        expanded = Expanded(lattice, options.rho)
        score, words = expanded.best(network, options.rho, options.weight)
        took = time.perf_counter() - began
        small = Lattice.around(line[: options.check], len(text.words), options.alternatives, rng)
        same = Expanded(small, options.rho).best(network, options.rho, options.weight)
        checked = by_enumeration(small, network, options.rho, options.weight)
        if same[1] != checked[1] or abs(same[0] - checked[0]) > 1e-9 * abs(checked[0]):
            raise SystemExit(f"the lattice's best path {same} is not that of all paths {checked}")
        errors = sum(a != b for a, b in zip(words, line[: options.words].tolist()))
        found.append({"arcs": len(lattice.arcs), "expanded": len(expanded.arcs), "seconds": took, "score": score})
        found[-1]["other words"] = errors + abs(len(words) - options.words)
    write_json(options.json, {"lattices": found}, options)
    means = {name: float(np.mean([row[name] for row in found])) for name in found[0]}
    print(f"{len(found)} lattices, each checked: " + ", ".join(f"{name} {value:.3g}" for name, value in means.items()))


if __name__ == "__main__":
    main()
