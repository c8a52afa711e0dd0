"""`report`: what is known of a solve, on one page for a browser."""

from __future__ import annotations

import math
import os
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from implicitsolve import _report as command
from implicitsolve._arrays.files import as_path
from implicitsolve._summary import (
    batch_tables,
    format_number,
    index_of,
    list_entries,
    order_by_distance,
    per_system,
    step_table,
)
from implicitsolve._typing import HostArray
from implicitsolve.diagnostics import _page
from implicitsolve.diagnostics._explain import MOST_NAMED, Explanation, explain
from implicitsolve.diagnostics._history import ENDED_WELL, read_histories, tabulate_norms
from implicitsolve.diagnostics._page import details, figure, page, pattern_of, scroll, shade, table
from implicitsolve.diagnostics._plots import FAILED, LOOKED_AT
from implicitsolve.diagnostics._spectrum import NotFiniteError, compute_spectrum
from implicitsolve.diagnostics._system import System, unwrap
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult, NonlinearResult
from implicitsolve.status import Status
from implicitsolve.structure import BlockBanded, Grid, Sparse

CURVES = 12  # systems up to which each has its own
CELLS = 120  # of the picture of a structure, along each side
ROWS = 1000  # of a table
UNKNOWNS = "x", "adjoint", "tangent"
DASHES = "", "7 4", "2 3", "10 3 2 3", "12 6"


def report(result: Any, path: str | os.PathLike[str], *, problem: Any = None) -> Path:
    """Write what is known of a solve to one HTML file, which any browser opens without a network.

    Parameters
    ----------
    result : NonlinearResult, LinearResult, AdjointResult, TangentResult, OptimizeResult or NoConvergence
        What `explain` takes.
    path : path_like
        The file; an existing one is replaced.
    problem : Problem or callable, optional
        What `root` solved. Then the page has the spectrum of J at x as well, of the system that is farthest from its
        target, and the checks that `explain` makes with a problem.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    TypeError
        If `result` is none of these, or `problem` is given for a result of another function than `root`.
    OSError
        If the file cannot be written.

    See Also
    --------
    explain, plot_convergence, plot_structure, plot_spectrum : its parts.

    Notes
    -----
    The page has the findings of `explain`, the structure of J, declared or detected, the counts, the versions and the
    machine, and the norms of all systems over the steps. Up to 12 systems have a curve each; more are shown by their
    quantiles and up to five that failed. The page follows the color scheme of the browser, needs no JavaScript, and
    refers to nothing outside. With `problem` it costs 50 products with J, and what `explain` costs. The same result
    gives the same file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> result = ims.root(lambda x: x**2 - 2, np.ones(3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = ims.diagnostics.report(result, pathlib.Path(folder, "solve.html"))
    ...     "The solve converged." in page.read_text(encoding="utf-8")
    True
    """
    result = unwrap(result)
    explanation = explain(result, problem)
    sections = {"Findings": _findings(explanation)}
    if isinstance(result, NonlinearResult):
        if problem is not None and not isinstance(problem, Problem):
            problem = Problem(problem)
        sections["Convergence"] = _convergence(result)
        sections["Structure of J"] = _structure(result, problem)
        if problem is not None and math.prod(result.x.shape):
            sections["Spectrum of J"] = _spectrum(result, problem)
    sections |= {"Work": _work(result), "Environment": _environment()}
    known, environment = list_entries(result), command.versions(())
    kind = f"{type(result).__name__}, {next(known[name] for name in UNKNOWNS if name in known)}"
    text = page(kind, explanation.summary, _head(result), sections, environment["implicitsolve"])
    path = as_path(path)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def _head(result: Any) -> str:
    codes, counts = np.unique(np.asarray(result.status), return_counts=True)
    chips = ""
    for code, n in zip(codes.tolist(), counts.tolist()):
        kind, share = "good" if code in ENDED_WELL else "bad", f" {n}" if np.ndim(result.status) else ""
        chips += f'<li class="{kind}">{Status(code).name}{share}</li>'
    known = list_entries(result)
    calls = [part.partition(" ") for part in known.pop("calls", "").split(", ")]
    known |= {name: text for text, _, name in calls if text not in ("", "0")}
    tiles = ""
    for name in (name for name in known if name not in ("status", *UNKNOWNS)):
        *at_most, text = known[name].split()
        tiles += f"<div><dt>{name}{', at most' if at_most else ''}</dt><dd>{escape(text)}</dd></div>"
    return f'<ul class="chips">{chips}</ul>\n<dl class="tiles">{tiles}</dl>'


