"""Whole texts by the mean of an implicit layer's states (Kazi 2016, section 6).

Words are embedded, a recurrent layer reads the text, the mean of its states over the words goes to a logistic
regression, and Adadelta trains all of it. The corpus is the documents of the treebank, reviews or not; or a folder laid
out as the IMDB reviews of Maas et al. (2011), ``train/pos/*.txt``, ``train/neg/*.txt`` and the same under ``test``; or
generated: words that praise and words that blame, of which some are turned round by a word before them or behind them.

    python -m benchmarks.experiments.sentiment --corpus treebank --json documents.json
    python -m benchmarks.experiments.sentiment --corpus generated
    python -m benchmarks.experiments.sentiment --corpus aclImdb --limit 2000
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from _tagging.files import find_treebank
from benchmarks.experiments._layers import LAYERS, Implicit, add_work, of_equal_size, parameters_of, truncated
from benchmarks.experiments._run import Checkpoints, Progress, command, write_json
from implicitsolve.torch import ImplicitGRU

PAD, UNKNOWN = 0, 1
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[!?]")
KINDS = {name: LAYERS[name] for name in ("gru", "lstm", "blstm", "implicit-gru")} | {
    f"implicit-gru-p{order}": partial(Implicit, ImplicitGRU, truncated(order)) for order in (1, 3)
}
"""Layers; p3 is the paper's: P_3 for the inverses of Newton's method and of the gradients."""

Corpus = list[tuple[list[str], int]]


def read_folder(folder: Path, limit: int | None) -> Corpus:
    """Texts of ``pos`` (1) and ``neg`` (0), the first of each."""
    found: Corpus = []
    for label, name in ((1, "pos"), (0, "neg")):
        files = sorted((folder / name).glob("*.txt"))
        if not files:
            raise SystemExit(f"{folder / name}: no *.txt there")
        chosen = files if limit is None else files[: limit // 2]
        found += [(WORD.findall(file.read_text(encoding="utf-8").lower()), label) for file in chosen]
    return found


def read_documents(path: Path) -> Corpus:
    """Documents of UD English EWT: reviews (1) and all others (0), e-mail, answers, newsgroups and weblogs."""
    found: Corpus = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# newdoc id = "):
            found.append(([], int(line.split()[-1].startswith("reviews"))))
        elif line[:1].isdigit() and line.split("\t")[0].isdigit():
            found[-1][0].append(line.split("\t")[1].lower())
    return found


def generated(count: int, rng: np.random.Generator) -> Corpus:
    """Texts of 10 to 40 words whose opinions, some turned round by "not" before or "hardly" behind, have a majority."""
    found: Corpus = []
    while len(found) < count:
        words: list[str] = []
        total = 0
        for _ in range(rng.integers(10, 41)):
            draw = rng.random()
            if draw < 0.7:
                words.append(f"filler{rng.integers(200)}")
                continue
            sign = 1 if rng.random() < 0.5 else -1
            opinion = f"{'praise' if sign > 0 else 'blame'}{rng.integers(20)}"
            turned = rng.random()
            words += ["not", opinion] if turned < 0.25 else [opinion, "hardly"] if turned < 0.5 else [opinion]
            total += -sign if turned < 0.5 else sign
        if total:
            found.append((words, int(total > 0)))
    return found


class Classifier(nn.Module):
    """Embedding, a recurrent layer, mean of its states over the words, logistic regression."""

    def __init__(self, words: int, k: int, layer: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, k, padding_idx=PAD)
        self.layer = layer
        self.readout = nn.Linear(layer.size, 1)  # type: ignore[arg-type]
        self.work = {"texts": 0, "unsolved": 0, "products": 0}

    def forward(self, numbers: Tensor, lengths: Any) -> Tensor:
        """Log odds of praise."""
        states, result = self.layer(self.embedding(numbers), lengths)
        self.work["texts"] += len(lengths)
        if result is not None:
            add_work(self.work, result)
        return self.readout(states.sum(dim=1) / torch.from_numpy(lengths)[:, None].float())[:, 0]


def batches(corpus: Any, size: int, rng: np.random.Generator | None) -> Iterator[tuple[Tensor, Any, Tensor]]:
    """Numbers (B, T), lengths and labels; in random order for training."""
    order = np.arange(len(corpus)) if rng is None else rng.permutation(len(corpus))
    for first in range(0, len(corpus), size):
        part = [corpus[i] for i in order[first : first + size]]
        lengths = np.asarray([len(numbers) for numbers, _ in part])
        numbers = torch.full((len(part), int(lengths.max())), PAD)
        for row, (words, _) in zip(numbers, part):
            row[: len(words)] = torch.from_numpy(words)
        yield numbers, lengths, torch.tensor([float(label) for _, label in part])


@torch.no_grad()
def accuracy(model: Classifier, corpus: Any) -> float:
    """Part of the texts that are judged rightly."""
    right = sum(int(((model(n, lengths) > 0) == (y > 0.5)).sum()) for n, lengths, y in batches(corpus, 50, None))
    return right / len(corpus)


def prepared(options: argparse.Namespace) -> tuple[tuple[Any, Any], int]:
    """Texts of numbered words to train and to test on, and the size of the vocabulary."""
    if options.corpus == "treebank":
        parts = tuple(read_documents(path) for path in find_treebank(options.data))
    elif options.corpus == "generated":
        rng = np.random.default_rng(options.data_seed)
        parts = generated(options.limit or 2000, rng), generated(1000, rng)
    else:
        parts = tuple(read_folder(Path(options.corpus) / name, options.limit) for name in ("train", "test"))
    counts = Counter(word for words, _ in parts[0] for word in words)
    numbers = {word: i for i, (word, n) in enumerate(counts.most_common(options.words), start=2) if n > 1}
    encoded = [
        [(np.asarray([numbers.get(w, UNKNOWN) for w in words[: options.longest]] or [UNKNOWN]), y) for words, y in part]
        for part in parts
    ]
    return (encoded[0], encoded[1]), len(numbers) + 2


def train(
    model: Classifier, corpora: tuple[Any, Any], options: argparse.Namespace, seed: int, checkpoints: Checkpoints
) -> list[dict[str, Any]]:
    """Epochs of Adadelta, and the accuracy after each."""
    optimizer, epochs = torch.optim.Adadelta(model.parameters(), lr=1.0), []
    state = checkpoints.restore(model, optimizer)
    if state is not None:
        epochs = state["epochs"]
    for epoch in range(len(epochs), options.epochs):
        model.work = dict.fromkeys(model.work, 0)
        began, total = time.process_time(), 0.0
        name = f"{checkpoints.path.stem} {epoch + 1}"
        bar = Progress(-(-len(corpora[0]) // options.batch), 0, name, options.quiet)
        for words, lengths, labels in batches(corpora[0], options.batch, np.random.default_rng([seed, epoch])):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(words, lengths), labels)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(labels)
            bar.step(loss=f"{float(loss.detach()):.3f}")
        bar.close()
        facts = {"loss": total / len(corpora[0]), "seconds": time.process_time() - began} | model.work
        epochs.append(facts | {"accuracy": accuracy(model, corpora[1])})
        checkpoints.keep(model, optimizer, epochs=epochs)
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in epochs[-1].items()), flush=True)
    return epochs


def run(options: argparse.Namespace) -> None:
    """Train and test each layer."""
    torch.set_num_threads(options.threads)
    corpora, words = prepared(options)
    wanted = parameters_of(LAYERS["implicit-gru"](options.state, options.state, 0))
    chosen = ("corpus", "limit", "words", "longest", "state", "epochs", "batch", "data_seed")
    common = {key: getattr(options, key) for key in chosen}
    texts = {name: [len(part), sum(y for _, y in part)] for name, part in zip(("train", "test"), corpora)}
    rows: list[dict[str, Any]] = []
    for seed, name in itertools.product(options.seeds, options.layers):
        torch.manual_seed(seed)
        k = options.state if name.startswith("implicit") else of_equal_size(name, options.state, wanted)
        model = Classifier(words, options.state, KINDS[name](options.state, k, seed))
        checkpoints = Checkpoints(options.folder / f"{name}-seed{seed}.pt", common | {"layer": name, "seed": seed})
        epochs = train(model, corpora, options, seed, checkpoints)
        rows.append({"layer": name, "k": k, "seed": seed, "accuracy": epochs[-1]["accuracy"], "epochs": epochs})
        write_json(options.json, {"texts": texts, "rows": rows}, options)


def main() -> None:
    """Read the command line."""
    parser = command("sentiment", "Sentiment of whole texts by the mean of an implicit layer's states.")
    add = parser.add_argument
    add("--corpus", default="treebank", help="treebank, generated, or a folder with train/pos, ... (default: treebank)")
    add("--data", type=Path, help="folder of the treebank (default: IMPLICITSOLVE_DATA, else a download)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    add("--limit", type=int, help="texts to train on, and of a folder to test on (default: all; generated: 2000)")
    add("--words", type=int, default=10_000, help="of the vocabulary (default %(default)s)")
    add("--longest", type=int, default=200, help="words of a text that are read (default %(default)s)")
    add("--state", type=int, default=32, help="k, and the width of a word's vector (default %(default)s)")
    add("--epochs", type=int, default=5, help="default %(default)s")
    add("--batch", type=int, default=1, help="texts of a step (default %(default)s, as in the paper)")
    add("--layers", nargs="+", choices=tuple(KINDS), default=list(KINDS), help="default: all")
    add("--data-seed", type=int, default=0, help="of the generated texts (default %(default)s)")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
