"""Part-of-speech tagging: explicit and implicit recurrent layers of equal size (Kazi and Thompson 2017, Table 2).

Words of UD English EWT (Penn Treebank tags) as in the paper: word vectors, six tables of affixes, eight binary
features. Every layer sees the same inputs, has about as many parameters as the implicit GRU, and is trained by the
same optimizer on the same batches for the same epochs. The table has the mean and the spread of the dev accuracy over
seeds.

    python -m benchmarks.experiments.tagging --layers gru bigru blstm implicit-gru --seeds 0 1 2
    python -m benchmarks.experiments.tagging --word 320 --affix 20 --state 448       # the paper's sizes
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import implicitsolve as ims
from _tagging.batches import Batch, collate, split_into_batches
from _tagging.conllu import read_conllu
from _tagging.features import AFFIXES, FLAG_COUNT, TABLES, Encoder
from _tagging.files import find_treebank
from benchmarks.experiments._run import Checkpoints, Progress, command, write_json
from implicitsolve.torch import ImplicitGRU, ImplicitLSTM, ImplicitRNN, SolveOptions

CLIP = 1.0
PUBLISHED = {"gru": 96.43, "lstm": 96.47, "bigru": 97.28, "blstm": 97.25, "implicit-gru": 97.37}
"""Accuracy on the Wall Street Journal, by the paper."""


class Explicit(nn.Module):
    """One of torch's recurrent layers, on packed sequences."""

    def __init__(self, kind: Callable[..., Any], d: int, k: int, both: bool) -> None:
        super().__init__()
        self.layer = kind(d, k, bidirectional=both, batch_first=True)
        self.size = 2 * k if both else k

    def forward(self, inputs: Tensor, lengths: Any) -> tuple[Tensor, Any]:
        """States, and no result."""
        packed = nn.utils.rnn.pack_padded_sequence(inputs, torch.from_numpy(lengths), True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], True, total_length=inputs.shape[1])[0], None


class Implicit(nn.Module):
    """One of the implicit layers, with trainable states beyond both ends."""

    def __init__(self, kind: Callable[..., Any], d: int, k: int, seed: int) -> None:
        super().__init__()
        options = SolveOptions(
            stop=ims.NonlinearStop(atol=1e-3, rtol=0.0), adjoint_stop=ims.LinearStop(rtol=1e-2), on_failure="ignore"
        )
        generator = torch.Generator().manual_seed(seed)
        self.layer = kind(d, k, scale=0.1, generator=generator, solve_options=options)
        names = ("hs", "cs", "he", "ce") if kind is ImplicitLSTM else ("hs", "he")
        self.edges = nn.ParameterDict({name: nn.Parameter(torch.zeros(k)) for name in names})
        self.size = 2 * k if kind is ImplicitLSTM else k

    def forward(self, inputs: Tensor, lengths: Any) -> tuple[Tensor, Any]:
        """States, and how the solve went."""
        return self.layer(inputs, lengths, **self.edges, return_result=True)  # type: ignore[no-any-return]


LAYERS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "gru": lambda d, k, seed: Explicit(nn.GRU, d, k, False),
    "lstm": lambda d, k, seed: Explicit(nn.LSTM, d, k, False),
    "bigru": lambda d, k, seed: Explicit(nn.GRU, d, k, True),
    "blstm": lambda d, k, seed: Explicit(nn.LSTM, d, k, True),
    "implicit-gru": lambda d, k, seed: Implicit(ImplicitGRU, d, k, seed),
    "implicit-lstm": lambda d, k, seed: Implicit(ImplicitLSTM, d, k, seed),
    "implicit-rnn": lambda d, k, seed: Implicit(ImplicitRNN, d, k, seed),
}


def parameters_of(layer: nn.Module) -> int:
    """How many numbers."""
    return sum(p.numel() for p in layer.parameters())


def of_equal_size(name: str, d: int, wanted: int) -> int:
    """The k with which a layer has about so many parameters."""
    low, high = 1, 4096
    while low < high:
        middle = (low + high) // 2
        with torch.device("meta") if not name.startswith("implicit") else torch.device("cpu"):
            count = parameters_of(LAYERS[name](d, middle, 0))
        low, high = (middle + 1, high) if count < wanted else (low, middle)
    return low


