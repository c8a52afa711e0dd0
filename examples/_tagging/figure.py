"""The learning curve as a picture, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .files import atomic_write
from .training import EpochReport

__all__ = ["save_curve"]


def save_curve(path: Path, reports: Sequence[EpochReport]) -> str:
    """Draw accuracy against training time, and work against epochs; return what was done, in words."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "figure skipped: matplotlib is not installed"
    figure = Figure(figsize=(7.0, 3.0), layout="constrained")
    accuracy, products = figure.subplots(1, 2)
    minutes = np.cumsum([report.cpu_seconds for report in reports]) / 60
    accuracy.plot(minutes, [100 * report.dev.score.accuracy for report in reports], "o-")
    accuracy.set(xlabel="CPU minutes of training", ylabel="dev accuracy, %")
    epochs = [report.epoch for report in reports]
    for name, label in (("products", "forward"), ("adjoint_products", "adjoint"), ("steps", "steps")):
        products.plot(epochs, [report.train.work.per_batch()[name] for report in reports], "o-", label=label)
    products.set(xlabel="epoch", ylabel="per batch", ylim=(0, None))
    products.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize="x-small", columnspacing=1.0)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=100, format="png")
    return f"figure: {path}"
