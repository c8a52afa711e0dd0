"""The sections on other packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.performance_page._names import name
from benchmarks.performance_page._table import number, table

Record = dict[str, Any]


def sections(runs: Sequence[Record]) -> Iterator[str]:
    """The summary, then details; one run for each number of threads."""
    if not runs:
        return
    yield f"## Against other packages\n\n{ABOUT}\n\n{summary(runs)}"
    for title, about, key, rows in (
        ("One product of a layer", PRODUCTS, "products", products),
        ("A training step", TRAINING, "training", training),
        ("Adjoint solves", ADJOINTS, "adjoints", adjoints),
    ):
        if any(run.get(key) for run in runs):
            yield f"### {title}\n\n{about}\n\n{rows(runs)}"
    for run in runs:
        for record in run["workloads"]:
            yield f"### {heading(record)}, {threads(run)}\n\n{solvers(record, run['clock'])}"


ABOUT = """Every solver starts at the same x and runs until max|F| is below the same target, as measured independently
by one NumPy residual. Solvers alternate in one process, compiled and warm; medians are compared. "over ours" is the
other solver's time over that of `root` with its defaults: if it exceeds 1, `root` is faster. A product is a residual or
a Jacobian product of all systems at once, where the solver reports them. "failed" counts the solvers of other packages
that did not reach the target; the tables below list each of them with its final residual."""


PRODUCTS = """Residuals and products of the implicit GRU, and its matrix products alone: three GEMMs, one for the
weights of one vector. "halves" are those of the reduced system of every second position, over both halves: the same
work."""
TRAINING = """One step of training: forward to 1e-4, and the gradients of all parameters, adjoint to 1e-3, in
float32, against torch's bidirectional LSTM of the same size. A warm start uses the states and the adjoint of the
previous visit, one step of that optimizer ago."""
ADJOINTS = """To 1e-6, at the forward solution. The residual is that of the worst system, measured independently."""


def threads(run: Record) -> str:
    """How many, in words."""
    return "one thread" if run["threads"] == 1 else f"{run['threads']} threads"


def heading(record: Record) -> str:
    """The name of a workload, as a heading."""
    return name(record["key"])[0].upper() + name(record["key"])[1:]


def default(record: Record) -> Record | None:
    """Ours by its defaults: the first one of ours."""
    return next((row for row in record["rows"] if row["is_ours"]), None)


def rivals(record: Record) -> list[Record]:
    """Those that solved it, the fastest first."""
    solved = [row for row in record["rows"] if not row["is_ours"] and row["median"] is not None]
    return sorted(solved, key=lambda row: row["median"])


def failed(row: Record) -> bool:
    """Whether a rival was tried and did not solve it."""
    return not row["is_ours"] and row["median"] is None and not row["status"].startswith(("not installed", "not run"))


def solver(row: Record) -> str:
    """Its name."""
    return f"{row['package']} {row['method']}".strip()


def summary(runs: Sequence[Record]) -> str:
    """The best rival of each workload."""
    header = ("workload", "threads", "best rival", "its ms", "products", "our ms", "products", "over ours", "failed")
    rows = []
    for run in runs:
        for record in run["workloads"]:
            ours, others = default(record), rivals(record)
            best = others[0] if others else None
            failures = sum(map(failed, record["rows"]))
            rows.append(
                (
                    name(record["key"]),
                    str(run["threads"]),
                    solver(best) if best else "none",
                    *timed(best),
                    *timed(ours),
                    number(best["ratio"]) if best else "",
                    str(failures) if failures else "",
                )
            )
    return table(header, rows, texts=3)


def timed(row: Record | None) -> tuple[str, str]:
    """Milliseconds and products."""
    return (number(row["median"], scale=1e3), number(row["products"])) if row else ("", "")


def solvers(record: Record, clock: str) -> str:
    """Everyone: ours first, then by time, failures last."""
    header = ("solver", "ending", "max\\|F\\|", "products", f"ms ({clock})", "over ours", "note")
    ordered = sorted(record["rows"], key=lambda row: (not row["is_ours"], row["median"] is None, row["median"] or 0.0))
    rows = [
        (
            solver(row),
            row["status"].replace("|", "\\|"),
            number(row["residual"], 2),
            *reversed(timed(row)),
            number(row["ratio"]),
            row["note"].replace("|", "\\|"),
        )
        for row in ordered
    ]
    return table(header, rows, texts=2, notes=1)


def products(runs: Sequence[Record]) -> str:
    """Every function by the matrix products in it."""
    rows = [
        (name(record["key"]), str(run["threads"]), row["what"], number(row["median"], scale=1e3), number(row["ratio"]))
        for run in runs
        for record in run.get("products") or ()
        for row in record["rows"]
    ]
    return table(("layer", "threads", "what", "ms", "over the GEMMs"), rows, texts=3)


def training(runs: Sequence[Record]) -> str:
    """Every way to take the step, by that of torch's LSTM."""
    rows = [
        (
            name(record["key"]),
            str(run["threads"]),
            row["what"],
            number(row["median"], scale=1e3),
            number(row["ratio"]),
            number(row.get("residuals")),
            number(row.get("residual"), 2),
        )
        for run in runs
        for record in run.get("training") or ()
        for row in record["rows"]
    ]
    header = ("layer", "threads", "what", "ms", "over nn.LSTM", "residuals", "max\\|F\\|")
    return table(header, rows, texts=3)


def adjoints(runs: Sequence[Record]) -> str:
    """Counts do not depend on the threads: those of the first run that has them."""
    records = next(run["adjoints"] for run in runs if run.get("adjoints"))
    rows = [
        (name(record["key"]), number(record["products"]), number(record["iterations"]), number(record["residual"], 2))
        for record in records
    ]
    return table(("layer", "products", "iterations", "residual"), rows)
