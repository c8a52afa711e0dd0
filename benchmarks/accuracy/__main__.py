"""False successes, solved systems and the estimate of the error, beside SciPy's solvers.

A system is solved if success is reported at an x within 1e-4 of its root, relative to the root in the units of the
unknowns; a success elsewhere, or of a system that has no root, is a false one. The ratio of the estimated error to the
true one is taken over solved systems, with errors of at least one unit of rounding.

A run adds its rows to ``accuracy.json``, each with the commit that they were measured at, in place of those of the same
solver. So a record may be made in pieces.

Usage::

    python -m benchmarks.accuracy --count 10000 --methods auto
    python -m benchmarks.accuracy --count 800 --methods newton-krylov,hybr,torch
    python -m benchmarks.accuracy --count 700 --hard --methods auto,hybr,lm
    python -m benchmarks.accuracy --count 2000 --warm
    python -m benchmarks.accuracy --write docs/performance/accuracy.md    # the page of what is recorded
"""

from __future__ import annotations

import argparse
import json
import subprocess
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.accuracy import hard
from benchmarks.accuracy.solvers import ALL, solver
from benchmarks.accuracy.systems import systems, warm

RIGHT = 1e-4  # error of a solved system
ROUNDING = float(np.finfo(float).eps)
ASKED = ROUNDING**0.5  # error that the default rule accepts
RECORD = Path(__file__).with_name("accuracy.json")


@dataclass
class Record:
    """What a solver did on the systems of a kind."""

    errors: list[float] = field(default_factory=list)
    claims: list[bool] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    def note(self, system: Any, x: Any, claims: bool, estimate: float, calls: int) -> None:
        """Note what came of a system."""
        self.errors.append(system.error(x))
        self.claims.append(claims)
        self.estimates.append(estimate)
        self.calls.append(calls)

    @property
    def solved(self) -> int:
        """Systems solved."""
        return int(np.sum(np.asarray(self.claims) & (np.asarray(self.errors) <= RIGHT)))

    @property
    def false(self) -> int:
        """Successes that are none."""
        return int(np.sum(self.claims)) - self.solved

    def ratios(self) -> np.ndarray[Any, Any]:
        """Estimated over true errors of solved systems."""
        errors, estimates = np.asarray(self.errors), np.asarray(self.estimates, dtype=float)
        good = np.asarray(self.claims) & (errors <= RIGHT)
        return estimates[good] / np.maximum(errors[good], ROUNDING)


def measured(name: str, found: Sequence[Any]) -> list[list[Any]]:
    """A row for each kind, and one for all: kind, systems, solved, false successes, evaluations, and `shares`."""
    records: dict[str, Record] = {}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for system, answer in zip(found, solver(name)(found)):
            if answer is not None:
                records.setdefault(system.kind, Record()).note(system, *answer)
    rows = [
        [kind, len(record.claims), record.solved, record.false, int(np.median(record.calls)), *shares(record.ratios())]
        for kind, record in records.items()
    ]
    ratios = np.concatenate([record.ratios() for record in records.values()])
    return [*rows, ["all", *(sum(row[i] for row in rows) for i in (1, 2, 3)), 0, *shares(ratios)]]


def shares(ratios: np.ndarray[Any, Any]) -> list[float | None]:
    """Parts of the ratios within 30 times, and below a hundredth; None where no estimate is known."""
    known = ratios[np.isfinite(ratios)]
    if not known.size:
        return [None, None]
    return [float(np.mean((known < 30) & (known > 1 / 30))), float(np.mean(known < 0.01))]


def warm_starts(count: int, seed: int) -> dict[str, Any]:
    """Solves from the root up to a part of 10^-12 to 10^-3: failures, and evaluations after x was accurate.

    Counted are those beyond the first step that has led to an error of at most ASKED.
    """
    excess, failures = [], 0
    for i in range(count):
        system = warm(np.random.default_rng([seed, i]))
        trace: list[tuple[float, int]] = []

        def note(step: Any, x: Any, F: Any) -> None:
            trace.append((system.error(x), step.counts.evaluations))  # noqa: B023 - called in this turn

        result = ims.root(system.residual, system.x0.copy(), monitor=note)
        failures += not (result.success and system.error(result.x) <= RIGHT)
        needed = next((calls for error, calls in trace[1:] if error <= ASKED), trace[-1][1])
        excess.append(result.counts.evaluations - needed)
    at_most = {str(most): int(np.sum(np.asarray(excess) <= most)) for most in (0, 1, 3)}
    return {"systems": count, "seed": seed, "failures": failures, "at most": at_most, "largest": max(excess)}


