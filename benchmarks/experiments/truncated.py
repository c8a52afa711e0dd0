"""Truncated inverses beside exact solves on the tagger (Kazi 2016, sections 4.2 and 4.3): accuracy and time.

P_n stands for (I - J)^-1 = I + J + ... + J^n, in Newton's method with full steps and in the gradients alike. Each
trains the tagger of ``examples/pos_tagging.py`` from the same start, on the same batches; sentences that a method
leaves unsolved are left out of the gradient, and counted.

    python -m benchmarks.experiments.truncated --epochs 4
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims
from _tagging.conllu import read_conllu
from _tagging.features import Encoder
from _tagging.files import find_treebank
from _tagging.model import Sizes, SolverOptions, Tagger
from _tagging.training import TrainingOptions, train
from benchmarks.experiments._run import command, write_figure, write_json

STEPS = 40  # after which a sentence is given up


def solvers() -> dict[str, SolverOptions]:
    """By the name of the row."""
    found = {
        "chosen by root": SolverOptions(),
        "Newton-Krylov": SolverOptions(method=ims.NewtonKrylov(), adjoint_method=ims.GMRES()),
    }
    for order in (0, 1, 3):
        inverse = ims.TruncatedInverse(order=order)
        newton = ims.NewtonKrylov(krylov=inverse, line_search=ims.FullStep(), retry=False)
        found[f"P_{order}"] = SolverOptions(method=newton, adjoint_method=inverse, max_steps=STEPS)
    return found


def measure(name: str, solver: SolverOptions, options: argparse.Namespace, corpora: tuple[Any, Any]) -> dict[str, Any]:
    """Train one tagger; every epoch's accuracy, seconds and counts."""
    encoder = Encoder.from_sentences(corpora[0])
    tagger = Tagger.initial(encoder, Sizes(state=options.state), np.random.default_rng(options.seed))
    encoded = tuple([encoder.encode(sentence.forms, sentence.tags) for sentence in corpus] for corpus in corpora)
    training = TrainingOptions(epochs=options.epochs, seed=options.seed)
    epochs = []
    for report in train(tagger, *encoded, training, solver):
        epochs.append(report.as_dict())
        row = epochs[-1]
        print(
            f"{name}, epoch {report.epoch}: dev accuracy {row['dev_accuracy']:.4f}, {row['cpu_seconds']} s", flush=True
        )
    return {"epochs": epochs, "accuracy": max(row["dev_accuracy"] for row in epochs)}


def figure(path: Path, rows: dict[str, Any]) -> None:
    """Accuracy against CPU seconds of training."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = drawn.subplots()
    for name, row in rows.items():
        seconds = np.cumsum([epoch["cpu_seconds"] for epoch in row["epochs"]])
        axes.plot(seconds, [epoch["dev_accuracy"] for epoch in row["epochs"]], "o-", label=name)
    axes.set(xlabel="CPU seconds of training", ylabel="dev accuracy")
    axes.legend()
    axes.grid(alpha=0.3)
    write_figure(path, drawn)


def main() -> None:
    """Read the command line and train each."""
    parser = command("truncated", "Truncated inverses beside exact solves on the tagger.")
    parser.add_argument(
        "--data", type=Path, help="folder of the treebank (default: IMPLICITSOLVE_DATA, else a download)"
    )
    parser.add_argument("--epochs", type=int, default=4, help="default %(default)s")
    parser.add_argument("--state", type=int, default=Sizes.state, help="k (default %(default)s)")
    parser.add_argument("--limit", type=int, help="use only the first LIMIT training sentences")
    options = parser.parse_args()
    train_path, dev_path = find_treebank(options.data)
    corpora = read_conllu(train_path, "xpos")[: options.limit], read_conllu(dev_path, "xpos")
    rows: dict[str, Any] = {}
    for name, solver in solvers().items():
        rows[name] = measure(name, solver, options, corpora)
        write_json(options.json, {"rows": rows}, options)
    figure(options.folder / "truncated.png", rows)


if __name__ == "__main__":
    main()
