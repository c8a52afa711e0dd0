"""Evaluations and times of other people's models by `root`, beside their own solvers.

Usage::

    python -m benchmarks.clients                     # all rows whose package is installed; the others are named
    python -m benchmarks.clients --only pandapower   # rows whose name has one of these words
    python -m benchmarks.clients --write             # store the rows in results.json, and the table in the page

A row has each way that the model allows: F alone, the pattern of J, the program's `jac`, and the program's own solver
(whole steps of Newton's method by hand, where it is that). Times are processor times over those of the last one. All
packages are in the group `packages` but pyCycle, om-pycycle, which needs NumPy below 2.4.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
import logging
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import implicitsolve as ims

from . import _cells, _fields, _networks, _properties

ROWS = _networks.ROWS | _fields.ROWS | _cells.ROWS | _properties.ROWS
STORED = Path(__file__).with_name("results.json")
PAGE = Path(ims.__file__).parent.parent / "docs" / "packages" / "index.md"
HEADING = "## Measured"
DISTRIBUTIONS = {"skfem": "scikit-fem", "sequence_jacobian": "sequence-jacobian", "pycycle": "om-pycycle"}
WAYS = ("plain", "pattern", "jac", "own")


def cell(way: dict[str, Any] | None, own: float | None) -> str:
    """Evaluations (J), time; what went wrong."""
    if way is None:
        return ""
    text = f"{way['F']:,}" + (f" ({way['J']:,})" if way.get("J") else "") if "F" in way else ""
    if own and "seconds" in way:
        text += f", {way['seconds'] / own:.2g}"
    return f"{text} {way['status'].replace('|', '')}".strip()


def lines_of(name: str, row: dict[str, Any]) -> list[str]:
    """The lines of a row in the table: one, and one for each further way."""
    own = row.get("own", {}).get("seconds")
    cells = [cell(row.get(way), own if way != "own" else None) for way in WAYS]
    further = [way for way in row if isinstance(row[way], dict) and way not in WAYS]
    lines = [f"| {name} | {row['unknowns']:,} | {' | '.join(cells)} |"]
    for way in further:
        column, name = way.split(", ")
        cells = [cell(row[way], own) if column == each else "" for each in WAYS]
        lines.append(f"| the same, {name} | | {' | '.join(cells)} |")
    return lines


def table(stored: dict[str, Any]) -> str:
    """The section of the page."""
    versions = ", ".join(f"{package} {number}" for package, number in sorted(stored["versions"].items()))
    lines = [line for name, row in stored["rows"].items() for line in lines_of(name, row)]
    return "\n".join(
        [
            HEADING,
            "",
            "Evaluations of F, calls of `jac` or assemblies of J in parentheses, and processor time over that of the",
            "last column: the program's own solver, or whole steps of Newton's method by hand where it is that. A",
            "status where it did not converge. Small systems with `implicitsolve.jax` are on the page about",
            "[JAX](../how_to/jax.md). By `python -m benchmarks.clients`, with",
            f"{versions}.",
            "",
            "| package, model | unknowns | F alone | pattern | `jac` | own |",
            "| --- | --- | --- | --- | --- | --- |",
            *lines,
            "",
        ]
    )


def main() -> None:
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=[""], help="words of the names of rows")
    parser.add_argument("--write", action="store_true", help="store rows and the page's table")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    stored = json.loads(STORED.read_text()) if STORED.exists() else {"versions": {}, "rows": {}}
    rows = {}
    for name, (package, run) in ROWS.items():
        if not any(word in name for word in arguments.only):
            continue
        if find_spec(package) is None:
            print(f"{name}: {package} is not installed")
            continue
        rows[name] = run()
        stored["versions"][package] = version(DISTRIBUTIONS.get(package, package))
        print(*lines_of(name, rows[name]), sep="\n", flush=True)
    if arguments.write:
        merged = stored["rows"] | rows
        stored["rows"] = {name: merged[name] for name in ROWS if name in merged}
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
        PAGE.write_text(PAGE.read_text().split(HEADING)[0] + table(stored))


if __name__ == "__main__":
    main()
