"""Rescoring word lattices with a recurrent network, in parallel, by approximate fixed points (Wang and Ragni).

Lattices around held-out lines are rescored with a model that `benchmarks.experiments.language` has trained. The best
path of smaller ones is checked against all paths, one by one.

    python -m benchmarks.experiments.lattice --load results/language/full5-k100-seed0.pt --rho 5
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from _lattices.language_model import ElmanLanguageModel
from _lattices.lattice import Arc, Hypothesis, Lattice, edit_distance
from _tagging.files import DATA_VARIABLE, SHARED_DATA
from benchmarks.experiments._run import command, write_json
from benchmarks.experiments._text import Text


def around(line: Sequence[str], words: Sequence[str], alternatives: int, rng: np.random.Generator) -> Lattice:
    """A line's words, each with others beside it, and arcs that leave out a word now and then."""
    arcs: list[Arc] = []
    for i, word in enumerate(line):
        others = [words[j] for j in rng.integers(1, len(words), alternatives)]
        arcs += [Arc(i, i + 1, other, float(rng.normal(0.0, 2.0))) for other in (word, *others)]
        if i + 2 <= len(line) and rng.random() < 0.3:
            arcs.append(Arc(i, i + 2, line[i + 1], float(rng.normal(-2.0, 2.0))))
    return Lattice(arcs, 0, len(line))


def by_enumeration(lattice: Lattice, model: ElmanLanguageModel, rho: int) -> Hypothesis:
    """The best path by scoring every path, word by word."""

    def paths(node: int) -> Iterator[tuple[Arc, ...]]:
        if node == lattice.end:
            yield ()
        for arc in lattice.arcs:
            if arc.source == node:
                yield from ((arc, *rest) for rest in paths(arc.target))

    def scored(path: tuple[Arc, ...]) -> Hypothesis:
        words = tuple(arc.word for arc in path)
        log_P = -(len(words) + 1) * float(np.log(model.perplexity([words], rho=rho)))
        return Hypothesis(words, sum(arc.acoustic for arc in path) + log_P)

    return max((scored(path) for path in paths(lattice.start)), key=lambda found: found.score)


def main() -> None:
    """Rescore lattices around held-out lines."""
    data = Path(os.environ.get(DATA_VARIABLE, SHARED_DATA)) / "wikitext-2" / "valid.txt"
    parser = command("lattice", "Rescoring word lattices by approximate fixed points.")
    add = parser.add_argument
    add("--data", type=Path, default=data, help="the text of the language model (default %(default)s)")
    add("--lines", type=int, help="use only the first LINES of the text, as the model did (default: all)")
    add("--load", type=Path, required=True, help="a checkpoint of benchmarks.experiments.language")
    add("--rho", type=int, default=5, help="iterations (default %(default)s)")
    add("--words", type=int, default=12, help="of each line (default %(default)s)")
    add("--lattices", type=int, default=20, help="how many (default %(default)s)")
    add("--alternatives", type=int, default=2, help="beside each word (default %(default)s)")
    add("--check", type=int, default=5, help="words of lattices whose paths are all enumerated (default %(default)s)")
    options = parser.parse_args()
    state = torch.load(options.load, weights_only=False)
    text = Text.read(options.data, least=state["settings"]["least"], lines=options.lines)
    params = {name: state["model"][name].double().numpy() for name in ("E", "W", "V", "b", "U", "c")}
    model = ElmanLanguageModel(params, text.words, begin="</s>", activation="logistic")
    rng, found = np.random.default_rng(options.seed), []
    lines = [line for line in text.held if line.size > options.words][: options.lattices]
    for line in lines:
        said = [text.words[i] for i in line[: options.words]]
        lattice = around(said, text.words, options.alternatives, rng)
        began = time.perf_counter()
        (expanded,) = model.rescore([lattice], options.rho)
        (best,) = expanded.n_best()
        took = time.perf_counter() - began
        small = around(said[: options.check], text.words, options.alternatives, rng)
        (same,), checked = model.rescore([small], options.rho)[0].n_best(), by_enumeration(small, model, options.rho)
        if same.words != checked.words or abs(same.score - checked.score) > 1e-9 * abs(checked.score):
            raise SystemExit(f"the lattice's best path {same} is not that of all paths {checked}")
        (alone,) = lattice.n_best()
        errors = {"other words": edit_distance(best.words, said), "by acoustics": edit_distance(alone.words, said)}
        sizes = {"arcs": len(lattice.arcs), "expanded": len(expanded.arcs)}
        found.append({**sizes, "seconds": took, "score": best.score, **errors})
    write_json(options.json, {"lattices": found}, options)
    means = {name: float(np.mean([row[name] for row in found])) for name in found[0]}
    print(f"{len(found)} lattices, each checked: " + ", ".join(f"{name} {value:.3g}" for name, value in means.items()))


if __name__ == "__main__":
    main()
