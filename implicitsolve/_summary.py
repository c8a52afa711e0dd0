"""What `result.summary()` prints: tables of at most 100 columns and about 40 lines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from implicitsolve._namespace import array_namespace, norm_max
from implicitsolve._typing import Array, HostArray
from implicitsolve.status import Status

LINES = 40  # of a summary, about
WIDTH = 100
WORST = 5  # systems shown by their index
GRADIENTS = 8
Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[str]]]  # header and rows
QUANTILES = {"min": 0.0, "quarter": 0.25, "median": 0.5, "3 quarters": 0.75, "max": 1.0}


class Counts(Protocol):
    """Calls of the user's functions."""

    @property
    def residuals(self) -> int: ...
    @property
    def jvps(self) -> int: ...
    @property
    def vjps(self) -> int: ...


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


class Outcome(Protocol):
    """What every summary of a solve shows."""

    @property
    def x(self) -> Array: ...
    @property
    def status(self) -> Any: ...
    @property
    def residual_norm(self) -> Any: ...
    @property
    def target(self) -> Any: ...
    @property
    def iterations(self) -> Any: ...


class Linear(Outcome, Protocol):
    """What that of a linear solve shows as well."""

    @property
    def matvecs(self) -> int: ...


class Nonlinear(Outcome, Protocol):
    """What that of a nonlinear solve shows as well."""

    @property
    def initial_norm(self) -> Any: ...
    @property
    def krylov_iterations(self) -> Any: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def steps(self) -> Sequence[Step]: ...
    @property
    def detection(self) -> Any: ...
    @property
    def retries(self) -> Sequence[Any]: ...


class Derivative(Protocol):
    """What the summary of a derivative of a solution shows."""

    @property
    def status(self) -> Any: ...
    @property
    def linear(self) -> Linear: ...
    @property
    def counts(self) -> Counts: ...


def of_nonlinear(result: Nonlinear) -> str:
    """Summary of a nonlinear solve."""
    status = np.asarray(result.status)
    known = {"norm(F)": result.residual_norm, "target": result.target, "at x0": result.initial_norm}
    work = {"steps": result.iterations, "Krylov": result.krylov_iterations}
    kind, calls = type(result).__name__, _calls(result.counts)
    if not status.ndim:
        rows = [
            *_fields(known | work),
            ["calls", calls],
            ["x", _array(result.x)],
            *_sparsity(result),
            *_retries(result),
        ]
        parts = [_head(kind, status), "", table([], rows), *_history(result.steps, len(rows) + 3, is_batch=False)]
        return "\n".join(parts)
    parts = [f"{kind}: {_array(result.x)}, {status.size} systems", "", f"calls: {calls}"]
    parts += ["  ".join(row) for row in (*_sparsity(result), *_retries(result))]
    parts += _batch(status, known, work)
    used = sum(part.count("\n") + 1 for part in parts)
    return "\n".join([*parts, *_history(result.steps, used, is_batch=True)])


def of_linear(result: Linear) -> str:
    """Summary of a linear solve."""
    status = np.asarray(result.status)
    known, work = {"norm(b - A x)": result.residual_norm, "target": result.target}, {"iterations": result.iterations}
    kind, size = type(result).__name__, f"{result.matvecs}"
    if not status.ndim:
        rows = [*_fields(known | work), ["products", size], ["x", _array(result.x)]]
        return "\n".join([_head(kind, status), "", table([], rows)])
    parts = [f"{kind}: {_array(result.x)}, {status.size} systems", "", f"products: {size}"]
    return "\n".join(parts + _batch(status, known, work))


def of_derivative(result: Derivative, gradients: Mapping[str, Array]) -> str:
    """Summary of a derivative of a solution: its linear solve, and gradients where there are any."""
    status, kind = np.asarray(result.status), type(result).__name__
    head = f"{kind}: {status.size} systems" if status.ndim else _head(kind, status)
    lines = [head, "", f"calls: {_calls(result.counts)}"]
    if gradients:
        shown = list(gradients.items())[:GRADIENTS]
        rows = [[name, *_array(value).split(" ", 1), _largest(value)] for name, value in shown]
        lines += ["", table(["gradient", "dtype", "shape", "max|.|"], rows)]
        if len(gradients) > len(shown):
            lines.append(f"and {len(gradients) - len(shown)} more")
    if status.ndim:
        lines += ["", table(["status", "systems"], _by_status(status))]
    return "\n".join([*lines, "", of_linear(result.linear)])


