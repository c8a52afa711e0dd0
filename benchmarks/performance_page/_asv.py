"""Read what asv has measured."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import math
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "scipy", "numba")
Values = dict[tuple[Any, ...], float]


@dataclass(frozen=True)
class Results:
    """One run: for each benchmark the measured values by their parameters; failed and skipped ones are left out."""

    commit: str
    machine: dict[str, str]
    python: str
    values: dict[str, Values] = field(default_factory=dict)
    date: str = ""
    calls: int = 1  # most samples that a time is the median of; 1 after a quick run

    @classmethod
    def read(cls, path: Path) -> Results:
        """Of a file, or of the newest one in asv's folder of results."""
        found = newest(path) if path.is_dir() else path
        record = json.loads(found.read_text(encoding="utf-8"))
        rows = {name: dict(zip(record["result_columns"], row)) for name, row in record["results"].items()}
        values = {name: dict(measured(columns)) for name, columns in rows.items()}
        calls = [calls or 1 for columns in rows.values() for calls in columns.get("stats_repeat") or ()]
        started = max(columns.get("started_at") or 0 for columns in rows.values())  # milliseconds since 1970
        date = datetime.fromtimestamp(started / 1000, UTC).date().isoformat()
        return cls(record["commit_hash"], record["params"], record["python"], values, date, max(calls, default=1))

    def __getitem__(self, name: str) -> Values:
        """Values of a benchmark, empty if it did not run."""
        return self.values.get(name, {})

    def first(self, *names: str) -> list[Any]:
        """First parameters of these benchmarks, in their order, each once."""
        return list(dict.fromkeys(case[0] for name in names for case in self[name]))

    def versions(self) -> dict[str, str]:
        """Of the packages, as the interpreter says that was measured, if it is still there."""
        found = {}
        for package in PACKAGES:
            code = f"from importlib.metadata import version; print(version({package!r}))"
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                found[package] = subprocess.run(
                    [self.python, "-c", code], capture_output=True, text=True, check=True
                ).stdout.strip()
        return found


def newest(folder: Path) -> Path:
    """The file that was written last."""
    files = [path for path in folder.glob("*/*.json") if path.name != "machine.json"]
    if not files:
        raise FileNotFoundError(f"{folder}: no results of asv")
    return max(files, key=lambda path: path.stat().st_mtime)


def measured(columns: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Parameters and values. asv keeps parameters as their `repr`."""
    cases = itertools.product(*([ast.literal_eval(text) for text in axis] for axis in columns["params"]))
    for case, value in zip(cases, columns["result"] or ()):
        if value is not None and not math.isnan(value):
            yield case, value
