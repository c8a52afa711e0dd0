"""Elman language models by approximate fixed points (Wang and Ragni, Figures 1 and 2, Tables 3 and 4).

States of all positions are iterated rho times from zero, which is a network with a memory of rho words. The
perplexity of held-out lines is measured against rho, for gradients through all iterations and for those of the last
one alone, beside the network itself, whose gradient is backpropagation through time, and beside n-gram models of the
same text.

    python -m benchmarks.experiments.language --rho 1 2 3 5 8 15
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import implicitsolve as ims
from _tagging.files import DATA_VARIABLE, SHARED_DATA
from benchmarks.experiments._run import Checkpoints, Progress, command, write_figure, write_json
from benchmarks.experiments._text import END, KneserNey, Text

CLIP = 1.0
FORMS = ("full", "skipped", "bptt")


class States(torch.autograd.Function):
    """States of an Elman network for embedded words (B, T, H): rho iterations, or its solution for rho = 0."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, V: Tensor, b: Tensor, words: Tensor, lengths: Any, rho: int, form: str) -> Tensor:
        """The states."""
        params = {name: value.detach().numpy() for name, value in (("W", W), ("V", V), ("b", b))}
        ctx.problem = ims.adapters.elman(params, words.detach().numpy(), activation="logistic", lengths=lengths)
        ctx.form = form
        if form == "bptt":
            ctx.states = ctx.problem.substitute()
        else:
            ctx.iterated = ims.adapters.approximate_fixed_point(ctx.problem, rho)
            ctx.states = ctx.iterated.x
        return torch.from_numpy(ctx.states.copy())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        """Cotangents of the tensors."""
        cotangent = cotangents[0].numpy()
        if ctx.form == "bptt":
            found = ims.pull_back(ctx.problem, ctx.states, cotangent).gradients
        else:
            found = ctx.iterated.pull_back(cotangent, propagation=ctx.form).gradients
        return *(torch.from_numpy(found[name]) for name in ("W", "V", "b", "inputs")), None, None, None


