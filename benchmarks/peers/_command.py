"""Arguments, progress, and what is printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmarks.workloads import WORKLOADS
from benchmarks.peers import _products, _training
from benchmarks.peers._measure import Race, Stopwatch
from benchmarks.peers._run import RIVALS, about, measure
from benchmarks.peers._table import adjoints, products, training, verdicts, workload
from benchmarks.peers._targets import verdicts as compare

PARTS = ("workloads", "products", "training", "adjoints")


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="implicitsolve against other packages, in turns in one process"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--workloads", nargs="*", choices=list(WORKLOADS), metavar="KEY", help=", ".join(WORKLOADS))
    parser.add_argument("--rivals", nargs="*", choices=RIVALS, metavar="RIVAL", help=", ".join(RIVALS))
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="1: CPU seconds; 2: elapsed")
    parser.add_argument("--repeat", type=int, default=7, help="turns of each solver")
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds for a solver and its set-up")
    parser.add_argument("--patient", action="store_true", help="also rivals whose set-up takes minutes")
    parser.add_argument("--quick", action="store_true", help="one turn, and at most 10 seconds for a solver")
    parser.add_argument("--json", type=Path, help="file for the numbers; those of other parts in it are kept")
    return parser.parse_args(argv)


def measured(arguments: argparse.Namespace, stopwatch: Stopwatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every record, with the part that it belongs to."""
    repeat, limit = (1, min(10.0, arguments.limit)) if arguments.quick else (arguments.repeat, arguments.limit)
    rivals = RIVALS if arguments.rivals is None else arguments.rivals
    chosen = list(WORKLOADS) if arguments.workloads is None else arguments.workloads
    race = Race(stopwatch, repeat, limit)
    parts: dict[str, tuple[Sequence[str], Callable[[str], dict[str, Any]]]] = {
        "workloads": (chosen, lambda key: measure(key, rivals, race, arguments.patient)),
        "products": (_products.KEYS, lambda key: _products.measure(key, stopwatch, repeat)),
        "training": (_training.STEPS, lambda key: _training.measure(key, stopwatch, repeat)),
        "adjoints": (_training.ADJOINTS, _training.adjoint),
    }
    for part in arguments.parts:
        keys, function = parts[part]
        for key in keys:
            if arguments.workloads is None or key in chosen:
                yield part, function(key)


def merged(old: dict[str, Any], part: str, record: dict[str, Any]) -> None:
    """Put a record into the results, in place of an older one of the same workload."""
    old[part] = [other for other in old.get(part, ()) if other["key"] != record["key"]] + [record]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print; the file is written after each record."""
    arguments = arguments_of(argv)
    stopwatch = Stopwatch(arguments.threads)
    results: dict[str, Any] = {}
    if arguments.json and arguments.json.exists():
        results = json.loads(arguments.json.read_text(encoding="utf-8"))
        if results["threads"] != arguments.threads:
            raise SystemExit(f"{arguments.json} was measured with {results['threads']} thread(s)")
    results |= about(arguments.threads, stopwatch.clock)
    tables = {"workloads": workload, "products": products, "training": training, "adjoints": adjoints}
    for part, record in measured(arguments, stopwatch):
        merged(results, part, record)
        print("\n".join(tables[part](record, stopwatch.clock)), flush=True)
        results["targets"] = compare(results)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print("\n".join(verdicts(results)))
