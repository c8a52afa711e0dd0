"""Biased random walks: implicit GRUs beside bidirectional LSTMs and the Bayes floor (Kazi and Thompson 2017, Table 1).

A walk starts to drift at an unknown time; each of its elements is to be labelled "before" or "after". All models
train on the same walks in the same order, by Adam. Rate, bound of the gradient and scale of the first weights are
chosen for each model by the same search: every combination, on fewer walks, by the error on validation walks.

    python -m benchmarks.experiments.walks --bias 0.5 --models inn:200 blstm:100 blstm:150 blstm:300
    python -m benchmarks.experiments.walks --walks 2000 --seeds 0 --json trial.json    # smaller
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from _walks import LAWS, Law, Rate, Walks, bayes_floor, draw, posterior
from benchmarks.experiments._layers import EXACT, Explicit
from benchmarks.experiments._run import Checkpoints, Progress, command, write_figure, write_json
from implicitsolve.torch import ImplicitGRU, jacobian_penalty

UNIT = 10.0  # positions reach tens: the layers see them in these units
TRIED = ("rate", "clip", "scale")
"""What is searched for. A single walk has a huge gradient where I - J is nearly singular, so that it is bounded."""
FLOOR_WALKS = 50_000


class Model(nn.Module):
    """States of a layer, and a logistic regression on them."""

    states: int

    def __init__(self, states: int, generator: torch.Generator) -> None:
        super().__init__()
        torch.manual_seed(int(generator.initial_seed()))
        self.readout = nn.Linear(states, 1)
        self.products = self.adjoint_products = self.unsolved = 0

    def forward(self, inputs: Tensor, lengths: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        """Log odds of "after" (B, T), and which walks were solved (B,)."""
        states, solved = self.layer_states(inputs, lengths)
        return self.readout(states)[:, :, 0], solved

    def layer_states(self, inputs: Tensor, lengths: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        """States (B, T, k), and which walks were solved."""
        raise NotImplementedError

    def penalty(self) -> Tensor:
        """Of the layer's Jacobian at the last states; zero where states are not solved for."""
        return torch.zeros(())


