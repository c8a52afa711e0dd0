"""Representations of results: `result.summary()`, a `repr` of one line, and in notebooks a table with a curve."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeAlias

import numpy as np

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._record import NewtonStep
from implicitsolve._typing import Array, HostArray
from implicitsolve.kernels._norms import norm_max
from implicitsolve.status import Status

MOST_LINES = 40  # of a summary, about, as documented there
WIDTH = 100  # columns, as documented for `NonlinearResult.summary`
WORST = 5  # systems that are named
MOST_NUMBERS = 10  # up to which `str` shows an array
QUANTILES = {"min": 0.0, "quarter": 0.25, "median": 0.5, "3 quarters": 0.75, "max": 1.0}
LABELS = {"residual_norm": "residual norm", "target": "target", "iterations": "accepted steps"}
STEP_COLUMNS = {  # of what a step holds for each system, and what is shown of a batch
    "length": ("step_length", "min"),
    "eta": ("forcing", "max"),
    "linear": ("linear_residual", "max"),
    "Krylov": ("krylov_iterations", "max"),
}
Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[str]]]  # header and rows


def summarize(result: Any, worst: int = WORST, most: int = MOST_LINES) -> str:
    """Text of a result, with so many of the worst systems, and so many lines."""
    kind, x, codes = type(result).__name__, result.x, np.asarray(result.status)
    numbers, entries, steps = result._numbers(), result._facts(), getattr(result, "steps", ())
    if codes.ndim:
        lines = [f"{kind}: {describe(x)}, {codes.size} systems", "", *(f"{name}: {text}" for name, text in entries)]
        parts = batch_tables(codes, numbers, worst) if codes.size else ()
        lines += [line for part in parts for line in ("", format_table(*part))] or ["", "the batch is empty"]
    else:
        values = ((name, format_number(np.asarray(value).item())) for name, value in numbers.items())
        rows = [*values, *entries, ("x", describe(x))]
        lines = [_headline(kind, codes), "", format_table([], rows)]
    text = "\n".join(lines)
    if not steps:
        return text
    room = max(4, most - text.count("\n") - 3)
    return f"{text}\n\n{format_table(*step_table(steps, room, is_batch=bool(codes.ndim)))}"


def summarize_derivative(result: Any) -> str:
    """Text of a derivative of a solution, and of its linear solve."""
    kind, codes, gradients = type(result).__name__, np.asarray(result.status), getattr(result, "gradients", {})
    headline = f"{kind}: {codes.size} systems" if codes.ndim else _headline(kind, codes)
    lines = [headline, "", f"calls: {result.counts}"]
    if gradients:
        rows = [
            [name, *describe(value).split(" ", 1), format_number(norm_max(_flat(value)).item())]
            for name, value in gradients.items()
        ]
        lines += ["", format_table(["gradient", "dtype", "shape", "max|.|"], rows)]
    if codes.ndim:
        lines += ["", format_table(["status", "systems"], _count_statuses(codes))]
    return "\n".join([*lines, "", summarize(result.linear)])


def list_entries(result: Any) -> dict[str, str]:
    """Entries of the line, or of a notebook's table, for a result; for a batch the largest numbers."""
    status = np.asarray(result.status)
    counted = [f"{name} ({count})" if status.ndim else name for name, count in _count_statuses(status)]
    entries = {"status": ", ".join(counted) or "the batch is empty"}
    entries |= {name: describe(getattr(result, name)) for name in ("x", "adjoint", "tangent") if hasattr(result, name)}
    for field, name in LABELS.items():
        values = np.asarray(getattr(result, field, math.nan))
        if values.size and not np.isnan(values).all():
            entries[name] = ("at most " if status.ndim else "") + format_number(np.nanmax(values).item())
    return entries | ({"calls": str(result.counts)} if hasattr(result, "counts") else {})


def format_arrays(**arrays: Array) -> str:
    """A line or more for each array that has few numbers."""
    few = {name: to_host(x) for name, x in arrays.items() if math.prod(x.shape) <= MOST_NUMBERS}
    return "".join(f"\n{name} = {np.array2string(x, prefix=f'{name} = ')}" for name, x in few.items())


def _headline(kind: str, status: HostArray) -> str:
    ended = Status(int(status))
    return textwrap.fill(f"{kind}: {ended.name}: {ended.message}", WIDTH, subsequent_indent="  ")


def batch_tables(status: HostArray, numbers: Mapping[str, Any], most: int) -> list[Table]:
    """How many systems ended how, the quantiles of norms and counts, and the worst systems."""
    columns = {name: np.broadcast_to(each, status.shape).reshape(-1) for name, each in numbers.items()}
    codes, (norms, target, *_) = status.reshape(-1), columns.values()
    rows = [
        [
            str(index_of(i, status.shape)),
            Status(int(codes[i])).name,
            *(format_number(c[i].item()) for c in columns.values()),
        ]
        for i in order_by_distance(codes, norms, target)[:most].tolist()
    ]
    return [
        (["status", "systems"], _count_statuses(status)),
        (["", *QUANTILES], [[name, *_quantiles(each)] for name, each in columns.items()]),
        (["worst systems", "status", *columns], rows),
    ]


def _count_statuses(status: HostArray) -> list[list[str]]:
    codes, counts = np.unique(status, return_counts=True)
    return [[Status(code).name, str(count)] for code, count in zip(codes.tolist(), counts.tolist())]


