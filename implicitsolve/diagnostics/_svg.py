"""Figures of the report: SVG whose colors are those of its style sheet."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray

WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 46  # margins
LEVELS = 4  # shades of a matrix
DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Axes:
    """A frame with grid lines, and what is drawn in it, in the order of the calls; what is not finite is left out."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float], labels: tuple[str, str]) -> None:
        self.across, self.up, self.labels = across, up, labels
        self.parts: list[str] = []

    def x(self, value: float) -> float:
        """Place of a value."""
        low, high = self.across
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        """Place of a value."""
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
        """A curve."""
        drawn = f'<polyline class="{kind}" points="{self._points(xs, ys)}" stroke-dasharray="{dash or "none"}">'
        self.parts.append(f"{drawn}<title>{html.escape(name)}</title></polyline>")

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
        """The area between two curves."""
        points = self._points([*xs, *xs[::-1]], [*high, *low[::-1]])
        self.parts.append(f'<polygon class="band" points="{points}"/>')

    def dots(self, xs: Sequence[float], ys: Sequence[float], kinds: Sequence[str], names: Sequence[str]) -> None:
        """Points."""
        for x, y, kind, name in zip(xs, ys, kinds, names):
            if math.isfinite(y):
                place = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3.5"'
                self.parts.append(f'<circle class="{kind}" {place}><title>{html.escape(name)}</title></circle>')

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
    return f'<svg class="{kind}" viewBox="{view}" role="img" aria-label="{html.escape(label)}">{content}</svg>'


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
