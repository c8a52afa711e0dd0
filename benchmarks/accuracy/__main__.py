"""False successes, solved systems and the estimate of the error, beside SciPy's solvers.

A system is solved if success is reported at an x within 1e-4 of its root, relative to the root in the units of the
unknowns; a success elsewhere, or of a system that has no root, is a false one. The ratio of the estimated error to the
true one is taken over solved systems, with errors of at least one unit of rounding.

Usage::

    python -m benchmarks.accuracy                                    # 10,000 systems by `root`, some minutes
    python -m benchmarks.accuracy --count 800 --methods auto,hybr,newton-krylov
    python -m benchmarks.accuracy --write docs/performance/accuracy.md
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

import implicitsolve as ims
from benchmarks.accuracy.systems import KINDS, System, systems

RIGHT = 1e-4  # error of a solved system
ROUNDING = float(np.finfo(float).eps)
PEERS = ("hybr", "lm")
Answer = tuple[Any, bool, float]  # x, success, estimated error


@dataclass
class Record:
    """What a solver did on the systems of a kind."""

    errors: list[float] = field(default_factory=list)
    claims: list[bool] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

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


def ours(method: str) -> Callable[[Any, Any], Answer]:
    """`root` by a method's name."""

    def solve(F: Any, x0: Any) -> Answer:
        result = ims.root(F, x0, method=method)
        return result.x, bool(result.success), np.nan if result.error is None else result.error

    return solve


def peer(method: str) -> Callable[[Any, Any], Answer]:
    """A method of `scipy.optimize.root` by defaults."""

    def solve(F: Any, x0: Any) -> Answer:
        found = scipy.optimize.root(lambda x: F(x.reshape(x0.shape)).ravel(), x0.ravel(), method=method)
        return found.x.reshape(x0.shape), bool(found.success), np.nan

    return solve


def drop_in(F: Any, x0: Any) -> Answer:
    """`newton_krylov` by its defaults, which are SciPy's."""
    x, result = ims.newton_krylov(F, x0, full_output=True)
    return x, bool(result.success), np.nan


def scipy_krylov(F: Any, x0: Any) -> Answer:
    """SciPy's `newton_krylov` by defaults."""
    return scipy.optimize.newton_krylov(F, x0), True, np.nan


def solver(name: str) -> Callable[[Any, Any], Answer]:
    """The solver of a name."""
    own = {"drop-in": drop_in, "scipy newton_krylov": scipy_krylov}
    return own[name] if name in own else peer(name) if name in PEERS else ours(name)


def run(solve: Callable[[Any, Any], Answer], system: System, record: Record) -> None:
    """Solve a system, and note what came of it."""
    calls = 0

    def F(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return system.residual(np.asarray(x))

    try:
        x, claims, estimate = solve(F, system.x0.copy())
    except (scipy.optimize.NoConvergence, ValueError, ArithmeticError, np.linalg.LinAlgError):
        x, claims, estimate = system.x0, False, np.nan
    record.errors.append(system.error(x))
    record.claims.append(claims)
    record.estimates.append(estimate)
    record.calls.append(calls)


def table(names: Sequence[str], counts: Sequence[int], seed: int) -> str:
    """A row for each solver and kind, of so many systems by the first solver, and by the others."""
    lines = [
        "| solver | kind | systems | solved | false successes | evaluations, median | estimate within 30 times "
        "| below a hundredth |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        count = counts[0] if name == names[0] else counts[-1]
        solve, records = solver(name), {kind.__name__: Record() for kind in KINDS}
        labels: dict[str, str] = {}
        for i, system in enumerate(systems(count, seed)):
            key = KINDS[i % len(KINDS)].__name__
            labels[key] = system.kind
            run(solve, system, records[key])
        ratios = np.concatenate([record.ratios() for record in records.values()])
        for key, record in records.items():
            cells = [name, labels[key], len(record.claims), record.solved, record.false, int(np.median(record.calls))]
            lines.append(f"| {' | '.join(map(str, cells))} | {shares(record.ratios())} |")
        sums = [sum(getattr(record, what) for record in records.values()) for what in ("solved", "false")]
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
        "--methods", default="auto", help='names, with commas: those of `root`, "hybr", "lm", "drop-in"'
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
