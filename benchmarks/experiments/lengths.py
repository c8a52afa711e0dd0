"""Products and time of a batch of 20 sequences against their length (Kazi and Thompson 2017, section 4).

The published fits are 0.17 n^1.8 (walks) and 0.29 n^1.3 (tagging). Here a sequence is running text of the treebank,
read by a tagger of ``examples/pos_tagging.py``: with the weights of that model (``--load``), and with weights drawn
as those of a layer that has not been trained.

    python examples/pos_tagging.py --save tagger.npz
    python -m benchmarks.experiments.lengths --load tagger.npz
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims
from _tagging.conllu import read_conllu
from _tagging.features import TABLES
from _tagging.files import find_treebank
from _tagging.model import LAYER
from _tagging.model_file import load_model
from benchmarks.experiments._run import Progress, command, write_figure, write_json

LENGTHS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000)
BATCH = 20
FITTED_FROM = 20  # shorter ones take what a call takes
FORWARD, BACKWARD = 1e-3, 1e-2  # max|F|, and the adjoint's relative residual, as in training


def running_text(tagger: Any, data: Path | None, words: int) -> np.ndarray[Any, Any]:
    """Inputs (words, d) of the first words of the treebank, one sentence after the other."""
    found: list[Any] = []
    count = 0
    for sentence in read_conllu(find_treebank(data)[0], "xpos"):
        encoded = tagger.encoder.encode(sentence.forms)
        tables = [tagger.parameters[f"embed_{name}"][encoded.numbers[:, i]] for i, name in enumerate(TABLES)]
        found.append(np.concatenate([*tables, encoded.flags], axis=1))
        count += len(encoded)
        if count >= words:
            break
    return np.concatenate(found)[:words].astype(np.float32)


def measure(weights: dict[str, Any], text: np.ndarray[Any, Any], n: int, repeat: int) -> dict[str, float]:
    """Counts of a forward solve and an adjoint solve, and medians of their CPU seconds."""
    inputs = text[: BATCH * n].reshape(BATCH, n, -1)
    cotangent = np.random.default_rng(0).standard_normal((BATCH, n, len(weights["b"]))).astype(np.float32)

    def forward() -> tuple[Any, Any]:
        layer = ims.adapters.implicit_gru(weights, inputs)
        result = ims.root(layer, stop=ims.NonlinearStop(atol=FORWARD, rtol=0.0))
        result.raise_for_status()
        return layer, result

    layer, result = forward()
    adjoint = ims.pull_back(layer, result, cotangent, stop=ims.LinearStop(rtol=BACKWARD))
    back = lambda: ims.pull_back(layer, result, cotangent, stop=ims.LinearStop(rtol=BACKWARD))  # noqa: E731
    return {
        "products": result.counts.residuals + result.counts.jvps,
        "adjoint products": adjoint.linear.matvecs,
        "forward seconds": seconds(forward, repeat),
        "gradient seconds": seconds(back, repeat),
    }


def seconds(run: Callable[[], Any], repeat: int) -> float:
    """Median of CPU seconds."""
    times = []
    for _ in range(repeat):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def exponent(lengths: list[int], values: list[float]) -> float:
    """p of the power n^p nearest to the values, by least squares of the logarithms."""
    chosen = [(n, value) for n, value in zip(lengths, values) if n >= FITTED_FROM]
    return float(np.polyfit(*np.log(np.asarray(chosen).T), 1)[0])


def figure(path: Path, series: dict[str, dict[int, dict[str, float]]]) -> None:
    """Time and products against length."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8.0, 3.6), layout="constrained")
    left, right = drawn.subplots(1, 2)
    for name, rows in series.items():
        for what, marker in (("forward seconds", "o-"), ("gradient seconds", "s--")):
            left.loglog(list(rows), [row[what] for row in rows.values()], marker, label=f"{name}, {what.split()[0]}")
        for what, marker in (("products", "o-"), ("adjoint products", "s--")):
            right.semilogx(list(rows), [row[what] for row in rows.values()], marker, label=f"{name}, {what}")
    left.set(xlabel="length n", ylabel="CPU seconds of a batch of 20")
    right.set(xlabel="length n", ylabel="products", ylim=(0, None))
    for axes in (left, right):
        axes.legend(fontsize="x-small")
        axes.grid(alpha=0.3)
    write_figure(path, drawn)


def run(options: argparse.Namespace) -> None:
    """Measure both layers at every length."""
    tagger, _ = load_model(options.load)
    text = running_text(tagger, options.data, BATCH * max(options.lengths))
    k, d = tagger.sizes.state, tagger.sizes.input
    drawn = ims.adapters.gru_parameters(d, k, rng=np.random.default_rng(options.seed), dtype=np.float32)
    layers = {"trained": {name: tagger.parameters[name] for name in LAYER}, "untrained": drawn}
    bar = Progress(len(layers) * len(options.lengths), 0, "lengths", options.quiet)
    series: dict[str, dict[int, dict[str, float]]] = {name: {} for name in layers}
    for name, weights in layers.items():
        for n in options.lengths:
            series[name][n] = measure(weights, text, n, options.repeat)
            bar.step(layer=name, n=n)
    bar.close()
    fits = {
        name: {what: exponent(list(rows), [row[what] for row in rows.values()]) for what in next(iter(rows.values()))}
        for name, rows in series.items()
    }
    sentences = (sentence for path in find_treebank(options.data) for sentence in read_conllu(path, "xpos"))
    results = {
        "batch": BATCH,
        "k": k,
        "d": d,
        "first weights": float(max(np.abs(weights).max() for weights in drawn.values())),
        "max|F|": FORWARD,
        "adjoint residual": BACKWARD,
        "fitted from": FITTED_FROM,
        "longest sentence": max(len(sentence.forms) for sentence in sentences),
    }
    write_json(options.json, results | {"series": series, "exponents": fits}, options)
    figure(options.folder / "lengths.png", series)
    for name, rows in series.items():
        for n, row in rows.items():
            print(f"{name:10} n = {n:5}: " + ", ".join(f"{what} {value:.4g}" for what, value in row.items()))
        print(f"{name:10} exponents: " + ", ".join(f"{what} {value:.2f}" for what, value in fits[name].items()))


def main() -> None:
    """Read the command line."""
    parser = command("lengths", "Products and time of a batch against the length of its sequences.")
    parser.add_argument("--load", type=Path, required=True, help="a model of examples/pos_tagging.py")
    parser.add_argument(
        "--data", type=Path, help="folder of the treebank (default: IMPLICITSOLVE_DATA, else a download)"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="default 5 ... 2000")
    parser.add_argument("--repeat", type=int, default=5, help="default %(default)s")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
