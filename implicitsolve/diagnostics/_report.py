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
from implicitsolve._summary import list_entries, order_by_distance, per_system, summarize
from implicitsolve.diagnostics._explain import Explanation, explain
from implicitsolve.diagnostics._history import ENDED_WELL, MANY_SYSTEMS
from implicitsolve.diagnostics._plots import plot_convergence, plot_spectrum, plot_structure
from implicitsolve.diagnostics._spectrum import NotFiniteError
from implicitsolve.diagnostics._system import unwrap
from implicitsolve.errors import BackendUnavailable, require
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult, NonlinearResult
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
    The page has the findings of `explain`, the structure of J, declared or detected, the result's `summary` in full
    length, and the versions and the machine. Its figures are those of the functions that plot; without matplotlib it
    has the texts alone. The page follows the color scheme of the browser, needs no JavaScript, and refers to nothing
    outside. With `problem` it costs 50 products with J, and what `explain` costs. The same result
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
        norms = "The norm of F(x) after each step"
        sections["Convergence"] = _figure(norms, lambda ax: plot_convergence(result, ax=ax))
        sections["Structure of J"] = _structure(result, problem)
        if problem is not None and math.prod(result.x.shape):
            sections["Spectrum of J"] = _spectrum(result, problem)
    is_solve = isinstance(result, NonlinearResult | LinearResult)
    loaded = [name for name in command.OPTIONAL if name in sys.modules]
    machine = {"Versions": command.versions(loaded), "Machine": command.machine(), "Threads": command.threads()}
    work = summarize(result, MANY_SYSTEMS, MANY_SYSTEMS) if is_solve else result.summary()
    sections["Work"] = _text("The solve", work)
    sections["Environment"] = _text("Versions and machine", "\n".join(command.lines_of(machine)))
    known = list_entries(result)
    kind = f"{type(result).__name__}, {next(known[name] for name in UNKNOWNS if name in known)}"
    whole, path = _page(kind, explanation, sections, machine["Versions"]["implicitsolve"]), as_path(path)
    path.write_text(whole, encoding="utf-8", newline="\n")
    return path


def _findings(explanation: Explanation) -> str:
    found = ""
    for finding in explanation.findings:
        text = "".join(f"<p>{escape(part)}</p>" for part in finding._parts)
        kind = "good" if finding.status in ENDED_WELL else "bad"
        found += f'<article class="{kind}"><h3>{escape(finding._title)}</h3>{text}</article>'
    return (found or "<p>Nothing suspicious was found.</p>") + "".join(f"<p>{escape(n)}</p>" for n in explanation.notes)


def _structure(result: NonlinearResult, problem: Problem | None) -> str:
    """Where J has entries: detected, or declared."""
    found, declared = result.detection, None if problem is None else problem.structure
    unknowns = math.prod(result.x.shape) // max(np.size(result.status), 1)
    if found is not None and found.structure is not None:
        return _figure(f"J: {found}", lambda ax: plot_structure(found, unknowns, ax=ax))
    if isinstance(declared, BlockBanded | Sparse | Grid) and unknowns:
        return _figure(f"J: {declared!r}", lambda ax: plot_structure(declared, unknowns, ax=ax))
    return f"<p>{'The solve looked for no sparsity of J.' if found is None else escape(f'J: {found}.')}</p>"


def _spectrum(result: NonlinearResult, problem: Problem) -> str:
    """Eigenvalues of J in the complex plane, for the system that is farthest from its target."""
    status, norms = np.asarray(result.status), per_system(result.residual_norm, result.status)
    order = order_by_distance(status.reshape(-1), norms, per_system(result.target, status))
    row = int(next((i for i in order if np.isfinite(norms[i])), order[0]))
    index = tuple(int(i) for i in np.unravel_index(row, status.shape))
    caption = f"At x{f' of system {index}' if index else ''}"
    try:
        return _figure(caption, lambda ax: plot_spectrum(problem, result.x, system=index or None, ax=ax))
    except NotFiniteError:
        return "<p>The spectrum was not computed: a product with J is not finite.</p>"


def _page(kind: str, explanation: Explanation, sections: Mapping[str, str], version: str) -> str:
    """The whole document; its policy forbids the browser to load anything."""
    ids = {name: name.lower().replace(" ", "-") for name in sections}
    links = "".join(f'<li><a href="#{ids[name]}">{name}</a></li>' for name in sections)
    parts = "\n".join(
        f'<section aria-labelledby="{ids[name]}"><h2 id="{ids[name]}" tabindex="-1">{name}</h2>\n{part}\n</section>'
        for name, part in sections.items()
    )
    folder = resources.files("implicitsolve.diagnostics")
    style, template = (folder.joinpath(f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "html"))
    title = escape(explanation.summary)
    texts = {"kind": kind, "title": title, "heading": title.rstrip("."), "links": links, "version": version}
    return Template(template).substitute(texts, parts=parts, style=style)


def _text(name: str, text: str) -> str:
    """A text in columns, which scrolls where it is too wide or long, by the keyboard too."""
    return f'<pre tabindex="0" role="region" aria-label="{name}">{escape(text)}</pre>'


def _figure(caption: str, draw: Callable[[Any], Any]) -> str:
    """A figure that ``draw(axes)`` makes, as an image in the colors of the browser's scheme, with its caption."""
    try:
        matplotlib = require("matplotlib.figure", "figures need matplotlib: pip install 'implicitsolve[plot]'")
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
