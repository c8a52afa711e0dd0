"""Part-of-speech tagging: explicit and implicit recurrent layers of equal size (Kazi and Thompson 2017, Table 2).

Words of UD English EWT (Penn Treebank tags) as in the paper: word vectors, six tables of affixes, eight binary
features. Every layer sees the same inputs, has about as many parameters as the implicit GRU, and is trained by the
same optimizer on the same batches for the same epochs. Accuracy is that of the dev part, after each epoch. With
--ablation every layer is also trained with fewer features, and taggers are combined: their probabilities are averaged.

    python -m benchmarks.experiments.tagging --layers gru bigru blstm implicit-gru --seeds 0 1 2
    python -m benchmarks.experiments.tagging --layers blstm implicit-gru --ablation --limit 2000
    python -m benchmarks.experiments.tagging --word 320 --affix 20 --state 448    # the paper's sizes
    python -m benchmarks.experiments.tagging --optimizer sgd --rate 0.5 --decay 1    # and its optimizer
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from _tagging.batches import Batch, collate, split_into_batches
from _tagging.conllu import read_conllu
from _tagging.features import AFFIXES, FLAG_COUNT, UNKNOWN, Encoder
from _tagging.files import find_treebank
from benchmarks.experiments._layers import LAYERS, add_work, of_equal_size, parameters_of
from benchmarks.experiments._run import Checkpoints, Progress, command, write_figure, write_json

CLIP = 1.0
OPTIMIZERS: dict[str, Any] = {"adam": partial(torch.optim.Adam, betas=(0.9, 0.99)), "sgd": torch.optim.SGD}
NOT_OF_A_RUN = {"ablation", "data", "folder", "json", "layers", "quiet", "seed", "seeds", "state", "threads"}
FEATURES = ("word", "case", "affix", "symbols")
FLAGS = {"case": range(4), "symbols": range(4, FLAG_COUNT)}


class Tagger(nn.Module):
    """Embedded features, a layer, and a softmax on its states."""

    def __init__(
        self, encoder: Encoder, options: argparse.Namespace, name: str, k: int, seed: int, features: tuple[str, ...]
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        widths = {"word": options.word} | dict.fromkeys(AFFIXES if "affix" in features else (), options.affix)
        self.flags = [i for name in FLAGS if name in features for i in FLAGS[name]]
        self.tables = nn.ModuleDict({t: nn.Embedding(len(encoder.tables[t]), w) for t, w in widths.items()})
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.3)  # type: ignore[arg-type]
        self.layer = LAYERS[name](sum(widths.values()) + len(self.flags), k, seed)
        self.dropout = nn.Dropout(options.dropout)
        self.register_buffer("to_unknown", torch.zeros(len(encoder.tables["word"])))
        self.readout = nn.Linear(self.layer.size, len(encoder.tags))  # type: ignore[arg-type]
        nn.init.zeros_(self.readout.weight)
        self.work = {"batches": 0, "products": 0, "unsolved": 0}

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the tags, the tags, and which words count."""
        numbers = torch.from_numpy(batch.numbers).long()
        if self.training:  # the unknown word learns from rare ones
            is_lost = torch.rand(numbers.shape[:2]) < self.to_unknown[numbers[..., 0]]
            numbers[..., 0] = numbers[..., 0].masked_fill(is_lost, UNKNOWN)
        parts = [table(numbers[..., i]) for i, table in enumerate(self.tables.values())]
        inputs = self.dropout(torch.cat([*parts, torch.from_numpy(batch.flags[..., self.flags])], dim=2))
        states, result = self.layer(inputs, batch.lengths)
        counts = torch.from_numpy(batch.is_word & (batch.tags >= 0))
        if result is not None:
            self.work["batches"] += 1
            add_work(self.work, result)
            counts = counts & torch.from_numpy(np.asarray(result.success))[:, None]
        return self.readout(self.dropout(states)), torch.from_numpy(batch.tags).long(), counts


