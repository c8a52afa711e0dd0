"""What was to be reached, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Results = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A number that must be at most (or at least) a limit; `measured` finds it, or None where it was not measured."""

    name: str
    measured: Callable[[Results], float | None]
    limit: float
    at_least: bool = False

    def record(self, results: Results) -> dict[str, Any]:
        """The target with its number and verdict."""
        value = self.measured(results)
        verdict = "not measured"
        if value is not None:
            verdict = "met" if (value >= self.limit if self.at_least else value <= self.limit) else "missed"
        if value == math.inf:
            value, verdict = None, "met: the rivals fail"
        goal = f"{'>=' if self.at_least else '<='} {self.limit:g}"
        return {"target": self.name, "goal": goal, "measured": value, "verdict": verdict}


def rows_of(results: Results, part: str, key: str) -> list[dict[str, Any]]:
    """The rows of one workload in one part of the results."""
    return [row for record in results.get(part, ()) if record["key"] == key for row in record["rows"]]


def default(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row of `root` by its defaults, if it solved the workload."""
    return next((row for row in rows if row["is_ours"] and row["method"] == "root" and row["seconds"]), None)


def products(key: str) -> Callable[[Results], float | None]:
    """Products of `root`."""

    def measured(results: Results) -> float | None:
        row = default(rows_of(results, "workloads", key))
        return None if row is None else row["products"]

    return measured


def rivals(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Rivals that solved the workload and whose package and method contain the name."""
    solved = (row for row in rows if not row["is_ours"] and row["seconds"])
    return [row for row in solved if name in f"{row['package']} {row['method']}"]


def faster(key: str, name: str = "", *, best: bool = False) -> Callable[[Results], float | None]:
    """Time of the quickest rival of that name over ours, of `root` or our best solver; infinite where all fail."""

    def measured(results: Results) -> float | None:
        rows = rows_of(results, "workloads", key)
        ours = [row for row in rows if row["is_ours"] and row["seconds"] and (best or row["method"] == "root")]
        others = rivals(rows, name)
        if not ours or not others:
            ran = any(name in row["method"] and not row["is_ours"] and row["residual"] is not None for row in rows)
            return math.inf if ours and ran else None
        return min(row["median"] for row in others) / min(row["median"] for row in ours)

    return measured


def slower(key: str, name: str) -> Callable[[Results], float | None]:
    """The time of `root` over that of the quickest rival of that name."""
    inverse = faster(key, name)

    def measured(results: Results) -> float | None:
        ratio = inverse(results)
        return None if ratio is None else 1 / ratio

    return measured


def ratio(part: str, key: str, what: str) -> Callable[[Results], float | None]:
    """A ratio of the tables of products and of training steps."""

    def measured(results: Results) -> float | None:
        return next((row["ratio"] for row in rows_of(results, part, key) if row["what"] == what), None)

    return measured


def adjoint(key: str) -> Callable[[Results], float | None]:
    """Products of an adjoint solve."""

    def measured(results: Results) -> float | None:
        return next((row["products"] for row in results.get("adjoints", ()) if row["key"] == key), None)

    return measured


def of_layers() -> Iterator[Target]:
    """W1."""
    for key, most, best, scipy in (
        ("W1-k200-s1", 17, 3.0, 6.0),
        ("W1-k200-s2", None, 3.5, None),
        ("W1-k200-s3", 140, None, 8.0),
        ("W1-k448-s1", None, 3.0, None),
        ("W1-k200-s1-float32", None, 3.0, None),
    ):
        if most:
            yield Target(f"{key}: products", products(key), most)
        if best:
            yield Target(f"{key}: best rival / ours", faster(key), best, at_least=True)
        if scipy:
            yield Target(f"{key}: SciPy's newton_krylov / ours", faster(key, "newton_krylov"), scipy, at_least=True)


def of_products() -> Iterator[Target]:
    """One product over its matrix products, a training step, and adjoint solves."""
    for key in ("W1-k200-s1", "W1-k448-s1", "W1-k200-s1-float32", "W1-k448-s1-float32"):
        for what in ("residual", "JVP", "VJP"):
            yield Target(f"{key}: {what} / GEMMs", ratio("products", key, what), 1.15)
    for key in ("W1-k200-s1-float32", "W1-k448-s1-float32"):
        yield Target(f"{key}: training step / b-LSTM, cold", ratio("training", key, "cold start"), 2.0)
        for start in ("warm start, SGD 0.1", "warm start, Adam 1e-4", "warm start, Adam 1e-3"):
            yield Target(f"{key}: training step / b-LSTM, {start}", ratio("training", key, start), 1.2)
    for key, most in (("W1-k200-s1", 11), ("W1-k200-s2", 22)):
        yield Target(f"{key}: products of the adjoint solve", adjoint(key), most)


def of_lines() -> Iterator[Target]:
    """W2 to W5."""
    limits = dict.fromkeys(("W2-bratu-1e4", "W2-bratu-1e5", "W2-burgers-1e4", "W2-burgers-1e5"), 0.8)
    for key, limit in (limits | {"W3-k2": 0.5, "W3-k8": 0.6}).items():
        yield Target(f"{key}: ours / solve_banded", slower(key, "solve_banded"), limit)
    yield Target("W4: best rival / ours", faster("W4"), 6.0, at_least=True)
    yield Target("W4: best rival / newton_batch", faster("W4", best=True), 6.0, at_least=True)
    yield Target("W5: ours / lax.scan", slower("W5", "scan"), 1.0)


TARGETS = (*of_layers(), *of_products(), *of_lines())


def verdicts(results: Results) -> list[dict[str, Any]]:
    """All targets."""
    return [target.record(results) for target in TARGETS]