def _findings(explanation: Explanation) -> str:
    findings = ""
    for finding in explanation.findings:
        text = "".join(f"<p>{escape(part)}</p>" for part in finding._parts)
        if len(finding.systems) > MOST_NAMED:
            text += details("All of these systems", scroll("Systems", ", ".join(str(i) for i in finding.systems)))
        kind = "warning" if finding.status in ENDED_WELL else "failure"
        findings += f'<article class="{kind}"><h3>{escape(finding._title)}</h3>{text}</article>'
    notes = [escape(note) for note in explanation.notes]
    lead = f"<p>{notes.pop(0)}</p>" if notes and notes[0].endswith(":") else ""
    listed = "".join(f"<li>{note}</li>" for note in notes)
    listed = f'<ul class="notes">{listed}</ul>' if notes else ""
    return (findings or "<p>Nothing suspicious was found.</p>") + lead + listed


def _convergence(result: NonlinearResult) -> str:
    """Norms over the steps, as a figure and as tables."""
    status = np.asarray(result.status)
    if not status.size:
        return "<p>The batch is empty.</p>"
    chosen = np.unique(np.linspace(0, status.size - 1, min(status.size, LOOKED_AT)).astype(int))
    failed = np.flatnonzero(~np.isin(status.reshape(-1), ENDED_WELL))[: FAILED if status.size > CURVES else None]
    rows = np.union1d(chosen, failed).tolist()
    shown = read_histories(result, rows)
    norms = tabulate_norms(shown, max(len(history.norms) for history in shown))
    parts = ["<p>No norm is positive and finite.</p>"]
    if not np.isnan(norms).all():
        parts = [_curves(result, rows, np.log10(norms), failed.tolist())]
    if status.ndim:
        tables = batch_tables(status, result._numbers(), ROWS)
        parts.append(table("Quantiles over the systems", tables["quantiles"]))
        header, lines = tables["systems"]
        name = "Every system, the worst first" if status.size <= ROWS else f"The {ROWS} worst systems"
        parts.append(details(name, table(name, (["system", *header[1:]], lines))))
    if result.steps:
        name = "Every step" if len(result.steps) <= ROWS else "The first and the last steps"
        rows_of_steps = step_table(result.steps, ROWS, is_batch=bool(status.ndim))
        parts.append(details(name, table(name, rows_of_steps)))
    return "\n".join(parts)


def _curves(result: NonlinearResult, rows: list[int], logs: HostArray, failed: list[int]) -> str:
    """The figure: `logs` are the exponents (steps, systems) of some systems; those that failed are drawn singly."""
    status, targets = np.asarray(result.status), per_system(result.target, result.status)
    target = np.log10(np.unique(targets[np.isfinite(targets) & (targets > 0)])).tolist()
    known = [*logs[np.isfinite(logs)].tolist(), *target]
    low, high, last = math.floor(min(known)), math.ceil(max(known)), len(logs) - 1
    axes = _page.Axes((0, max(last, 1)), (low, max(high, low + 1)), ("step", "norm of F(x)"))
    axes.ticks(_page.nice(0, last, 11, whole=True), _page.nice(low, high, 8, whole=True), powers=True)
    is_small = status.size <= CURVES
    legend = [] if is_small else _draw_quantiles(axes, logs, status.size)
    legend += _draw_systems(result, axes, rows if is_small else failed, failed, len(logs))
    for value in dict.fromkeys((*target[:1], *target[-1:])):
        axes.line((0, max(last, 1)), (value, value), "target", "target")
    if target:
        legend.append(f"{_page.key('target')}{'target' if len(target) == 1 else 'smallest and largest target'}")
    label = f"Norm of F(x) over {last} steps, between 10^{min(known):.1f} and 10^{max(known):.1f}."
    return figure(axes.svg(label), "The norm of F(x) after each step; a logarithmic scale.", legend)


def _draw_quantiles(axes: _page.Axes, logs: HostArray, size: int) -> list[str]:
    """All systems of a batch, as bands and their median; its legend."""
    steps = np.flatnonzero(np.isfinite(logs).any(axis=1)).tolist()
    least, quarter, median, three, most = np.nanquantile(logs[steps], (0, 0.25, 0.5, 0.75, 1), axis=1).tolist()
    axes.band(steps, least, most)
    axes.band(steps, quarter, three)
    axes.line(steps, median, "curve", f"median of {size} systems")
    return [f"{_page.key('band')}all {size} systems, darker the middle half", f"{_page.key('curve')}median"]


def _draw_systems(
    result: NonlinearResult, axes: _page.Axes, rows: list[int], failed: list[int], length: int
) -> list[str]:
    """A curve for each of some systems up to its last step, with dots where there is no batch; their legend."""
    status, legend = np.asarray(result.status), list[str]()
    ordinary = "curve thin" if status.ndim else "curve"
    for row in rows:
        name = f"system {index_of(row, status.shape)}: {Status(int(status.flat[row])).name}" if status.ndim else "norm"
        kind, dash = ("failed", DASHES[failed.index(row) % len(DASHES)]) if row in failed else (ordinary, "")
        exponents = np.log10(tabulate_norms(read_histories(result, [row]), length, pad=False)[:, 0]).tolist()
        axes.line(range(length), exponents, kind, name, dash)
        if not status.ndim:
            names = [f"step {step}: {format_number(10**value)}" for step, value in enumerate(exponents)]
            axes.dots(range(length), exponents, ["dot failure" if failed else "dot"] * length, names)
        elif row in failed:
            legend.append(f"{_page.key(kind, dash)}{escape(name)}")
    if status.ndim and len(failed) < len(rows):
        legend.insert(0, f"{_page.key(ordinary)}systems{' that did not fail' if failed else ''}")
    others = np.count_nonzero(~np.isin(status, ENDED_WELL)) - len(failed)
    return [*legend, f"and {others} more that failed"] if others else legend