class INN(Model):
    """The implicit GRU, with trainable states beyond both ends."""

    def __init__(self, dimension: int, k: int, generator: torch.Generator, scale: float = 1.0) -> None:
        super().__init__(k, generator)
        self.layer = ImplicitGRU(dimension, k, scale=0.1, generator=generator, solve_options=EXACT)
        with torch.no_grad():
            for gate in ("", "z", "r", "p", "n"):
                weights = torch.randn(k, dimension, generator=generator)
                getattr(self.layer, f"W{gate}").copy_(0.3 * scale * weights)
                getattr(self.layer, f"U{gate}").copy_(0.3 * scale * k**-0.5 * torch.randn(k, k, generator=generator))
                getattr(self.layer, f"b{gate}").zero_()
            self.layer.bz.fill_(1.0)  # with z = 0 a state is the mean of its neighbours, and I - J nearly singular
        self.hs, self.he = nn.Parameter(torch.zeros(k)), nn.Parameter(torch.zeros(k))

    def layer_states(self, inputs: Tensor, lengths: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        """By a solve."""
        states, result = self.layer(inputs, lengths, hs=self.hs, he=self.he, return_result=True)
        self.products += result.counts.residuals + result.counts.jvps
        self.unsolved += int(np.sum(~result.success))
        self.last = states, inputs, lengths
        return states, torch.from_numpy(np.asarray(result.success))

    def penalty(self) -> Tensor:
        """||dG/dH||_F^2 / N, estimated by one random vector."""
        return jacobian_penalty(partial(self.layer.residual, hs=self.hs, he=self.he), *self.last)


class BLSTM(Model):
    """torch's bidirectional LSTM with so many states in each direction."""

    def __init__(self, dimension: int, k: int, generator: torch.Generator, scale: float = 1.0) -> None:
        super().__init__(2 * k, generator)
        self.layer = Explicit(nn.LSTM, True, dimension, k)
        with torch.no_grad():
            for name, parameter in self.layer.named_parameters():
                parameter.mul_(scale if "weight" in name else 1.0)

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
    model: Model, walks: Walks, validation: Walks, settings: dict[str, Any], quiet: bool, path: Path
) -> dict[str, Any]:
    """Train, and return what each epoch took; the model is left at its best on the validation walks."""
    optimizer, checkpoints = torch.optim.Adam(model.parameters()), Checkpoints(path, settings)
    batches = settings["walks"] // settings["batch"]
    total, done, epochs, seconds = batches * settings["epochs"], 0, [], 0.0
    best: dict[str, Any] = {"error": np.inf, "parameters": None}
    state = checkpoints.restore(model, optimizer)
    if state is not None:
        done, epochs, seconds, best = (state[key] for key in ("done", "epochs", "seconds", "best"))
        model.products, model.unsolved = state["products"], state["unsolved"]

    def keep() -> None:
        work = {"products": model.products, "unsolved": model.unsolved}
        checkpoints.keep(model, optimizer, done=done, epochs=epochs, seconds=seconds, best=best, **work)

    bar, losses = Progress(total, done, path.stem, quiet), []
    while done < total:
        began, products = time.process_time(), model.products
        order = np.random.default_rng([settings["seed"], done // batches]).permutation(settings["walks"])
        first = done % batches * settings["batch"]
        rate = settings["rate"] * (1.0 - done / total)
        losses.append(step(model, optimizer, chosen(walks, order[first : first + settings["batch"]]), rate, settings))
        done += 1
        seconds += time.process_time() - began
        bar.step(loss=f"{losses[-1]:.3f}", products=model.products - products)
        if done % batches == 0:
            error = error_of(model, validation)[0]
            facts = {"validation error": error.value, "training loss": float(np.mean(losses)), "seconds": seconds}
            epochs.append(facts | {"products": model.products, "unsolved": model.unsolved})
            losses = []
            if error.value < best["error"]:
                parameters = {name: value.clone() for name, value in model.state_dict().items()}
                best = {"error": error.value, "parameters": parameters}
        if checkpoints.is_due or done % batches == 0:
            keep()
    bar.close()
    model.load_state_dict(best["parameters"])
    return {"validation error": best["error"], "epochs": epochs, "products per batch": model.products / total}


def step(model: Model, optimizer: torch.optim.Optimizer, walks: Walks, rate: float, settings: dict[str, Any]) -> float:
    """One step of Adam; walks that were not solved are left out."""
    inputs, labels, is_step = tensors(walks)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    logits, solved = model(inputs, walks.lengths)
    weight = (is_step & solved[:, None]).float()
    loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, weight, reduction="sum")
    loss = loss / weight.sum().clamp(min=1)
    (loss + settings["penalty"] * model.penalty() if settings["penalty"] else loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
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


def prepared(name: str, settings: dict[str, Any], options: argparse.Namespace) -> tuple[Model, dict[str, Any]]:
    """Train one model, "kind:k"."""
    law = Law(settings["bias"], settings["law"], settings["dimension"], settings["norm"])
    train_rng, validation_rng, _ = np.random.default_rng(options.data_seed).spawn(3)
    walks, validation = draw(law, settings["walks"], train_rng), draw(law, 2_500, validation_rng)
    kind, _, k = name.partition(":")
    model = KINDS[kind](law.dimension, int(k), torch.Generator().manual_seed(settings["seed"]), settings["scale"])
    which = "-".join(f"{key}{settings[key]:g}" for key in ("bias", "walks", "seed", "penalty", *TRIED))
    return model, train(model, walks, validation, settings, options.quiet, options.folder / f"{kind}{k}-{which}.pt")


def search(name: str, settings: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """All combinations of rate, clip and scale on fewer walks, the best first."""
    tried = []
    smaller = settings | {
        "walks": options.search_walks,
        "bias": options.search_bias,
        "seed": 0,
        "penalty": 0.0,
        "epochs": 1,
    }
    for values in itertools.product(*(getattr(options, key) for key in TRIED)):
        combination = dict(zip(TRIED, values))
        facts = prepared(name, smaller | combination, options)[1]
        tried.append(combination | {key: facts[key] for key in ("validation error", "products per batch")})
        print(f"search, {name}: {tried[-1]}", flush=True)
    return sorted(tried, key=lambda row: row["validation error"])


def measure(name: str, settings: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Train and test one model."""
    model, facts = prepared(name, settings, options)
    law = Law(settings["bias"], settings["law"], settings["dimension"], settings["norm"])
    tested = draw(law, 5_000, np.random.default_rng(options.data_seed).spawn(3)[2])
    error, unsolved = error_of(model, tested)
    P = posterior(law, tested)
    bayes = Rate.of((((P > 0.5) != tested.labels) & tested.is_step).sum(axis=1), tested.lengths)
    return {
        "model": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        **{key: settings[key] for key in ("bias", "seed", "penalty", *TRIED)},
        "test error": dataclasses.asdict(error),
        "test unsolved": unsolved,
        "Bayes rule, same walks": dataclasses.asdict(bayes),
        **facts,
    }


def figure(path: Path, runs: list[dict[str, Any]]) -> None:
    """By how much the errors exceed those of Bayes' rule on the same walks."""
    from matplotlib.figure import Figure

    biases = sorted({row["bias"] for row in runs})
    drawn = Figure(figsize=(6.5, 4.0), layout="constrained")
    axes = drawn.subplots()
    for i, model in enumerate(dict.fromkeys(row["model"] for row in runs)):
        own = [row for row in runs if row["model"] == model]
        excess = [100 * (row["test error"]["value"] / row["Bayes rule, same walks"]["value"] - 1) for row in own]
        axes.plot([biases.index(row["bias"]) + 0.06 * i for row in own], excess, "o", label=model, alpha=0.7)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(biases)), [f"{b:g}" for b in biases])
    axes.set(xlabel="bias b", ylabel="error above that of Bayes' rule, %")
    axes.legend(fontsize="small")
    write_figure(path, drawn)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = command("walks", "Implicit GRUs beside bidirectional LSTMs on biased random walks.")
    add = parser.add_argument
    add("--bias", type=float, nargs="+", default=[2.0, 1.0, 0.75, 0.5, 0.25], help="b (default 2 1 0.75 0.5 0.25)")
    add("--law", choices=LAWS, default=Law.law, help="of v (default %(default)s)")
    add("--dimension", type=int, default=Law.dimension, help="of v (default %(default)s)")
    add("--norm", type=float, default=Law.norm, help="of v, or its scale (default sqrt(2): v = (1, 1))")
    add("--models", nargs="+", default=["inn:200", "blstm:150"], help="kind:k (default: inn:200 blstm:150)")
    add("--single", nargs="*", default=[], help="models that are trained with the first seed alone")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    add("--walks", type=int, default=50_000, help="to train on (default %(default)s)")
    add("--epochs", type=int, default=1, help="default %(default)s")
    add("--batch", type=int, default=20, help="default %(default)s")
    add("--rate", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2], help="of Adam, tried (default 1e-3 3e-3 1e-2)")
    add("--clip", type=float, nargs="+", default=[0.1, 1.0], help="gradient's norm at most, tried (default 0.1 1)")
    add("--scale", type=float, nargs="+", default=[0.5, 1.0, 2.0], help="of the first weights, tried (0.5 1 2)")
    add("--search-walks", type=int, default=5_000, help="of the search (default %(default)s)")
    add("--search-bias", type=float, default=0.5, help="of the search (default %(default)s)")
    add("--penalty", type=float, nargs="+", default=[0.0], help="weights of the Jacobian's penalty (default 0)")
    add("--data-seed", type=int, default=0, help="of the walks (default %(default)s)")
    options = parser.parse_args()
    for model in (*options.models, *options.single):
        kind, _, k = model.partition(":")
        if kind not in KINDS or not k.isdigit() or int(k) < 1:
            parser.error(f"--models: kind:k with a kind of {', '.join(KINDS)} expected, got {model}")
    return options


def main() -> None:
    """Search for each kind's settings with its first model, then run each model at each bias with each seed."""
    options = parse()
    torch.set_num_threads(options.threads)
    common = {key: getattr(options, key) for key in ("law", "dimension", "norm", "walks", "epochs", "batch")}
    searches: dict[str, Any] = {}
    for model in options.models:
        kind = model.partition(":")[0]
        if kind not in searches:
            searches[kind] = {"model": model, "tried": search(model, common, options)}
    floors: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    cases = [(model, seed) for seed in options.seeds for model in options.models]
    cases += [(model, options.seeds[0]) for model in options.single]
    for (model, seed), bias, penalty in itertools.product(cases, options.bias, options.penalty):
        law = Law(bias, options.law, options.dimension, options.norm)
        if f"{bias:g}" not in floors:
            floors[f"{bias:g}"] = dataclasses.asdict(bayes_floor(law, FLOOR_WALKS, np.random.default_rng(1)))
        best = searches[model.partition(":")[0]]["tried"][0]
        settings = common | {"bias": bias, "seed": seed, "penalty": penalty} | {key: best[key] for key in TRIED}
        runs.append(measure(model, settings, options))
        write_json(options.json, {"searches": searches, "floors": floors, "runs": runs}, options)
        error, floor = runs[-1]["test error"]["value"], floors[f"{bias:g}"]["value"]
        print(
            f"b = {bias:g}, {model}, seed {seed}, penalty {penalty:g}: error {error:.4f}, floor {floor:.4f}", flush=True
        )
    figure(options.folder / "walks.png", runs)


if __name__ == "__main__":
    main()
