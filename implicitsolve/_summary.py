"""Representations of results: `result.summary()`, a `repr` of one line, and in notebooks a table with a curve."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Protocol, TypeAlias

import numpy as np

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._arrays.norms import norm_max
from implicitsolve._typing import Array, HostArray
from implicitsolve.status import Status
from implicitsolve.stopping import Counts

LINES = 40  # of a summary, about, as documented there
WIDTH = 100  # columns, as documented for `NonlinearResult.summary`
WORST = 5  # systems shown by their index
GRADIENTS = 8  # parameters shown by name
CURVE = 160, 36  # width and height of a curve of norms, in pixels
Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[str]]]  # header and rows
QUANTILES = {"min": 0.0, "quarter": 0.25, "median": 0.5, "3 quarters": 0.75, "max": 1.0}


class Step(Protocol):
    """A step of a nonlinear solve."""

    @property
    def iteration(self) -> int: ...
    @property
    def residual_norm(self) -> HostArray: ...
    @property
    def running(self) -> int: ...
    @property
    def worst(self) -> float: ...
    @property
    def counts(self) -> Counts: ...


def summary(
    kind: str,
    x: Array,
    status: Any,
    numbers: Mapping[str, Any],
    facts: Sequence[tuple[str, str]],
    steps: Sequence[Step] = (),
) -> str:
    """Text of a result; `numbers` are the norm, its target and others, one for each system, `facts` of the whole."""
    codes = np.asarray(status)
    if codes.ndim:
        lines = [f"{kind}: {describe(x)}, {codes.size} systems", "", *(f"{name}: {text}" for name, text in facts)]
        parts = batch_tables(codes, numbers, WORST).values() if codes.size else ()
        lines += [line for part in parts for line in ("", table(*part))] or ["", "the batch is empty"]
    else:
        rows = [[name, number(np.asarray(value).item())] for name, value in numbers.items()]
        lines = [_head(kind, codes), "", table([], [*rows, *facts, ("x", describe(x))])]
    text = "\n".join(lines)
    if not steps:
        return text
    room = max(4, LINES - text.count("\n") - 3)
    return f"{text}\n\n{table(*step_table(steps, room, is_batch=bool(codes.ndim)))}"


def derivative_summary(kind: str, status: Any, calls: str, gradients: Mapping[str, Array]) -> str:
    """Text of a derivative of a solution, its linear solve aside."""
    codes = np.asarray(status)
    head = f"{kind}: {codes.size} systems" if codes.ndim else _head(kind, codes)
    lines = [head, "", f"calls: {calls}"]
    if gradients:
        shown = list(gradients.items())[:GRADIENTS]
        rows = [[name, *describe(value).split(" ", 1), _largest(value)] for name, value in shown]
        lines += ["", table(["gradient", "dtype", "shape", "max|.|"], rows)]
        if len(gradients) > len(shown):
            lines.append(f"and {len(gradients) - len(shown)} more")
    if codes.ndim:
        lines += ["", table(["status", "systems"], _by_status(codes))]
    return "\n".join([*lines, "", ""])


def facts(result: Any) -> dict[str, str]:
    """Entries of the line, or of a notebook's table, for a result; for a batch the largest numbers."""
    status = np.asarray(result.status)
    by_status = [f"{name} ({count})" if status.ndim else name for name, count in _by_status(status)]
    shown = {"status": ", ".join(by_status) or "the batch is empty"}
    for name in ("x", "adjoint", "tangent"):
        if hasattr(result, name):
            shown[name] = describe(getattr(result, name))
    names = {"residual_norm": "residual norm", "target": "target", "iterations": "steps"}
    for field, name in names.items():
        values = np.asarray(getattr(result, field, math.nan))
        if values.size and not np.isnan(values).all():
            shown[name] = ("at most " if status.ndim else "") + number(np.nanmax(values).item())
    if hasattr(result, "counts"):
        shown["calls"] = str(result.counts)
    return shown


