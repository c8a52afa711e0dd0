"""Markdown tables of the records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def number(value: float | None, form: str) -> str:
    """A number, or nothing."""
    return "" if value is None else format(value, form)


def workload(record: dict[str, Any], clock: str) -> Iterator[str]:
    """A workload: the default of ours first, the others as they are timed, failures last."""
    yield f"\n## {record['name']} ({record['key']}): max|F| <= {record['target']:.1e}\n"
    yield f"| package | solver | status | max\\|F\\| | products | median ms ({clock}) | over ours | note |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |"
    for row in ordered(record["rows"]):
        median = None if row["median"] is None else 1e3 * row["median"]
        yield (
            f"| {row['package']} | {row['method']} | {row['status']} | {number(row['residual'], '.1e')} | "
            f"{number(row['products'], '.4g')} | {number(median, '.3g')} | {number(row['ratio'], '.2f')} | "
            f"{row['note']} |"
        )


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours, then solvers by their time, then failures."""
    return sorted(rows, key=lambda row: (not row["is_ours"], row["median"] is None, row["median"] or 0.0))


def products(record: dict[str, Any], clock: str) -> Iterator[str]:
    """One product over the matrix products."""
    yield f"\n## One product, {record['key']}\n"
    yield f"| what | median ms ({clock}) | over the GEMMs alone |"
    yield "| --- | ---: | ---: |"
    for row in record["rows"]:
        yield f"| {row['what']} | {1e3 * row['median']:.3g} | {row['ratio']:.2f} |"


def training(record: dict[str, Any], clock: str) -> Iterator[str]:
    """A training step over the LSTM's."""
    yield f"\n## Training step, {record['key']}: forward 1e-4, adjoint 1e-3\n"
    yield f"| what | max\\|F\\| | residuals | JVPs | median ms ({clock}) | over nn.LSTM |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for row in record["rows"]:
        size = number(row.get("residual"), ".1e")
        counts = " | ".join(number(row.get(name), "d") for name in ("residuals", "jvps"))
        yield f"| {row['what']} | {size} | {counts} | {1e3 * row['median']:.3g} | {row['ratio']:.2f} |"


def adjoints(record: dict[str, Any], clock: str) -> Iterator[str]:
    """An adjoint solve."""
    took = f"{record['products']} products, residual {record['residual']:.1e}"
    yield f"\nAdjoint solve of {record['key']} to 1e-6: {took}"


def verdicts(results: dict[str, Any]) -> Iterator[str]:
    """Targets beside what was measured."""
    yield "\n## Targets\n"
    yield "| target | goal | measured | verdict |"
    yield "| --- | ---: | ---: | --- |"
    for row in results.get("targets", ()):
        if row["verdict"] != "not measured":
            yield f"| {row['target']} | {row['goal']} | {number(row['measured'], '.3g')} | {row['verdict']} |"
