"""Counts of asv's runs on a reference machine, by commit: what the page of the trend is made from.

    asv run --config benchmarks/asv.conf.json --python=same --machine reference --quick
        --set-commit-hash "$(git rev-parse HEAD)" --bench '^newton.Newton.track|^krylov.Krylov.track'
    python -m benchmarks.experiments.reference

Every run that asv has kept is added to those that are stored. Counts are exact, whatever else the machine does.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.experiments._run import command, write_json
from benchmarks.performance_page._asv import Results
from benchmarks.performance_page._table import count, table


def counted(results: Results) -> dict[str, Any]:
    """One run: for each problem and each pair of system and method what was counted."""
    found: dict[str, Any] = {"commit": results.commit, "date": committed(results.commit)}
    for suite in ("newton.Newton", "krylov.Krylov"):
        rows: dict[str, dict[str, float]] = defaultdict(dict)
        for name, values in results.values.items():
            if name.startswith(f"{suite}.track_"):
                for case, value in values.items():
                    rows[", ".join(case)][name.partition("track_")[2]] = value
        found[suite.partition(".")[0]] = rows
    return found


def committed(commit: str) -> str:
    """Day and time of a commit."""
    shown = subprocess.run(["git", "show", "-s", "--format=%cI", commit], capture_output=True, text=True, check=True)
    return shown.stdout[:16].replace("T", " ")


def counts(runs: list[dict[str, Any]]) -> str:
    """Table of sums over the gallery and over the linear systems: a column for each commit."""
    names = {"solved": "solved", "residuals": "residual evaluations", "jvps": "products with J"}
    names |= {"krylov_iterations": "Krylov iterations"}
    rows = [("committed", *(run["date"] for run in runs))]
    rows.append(("problems of the gallery", *(str(len(run["newton"])) for run in runs)))
    rows += [(text, *(f"{_total(run['newton'], key):,.0f}" for run in runs)) for key, text in names.items()]
    for method in dict.fromkeys(case.split(", ")[1] for run in runs for case in run["krylov"]):
        own = [{case: row for case, row in run["krylov"].items() if case.endswith(method)} for run in runs]
        rows.append((f"products of {method}", *(f"{_total(row, 'products'):,.0f}" if row else "" for row in own)))
    return table(("", *(f"`{run['commit'][:8]}`" for run in runs)), rows)


def _total(cases: dict[str, dict[str, float]], key: str) -> float:
    return sum(row.get(key) or 0.0 for row in cases.values())


def changes(runs: list[dict[str, Any]]) -> str:
    """Table of the problems whose residual evaluations are not the same in all commits."""
    found = {
        problem: [run["newton"].get(problem, {}).get("residuals") for run in runs]
        for problem in dict.fromkeys(problem for run in runs for problem in run["newton"])
    }
    rows = [(problem, *map(count, values)) for problem, values in found.items() if len(set(values)) > 1]
    return table(("residual evaluations", *(f"`{run['commit'][:8]}`" for run in runs)), rows) if rows else ""


def main() -> None:
    """Read the command line."""
    parser = command("reference", "Store the counts of asv's runs.")
    asv = Path("benchmarks/.asv/results/reference")
    parser.add_argument("--asv", type=Path, default=asv, help="folder of asv's results (default %(default)s)")
    options = parser.parse_args()
    stored = json.loads(options.json.read_text(encoding="utf-8"))["runs"] if options.json.exists() else []
    paths = (path for path in options.asv.glob("*.json") if path.name != "machine.json")
    runs = {run["commit"]: run for run in (*stored, *(counted(Results.read(path)) for path in paths))}
    write_json(options.json, {"runs": sorted(runs.values(), key=lambda run: run["date"])}, options)


if __name__ == "__main__":
    main()
