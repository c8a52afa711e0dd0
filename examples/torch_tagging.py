"""Part-of-speech tags in PyTorch: one model with torch's LSTM or with the implicit layer that takes its place.

    python examples/torch_tagging.py --layers LSTM implicit-LSTM --epochs 1 --limit 3000

Data and features are those of examples/pos_tagging.py. Layers with the prefix "implicit-" are those of
`implicitsolve.torch`, the others torch's; their call is the same line. See docs/how_to/torch.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import implicitsolve as ims
import implicitsolve.torch as imt
from _tagging.batches import Batch, collate, split_into_batches
from _tagging.conllu import read_conllu
from _tagging.features import FLAG_COUNT, TABLES, Encoded, Encoder
from _tagging.files import find_treebank

LAYERS = ("LSTM", "GRU", "implicit-LSTM", "implicit-GRU")
WORDS = 640  # of a batch, about
SOLVES = imt.SolveOptions(  # the gradient of a random batch is noise far above these bounds
    stop=ims.NonlinearStop(atol=1e-3, rtol=0.0), adjoint_stop=ims.LinearStop(rtol=1e-2)
)


class Tagger(nn.Module):
    """Embedded features, a recurrent layer, and a softmax on its states."""

    def __init__(self, encoder: Encoder, layer: str, k: int) -> None:
        super().__init__()
        widths = [64 if table == "word" else 8 for table in TABLES]
        self.tables = nn.ModuleList(
            nn.Embedding(len(encoder.tables[t]), w) for t, w in zip(TABLES, widths, strict=True)
        )
        self.dropout = nn.Dropout(0.2)
        options: Any = {"solve_options": SOLVES} if layer.startswith("implicit") else {}
        kind: Any = getattr(imt if options else nn, layer.removeprefix("implicit-"))
        self.layer = kind(sum(widths) + FLAG_COUNT, k, bidirectional=True, batch_first=True, **options)
        self.readout = nn.Linear(2 * k, len(encoder.tags))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores of the tags of all words, and the tags."""
        numbers, lengths = torch.from_numpy(batch.numbers).long(), torch.from_numpy(batch.lengths)
        parts = [table(numbers[..., i]) for i, table in enumerate(self.tables)]
        inputs = self.dropout(torch.cat([*parts, torch.from_numpy(batch.flags)], dim=2))
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        states, _ = self.layer(packed)
        tags = torch.from_numpy(batch.tags).long()
        return self.readout(self.dropout(states.data)), packed_like(tags, lengths)


def packed_like(x: Tensor, lengths: Tensor) -> Tensor:
    """The elements of sequences in the order of packed ones."""
    return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False).data


def train(model: Tagger, corpus: Sequence[Encoded], epoch: int, optimizer: torch.optim.Optimizer) -> None:
    """One epoch."""
    model.train()
    for which in split_into_batches(corpus, WORDS, np.random.default_rng(epoch)):
        optimizer.zero_grad()
        scores, tags = model(collate(corpus, which))
        nn.functional.cross_entropy(scores, tags, ignore_index=-1).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def accuracy(model: Tagger, corpus: Sequence[Encoded]) -> float:
    """Part of the words that are tagged rightly."""
    model.eval()
    outcomes = (model(collate(corpus, which)) for which in split_into_batches(corpus, WORDS))
    right = [scores.argmax(dim=1) == tags for scores, tags in outcomes]
    return float(torch.cat(right).double().mean())


def run(options: argparse.Namespace) -> dict[str, list[float]]:
    """Train each layer, print a line for each epoch, and return the accuracies."""
    torch.set_num_threads(1)
    texts = [read_conllu(path) for path in find_treebank(options.data)]
    texts[0] = texts[0][: options.limit]
    encoder = Encoder.from_sentences(texts[0])
    corpus, dev = ([encoder.encode(s.forms, s.tags) for s in text] for text in texts)
    found: dict[str, list[float]] = {}
    for name in options.layers:
        torch.manual_seed(options.seed)
        model = Tagger(encoder, name, options.state)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.99))
        size, found[name] = sum(p.numel() for p in model.layer.parameters()), []
        for epoch in range(options.epochs):
            began = time.process_time()
            train(model, corpus, epoch, optimizer)
            seconds = time.process_time() - began
            found[name].append(accuracy(model, dev))
            print(f"{name}, {size} parameters, epoch {epoch + 1}: {found[name][-1]:.4f} in {seconds:.1f} s", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="torch_tagging", description="Tag words with an explicit and an implicit layer."
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder of the treebank (default: IMPLICITSOLVE_DATA, else a download)")
    add("--layers", nargs="+", choices=LAYERS, default=["LSTM", "implicit-LSTM"], help="default: %(default)s")
    add("--limit", type=int, help="use only the first LIMIT training sentences")
    add("--epochs", type=int, default=1, help="default %(default)s")
    add("--state", type=int, default=48, help="half the width of the output (default %(default)s)")
    add("--seed", type=int, default=0, help="default %(default)s")
    run(parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
