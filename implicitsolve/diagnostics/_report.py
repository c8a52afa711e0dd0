"""`report`: what is known of a solve, on one page for a browser."""

from __future__ import annotations

import base64
import importlib
import io
import math
import os
import sys
from collections.abc import Callable, Mapping
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from implicitsolve import _report as command
from implicitsolve._arrays.files import as_path
from implicitsolve._summary import (
    WORST,
    Table,
    batch_tables,
    list_entries,
    number_rows,
    order_by_distance,
    per_system,
    step_table,
)
from implicitsolve.diagnostics._explain import Explanation, explain
from implicitsolve.diagnostics._history import ENDED_WELL, MANY
from implicitsolve.diagnostics._plots import plot_convergence, plot_spectrum, plot_structure
from implicitsolve.diagnostics._spectrum import NotFiniteError
from implicitsolve.diagnostics._system import unwrap
from implicitsolve.errors import BackendUnavailable, required
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult, NonlinearResult
from implicitsolve.status import Status
from implicitsolve.structure import BlockBanded, Grid, Sparse

UNKNOWNS = "x", "adjoint", "tangent"
INK = "svg { color: #1c2024; fill: currentColor } @media (prefers-color-scheme: dark) { svg { color: #e8eaed } }"


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
    machine, and the norms of all systems over the steps. Its figures are those of the functions that plot; without
    matplotlib it has the tables alone. The page follows the color scheme of the browser, needs no JavaScript, and
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
    return f'<ul class="chips">{chips}</ul>'


def _findings(explanation: Explanation) -> str:
    findings = ""
    for finding in explanation.findings:
        text = "".join(f"<p>{escape(part)}</p>" for part in finding._parts)
        if len(finding.systems) > WORST:
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
    parts = [figure("The norm of F(x) after each step", lambda ax: plot_convergence(result, ax=ax))]
    if result.steps:
        name = "Every step" if len(result.steps) <= MANY else "The first and the last steps"
        parts.append(details(name, table(name, step_table(result.steps, MANY, is_batch=bool(status.ndim)))))
    return "\n".join(parts)


def _structure(result: NonlinearResult, problem: Problem | None) -> str:
    """Where J has entries: detected, or declared."""
    found, declared = result.detection, None if problem is None else problem.structure
    unknowns = math.prod(result.x.shape) // max(np.size(result.status), 1)
    source: Any = found
    if found is None or found.structure is None:
        if not (isinstance(declared, BlockBanded | Sparse | Grid) and unknowns):
            why = "The solve looked for no sparsity of J." if found is None else f"J: {found}."
            return f"<p>{escape(why)}</p>"
        source = declared
    said = str(source) if source is found else repr(source)
    return figure(f"J: {said}", lambda ax: plot_structure(source, unknowns, ax=ax))


def _spectrum(result: NonlinearResult, problem: Problem) -> str:
    """Eigenvalues of J in the complex plane, for the system that is farthest from its target."""
    status, norms = np.asarray(result.status), per_system(result.residual_norm, result.status)
    order = order_by_distance(status.reshape(-1), norms, per_system(result.target, status))
    row = int(next((i for i in order if np.isfinite(norms[i])), order[0]))
    index = tuple(int(i) for i in np.unravel_index(row, status.shape))
    caption = f"At x{f' of system {index}' if index else ''}"
    try:
        return figure(caption, lambda ax: plot_spectrum(problem, result.x, system=index or None, ax=ax))
    except NotFiniteError:
        return "<p>The spectrum was not computed: a product with J is not finite.</p>"


def _work(result: Any) -> str:
    """The numbers of the solve, for a batch their quantiles and the worst systems, and what the whole has taken."""
    solved = result if isinstance(result, NonlinearResult | LinearResult) else result.linear
    status, numbers = np.asarray(solved.status), solved._numbers()
    if not status.ndim:
        return table("The solve", ([], [*number_rows(numbers), *result._facts()]), "text")
    parts = [table("The whole batch", ([], result._facts()), "text")]
    if status.size:
        tables = batch_tables(status, numbers, MANY)
        header, rows = tables["systems"]
        name = "Every system, the worst first" if status.size <= MANY else f"The {MANY} worst systems"
        parts.append(table("Quantiles over the systems", tables["quantiles"]))
        parts.append(details(name, table(name, (["system", *header[1:]], rows))))
    return "\n".join(parts)


def _environment() -> str:
    loaded = [name for name in command.OPTIONAL if name in sys.modules]
    threads = {name: value for name, value in command.threads().items() if value != "not set"}
    sections = {"Versions": command.versions(loaded), "Machine": command.machine(), "Threads": threads}
    tables = "".join(table(name, ([], list(part.items())), "text") for name, part in sections.items() if part)
    return f'<div class="columns">{tables}</div>'


def page(kind: str, title: str, head: str, sections: Mapping[str, str], version: str) -> str:
    """The whole document; its policy forbids the browser to load anything."""
    ids = {name: name.lower().replace(" ", "-") for name in sections}
    links = "".join(f'<li><a href="#{ids[name]}">{name}</a></li>' for name in sections)
    parts = "\n".join(
        f'<section aria-labelledby="{ids[name]}"><h2 id="{ids[name]}" tabindex="-1">{name}</h2>\n{part}\n</section>'
        for name, part in sections.items()
    )
    folder = resources.files("implicitsolve.diagnostics")
    style, template = (folder.joinpath(f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "html"))
    texts = {"kind": kind, "title": escape(title), "heading": escape(title.rstrip(".")), "head": head, "links": links}
    return Template(template).substitute(texts, parts=parts, style=style, version=version)


def table(caption: str, table: Table, kind: str = "") -> str:
    """A table, whose caption is its name; `kind` "text" is one of names and words."""
    header, rows = table
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    head = f"<thead><tr>{names}</tr></thead>" if header else ""
    lines = ""
    for first, *others in rows:
        cells = "".join(f"<td>{escape(part)}</td>" for part in others)
        lines += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    content = f'<table class="{kind}"><caption>{escape(caption)}</caption>{head}<tbody>{lines}</tbody></table>'
    return scroll(caption, content)


def scroll(name: str, content: str) -> str:
    """A region that scrolls where it is too wide, by the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">{content}</div>'


def details(summary: str, content: str) -> str:
    """A part of the page that is closed until it is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def figure(caption: str, draw: Callable[[Any], Any]) -> str:
    """A figure that ``draw(axes)`` makes, as an image in the colors of the browser's scheme, with its caption."""
    try:
        matplotlib = required("matplotlib.figure", "figures need matplotlib: pip install 'implicitsolve[plot]'")
    except BackendUnavailable as error:
        return f"<p>{escape(str(error).partition(' (')[0].capitalize())}.</p>"
    style: Any = importlib.import_module("matplotlib.style")
    options = {"svg.hashsalt": "implicitsolve", "svg.fonttype": "none", "legend.framealpha": 0}
    file = io.StringIO()
    with style.context(["default", options]):
        drawn = matplotlib.Figure(figsize=(7.5, 4), layout="constrained")
        ax = drawn.subplots()
        draw(ax)
        drawn.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue().replace("#000000", "currentColor").replace("<defs>", f"<style>{INK}</style><defs>", 1)
    image = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    said = escape(". ".join(part for part in (ax.get_title(), caption) if part))
    return f'<figure><img src="{image}" alt="{said}"><figcaption>{said}</figcaption></figure>'
