"""The page that `report` writes: HTML around tables and pictures, and pictures of histories in SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any, NamedTuple

import numpy as np

from implicitsolve._summary import Table
from implicitsolve._typing import HostArray
from implicitsolve.diagnostics._system import unwrap
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import check_limit
from implicitsolve.structure import BlockBanded, Detection, Grid, Sparse


class Pattern(NamedTuple):
    """The square blocks of J that have entries, their size, and the rows that are full beside them."""

    blocks: Sparse
    size: int = 1
    full_rows: HostArray = np.zeros(0, dtype=np.intp)

    @property
    def unknowns(self) -> int:
        return self.blocks.unknowns * self.size

    @property
    def entries(self) -> int:
        return self.blocks.nnz * self.size**2 + self.full_rows.size * self.unknowns

    def shares(self, most: int) -> HostArray:
        """The share of entries in each of at most `most` cells along each side; blocks are no larger than needed."""
        length = self.blocks.unknowns
        size = min(self.size, max(1, most // max(length, 1)))
        step, inside = _step(length * size, most), np.arange(size)
        cells = np.bincount(np.arange(length * size) // step)
        rows, columns = (part[:, None].astype(np.int64) * size for part in (self.blocks.indices, self.blocks.columns))
        places = ((rows + inside) // step * cells.size)[:, :, None] + ((columns + inside) // step)[:, None, :]
        table = np.bincount(places.reshape(-1), minlength=cells.size**2).reshape(cells.size, cells.size)
        table = table / np.outer(cells, cells)
        table[self.full_rows // step] = 1.0
        return table


def pattern_of(caller: str, given: Any, unknowns: int | None = None) -> Pattern:
    """The pattern of a structure, of what a search has found, or of what a solve has used."""
    found: Any = unwrap(given)
    if isinstance(found, BlockBanded):
        if unknowns is None:
            raise TypeError(f"{caller}: a BlockBanded needs `unknowns`")
        check_limit(caller, "unknowns", unknowns)
        length = found.length(unknowns)
        columns = np.arange(length)[:, None] + np.arange(-found.lower, found.upper + 1)
        rows, places = np.nonzero(found.periodic | (columns >= 0) & (columns < length))
        return Pattern(Sparse((rows, columns[rows, places] % length), unknowns=length), found.block_size)
    if isinstance(found, NonlinearResult) and found.detection is None:
        raise ValueError(f"{caller}: the solve that led to this result looked for no sparsity of J")
    found = found.detection if isinstance(found, NonlinearResult) else found
    if isinstance(found, Detection) and found.structure is None:
        raise ValueError(f"{caller}: no sparsity was used, since {found.reason}")
    is_found = isinstance(found, Detection)
    sparse: Any = found.structure if is_found else found.sparse if isinstance(found, Grid) else found
    if not isinstance(sparse, Sparse):
        expected = f"{caller}: `structure` must be a BlockBanded, Sparse, Grid, Detection or a result"
        raise TypeError(f"{expected}, got {type(given).__name__}")
    sparse.check_size(sparse.unknowns if unknowns is None else unknowns)
    return Pattern(sparse, full_rows=found.full_rows) if is_found else Pattern(sparse)


def shade(table: HostArray) -> HostArray:
    """How dark each cell is, up to 1: the fullest is the darkest, and one with a single entry can still be seen."""
    return np.where(table > 0, 0.4 + 0.6 * np.sqrt(table / (table.max(initial=0.0) or 1.0)), 0.0)


def magnitudes(A: Any, most: int) -> HostArray:
    """The largest modulus in each cell of a SciPy sparse array."""
    entries, step = A.tocoo(), _step(A.shape[0], most)
    table = np.zeros((-(-A.shape[0] // step),) * 2)
    np.maximum.at(table, (entries.row // step, entries.col // step), np.abs(entries.data))
    return table


def _step(n: int, most: int) -> int:
    """Rows that share a cell."""
    return max(1, -(-n // most))


WIDTH, HEIGHT = 720, 340  # of a picture, in pixels
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 46  # margins
LEVELS = 4  # shades of a matrix
DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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


def figure(svg: str, caption: str, legend: Sequence[str] = (), *, kind: str = "wide") -> str:
    """A figure with its caption, below it or, `kind` "beside", at its side."""
    entries = "".join(f"<li>{entry}</li>" for entry in legend)
    listed = f'<ul class="legend">{entries}</ul>' if legend else ""
    region = scroll(f"Figure: {caption.partition('.')[0]}", svg)
    return f'<figure class="{kind}">{region}<figcaption>{escape(caption)}{listed}</figcaption></figure>'


# Figures


class Axes:
    """A frame with grid lines, and what is drawn in it, in the order of the calls; what is not finite is left out."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float], labels: tuple[str, str]) -> None:
        self.across, self.up, self.labels = across, up, labels
        self.parts: list[str] = []

    def x(self, value: float) -> float:
        low, high = self.across
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.up
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    def ticks(self, across: Sequence[float], up: Sequence[float], *, powers: bool = False) -> None:
        """Grid lines with their values; `powers`: those upwards are exponents of ten."""
        for value in across:
            x = f"{self.x(value):.1f}"
            self.parts.append(f'<path class="grid" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>')
            self.parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:g}</text>')
        for value in up:
            y, name = self.y(value), f"10{f'{value:g}'.translate(DIGITS)}" if powers else f"{value:g}"
            self.parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            self.parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')

    def line(self, xs: Sequence[float], ys: Sequence[float], kind: str, name: str, dash: str = "") -> None:
        drawn = f'<polyline class="{kind}" points="{self._points(xs, ys)}" stroke-dasharray="{dash or "none"}">'
        self.parts.append(f"{drawn}<title>{escape(name)}</title></polyline>")

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
        points = self._points([*xs, *xs[::-1]], [*high, *low[::-1]])
        self.parts.append(f'<polygon class="band" points="{points}"/>')

    def dots(self, xs: Sequence[float], ys: Sequence[float], kinds: Sequence[str], names: Sequence[str]) -> None:
        for x, y, kind, name in zip(xs, ys, kinds, names):
            if math.isfinite(y):
                place = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3.5"'
                self.parts.append(f'<circle class="{kind}" {place}><title>{escape(name)}</title></circle>')

    def _points(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys) if math.isfinite(y))

    def svg(self, label: str) -> str:
        """The figure; `label` is read where it cannot be seen."""
        name, other = self.labels
        middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
        texts = (
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{name}</text>'
            f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{other}</text>'
        )
        frame = f'<path class="frame" d="M{LEFT} {TOP}H{WIDTH - RIGHT}V{HEIGHT - BOTTOM}H{LEFT}Z"/>'
        return picture(f"0 0 {WIDTH} {HEIGHT}", "wide", label, f"{''.join(self.parts)}{frame}{texts}")