@torch.no_grad()
def evaluate(model: Tagger, corpus: list[Any], words: int) -> tuple[dict[str, float], Tensor, Tensor]:
    """Accuracy, where a word whose tag is unknown counts as wrong, and perplexity; probabilities, and tags."""
    model.eval()
    found: list[tuple[Tensor, Tensor]] = []
    loss, counted = 0.0, 0
    for which in split_into_batches(corpus, words):
        batch = collate(corpus, which)
        scores, tags, counts = model(batch)
        is_word = torch.from_numpy(batch.is_word)
        found.append((scores[is_word].softmax(dim=1), tags[is_word]))
        loss += float(nn.functional.cross_entropy(scores[counts], tags[counts], reduction="sum"))
        counted += int(counts.sum())
    model.train()
    probabilities, right = (torch.cat(parts) for parts in zip(*found))
    facts = {"accuracy": accuracy(probabilities, right), "perplexity": math.exp(loss / counted)}
    return facts, probabilities, right


def accuracy(probabilities: Tensor, tags: Tensor) -> float:
    """Part of the words that are tagged rightly."""
    return float((probabilities.argmax(dim=1) == tags).float().mean())


def train(
    model: Tagger,
    corpora: tuple[list[Any], list[Any]],
    options: argparse.Namespace,
    seed: int,
    checkpoints: Checkpoints,
) -> list[dict[str, Any]]:
    """Epochs of an optimizer, whose rate falls by a factor after each, and is halved after one that did not help."""
    optimizer = OPTIMIZERS[options.optimizer](model.parameters(), lr=options.rate)
    epochs: list[dict[str, Any]] = []
    state = checkpoints.restore(model, optimizer)
    if state is not None:
        epochs = state["epochs"]
        torch.set_rng_state(state["torch"])
    for epoch in range(len(epochs), options.epochs):
        parts = split_into_batches(corpora[0], options.batch_words, np.random.default_rng([seed, epoch]))
        model.work = dict.fromkeys(model.work, 0)
        began, bar = time.process_time(), Progress(len(parts), 0, f"{checkpoints.path.stem} {epoch + 1}", options.quiet)
        for which in parts:
            optimizer.zero_grad()
            scores, tags, counts = model(collate(corpora[0], which))
            loss = nn.functional.cross_entropy(scores[counts], tags[counts], label_smoothing=options.smoothing)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            bar.step(loss=f"{float(loss.detach()):.3f}")
        bar.close()
        facts = {"seconds": time.process_time() - began} | model.work
        epochs.append(facts | evaluate(model, corpora[1], options.batch_words)[0])
        is_best = epochs[-1]["perplexity"] == min(row["perplexity"] for row in epochs)
        for group in optimizer.param_groups:
            group["lr"] *= options.decay if is_best else 0.5
        checkpoints.keep(model, optimizer, epochs=epochs, torch=torch.get_rng_state())
    return epochs