def _structure(result: NonlinearResult, problem: Problem | None) -> str:
    """Where J has entries: detected, or declared."""
    found, declared = result.detection, None if problem is None else problem.structure
    unknowns = math.prod(result.x.shape) // max(np.size(result.status), 1)
    source: Any = found
    if (found is None or found.structure is None) and isinstance(declared, BlockBanded | Sparse | Grid) and unknowns:
        source = declared
    elif found is None or found.structure is None:
        why = "The solve looked for no sparsity of J." if found is None else f"J: {found}."
        return f"<p>{escape(why)}</p>"
    pattern = pattern_of("report", source, unknowns)
    cells, n = pattern.shares(CELLS), pattern.unknowns
    said = str(source) if source is found else f"{source!r}, {pattern.entries} entries"
    share = "Each entry is a square" if len(cells) == n else "Entries share squares, darker where there are more"
    caption = f"J, {n} × {n}: {said}. {share}; equations run downwards, unknowns to the right."
    return figure(_page.matrix(shade(cells), f"Where J has entries: {said}"), caption, kind="beside")


def _spectrum(result: NonlinearResult, problem: Problem) -> str:
    """Eigenvalues of J in the complex plane, for the system that is farthest from its target."""
    status, norms = np.asarray(result.status), per_system(result.residual_norm, result.status)
    order = order_by_distance(status.reshape(-1), norms, per_system(result.target, status))
    row = int(next((i for i in order if np.isfinite(norms[i])), order[0]))
    index = tuple(int(i) for i in np.unravel_index(row, status.shape))
    system = System("report", problem, result.x, index or None)
    try:
        found = compute_spectrum(system)
    except NotFiniteError:
        return "<p>The spectrum was not computed: a product with J is not finite.</p>"
    values: Any = 1 - found.values
    kinds = np.where(found.errors <= 0.01 * found.radius, "dot", "ring").tolist()
    axes = _page.plane([0.0, *values, *((2.0, 1 + 1j, 1 - 1j) if problem.fixed_point else ())])
    if problem.fixed_point:
        turn = np.linspace(0, 2 * np.pi, 121)
        axes.line((1 + np.cos(turn)).tolist(), np.sin(turn).tolist(), "circle", "|λ - 1| = 1")
    axes.dots(values.real.tolist(), values.imag.tolist(), kinds, [f"{value:.4g}" for value in values.tolist()])
    kind = ("eigenvalue" if found.exact else "Ritz value") + "s" * (values.size > 1)
    moduli = f"moduli from {format_number(np.abs(values).min().item())} to {format_number(np.abs(values).max().item())}"
    caption = f"{values.size} {kind} of J at x{f' of system {index}' if index else ''}, {moduli}."
    legend = [f"{_page.key('dot')}accurate", f"{_page.key('ring')}not yet accurate"] if "ring" in kinds else []
    if problem.fixed_point:
        legend.append(f"{_page.key('circle')}Picard's iteration converges if all lie inside")
    return figure(axes.svg(caption), caption, legend)


def _work(result: Any) -> str:
    rows: dict[str, Any] = {}
    if not isinstance(result, LinearResult):
        names = "calls of the residual", "products J v", "products with the adjoint", "linearizations"
        calls = result.counts
        rows = dict(zip(names, (calls.residuals, calls.jvps, calls.vjps, calls.linearizations)))
    if isinstance(result, NonlinearResult):
        rows["factorizations"] = sum(step.factorized.sum() for step in result.steps)
        rows |= {"Krylov iterations": np.sum(result.krylov_iterations), "accepted steps": np.sum(result.iterations)}
    else:
        linear = result if isinstance(result, LinearResult) else result.linear
        rows |= {"products of the linear solve": linear.matvecs, "Krylov iterations": np.sum(linear.iterations)}
    what = "A call, a product and a linearization cover the whole batch; the other counts are sums over its systems."
    note = f"<p>{what}</p>" if np.ndim(result.status) else ""
    return note + table("What the solve took", ([], [[name, str(n)] for name, n in rows.items() if n]), "text")


def _environment() -> str:
    loaded = [name for name in command.OPTIONAL if name in sys.modules]
    threads = {name: value for name, value in command.threads().items() if value != "not set"}
    sections = {"Versions": command.versions(loaded), "Machine": command.machine(), "Threads": threads}
    tables = "".join(table(name, ([], list(part.items())), "text") for name, part in sections.items() if part)
    return f'<div class="columns">{tables}</div>'