class LanguageModel(nn.Module):
    """Embedded words, an Elman network, and a softmax over the vocabulary."""

    def __init__(self, words: int, k: int, rho: int, form: str, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.rho, self.form = rho, form
        shapes = {"E": (words, k), "W": (k, k), "V": (k, k), "b": (k,), "U": (words, k), "c": (words,)}
        for name, shape in shapes.items():
            values = 0.1 * torch.rand(shape, generator=generator) - 0.05
            setattr(self, name, nn.Parameter(values))

    def forward(self, previous: Tensor, lengths: Any) -> Tensor:
        """States (B, T, k)."""
        words = nn.functional.embedding(previous, self.E)
        return States.apply(self.W, self.V, self.b, words, lengths, self.rho, self.form)  # type: ignore[no-any-return]

    def loss(self, lines: list[Any]) -> tuple[Tensor, int]:
        """Sum of -log P over the words of some lines, and how many these are."""
        lengths = np.asarray([line.size for line in lines])
        following = torch.full((len(lines), int(lengths.max())), -1)
        for row, line in zip(following, lines):
            row[: line.size] = torch.from_numpy(line)
        previous = nn.functional.pad(following[:, :-1], (1, 0), value=END).clamp(min=END)
        is_word = following >= 0
        states = self(previous, lengths)[is_word]
        logits = torch.addmm(self.c, states, self.U.T)
        return nn.functional.cross_entropy(logits, following[is_word], reduction="sum"), int(lengths.sum())


def batches(lines: list[Any], size: int, rng: np.random.Generator | None) -> Iterator[list[Any]]:
    """Lines of about equal length together, in random order for training."""
    lengths = np.asarray([line.size for line in lines], float)
    order = np.argsort(lengths if rng is None else lengths * rng.uniform(0.9, 1.1, lengths.size), kind="stable")
    parts = [order[i : i + size] for i in range(0, order.size, size)]
    if rng is not None:
        rng.shuffle(parts)
    for part in parts:
        yield [lines[i] for i in part]


@torch.no_grad()
def perplexity(model: LanguageModel, lines: list[Any]) -> float:
    """Of all words."""
    total, count = 0.0, 0
    for part in batches(lines, 20, None):
        loss, words = model.loss(part)
        total, count = total + float(loss), count + words
    return float(np.exp(total / count))


def train(model: LanguageModel, text: Text, options: argparse.Namespace, checkpoints: Checkpoints) -> dict[str, Any]:
    """Train by Adam; the rate is halved where the held-out perplexity rises, and the best epoch counts."""
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    curve: list[dict[str, float]] = []
    state = checkpoints.restore(model, optimizer)
    if state is not None:
        curve = state["curve"]
    bar = Progress(options.epochs, len(curve), checkpoints.path.stem, options.quiet)
    for epoch in range(len(curve), options.epochs):
        began, total, count = time.perf_counter(), 0.0, 0
        for part in batches(text.train, options.batch, np.random.default_rng([options.seed, epoch])):
            optimizer.zero_grad()
            loss, words = model.loss(part)
            (loss / len(part) / options.scale).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            total, count = total + float(loss.detach()), count + words
        facts = {"train": float(np.exp(total / count)), "seconds": time.perf_counter() - began}
        curve.append(facts | {"held out": perplexity(model, text.held)})
        if len(curve) > 1 and curve[-1]["held out"] > curve[-2]["held out"]:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        checkpoints.keep(model, optimizer, curve=curve)
        bar.step(**{name: f"{value:.1f}" for name, value in curve[-1].items()})
    bar.close()
    return {"curve": curve, "perplexity": min(row["held out"] for row in curve)}


def figure(path: Path, rows: list[dict[str, Any]], lines: dict[str, float]) -> None:
    """Perplexity against rho, and what needs none as lines."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = drawn.subplots()
    for form, marker in (("full", "o-"), ("skipped", "s--")):
        own = [row for row in rows if row["form"] == form]
        if own:
            axes.semilogx(
                [row["rho"] for row in own], [row["perplexity"] for row in own], marker, label=f"{form} gradients"
            )
    for i, (name, value) in enumerate(lines.items()):
        axes.axhline(value, color=f"C{i + 2}", linestyle=":", label=name)
    axes.set(xlabel="rho, iterations", ylabel="held-out perplexity")
    axes.set_xticks(rhos := sorted({row["rho"] for row in rows if row["rho"]}), [str(rho) for rho in rhos], minor=False)
    axes.minorticks_off()
    axes.legend(fontsize="small")
    write_figure(path, drawn)


def run(options: argparse.Namespace) -> None:
    """Train every model, and write the table and the figure."""
    torch.set_num_threads(options.threads)
    text = Text.read(options.data, least=options.least)
    sizes = {name: sum(line.size for line in getattr(text, name)) for name in ("train", "held")}
    print(
        f"{len(text.words)} words in the vocabulary, {sizes['train']} to train on, {sizes['held']} held out", flush=True
    )
    ngrams = {
        f"{n}-gram Kneser-Ney": KneserNey(text.train, n, len(text.words)).perplexity(text.held) for n in (2, 3, 5)
    }
    for name, value in ngrams.items():
        print(f"{name}: {value:.1f}", flush=True)
    cases = [("bptt", 0)] if "bptt" in options.forms else []
    cases += [(form, rho) for rho in options.rho for form in options.forms if form != "bptt"]
    rows = []
    for form, rho in cases:
        name = f"{form}{rho or ''}-k{options.state}-seed{options.seed}"
        chosen = ("state", "epochs", "batch", "rate", "scale", "least", "seed")
        settings = {key: getattr(options, key) for key in chosen} | {"form": form, "rho": rho}
        model = LanguageModel(len(text.words), options.state, rho, form, options.seed)
        found = train(model, text, options, Checkpoints(options.folder / f"{name}.pt", settings))
        rows.append({"form": form, "rho": rho} | found)
        print(f"{form} {rho or ''}: {found['perplexity']:.1f}", flush=True)
        write_json(options.json, {"n-grams": ngrams, "rows": rows}, options)
    lines = ngrams | {f"Elman, {row['form'].upper()}": row["perplexity"] for row in rows if row["form"] == "bptt"}
    figure(options.folder / "language.png", rows, lines)


def main() -> None:
    """Read the command line."""
    data = Path(os.environ.get(DATA_VARIABLE, SHARED_DATA)) / "wikitext-2" / "valid.txt"
    parser = command("language", "Elman language models by approximate fixed points.")
    add = parser.add_argument
    add("--data", type=Path, default=data, help="a text, one paragraph a line (default %(default)s)")
    add("--rho", type=int, nargs="+", default=[1, 2, 3, 5, 8, 15], help="iterations (default 1 2 3 5 8 15)")
    add("--forms", nargs="+", choices=FORMS, default=FORMS, help="default: all")
    add("--state", type=int, default=100, help="k (default %(default)s)")
    add("--epochs", type=int, default=4, help="default %(default)s")
    add("--batch", type=int, default=4, help="lines (default %(default)s)")
    add("--rate", type=float, default=4e-3, help="of Adam (default %(default)s)")
    add("--scale", type=float, default=50.0, help="by which the mean over lines is divided (default %(default)s)")
    add("--least", type=int, default=2, help="occurrences of a word to be in the vocabulary (default %(default)s)")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
