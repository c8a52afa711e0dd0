"""How far the same experiments agree at two commits: what they found, and the CPU seconds they took for it.

Results of an earlier commit are read from git. Where a run found the same to all digits it did the same work, so that
the seconds differ by what else the machine did.

    python -m benchmarks.experiments.repeats --commit 28751041
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.experiments._run import RESULTS, command, write_json

NAMES = ("layer", "form", "model", "rho", "seed", "bias", "penalty", "features", "rate", "clip", "scale")
FOUND = ("accuracy", "perplexity", "test error")


def at(commit: str, path: Path) -> dict[str, Any] | None:
    """A stored result as it was at a commit, if it was there."""
    shown = subprocess.run(["git", "show", f"{commit}:./{path.name}"], cwd=RESULTS, capture_output=True, check=False)
    return json.loads(shown.stdout) if shown.returncode == 0 else None


def runs(stored: dict[str, Any]) -> Iterator[tuple[str, tuple[float, float]]]:
    """What each run is, what it found, and its CPU seconds."""
    rows = stored.get("rows", stored.get("runs"))
    for row in rows if isinstance(rows, list) else ():
        found = next((row[key] for key in FOUND if key in row), None)
        epochs = row.get("epochs", row.get("curve"))
        if found is not None and isinstance(epochs, list):
            took = [epoch["seconds"] for epoch in epochs]
            seconds = took[-1] if "model" in row else sum(took)
            value = found["value"] if isinstance(found, dict) else found
            yield json.dumps([row.get(name) for name in NAMES]), (value, seconds)


def compared(path: Path, old: dict[str, Any] | None) -> dict[str, Any] | None:
    """One experiment beside its earlier run, if there is one at another commit."""
    new = json.loads(path.read_text(encoding="utf-8"))
    if old is None or new["origin"]["commit"] == old["origin"]["commit"] or "settings" not in new:
        return None
    before, after = dict(runs(old)), dict(runs(new))
    pairs = [(before[name], after[name]) for name in after if name in before]
    same = [(a, b) for a, b in pairs if a[0] == b[0]]
    if not pairs:
        return None
    ratios = sorted(b[1] / a[1] for a, b in same)
    return {
        "results": path.stem,
        "commits": [old["origin"]["commit"], new["origin"]["commit"]],
        "loads": [stored["origin"]["hardware"]["load"] for stored in (old, new)],
        "runs": len(pairs),
        "same": len(same),
        "ratios": [ratios[0], ratios[-1]] if ratios else None,
        "largest change": max(abs(b[0] / a[0] - 1.0) for a, b in pairs),
    }


def main() -> None:
    """Read the command line."""
    parser = command("repeats", "How far the same experiments agree at two commits.")
    parser.add_argument("--commit", required=True, help="of the earlier results")
    parser.add_argument("--reruns", type=Path, help="folder of runs of parts of experiments, beside what is stored")
    options = parser.parse_args()
    rows = [compared(path, at(options.commit, path)) for path in sorted(RESULTS.glob("*.json"))]
    reruns = sorted(options.reruns.glob("*.json")) if options.reruns else []
    rows += [compared(path, json.loads((RESULTS / path.name).read_text(encoding="utf-8"))) for path in reruns]
    write_json(options.json, {"rows": [row for row in rows if row is not None]}, options)


if __name__ == "__main__":
    main()