# ---------------------------------------------------------------------------------------------------------------- parts


def _head(kind: str, status: HostArray) -> str:
    ended = Status(int(status))
    return textwrap.fill(f"{kind}: {ended.name}: {ended.message}", WIDTH, subsequent_indent="  ")


def batch_tables(status: HostArray, values: Mapping[str, Any], most: int) -> dict[str, Table]:
    """Header and rows: how many systems ended how, the quantiles of norms and counts, and the worst systems."""
    flat = {name: np.broadcast_to(each, status.shape).reshape(-1) for name, each in values.items()}
    norms, target = list(flat.values())[:2]
    rows: list[list[str]] = []
    for i in worst_first(status.reshape(-1), norms, target)[:most].tolist():
        numbers = [number(each[i].item()) for each in flat.values()]
        rows.append([str(where(i, status.shape)), Status(int(status.reshape(-1)[i])).name, *numbers])
    return {
        "status": (["status", "systems"], _by_status(status)),
        "quantiles": (["", *QUANTILES], [[name, *_quantiles(each)] for name, each in flat.items()]),
        "systems": (["worst systems", "status", *flat], rows),
    }


def _by_status(status: HostArray) -> list[list[str]]:
    codes, counts = np.unique(status, return_counts=True)
    return [[Status(code).name, str(count)] for code, count in zip(codes.tolist(), counts.tolist())]


def _quantiles(values: HostArray) -> list[str]:
    known = values[~np.isnan(values)]
    if not known.size:
        return ["nan" for _ in QUANTILES]
    places = [round(part * (known.size - 1)) for part in QUANTILES.values()]
    return [number(value) for value in np.sort(known)[places].tolist()]


def worst_first(status: HostArray, norms: HostArray, target: HostArray) -> HostArray:
    """Systems by how far they are from their target, those that failed first, and norms that are not finite before."""
    with np.errstate(all="ignore"):
        distance = np.where(np.isnan(target) | (target <= 0), norms, norms / np.where(target > 0, target, 1.0))
    distance = np.where(np.isnan(distance), np.inf, distance)
    return np.lexsort((-distance, status == Status.CONVERGED))


def where(i: int, batch_shape: tuple[int, ...]) -> Any:
    """Position in the batch of system i of the flattened one: a number, or a tuple where the batch has several axes."""
    return named(tuple(int(part) for part in np.unravel_index(i, batch_shape)))


def named(index: tuple[int, ...]) -> Any:
    """An index as displayed."""
    return index[0] if len(index) == 1 else index


def flat(values: Any, status: Any) -> HostArray:
    """One number for each system of the flattened batch, broadcast if it is one for all."""
    return np.broadcast_to(np.asarray(values, dtype=float), np.shape(status)).reshape(-1)


# -------------------------------------------------------------------------------------------------------------- history

COLUMNS = {  # of what a step holds for each system, and what is shown of a batch
    "length": ("step_length", "min"),
    "eta": ("forcing", "max"),
    "linear": ("linear_residual", "max"),
    "Krylov": ("krylov_iterations", "max"),
}


