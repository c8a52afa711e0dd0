"""What notebooks show: a table of facts, and the norms of a solve as a curve, without anything from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

WIDTH, HEIGHT = 160, 36  # of a curve, in pixels


class Shown:
    """A short `repr` and a table in notebooks, both from `_facts`."""

    def _facts(self) -> dict[str, str]:
        """Fields of a dataclass that are not at their default; functions by their name, nothing in full length."""
        shown: dict[str, str] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not field.default and (field.default is MISSING or _is_array(value) or value != field.default):
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
    if _is_array(value):
        return f"{str(value.dtype).rpartition('.')[2]} {tuple(value.shape)}"
    return repr(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype")


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
    across, up = (WIDTH - 4) / (len(norms) - 1), (HEIGHT - 4) / (high - low or 1.0)
    path = " ".join(f"{2 + i * across:.1f},{2 + (high - y) * up:.1f}" for i, y in points)
    label = f"norm(F) over {len(norms) - 1} steps: {norms[0]:.3g} to {norms[-1]:.3g}"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{label}"><title>{label}</title>'
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
