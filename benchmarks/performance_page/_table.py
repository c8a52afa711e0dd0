"""Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def number(value: Any, digits: int = 3, scale: float = 1.0) -> str:
    """A number in so many digits without an exponent where that is short, or nothing."""
    if value is None:
        return ""
    value = float(value) * scale
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        text = f"{value:.{digits}g}"
        return f"{value:.0f}" if "e" in text else text
    return f"{value:.1e}"


def count(value: Any) -> str:
    """A whole number, or nothing."""
    return "" if value is None else f"{value:.0f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1, notes: int = 0) -> str:
    """Rows under a header; the first `texts` columns and the last `notes` ones are texts, the others numbers."""
    rule = ["---"] * texts + ["---:"] * (len(header) - texts - notes) + ["---"] * notes
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))
