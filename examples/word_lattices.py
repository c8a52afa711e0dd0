"""Rescore a word lattice of a speech recognizer with a recurrent language model.

    python examples/word_lattices.py
    python examples/word_lattices.py --text corpus.txt --lattice utterance.slf.gz --beam 200 --rho 5

The model, an Elman network, is trained on the lines of a text by approximate fixed points of rho iterations, whose
states depend on the last rho words alone (Wang and Ragni, *Approximate Fixed-Points in Recurrent Neural Networks*).
Nodes of the lattice are split until each determines these words; then every arc has one score.
See docs/examples/word_lattices.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from _lattices.files import read_slf
from _lattices.language_model import ElmanLanguageModel
from _lattices.lattice import Arc, Lattice

TEXT = ("the weather is fine today", "the weather was fine", "find the way", "a fine day")
SOUNDS = Lattice(
    [
        Arc(0, 1, "the", -2.0),
        Arc(1, 2, "weather", -3.1),
        Arc(1, 2, "whether", -3.0),
        Arc(2, 3, "is", -1.0),
        Arc(3, 4, "find", -2.4),
        Arc(3, 4, "fine", -2.5),
    ],
    start=0,
    end=4,
    language_scale=2.0,
)


def train(
    sentences: Sequence[Sequence[str]], *, rho: int, steps: int = 200, rate: float = 0.1, seed: int = 0
) -> ElmanLanguageModel:
    """A small model of the sentences, by gradient descent on all of them."""
    words = ["<s>", "</s>", "<unk>", *sorted({word for sentence in sentences for word in sentence})]
    params = ElmanLanguageModel.parameters(len(words), 8, 16, scale=0.3, rng=np.random.default_rng(seed))
    for _ in range(steps):
        _, gradients = ElmanLanguageModel(params, words).loss(sentences, rho=rho)
        params = {name: value - rate * gradients[name] for name, value in params.items()}
    return ElmanLanguageModel(params, words)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the model, and print the best word sequences without it and with it."""
    parser = argparse.ArgumentParser(description="Rescore a word lattice with a recurrent language model.")
    parser.add_argument("--text", type=Path, help="a sentence on each line (default: four lines on the weather)")
    parser.add_argument("--lattice", type=Path, help="a file of HTK's standard lattice format (default: five words)")
    parser.add_argument("--beam", type=float, help="prune the lattice to this distance from its best path")
    parser.add_argument("--rho", type=int, default=2, help="words of history (default %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="of training (default %(default)s)")
    parser.add_argument("--best", type=int, default=3, help="word sequences to print (default %(default)s)")
    options = parser.parse_args(arguments)
    text = TEXT if options.text is None else options.text.read_text(encoding="utf-8").splitlines()
    sentences = [line.split() for line in text if line.strip()]
    model = train(sentences, rho=options.rho, steps=options.steps)
    print(f"perplexity {model.perplexity(sentences, rho=options.rho):.2f} of the text")
    lattice = SOUNDS if options.lattice is None else read_slf(options.lattice)
    lattice = lattice if options.beam is None else lattice.pruned(options.beam)
    (rescored,) = model.rescore([lattice], options.rho)
    for title, graph in (("as recognized", lattice), ("rescored", rescored)):
        print(f"{title}, {len(graph.arcs)} arcs:")
        for words, score in graph.n_best(options.best):
            print(f"{score:10.2f}  {' '.join(words)}")


if __name__ == "__main__":
    main()
