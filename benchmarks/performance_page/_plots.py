"""The page's figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from benchmarks.performance_page._asv import Results
from benchmarks.performance_page._names import name
from benchmarks.performance_page._peer_sections import default, rivals, solver, threads

BLACK, COLORS = "0.15", mpl.colormaps["tab10"]


def save(figure: Any, path: Path) -> Path:
    """Write a figure that does not change with the date."""
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    return path


def ratios(run: dict[str, Any], path: Path) -> Path | None:
    """Every rival's time over ours, by workload."""
    records = [record for record in run["workloads"] if default(record) and rivals(record)]
    if not records:
        return None
    packages = sorted({row["package"] for record in records for row in rivals(record)})
    figure, axes = plt.subplots(figsize=(8.0, 1.2 + 0.35 * len(records)))
    for place, record in enumerate(records):
        for row in rivals(record):
            color = COLORS(packages.index(row["package"]) % 10)
            axes.plot(row["ratio"], place, "o", color=color, markersize=5, alpha=0.8)
        best = rivals(record)[0]
        axes.annotate(f"  {solver(best)}", (best["ratio"], place), (0, 6), textcoords="offset points", fontsize=6)
    for index, package in enumerate(packages):
        axes.plot([], [], "o", color=COLORS(index % 10), label=package)
    axes.axvline(1.0, color=BLACK, linewidth=1.0)
    axes.set_xscale("log")
    axes.set_yticks(range(len(records)), [name(record["key"]) for record in records], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"time over that of implicitsolve, {threads(run)}; each workload's fastest rival is named")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return save(figure, path)


def blocks(results: Results, path: Path) -> Path | None:
    """Factorization and solve over LAPACK's, by block size."""
    found = results["block_banded.FactorizationTime.time_factor"]
    if not found or not results["block_banded.LapackTime.time_factor"]:
        return None
    figure, both = plt.subplots(1, 2, figsize=(8.0, 3.0), sharey=True)
    for axes, what in zip(both, ("factor", "solve")):
        lapack = results[f"block_banded.LapackTime.time_{what}"]
        for index, method in enumerate(dict.fromkeys(case[0] for case in found)):
            values = results[f"block_banded.FactorizationTime.time_{what}"]
            sizes = [k for name, k in values if name == method and (k,) in lapack]
            axes.plot(sizes, [values[method, k] / lapack[k,] for k in sizes], "o-", color=COLORS(index), label=method)
        axes.axhline(1.0, color=BLACK, linewidth=1.0)
        axes.set(xscale="log", yscale="log", xlabel="k", title=what)
        axes.set_xticks(sorted({k for _, k in found}), [str(k) for k in sorted({k for _, k in found})])
        axes.minorticks_off()
    both[0].set_ylabel("time over LAPACK's")
    both[1].legend(fontsize=8, frameon=False)
    return save(figure, path)


def layers(results: Results, path: Path) -> Path | None:
    """Cost of each layer's functions over their matrix products, float64."""
    functions = ("residual", "linearize", "jvp", "vjp")
    found = results["adapters.Layers.track_residual"]
    cases = [case for case in found if case[2] == "float64"]
    if not cases:
        return None
    figure, axes = plt.subplots(figsize=(8.0, 3.0))
    for index, what in enumerate(functions):
        values = results[f"adapters.Layers.track_{what}"]
        places = [place + 0.2 * (index - 1.5) for place, _ in enumerate(cases)]
        axes.bar(places, [values.get(case, 0.0) for case in cases], 0.2, color=COLORS(index), label=what)
    axes.axhline(1.0, color=BLACK, linewidth=1.0)
    axes.set_xticks(range(len(cases)), ["\n".join([*name.split("_"), str(k)]) for name, k, _ in cases], fontsize=7)
    axes.set_ylabel("over the matrix products")
    axes.legend(fontsize=7, ncols=4, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.15))
    return save(figure, path)


def figures(results: Results | None, runs: Sequence[dict[str, Any]], folder: Path) -> dict[str, list[Path]]:
    """Draw all for which there are numbers; their files by the sections that show them."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, list[Path | None]] = {
        "Against other packages": [ratios(run, folder / f"ratios_{run['threads']}.png") for run in runs]
    }
    if results is not None:
        drawn["Block-banded matrices"] = [blocks(results, folder / "blocks.png")]
        drawn["Layers"] = [layers(results, folder / "layers.png")]
    return {title: [path for path in paths if path is not None] for title, paths in drawn.items()}