def figure(path: Path, rows: list[dict[str, Any]]) -> None:
    """Dev accuracy after each epoch of the taggers with all features: the mean over the seeds, and all of them."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes = drawn.subplots()
    rows = [row for row in rows if row["features"] == list(FEATURES)]
    for i, name in enumerate(dict.fromkeys(row["layer"] for row in rows)):
        curves = np.asarray([[e["accuracy"] for e in row["epochs"]] for row in rows if row["layer"] == name])
        epochs = np.arange(1, curves.shape[1] + 1)
        axes.plot(epochs, curves.mean(axis=0), "o-", color=f"C{i}", label=name)
        axes.plot(epochs, curves.T, ".", color=f"C{i}", alpha=0.4)
    axes.set(xlabel="epoch", ylabel="dev accuracy")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    write_figure(path, drawn)


def ensembles(tagged: dict[tuple[str, int], Tensor], tags: Tensor) -> dict[str, float]:
    """Accuracy of averaged probabilities, by features and seed: of two and four sets of features, and of the seeds."""
    names = list(dict.fromkeys(name for name, _ in tagged))
    first = min(seed for _, seed in tagged)
    found = {f"{n} sets of features": [tagged[name, first] for name in names[:n]] for n in (2, 4) if n <= len(names)}
    seeds = [tagged[key] for key in tagged if key[0] == names[-1]]
    found |= {f"{n} seeds": seeds[:n] for n in range(2, len(seeds) + 1)}
    return {name: accuracy(torch.stack(members).mean(dim=0), tags) for name, members in found.items()}


def run(options: argparse.Namespace) -> None:
    """Every layer with every seed, and with fewer features with the first seed."""
    torch.set_num_threads(options.threads)
    corpora = tuple(read_conllu(path, options.column) for path in find_treebank(options.data))
    encoder = Encoder.from_sentences(corpora[0][: options.limit])
    train_part, dev_part = ([encoder.encode(s.forms, s.tags) for s in corpus] for corpus in corpora)
    train_part = train_part[: options.limit]
    seen = np.bincount(np.concatenate([s.numbers[:, 0] for s in train_part]), minlength=len(encoder.tables["word"]))
    to_unknown = torch.from_numpy(options.word_dropout / np.maximum(options.word_dropout + seen, 1e-30))
    common = {key: value for key, value in vars(options).items() if key not in NOT_OF_A_RUN}
    sets = [FEATURES[:n] for n in range(1, 5)] if options.ablation else [FEATURES]
    words = {"train": int(seen.sum()), "dev": sum(len(sentence) for sentence in dev_part)}
    rows: list[dict[str, Any]] = []
    combined: dict[str, Any] = {}
    for name in options.layers:
        tagged: dict[tuple[str, int], Tensor] = {}
        for features, seed in [(f, s) for f in sets for s in (options.seeds if f == FEATURES else options.seeds[:1])]:
            flags = sum(len(part) for key, part in FLAGS.items() if key in features)
            d = options.word + flags + len(AFFIXES) * options.affix * ("affix" in features)
            k = of_equal_size(name, d, parameters_of(LAYERS["implicit-gru"](d, options.state, 0)))
            settings = common | {"layer": name, "k": k, "seed": seed, "features": features}
            model = Tagger(encoder, options, name, k, seed, features)
            model.to_unknown.copy_(to_unknown)
            checkpoints = Checkpoints(options.folder / f"{name}{k}-{'-'.join(features)}-seed{seed}.pt", settings)
            epochs = train(model, (train_part, dev_part), options, seed, checkpoints)
            tagged["+".join(features), seed], tags = evaluate(model, dev_part, options.batch_words)[1:]
            rows.append({"layer": name, "k": k, "parameters": parameters_of(model.layer), "features": list(features)})
            rows[-1] |= {"seed": seed, "accuracy": epochs[-1]["accuracy"], "epochs": epochs}
            print(f"{name}, k = {k}, {'+'.join(features)}, seed {seed}: {rows[-1]['accuracy']:.4f}", flush=True)
            write_json(options.json, {"words": words, "rows": rows, "ensembles": combined}, options)
        combined[name] = ensembles(tagged, tags)
    write_json(options.json, {"words": words, "rows": rows, "ensembles": combined}, options)
    figure(options.folder / "tagging.png", rows)


def main() -> None:
    """Read the command line."""
    parser = command("tagging", "Explicit and implicit recurrent layers on part-of-speech tags.")
    add = parser.add_argument
    add("--data", type=Path, help="folder of the treebank (default: IMPLICITSOLVE_DATA, else a download)")
    add("--column", default="xpos", help="of the tags, xpos or upos (default %(default)s)")
    add("--layers", nargs="+", choices=tuple(LAYERS), default=list(LAYERS), help="default: all")
    add("--ablation", action="store_true", help="also train with fewer features, and combine taggers")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    add("--word", type=int, default=64, help="width of a word's vector (default %(default)s; the paper's is 320)")
    add("--affix", type=int, default=8, help="of an affix's (default %(default)s; the paper's is 20)")
    add("--state", type=int, default=120, help="k of the implicit GRU (default %(default)s; the paper's is 448)")
    add("--epochs", type=int, default=8, help="default %(default)s")
    add("--batch-words", type=int, default=640, help="words of a batch, about (default %(default)s)")
    add("--optimizer", choices=tuple(OPTIMIZERS), default="adam", help="default %(default)s; the paper's is sgd")
    add("--rate", type=float, default=5e-3, help="of the optimizer (default %(default)s; the paper's is 0.5)")
    add("--decay", type=float, default=0.8, help="of the rate, after each epoch (default %(default)s)")
    add("--dropout", type=float, default=0.2, help="of inputs and states (default %(default)s)")
    add("--word-dropout", type=float, default=0.25, help="a word seen c times is unknown to a / (a + c) (default 0.25)")
    add("--smoothing", type=float, default=0.1, help="of the tags, in the loss (default %(default)s)")
    add("--limit", type=int, help="use only the first LIMIT training sentences")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