class Tagger(nn.Module):
    """Embedded features, a layer, and a softmax on its states."""

    def __init__(self, encoder: Encoder, options: argparse.Namespace, name: str, k: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        widths = {table: options.word if table == "word" else options.affix for table in TABLES}
        self.tables = nn.ModuleDict({t: nn.Embedding(len(encoder.tables[t]), w) for t, w in widths.items()})
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.3)  # type: ignore[arg-type]
        self.layer = LAYERS[name](sum(widths.values()) + FLAG_COUNT, k, seed)
        self.dropout = nn.Dropout(options.dropout)
        self.readout = nn.Linear(self.layer.size, len(encoder.tags))  # type: ignore[arg-type]
        nn.init.zeros_(self.readout.weight)
        self.work = {"batches": 0, "products": 0, "unsolved": 0}

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the tags, the tags, and which words count."""
        numbers = torch.from_numpy(batch.numbers).long()
        parts = [table(numbers[..., i]) for i, table in enumerate(self.tables.values())]
        inputs = self.dropout(torch.cat([*parts, torch.from_numpy(batch.flags)], dim=2))
        states, result = self.layer(inputs, batch.lengths)
        counts = torch.from_numpy(batch.is_word & (batch.tags >= 0))
        if result is not None:
            self.work["batches"] += 1
            self.work["products"] += result.counts.residuals + result.counts.jvps
            self.work["unsolved"] += int(np.sum(~result.success))
            counts = counts & torch.from_numpy(np.asarray(result.success))[:, None]
        return self.readout(self.dropout(states)), torch.from_numpy(batch.tags).long(), counts


@torch.no_grad()
def accuracy(model: Tagger, corpus: list[Any], words: int) -> float:
    """Part of the words that are tagged rightly; words whose tag is unknown count as wrong."""
    model.eval()
    right = total = 0
    for which in split_into_batches(corpus, words):
        batch = collate(corpus, which)
        scores, tags, _ = model(batch)
        right += int(((scores.argmax(dim=2) == tags) & torch.from_numpy(batch.is_word)).sum())
        total += batch.words
    model.train()
    return right / total


def train(
    model: Tagger,
    corpora: tuple[list[Any], list[Any]],
    options: argparse.Namespace,
    seed: int,
    checkpoints: Checkpoints,
) -> list[dict[str, Any]]:
    """Epochs of Adam, whose rate falls by a factor after each."""
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    epochs: list[dict[str, Any]] = []
    state = checkpoints.load()
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epochs = state["epochs"]
        torch.set_rng_state(state["torch"])
    for epoch in range(len(epochs), options.epochs):
        for group in optimizer.param_groups:
            group["lr"] = options.rate * options.decay**epoch
        parts = split_into_batches(corpora[0], options.batch_words, np.random.default_rng([seed, epoch]))
        model.work = dict.fromkeys(model.work, 0)
        began, bar = time.process_time(), Progress(len(parts), 0, f"{checkpoints.path.stem} {epoch + 1}", options.quiet)
        for which in parts:
            optimizer.zero_grad()
            scores, tags, counts = model(collate(corpora[0], which))
            loss = nn.functional.cross_entropy(scores[counts], tags[counts])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            bar.step(loss=f"{float(loss.detach()):.3f}")
        bar.close()
        facts = {"seconds": time.process_time() - began} | model.work
        epochs.append(facts | {"accuracy": accuracy(model, corpora[1], options.batch_words)})
        now = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epochs}
        checkpoints.save(now | {"torch": torch.get_rng_state()})
    return epochs


def run(options: argparse.Namespace) -> None:
    """Every layer with every seed."""
    torch.set_num_threads(options.threads)
    corpora = tuple(read_conllu(path, "xpos") for path in find_treebank(options.data))
    encoder = Encoder.from_sentences(corpora[0][: options.limit])
    train_part, dev_part = ([encoder.encode(s.forms, s.tags) for s in corpus] for corpus in corpora)
    train_part = train_part[: options.limit]
    d = options.word + len(AFFIXES) * options.affix + FLAG_COUNT
    wanted = parameters_of(LAYERS["implicit-gru"](d, options.state, 0))
    chosen = ("word", "affix", "epochs", "batch_words", "rate", "decay", "dropout", "limit")
    rows: dict[str, Any] = {}
    for name in options.layers:
        k = of_equal_size(name, d, wanted)
        runs = []
        for seed in options.seeds:
            settings = {key: getattr(options, key) for key in chosen} | {"layer": name, "k": k, "seed": seed}
            model = Tagger(encoder, options, name, k, seed)
            checkpoints = Checkpoints(options.folder / f"{name}{k}-seed{seed}.pt", settings)
            runs.append(train(model, (train_part, dev_part), options, seed, checkpoints))
            print(f"{name}, k = {k}, seed {seed}: {runs[-1][-1]['accuracy']:.4f}", flush=True)
        last = [epochs[-1]["accuracy"] for epochs in runs]
        rows[name] = {"k": k, "parameters": parameters_of(model.layer), "runs": runs, "mean": statistics.mean(last)}
        rows[name]["spread"] = statistics.stdev(last) if len(last) > 1 else None
        write_json(options.folder / "tagging.json", {"settings": vars(options), "rows": rows, "published": PUBLISHED})


def main() -> None:
    """Read the command line."""
    parser = command("tagging", "Explicit and implicit recurrent layers on part-of-speech tags.")
    add = parser.add_argument
    add("--data", type=Path, help="folder of the treebank (default: IMPLICITSOLVE_DATA, else a download)")
    add("--layers", nargs="+", choices=tuple(LAYERS), default=list(LAYERS), help="default: all")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    add("--word", type=int, default=64, help="width of a word's vector (default %(default)s; the paper's is 320)")
    add("--affix", type=int, default=8, help="of an affix's (default %(default)s; the paper's is 20)")
    add("--state", type=int, default=120, help="k of the implicit GRU (default %(default)s; the paper's is 448)")
    add("--epochs", type=int, default=8, help="default %(default)s")
    add("--batch-words", type=int, default=640, help="words of a batch, about (default %(default)s)")
    add("--rate", type=float, default=4e-3, help="of Adam (default %(default)s)")
    add("--decay", type=float, default=0.7, help="of the rate, after each epoch (default %(default)s)")
    add("--dropout", type=float, default=0.3, help="of inputs and states (default %(default)s)")
    add("--limit", type=int, help="use only the first LIMIT training sentences")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
