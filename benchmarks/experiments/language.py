"""Elman language models by approximate fixed points (Wang and Ragni, Figures 1 and 2, Tables 3 and 4).

States of all positions are iterated rho times from zero, which is a network with a memory of rho words. Gradients
through all iterations ("full") and through the last one alone ("skipped") are compared with the network itself, by
backpropagation through time ("bptt") and through windows of it ("tbptt"), with an LSTM, and with n-gram models. The
epoch is chosen on one part of the text, and the perplexity is that of another. Further forms: orders doubled by Newton
steps ("doubled") and accelerated iterations, see `_orders`, and rho that grows from one during training ("scheduled").

    python -m benchmarks.experiments.language --rho 1 2 3 5 8 15
    python -m benchmarks.experiments.language --fetch --state 200 --epochs 40 --batch 20    # the paper's size
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import implicitsolve as ims
from _tagging.files import DATA_VARIABLE, SHARED_DATA
from benchmarks.experiments._orders import accelerated, doubled
from benchmarks.experiments._run import Checkpoints, Progress, command, write_figure, write_json
from benchmarks.experiments._text import END, KneserNey, Text, fetched

CLIP = 1.0
ORDERS = {"doubled": doubled, "accelerated": accelerated}
ITERATED = ("full", "skipped", "scheduled", *ORDERS)
PAPERS = ("full", "skipped", "bptt", "tbptt", "lstm")
FORMS = (*ITERATED, "bptt", "tbptt", "lstm")


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
    """Embedded words, an Elman network or an LSTM, and a softmax over the vocabulary."""

    def __init__(self, words: int, k: int, rho: int, form: str, seed: int, window: int = 20) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.rho, self.form, self.window = rho, form, window
        shapes = {"E": (words, k), "W": (k, k), "V": (k, k), "b": (k,), "U": (words, k), "c": (words,)}
        for name, shape in shapes.items():
            values = 0.1 * torch.rand(shape, generator=generator) - 0.05
            if form != "lstm" or name not in "WVb":
                setattr(self, name, nn.Parameter(values))
        if form == "lstm":
            self.lstm = nn.LSTM(k, k, batch_first=True)
            for parameter in self.lstm.parameters():
                nn.init.uniform_(parameter, -0.05, 0.05, generator=generator)

    def forward(self, previous: Tensor, lengths: Any) -> Tensor:
        """States (B, T, k)."""
        words = nn.functional.embedding(previous, self.E)
        if self.form == "lstm":
            return self.lstm(words)[0]  # type: ignore[no-any-return]
        if self.form == "tbptt":
            return self.in_windows(words)
        if self.form in ORDERS:
            inputs = nn.functional.linear(words, self.V, self.b)
            return ORDERS[self.form](inputs, self.W, self.rho)  # type: ignore[no-any-return]
        return States.apply(self.W, self.V, self.b, words, lengths, self.rho, self.form.replace("scheduled", "full"))  # type: ignore[no-any-return]

    def in_windows(self, words: Tensor) -> Tensor:
        """States (B, T, k), whose gradients end where a window begins."""
        inputs = nn.functional.linear(words, self.V, self.b)
        state, states = torch.zeros_like(inputs[:, 0]), []
        for t in range(inputs.shape[1]):
            state = torch.sigmoid(
                nn.functional.linear(state if t % self.window else state.detach(), self.W) + inputs[:, t]
            )
            states.append(state)
        return torch.stack(states, dim=1)

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


def train(
    model: LanguageModel, text: Text, settings: dict[str, Any], checkpoints: Checkpoints, quiet: bool
) -> dict[str, Any]:
    """Train by Adam; the rate is halved where the perplexity of the part for choices rises, whose best epoch counts."""
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["rate"])
    curve: list[dict[str, float]] = []
    state = checkpoints.restore(model, optimizer)
    if state is not None:
        curve = state["curve"]
    bar = Progress(settings["epochs"], len(curve), checkpoints.path.stem, quiet)
    for epoch in range(len(curve), settings["epochs"]):
        if settings["form"] == "scheduled":
            model.rho = scheduled(settings["rho"], epoch, settings["epochs"])
        began, total, count = time.process_time(), 0.0, 0
        for part in batches(text.train, settings["batch"], np.random.default_rng([settings["seed"], epoch])):
            optimizer.zero_grad()
            loss, words = model.loss(part)
            (loss / len(part) / settings["scale"]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            total, count = total + float(loss.detach()), count + words
        facts = {"train": float(np.exp(total / count)), "seconds": time.process_time() - began}
        curve.append(facts | {name: perplexity(model, getattr(text, name)) for name in ("choice", "held")})
        if len(curve) > 1 and curve[-1]["choice"] > curve[-2]["choice"]:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        checkpoints.keep(model, optimizer, curve=curve)
        bar.step(**{name: f"{value:.1f}" for name, value in curve[-1].items()})
    bar.close()
    return {"curve": curve, "perplexity": min(curve, key=lambda row: row["choice"])["held"]}


def scheduled(rho: int, epoch: int, epochs: int) -> int:
    """Iterations in an epoch: one at first, doubled up to rho in the first half of the training."""
    return min(rho, 2 ** (2 * epoch * (rho - 1).bit_length() // epochs))


def figure(path: Path, rows: list[dict[str, Any]], lines: dict[str, float]) -> None:
    """Perplexity against rho, and what needs none as lines."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = drawn.subplots()
    for form, marker in (("full", "o-"), ("skipped", "s--")):
        own = [row for row in rows if row["form"] == form]
        rhos = sorted({row["rho"] for row in own})
        means = [statistics.mean(row["perplexity"] for row in own if row["rho"] == rho) for rho in rhos]
        axes.semilogx(rhos, means, marker, label=f"{form} gradients")
    for i, (name, value) in enumerate(lines.items()):
        axes.axhline(value, color=f"C{i + 2}", linestyle=":", label=name)
    axes.set(xlabel="rho, iterations", ylabel="held-out perplexity")
    axes.set_xticks(rhos := sorted({row["rho"] for row in rows if row["rho"]}), [str(rho) for rho in rhos], minor=False)
    axes.minorticks_off()
    axes.legend(fontsize="small")
    write_figure(path, drawn)