def _quantiles(values: HostArray) -> list[str]:
    known = np.sort(values[~np.isnan(values)])
    if not known.size:
        return ["nan" for _ in QUANTILES]
    return [format_number(known[round(part * (known.size - 1))].item()) for part in QUANTILES.values()]


def order_by_distance(status: HostArray, norms: HostArray, target: HostArray) -> HostArray:
    """Systems in order: failures first, then by their distance from the target, the largest first."""
    with np.errstate(all="ignore"):
        distance = np.where(np.isnan(target) | (target <= 0), norms, norms / np.where(target > 0, target, 1.0))
    distance = np.where(np.isnan(distance), np.inf, distance)
    return np.lexsort((-distance, status == Status.CONVERGED))


def index_of(row: int, batch_shape: tuple[int, ...]) -> Any:
    """Index of a system of the flattened batch: a number, or a tuple where the batch has several axes."""
    index = tuple(int(part) for part in np.unravel_index(row, batch_shape))
    return index[0] if len(index) == 1 else index


def per_system(values: Any, status: Any) -> HostArray:
    """One number for each system of the flattened batch, broadcast if it is one for all."""
    return np.broadcast_to(np.asarray(values, dtype=float), np.shape(status)).reshape(-1)


def step_table(steps: Sequence[NewtonStep], room: int, *, is_batch: bool) -> Table:
    """The steps, at most so many rows: the first and the last ones."""
    columns = {name: part for name, part in STEP_COLUMNS.items() if any(getattr(step, part[0]).size for step in steps)}
    norms = ["running", "max norm(F)", "median"] if is_batch else ["norm(F)"]
    names = (f"{extreme} {name}" if is_batch else name for name, (_, extreme) in columns.items())
    header = ["step", *norms, *names, "calls"]
    head = len(steps) if len(steps) <= room else room // 2
    rows = [_step_row(steps, i, columns, is_batch=is_batch) for i in range(head)]
    if head < len(steps):
        tail = range(len(steps) - (room - head) + 1, len(steps))
        rows += [["...", *("" for _ in header[1:])], *(_step_row(steps, i, columns, is_batch=is_batch) for i in tail)]
    return header, rows


def _step_row(steps: Sequence[NewtonStep], i: int, columns: dict[str, tuple[str, str]], *, is_batch: bool) -> list[str]:
    step = steps[i]
    cells = [format_number(step.worst)]
    if is_batch:
        cells = [str(step.running), *cells, _quantiles(step.residual_norm)[2]]
    for name, extreme in columns.values():
        values: HostArray = getattr(step, name)
        cells.append(format_number(getattr(values, extreme)().item()) if values.size else "")
    before = steps[i - 1].counts.evaluations if i else 0
    return [str(step.iteration), *cells, str(step.counts.evaluations - before)]


def format_number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two blanks apart: the first to the left, the others, under a header, to the right."""
    lines = [header, *rows] if header else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            part.rjust(width) if j and header else part.ljust(width)
            for j, (part, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def describe(x: Array) -> str:
    return f"{str(x.dtype).rpartition('.')[2]} {tuple(x.shape)}"


def _flat(x: Array) -> Array:
    return array_namespace(x).reshape(x, (1, -1))


class Representation:
    """A short `repr` and a table in notebooks, both from `_entries`."""

    def _entries(self) -> dict[str, str]:
        """Fields of a dataclass that are not at their default; functions by their name, nothing in full length."""
        entries: dict[str, str] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not field.default and (
                field.default is MISSING or hasattr(value, "dtype") or value != field.default
            ):
                entries[field.name] = _abbreviate(value)
        return entries

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._entries().items())})"

    def _norms(self) -> Sequence[float]:
        return ()

    def _repr_html_(self) -> str:
        """Table for notebooks, and a curve of norms below it where there are at least two."""
        cell = "text-align:left;padding:1px 12px 1px 0"
        rows = "".join(
            f'<tr><th style="{cell};font-weight:normal;opacity:0.7">{html.escape(name)}</th>'
            f'<td style="{cell}">{html.escape(value)}</td></tr>'
            for name, value in self._entries().items()
        )
        title = html.escape(type(self).__name__)
        return f"<div><b>{title}</b><table>{rows}</table>{_draw_norms(self._norms())}</div>"


def _abbreviate(value: Any) -> str:
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__).rpartition(".")[2]
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(str, value))}}}"
    if isinstance(value, float):
        return format_number(value)
    return describe(value) if hasattr(value, "dtype") else repr(value)


def _draw_norms(norms: Sequence[float]) -> str:
    """Logarithms of norms as a small picture (SVG); "" where fewer than two are positive and finite."""
    points = [(i, -math.log10(norm)) for i, norm in enumerate(norms) if 0 < norm < math.inf]
    if len(points) < 2:
        return ""
    (first, last), (low, high) = ((min(part), max(part)) for part in zip(*points))
    path = " ".join(f"{i},{y:.3f}" for i, y in points)
    label = f"norm(F) over {len(norms) - 1} steps: {norms[0]:.3g} to {norms[-1]:.3g}"
    view = f'viewBox="{first} {low:.3f} {last - first} {high - low or 1.0:.3f}" preserveAspectRatio="none"'
    return (
        f'<svg {view} style="width:10em;height:2em;overflow:visible" role="img" aria-label="{label}">'
        f'<title>{label}</title><polyline points="{path}" fill="none" stroke="currentColor" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )
