"""Sentiment of whole texts by the mean of an implicit layer's states (Kazi 2016, section 6).

Words are embedded, an implicit GRU reads the text, the mean of its states over the words goes to a logistic regression;
Adadelta, and P_3 for the inverses of Newton's method and of the gradients. The corpus is a folder laid out as the IMDB
reviews of Maas et al. (2011), ``train/pos/*.txt``, ``train/neg/*.txt`` and the same under ``test``, or generated: words
that praise and words that blame, of which some are turned round by a word before them or behind them.

    python -m benchmarks.experiments.sentiment                          # generated texts
    python -m benchmarks.experiments.sentiment --corpus aclImdb --limit 2000
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import implicitsolve as ims
from benchmarks.experiments._run import Checkpoints, Progress, command, write_json
from implicitsolve.torch import ImplicitGRU, SolveOptions

PAD, UNKNOWN = 0, 1
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[!?]")
PUBLISHED = {"GRU": 0.8658, "LSTM": 0.8784, "B-LSTM": 0.8836, "implicit": 0.8810}
"""Accuracy on IMDB, by the paper, which calls its table incomplete."""

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
    """Embedding, implicit GRU, mean over the words, logistic regression."""

    def __init__(self, words: int, d: int, k: int, order: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        inverse = ims.TruncatedInverse(order=order)
        options = SolveOptions(
            method=ims.NewtonKrylov(krylov=inverse, line_search=ims.FullStep(), restarts=0),
            stop=ims.NonlinearStop(atol=1e-3, rtol=0.0, max_iterations=40),
            adjoint_method=inverse,
            on_failure="ignore",  # `work` counts them
        )
        self.embedding = nn.Embedding(words, d, padding_idx=PAD)
        self.layer = ImplicitGRU(d, k, scale=0.1, generator=generator, solve_options=options)
        self.readout = nn.Linear(k, 1)
        self.work = {"texts": 0, "unsolved": 0, "products": 0}

    def forward(self, numbers: Tensor, lengths: Any) -> Tensor:
        """Log odds of praise."""
        states, result = self.layer(self.embedding(numbers), lengths, return_result=True)
        self.work["texts"] += len(lengths)
        self.work["unsolved"] += int(np.sum(~result.success))
        self.work["products"] += result.counts.residuals + result.counts.jvps
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


def run(options: argparse.Namespace) -> None:
    """Train, and test after each epoch."""
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(options.seed)
    if options.corpus is None:
        train_part, test_part = generated(options.limit or 2000, rng), generated(1000, rng)
    else:
        train_part, test_part = (read_folder(options.corpus / name, options.limit) for name in ("train", "test"))
    counts = Counter(word for words, _ in train_part for word in words)
    numbers = {word: i for i, (word, n) in enumerate(counts.most_common(options.words), start=2) if n > 1}
    encoded = [
        [(np.asarray([numbers.get(w, UNKNOWN) for w in words[: options.longest]] or [UNKNOWN]), y) for words, y in part]
        for part in (train_part, test_part)
    ]
    chosen = ("limit", "words", "longest", "state", "epochs", "batch", "order", "seed")
    settings = {name: getattr(options, name) for name in chosen} | {"corpus": str(options.corpus)}
    model = Classifier(len(numbers) + 2, options.state, options.state, options.order, options.seed)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    checkpoints, epochs = Checkpoints(options.folder / "sentiment.pt", settings), []
    state = checkpoints.load()
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epochs = state["epochs"]
    for epoch in range(len(epochs), options.epochs):
        model.work = dict.fromkeys(model.work, 0)
        began, total = time.process_time(), 0.0
        bar = Progress(-(-len(encoded[0]) // options.batch), 0, f"epoch {epoch + 1}", options.quiet)
        for words, lengths, labels in batches(encoded[0], options.batch, np.random.default_rng([options.seed, epoch])):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(words, lengths), labels)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(labels)
            bar.step(loss=f"{float(loss.detach()):.3f}")
        bar.close()
        facts = {"loss": total / len(encoded[0]), "seconds": time.process_time() - began} | model.work
        epochs.append(facts | {"accuracy": accuracy(model, encoded[1])})
        now = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epochs}
        checkpoints.save(now)
        print(
            f"epoch {epoch + 1}: " + ", ".join(f"{name} {value:.4g}" for name, value in epochs[-1].items()), flush=True
        )
    write_json(options.folder / "sentiment.json", {"settings": settings, "epochs": epochs, "published": PUBLISHED})


def main() -> None:
    """Read the command line."""
    parser = command("sentiment", "Sentiment of whole texts by the mean of an implicit layer's states.")
    add = parser.add_argument
    add("--corpus", type=Path, help="folder with train/pos, train/neg, test/pos, test/neg (default: generated texts)")
    add("--limit", type=int, help="texts to train on, and of a folder to test on (default: all; generated: 2000)")
    add("--words", type=int, default=10_000, help="of the vocabulary (default %(default)s)")
    add("--longest", type=int, default=200, help="words of a text that are read (default %(default)s)")
    add("--state", type=int, default=32, help="k, and the width of a word's vector (default %(default)s)")
    add("--epochs", type=int, default=5, help="default %(default)s")
    add("--batch", type=int, default=1, help="texts of a step (default %(default)s, as in the paper)")
    add("--order", type=int, default=3, help="n of P_n (default %(default)s)")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