def facts(result: Any) -> dict[str, str]:
    """What a line, or the table of a notebook, says of a result: of a batch the largest numbers."""
    status = np.asarray(result.status)
    by_status = [f"{name} ({count})" if status.ndim else name for name, count in _by_status(status)]
    shown = {"status": ", ".join(by_status) or "the batch is empty"}
    for name in ("x", "adjoint", "tangent"):
        if hasattr(result, name):
            shown[name] = _array(getattr(result, name))
    names = {"residual_norm": "residual norm", "target": "target", "iterations": "steps"}
    for field, name in names.items():
        values = np.asarray(getattr(result, field, math.nan))
        if values.size and not np.isnan(values).all():
            shown[name] = ("at most " if status.ndim else "") + number(np.nanmax(values).item())
    if hasattr(result, "counts"):
        shown["calls"] = _calls(result.counts)
    return shown


# ---------------------------------------------------------------------------------------------------------------- parts


def _head(kind: str, status: HostArray) -> str:
    ended = Status(int(status))
    return textwrap.fill(f"{kind}: {ended.name}: {ended.message}", WIDTH, subsequent_indent="  ")


def _sparsity(result: Nonlinear) -> list[list[str]]:
    return [] if result.detection is None else [["J", str(result.detection)]]


def _retries(result: Nonlinear) -> list[list[str]]:
    return [["then", str(retry)] for retry in result.retries]


def _fields(values: dict[str, Any]) -> list[list[str]]:
    return [[name, number(np.asarray(value).item())] for name, value in values.items()]


def _batch(status: HostArray, known: dict[str, Any], work: dict[str, Any]) -> list[str]:
    """Counts of each status, quantiles and the worst systems of a batch."""
    if not status.size:
        return ["", "the batch is empty"]
    return [line for part in batch_tables(status, known | work, WORST).values() for line in ("", table(*part))]


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

COLUMNS = {
    "length": ("step_length", np.min),
    "eta": ("forcing", np.max),
    "linear": ("linear_residual", np.max),
    "Krylov": ("krylov_iterations", np.max),
}


def _history(steps: Sequence[Step], used: int, *, is_batch: bool) -> list[str]:
    """The steps as a table; the middle of a long one is left out."""
    return ["", table(*step_table(steps, max(4, LINES - used - 2), is_batch=is_batch))] if steps else []


def step_table(steps: Sequence[Step], room: int, *, is_batch: bool) -> Table:
    """Header and rows of the steps, at most so many."""
    columns = {name: part for name, part in COLUMNS.items() if any(getattr(step, part[0]).size for step in steps)}
    norms = ["running", "max norm(F)", "median"] if is_batch else ["norm(F)"]
    extremes = {"length": "min length", "eta": "max eta", "linear": "max linear", "Krylov": "max Krylov"}
    header = ["step", *norms, *(extremes[name] if is_batch else name for name in columns), "calls"]
    chosen = list(range(len(steps)))
    if len(steps) > room:
        chosen = [*chosen[: room // 2], *chosen[-(room - room // 2) + 1 :]]
    rows: list[list[str]] = []
    for i in chosen:
        if rows and i > chosen[len(rows) - 1] + 1 and not any(row[0] == "..." for row in rows):
            rows.append(["...", *("" for _ in header[1:])])
        rows.append(_step(steps, i, columns, is_batch=is_batch))
    return header, rows


def _step(steps: Sequence[Step], i: int, columns: dict[str, Any], *, is_batch: bool) -> list[str]:
    step, norms = steps[i], steps[i].residual_norm
    shown = [number(step.worst)]
    if is_batch:
        shown = [str(step.running), *shown, _quantiles(norms)[2]]
    for name, reduce in columns.values():
        values: HostArray = getattr(step, name)
        shown.append(number(reduce(values).item()) if values.size else "")
    return [str(step.iteration), *shown, str(total(step.counts) - (total(steps[i - 1].counts) if i else 0))]


def total(counts: Counts) -> int:
    """Residuals and products."""
    return counts.residuals + counts.jvps + counts.vjps


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


def _calls(counts: Counts) -> str:
    names = ("residuals", "jvps", "vjps", "linearizations")
    return ", ".join(f"{getattr(counts, name)} {name}" for name in names)


def _array(x: Array) -> str:
    return f"{str(x.dtype).rsplit('.', maxsplit=1)[-1]} {tuple(x.shape)}"


def _largest(x: Array) -> str:
    return number(norm_max(array_namespace(x).reshape(x, (1, -1))).item())