def run(options: argparse.Namespace) -> None:
    """Train every model with every seed, and write the table and the figure."""
    torch.set_num_threads(options.threads)
    text = Text.read(fetched() if options.fetch else options.data, least=options.least, lines=options.lines)
    sizes = {name: sum(line.size for line in getattr(text, name)) for name in ("train", "choice", "held")}
    sizes["vocabulary"] = len(text.words)
    ngrams = {str(n): KneserNey(text.train, n, len(text.words)).perplexity(text.held) for n in (2, 3, 5)}
    print(sizes, ngrams, flush=True)
    cases = [(form, 0) for form in options.forms if form not in ITERATED]
    cases += [(form, rho) for rho in options.rho for form in options.forms if form in ITERATED]
    rows: list[dict[str, Any]] = []
    common = {key: getattr(options, key) for key in ("state", "epochs", "batch", "rate", "scale", "least", "window")}
    for seed, (form, rho) in itertools.product(options.seeds, cases):
        settings = common | {"seed": seed, "form": form, "rho": rho}
        model = LanguageModel(len(text.words), options.state, rho, form, seed, options.window)
        checkpoints = Checkpoints(options.folder / f"{form}{rho or ''}-k{options.state}-seed{seed}.pt", settings)
        rows.append({"form": form, "rho": rho, "seed": seed} | train(model, text, settings, checkpoints, options.quiet))
        print(f"{form} {rho or ''}, seed {seed}: {rows[-1]['perplexity']:.1f}", flush=True)
        write_json(options.json, {"sizes": sizes, "n-grams": ngrams, "rows": rows}, options)
    lines = {f"{n}-gram Kneser-Ney": value for n, value in ngrams.items()}
    lines |= {row["form"].upper(): row["perplexity"] for row in rows if not row["rho"]}
    figure(options.folder / "language.png", rows, lines)


def main() -> None:
    """Read the command line."""
    data = Path(os.environ.get(DATA_VARIABLE, SHARED_DATA)) / "wikitext-2" / "valid.txt"
    parser = command("language", "Elman language models by approximate fixed points.")
    add = parser.add_argument
    add("--data", type=Path, default=data, help="a text, one paragraph a line (default %(default)s)")
    add("--fetch", action="store_true", help="download all of WikiText-2, with its own division, instead")
    add("--lines", type=int, help="use only the first LINES of the text")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    add("--window", type=int, default=20, help="words of truncated backpropagation through time (default %(default)s)")
    add("--rho", type=int, nargs="+", default=[1, 2, 3, 5, 8, 15], help="iterations (default 1 2 3 5 8 15)")
    add("--forms", nargs="+", choices=FORMS, default=PAPERS, help="default: those of the papers")
    add("--state", type=int, default=100, help="k (default %(default)s)")
    add("--epochs", type=int, default=4, help="default %(default)s")
    add("--batch", type=int, default=4, help="lines (default %(default)s)")
    add("--rate", type=float, default=4e-3, help="of Adam (default %(default)s)")
    add("--scale", type=float, default=50.0, help="by which the mean over lines is divided (default %(default)s)")
    add("--least", type=int, default=2, help="occurrences of a word to be in the vocabulary (default %(default)s)")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