def table(rows: dict[str, Any]) -> str:
    """Recorded rows as a table."""
    lines = [
        "| solver | kind | systems | solved | false successes | evaluations, median | estimate within 30 times "
        "| below a hundredth |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, record in rows.items():
        for kind, *numbers, within, below in record["rows"]:
            known = [] if within is None else [f"{within:.2%}", f"{below:.2%}"]
            cells = [name, kind, *(f"{number:,}" for number in numbers[:3]), numbers[3] or "", *known]
            lines.append(f"| {' | '.join(map(str, cells))} |{' | |' * (not known)}")
    return "\n".join(lines)


def page(known: dict[str, Any]) -> str:
    """The Markdown page."""
    warm = known.get("warm")
    parts = [
        "# Accuracy",
        "Random systems whose only root is known, or that have none. A system is solved if success is reported at\n"
        "an x within 1e-4 of the root, relative to it in the units of the unknowns. A success elsewhere, or of a\n"
        "system without a root, is false. Estimates are those of `result.error`, beside the true error of solved\n"
        "systems. Settings are the defaults; `BlockNewton` is given bands, or one block; fixed-point methods expect\n"
        "x - G(x), and the batches are of dense systems. Written by `python -m benchmarks.accuracy`.",
        textwrap.fill(f"Seed {known['seed']}, at the commits {commits_of(known)}.", 110, break_on_hyphens=False),
        table(known["rows"]),
    ]
    if known["hard"]:
        text = (
            "All roots of these systems are known, too; SciPy's solvers have no bounds. In single precision an error\n"
            "of 1e-2 is right, and its estimate is not compared."
        )
        parts += ["## Harder kinds", text, table(known["hard"])]
    if warm:
        most = warm["at most"]
        parts += [
            "## Warm starts",
            f"{warm['systems']:,} systems from their roots up to a part of 1e-12 to 1e-3, by `root`:\n"
            f"{warm['failures']} failures. After the step that has made x accurate enough {most['0']:,} took no\n"
            f"further evaluation, {most['1']:,} at most one, and {most['3']:,} at most three.",
        ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=800, help="systems for each solver")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--methods", default="", help=f"names with commas, of: {', '.join(ALL)}")
    parser.add_argument("--hard", action="store_true", help="the harder kinds")
    parser.add_argument("--warm", action="store_true", help="the evaluations of warm starts")
    parser.add_argument("--record", type=Path, default=RECORD, metavar="PATH", help="of what was measured")
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the Markdown page there")
    options = parser.parse_args(arguments)
    known = recorded(options.record, options.seed)
    generate: Any = hard.systems if options.hard else systems
    for name in filter(None, options.methods.split(",")):
        rows = measured(name, list(generate(options.count, options.seed)))
        known["hard" if options.hard else "rows"][name] = {"count": options.count, "commit": commit(), "rows": rows}
        save(options.record, known)
        print(table({name: {"rows": rows}}), flush=True)
    if options.warm:
        known["warm"] = warm_starts(options.count, options.seed) | {"commit": commit()}
        save(options.record, known)
        print(known["warm"])
    if options.write:
        options.write.write_text(page(known), encoding="utf-8")


def commit() -> str:
    """The last commit that changed the library."""
    command = ["git", "log", "-1", "--format=%h", "--", ":/implicitsolve"]
    return subprocess.run(command, capture_output=True, text=True, cwd=RECORD.parent).stdout.strip()


def commits_of(known: dict[str, Any]) -> str:
    """The commits of the record, with what was measured there."""
    rows: dict[str, list[str]] = {}
    for name, record in known["rows"].items():
        rows.setdefault(record["commit"], []).append(name)
    for name, record in (("harder kinds", known["hard"].get("auto")), ("warm starts", known["warm"])):
        if record:
            rows.setdefault(record["commit"], []).append(name)
    return "; ".join(f"{at} ({', '.join(names)})" for at, names in rows.items())


def recorded(path: Path, seed: int) -> dict[str, Any]:
    """What was measured with this seed."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return known if known.get("seed") == seed else {"seed": seed, "rows": {}, "hard": {}, "warm": None}


def save(path: Path, known: dict[str, Any]) -> None:
    """Write the record."""
    order = {name: k for k, name in enumerate(ALL)}
    for part in ("rows", "hard"):
        known[part] = dict(sorted(known[part].items(), key=lambda item: order.get(item[0], len(order))))
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
