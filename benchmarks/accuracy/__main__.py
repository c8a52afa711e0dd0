"""False successes, solved systems and the estimate of the error, beside SciPy's solvers.

A system is solved if success is reported at an x within 1e-4 of its root, relative to the root in the units of the
unknowns; a success elsewhere, or of a system that has no root, is a false one. The ratio of the estimated error to the
true one is taken over solved systems, with errors of at least one unit of rounding.

Usage::

    python -m benchmarks.accuracy                                    # 10,000 systems by `root`, an hour with the others
    python -m benchmarks.accuracy --count 800 --methods auto,hybr,newton-krylov
    python -m benchmarks.accuracy --write docs/performance/accuracy.md
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.solvers import ALL, solver
from benchmarks.accuracy.systems import System, systems

RIGHT = 1e-4  # error of a solved system
ROUNDING = float(np.finfo(float).eps)


@dataclass
class Record:
    """What a solver did on the systems of a kind."""

    errors: list[float] = field(default_factory=list)
    claims: list[bool] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    def note(self, system: System, x: Any, claims: bool, estimate: float, calls: int) -> None:
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


def table(names: Sequence[str], counts: Sequence[int], seed: int) -> str:
    """A row for each solver and kind, of so many systems by the first solver, and by the others."""
    lines = [
        "| solver | kind | systems | solved | false successes | evaluations, median | estimate within 30 times "
        "| below a hundredth |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        count = counts[0] if name == names[0] else counts[-1]
        records: dict[str, Record] = {}
        found = list(systems(count, seed))
        for system, answer in zip(found, solver(name)(found)):
            records.setdefault(system.kind, Record()).note(system, *answer)
        for kind, record in records.items():
            calls = int(np.median(record.calls)) or ""
            cells = [name, kind, len(record.claims), record.solved, record.false, calls]
            lines.append(f"| {' | '.join(map(str, cells))} | {shares(record.ratios())} |")
        sums = [sum(getattr(record, what) for record in records.values()) for what in ("solved", "false")]
        ratios = np.concatenate([record.ratios() for record in records.values()])
        lines.append(f"| {name} | all | {count} | {sums[0]} | {sums[1]} | | {shares(ratios)} |")
    return "\n".join(lines)


def shares(ratios: np.ndarray[Any, Any]) -> str:
    """Parts of the ratios within 30 times, and below a hundredth."""
    known = ratios[np.isfinite(ratios)]
    if not known.size:
        return " | "
    return f"{np.mean((known < 30) & (known > 1 / 30)):.2%} | {np.mean(known < 0.01):.2%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--others", type=int, default=1600, help="systems for the solvers after the first")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument(
        "--methods", default=",".join(ALL), help="names with commas: methods of `root`, its other entries, and peers"
    )
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the Markdown page there")
    options = parser.parse_args(arguments)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = table(options.methods.split(","), (options.count, options.others), options.seed)
    page = "\n\n".join(
        [
            "# Accuracy",
            "Random systems whose only root is known, or that have none. A system is solved if success is reported at\n"
            "an x within 1e-4 of the root, relative to it in the units of the unknowns. A success elsewhere, or of a\n"
            "system without a root, is false. Estimates are those of `result.error`, beside the true error of solved\n"
            f"systems. Written by `python -m benchmarks.accuracy`: {options.count:,} systems for the first solver,\n"
            f"and the first {options.others:,} of them for the others, seed {options.seed}.",
            text,
        ]
    )
    print(page)
    if options.write:
        options.write.write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