def step_table(steps: Sequence[Step], room: int, *, is_batch: bool) -> Table:
    """Header and rows of the steps, at most so many."""
    columns = {name: part for name, part in COLUMNS.items() if any(getattr(step, part[0]).size for step in steps)}
    norms = ["running", "max norm(F)", "median"] if is_batch else ["norm(F)"]
    names = (f"{extreme} {name}" if is_batch else name for name, (_, extreme) in columns.items())
    header = ["step", *norms, *names, "calls"]
    chosen = list(range(len(steps)))
    if len(steps) > room:
        chosen = [*chosen[: room // 2], *chosen[-(room - room // 2) + 1 :]]
    rows: list[list[str]] = []
    for i in chosen:
        if rows and i > chosen[len(rows) - 1] + 1 and not any(row[0] == "..." for row in rows):
            rows.append(["...", *("" for _ in header[1:])])
        rows.append(_step(steps, i, columns, is_batch=is_batch))
    return header, rows


def _step(steps: Sequence[Step], i: int, columns: dict[str, tuple[str, str]], *, is_batch: bool) -> list[str]:
    step, norms = steps[i], steps[i].residual_norm
    shown = [number(step.worst)]
    if is_batch:
        shown = [str(step.running), *shown, _quantiles(norms)[2]]
    for name, extreme in columns.values():
        values: HostArray = getattr(step, name)
        shown.append(number(getattr(values, extreme)().item()) if values.size else "")
    before = steps[i - 1].counts.evaluations if i else 0
    return [str(step.iteration), *shown, str(step.counts.evaluations - before)]


# ----------------------------------------------------------------------------------------------------------------- text


def number(value: float) -> str:
    """A number as tables show it."""
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two blanks apart: the first to the left, the others, under a header, to the right."""
    lines = [header, *rows] if header else list(rows)
    widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
    is_left = [j == 0 or not header for j in range(len(widths))]
    texts = [
        "  ".join(
            part.ljust(width) if left else part.rjust(width) for part, width, left in zip(line, widths, is_left)
        ).rstrip()
        for line in lines
    ]
    return "\n".join(texts)


def describe(x: Array) -> str:
    """Data type and shape of an array."""
    return f"{str(x.dtype).rpartition('.')[2]} {tuple(x.shape)}"


def _largest(x: Array) -> str:
    return number(norm_max(array_namespace(x).reshape(x, (1, -1))).item())


# ------------------------------------------------------------------------------------------------ repr and notebooks


class Shown:
    """A short `repr` and a table in notebooks, both from `_facts`."""

    def _facts(self) -> dict[str, str]:
        """Fields of a dataclass that are not at their default; functions by their name, nothing in full length."""
        shown: dict[str, str] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not field.default and (
                field.default is MISSING or hasattr(value, "dtype") or value != field.default
            ):
                shown[field.name] = _short(value)
        return shown

    def __repr__(self) -> str:
        """Every fact in a line."""
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._facts().items())})"

    def _norms(self) -> Sequence[float]:
        """Norms to be drawn as a curve."""
        return ()

    def _repr_html_(self) -> str:
        """Table for notebooks."""
        return card(type(self).__name__, self._facts(), self._norms())


def _short(value: Any) -> str:
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__).rpartition(".")[2]
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(str, value))}}}"
    if hasattr(value, "dtype"):
        return describe(value)
    return repr(value)


def card(title: str, facts: Mapping[str, str], norms: Sequence[float] = ()) -> str:
    """A table with a title, and a curve of norms below it where there are at least two."""
    cell = "text-align:left;padding:1px 12px 1px 0"
    rows = "".join(
        f'<tr><th style="{cell};font-weight:normal;opacity:0.7">{html.escape(name)}</th>'
        f'<td style="{cell}">{html.escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><b>{html.escape(title)}</b><table>{rows}</table>{sparkline(norms)}</div>"


def sparkline(norms: Sequence[float]) -> str:
    """Logarithms of norms as a small picture (SVG); "" where fewer than two are positive and finite."""
    points = [(i, math.log10(norm)) for i, norm in enumerate(norms) if 0 < norm < math.inf]
    if len(points) < 2:
        return ""
    low, high = min(y for _, y in points), max(y for _, y in points)
    width, height = CURVE
    across, up = (width - 4) / (len(norms) - 1), (height - 4) / (high - low or 1.0)
    path = " ".join(f"{2 + i * across:.1f},{2 + (high - y) * up:.1f}" for i, y in points)
    label = f"norm(F) over {len(norms) - 1} steps: {norms[0]:.3g} to {norms[-1]:.3g}"
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="{label}"><title>{label}</title>'
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
