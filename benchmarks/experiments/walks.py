"""Biased random walks: implicit GRUs beside bidirectional LSTMs and the Bayes floor (Kazi and Thompson 2017, Table 1).

A walk starts to drift at an unknown time; each of its elements is to be labelled "before" or "after". All models
train on the same walks in the same order, with the same optimizer. The one that did best on the validation walks is
tested.

    python -m benchmarks.experiments.walks --bias 0.5 --models inn:200 blstm:100 blstm:150 blstm:300
    python -m benchmarks.experiments.walks --bias 2 --walks 10000 --epochs 2   # smaller
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from _walks import LAWS, Law, Rate, Walks, bayes_floor, draw, posterior
from benchmarks.experiments._layers import EXACT, Explicit
from benchmarks.experiments._run import Checkpoints, Progress, command, write_figure, write_json
from implicitsolve.torch import ImplicitGRU

UNIT = 10.0  # positions reach tens: the layers see them in these units
CLIP = 0.1  # where I - J is nearly singular a single walk has a huge gradient
FLOOR_WALKS = 50_000
PUBLISHED = {
    2.0: (0.0226, 0.0210),
    1.0: (0.0518, 0.0589),
    0.75: (0.0782, 0.0879),
    0.5: (0.119, 0.132),
    0.25: (0.189, 0.205),
}


class Model(nn.Module):
    """States of a layer, and a logistic regression on them."""

    states: int

    def __init__(self, states: int) -> None:
        super().__init__()
        self.readout = nn.Linear(states, 1)
        self.products = self.adjoint_products = self.unsolved = 0

    def forward(self, inputs: Tensor, lengths: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        """Log odds of "after" (B, T), and which walks were solved (B,)."""
        states, solved = self.layer_states(inputs, lengths)
        return self.readout(states)[:, :, 0], solved

    def layer_states(self, inputs: Tensor, lengths: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        """States (B, T, k), and which walks were solved."""
        raise NotImplementedError


class INN(Model):
    """The implicit GRU, with trainable states beyond both ends."""

    def __init__(self, dimension: int, k: int, generator: torch.Generator) -> None:
        super().__init__(k)
        self.layer = ImplicitGRU(dimension, k, scale=0.1, generator=generator, solve_options=EXACT)
        with torch.no_grad():
            for gate in ("", "z", "r", "p", "n"):
                weights = torch.randn(k, dimension, generator=generator)
                getattr(self.layer, f"W{gate}").copy_(0.3 * weights)
                getattr(self.layer, f"U{gate}").copy_(0.3 * k**-0.5 * torch.randn(k, k, generator=generator))
                getattr(self.layer, f"b{gate}").zero_()
            self.layer.bz.fill_(1.0)  # with z = 0 a state is the mean of its neighbours, and I - J nearly singular
        self.hs, self.he = nn.Parameter(torch.zeros(k)), nn.Parameter(torch.zeros(k))

    def layer_states(self, inputs: Tensor, lengths: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        """By a solve."""
        states, result = self.layer(inputs, lengths, hs=self.hs, he=self.he, return_result=True)
        self.products += result.counts.residuals + result.counts.jvps
        self.unsolved += int(np.sum(~result.success))
        return states, torch.from_numpy(np.asarray(result.success))


class BLSTM(Model):
    """torch's bidirectional LSTM with so many states in each direction."""

    def __init__(self, dimension: int, k: int, generator: torch.Generator) -> None:
        super().__init__(2 * k)
        torch.manual_seed(int(generator.initial_seed()))
        self.layer = Explicit(nn.LSTM, True, dimension, k)

    def layer_states(self, inputs: Tensor, lengths: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        """By two recurrences."""
        return self.layer(inputs, lengths)[0], torch.ones(len(inputs), dtype=torch.bool)


KINDS = {"inn": INN, "blstm": BLSTM}


def tensors(walks: Walks) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (B, T, d), labels (B, T), and which elements are none of the padding."""
    inputs = torch.from_numpy((walks.positions / UNIT).astype(np.float32))
    return inputs, torch.from_numpy(walks.labels.astype(np.float32)), torch.from_numpy(walks.is_step)


def chosen(walks: Walks, which: np.ndarray[Any, Any]) -> Walks:
    """Some walks, no longer than the longest of them."""
    T = int(walks.lengths[which].max())
    return Walks(walks.positions[which, :T], walks.lengths[which], walks.changes[which], walks.labels[which, :T])


def train(
    model: Model, walks: Walks, validation: Walks, options: argparse.Namespace, checkpoints: Checkpoints
) -> dict[str, Any]:
    """Train, and return what each epoch took; the model is left at its best on the validation walks."""
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    batches = len(walks.lengths) // options.batch
    total, done, epochs, seconds = batches * options.epochs, 0, [], 0.0
    best: dict[str, Any] = {"error": np.inf, "parameters": None}
    state = checkpoints.restore(model, optimizer)
    if state is not None:
        done, epochs, seconds, best = (state[key] for key in ("done", "epochs", "seconds", "best"))
        model.products, model.unsolved = state["products"], state["unsolved"]

    def keep() -> None:
        work = {"products": model.products, "unsolved": model.unsolved}
        checkpoints.keep(model, optimizer, done=done, epochs=epochs, seconds=seconds, best=best, **work)

    bar = Progress(total, done, checkpoints.path.stem, options.quiet)
    while done < total:
        began = time.perf_counter()
        order = np.random.default_rng([options.seed, done // batches]).permutation(len(walks.lengths))
        first = done % batches * options.batch
        loss = step(model, optimizer, chosen(walks, order[first : first + options.batch]), options.rate, done / total)
        done += 1
        seconds += time.perf_counter() - began
        bar.step(loss=f"{loss:.3f}")
        if done % batches == 0:
            error = error_of(model, validation)[0]
            facts = {"validation error": error.value, "seconds": seconds, "products": model.products}
            epochs.append(facts | {"unsolved": model.unsolved})
            if error.value < best["error"]:
                parameters = {name: value.clone() for name, value in model.state_dict().items()}
                best = {"error": error.value, "parameters": parameters}
        if checkpoints.is_due or done % batches == 0:
            keep()
    bar.close()
    model.load_state_dict(best["parameters"])
    return {"epochs": epochs, "seconds": seconds, "products per batch": model.products / total}


def step(model: Model, optimizer: torch.optim.Optimizer, walks: Walks, rate: float, part: float) -> float:
    """One step of Adam, with a rate that falls linearly to zero; walks that were not solved are left out."""
    inputs, labels, is_step = tensors(walks)
    for group in optimizer.param_groups:
        group["lr"] = rate * (1.0 - part)
    optimizer.zero_grad()
    logits, solved = model(inputs, walks.lengths)
    weight = (is_step & solved[:, None]).float()
    loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, weight, reduction="sum")
    loss = loss / weight.sum().clamp(min=1)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def error_of(model: Model, walks: Walks, batch: int = 100) -> tuple[Rate, int]:
    """Error per element, and how many walks were not solved."""
    errors, unsolved = [], 0
    for first in range(0, len(walks.lengths), batch):
        part = walks.part(slice(first, first + batch))
        inputs, _, _ = tensors(part)
        logits, solved = model(inputs, part.lengths)
        unsolved += int((~solved).sum())
        errors.append((((logits.numpy() > 0) != part.labels) & part.is_step).sum(axis=1))
    return Rate.of(np.concatenate(errors), walks.lengths), unsolved


def measure(kind: str, k: int, law: Law, options: argparse.Namespace) -> dict[str, Any]:
    """Train and test one model."""
    train_rng, validation_rng, test_rng = np.random.default_rng(options.data_seed).spawn(3)
    walks, validation, tested = (
        draw(law, count, rng) for count, rng in ((options.walks, train_rng), (2_500, validation_rng), (5_000, test_rng))
    )
    model = KINDS[kind](law.dimension, k, torch.Generator().manual_seed(options.seed))
    settings = dataclasses.asdict(law) | {
        name: getattr(options, name) for name in ("walks", "epochs", "batch", "rate", "seed", "data_seed")
    }
    name = f"{kind}{k}-b{law.bias:g}-seed{options.seed}"
    facts = train(model, walks, validation, options, Checkpoints(options.folder / f"{name}.pt", settings))
    error, unsolved = error_of(model, tested)
    P = posterior(law, tested)
    bayes = Rate.of((((P > 0.5) != tested.labels) & tested.is_step).sum(axis=1), tested.lengths)
    parameters = sum(p.numel() for p in model.parameters())
    return {
        "model": kind,
        "k": k,
        "settings": settings,
        "parameters": parameters,
        "test error": dataclasses.asdict(error),
        "test unsolved": unsolved,
        "Bayes rule, same walks": dataclasses.asdict(bayes),
        **facts,
    }


def figure(folder: Path) -> None:
    """By how much all results in a folder exceed Bayes' rule on the same walks, and published ones the floor."""
    from matplotlib.figure import Figure

    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    biases = sorted({row["settings"]["bias"] for row in results})
    floor = {row["settings"]["bias"]: row["floor"]["value"] for row in results}
    drawn = Figure(figsize=(6.5, 4.0), layout="constrained")
    axes = drawn.subplots()
    for model, k in sorted({(row["model"], row["k"]) for row in results}):
        own = [row for row in results if (row["model"], row["k"]) == (model, k)]
        excess = [100 * (row["test error"]["value"] / row["Bayes rule, same walks"]["value"] - 1) for row in own]
        axes.plot([biases.index(row["settings"]["bias"]) for row in own], excess, "o", label=f"{model}, k = {k}")
    for i, name in enumerate(("INN", "b-LSTM")):
        known = [b for b in biases if b in PUBLISHED]
        excess = [100 * (PUBLISHED[b][i] / floor[b] - 1) for b in known]
        axes.plot([biases.index(b) for b in known], excess, "+x"[i], color="grey", label=f"{name}, published")
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(biases)), [f"{b:g}" for b in biases])
    axes.set(xlabel="bias b", ylabel="error above that of Bayes' rule, %")
    axes.legend(fontsize="small")
    write_figure(folder / "walks.png", drawn)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = command("walks", "Implicit GRUs beside bidirectional LSTMs on biased random walks.")
    add = parser.add_argument
    add("--bias", type=float, nargs="+", default=[0.5], help="b (default 0.5)")
    add("--law", choices=LAWS, default=Law.law, help="of v (default %(default)s)")
    add("--dimension", type=int, default=Law.dimension, help="of v (default %(default)s)")
    add("--norm", type=float, default=Law.norm, help="of v, or its scale (default sqrt(2): v = (1, 1))")
    add("--models", nargs="+", default=["inn:200", "blstm:150"], help="kind:k (default: inn:200 blstm:150)")
    add("--walks", type=int, default=50_000, help="to train on (default %(default)s)")
    add("--epochs", type=int, default=1, help="default %(default)s")
    add("--batch", type=int, default=20, help="default %(default)s")
    add("--rate", type=float, default=3e-3, help="of Adam, at the start (default %(default)s)")
    add("--data-seed", type=int, default=0, help="of the walks (default %(default)s)")
    options = parser.parse_args()
    for model in options.models:
        kind, _, k = model.partition(":")
        if kind not in KINDS or not k.isdigit() or int(k) < 1:
            parser.error(f"--models: kind:k with a kind of {', '.join(KINDS)} expected, got {model}")
    return options


def main() -> None:
    """Run each model at each bias; what has been measured is not measured again."""
    options = parse()
    torch.set_num_threads(options.threads)
    for bias in options.bias:
        law = Law(bias, options.law, options.dimension, options.norm)
        floor = bayes_floor(law, FLOOR_WALKS, np.random.default_rng(1))
        for model in options.models:
            kind, _, k = model.partition(":")
            result = measure(kind, int(k), law, options) | {"floor": dataclasses.asdict(floor)}
            write_json(options.folder / f"{kind}{k}-b{bias:g}-seed{options.seed}.json", result)
            error = result["test error"]["value"]
            print(
                f"b = {bias:g}, {model}: error {error:.4f}, floor {floor}, {error / floor.value - 1:+.1%}", flush=True
            )
    figure(options.folder)


if __name__ == "__main__":
    main()