def picture(view: str, kind: str, label: str, content: str) -> str:
    """An SVG element with a text in its place."""
    return f'<svg class="{kind}" viewBox="{view}" role="img" aria-label="{escape(label)}">{content}</svg>'


def key(kind: str, dash: str = "none") -> str:
    """What a legend shows of a curve, a band, or a dot."""
    width, path = (12, "M2 6a4 4 0 1 0 8 0a4 4 0 1 0-8 0z") if kind in ("dot", "ring") else (36, "M0 6h36")
    path = "M0 0h36v12h-36z" if kind == "band" else path
    content = f'<path class="{kind}" d="{path}" stroke-dasharray="{dash or "none"}"/>'
    return f'<svg class="key" width="{width}" viewBox="0 0 {width} 12" aria-hidden="true">{content}</svg>'


def plane(values: Sequence[complex]) -> Axes:
    """Axes of the complex plane that hold some values, in one scale."""
    corners: Any = np.asarray(values, dtype=complex)
    middle = complex(*((part.min() + part.max()) / 2 for part in (corners.real, corners.imag)))
    ratio = (WIDTH - LEFT - RIGHT) / (HEIGHT - TOP - BOTTOM)
    half = 0.56 * max(np.ptp(corners.real) / ratio, np.ptp(corners.imag)) or 1.0
    across = middle.real - half * ratio, middle.real + half * ratio
    up = middle.imag - half, middle.imag + half
    axes = Axes(across, up, ("real part", "imaginary part"))
    axes.ticks(nice(*across, 9), nice(*up, 6))
    return axes


def nice(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Round values from low to high, at most `most` of them."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / (most - 1)))
    step = next(m * power for m in (1, 2, 5, 10, 20) if span / (m * power) <= most - 1 + 1e-9)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def matrix(shade: HostArray, label: str) -> str:
    """The cells of a matrix, in a few shades."""
    side = max(len(shade), 1)
    level = np.ceil(shade * LEVELS).astype(int)
    paths = [""] * (LEVELS + 1)
    for i, row in enumerate(level.tolist()):
        j = 0
        for value, run in itertools.groupby(row):
            length = len(list(run))
            paths[value] += f"M{j} {i}h{length}v1h-{length}z"
            j += length
    content = "".join(
        f'<path class="cells" fill-opacity="{value / LEVELS:.2f}" d="{paths[value]}"/>'
        for value in range(1, LEVELS + 1)
        if paths[value]
    )
    frame = f'<path class="frame" d="M0 0H{side}V{side}H0Z"/>'
    return picture(f"0 0 {side} {side}", "square", label, f'<g shape-rendering="crispEdges">{content}</g>{frame}')
