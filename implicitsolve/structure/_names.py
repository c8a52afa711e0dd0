"""What messages call the unknowns and the equations of a system: the caller's names, else indices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def labels_of(argument: str, given: Any) -> tuple[str, ...]:
    """A caller's names, one for each entry of a flattened system.

    A mapping stands for parts one after the other: each has as many entries as labels, or the number that is given.
    """
    if isinstance(given, Mapping):
        parts = ((name, range(part) if isinstance(part, int) else part) for name, part in given.items())
        return tuple(f"{name}[{label}]" for name, labels in parts for label in labels)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"Problem: `{argument}` must be names, or a mapping of name to labels, got {given!r}")
    return tuple(map(str, given))


def entry_name(symbol: str, labels: tuple[str, ...] | None, entry: int, shape: tuple[int, ...]) -> str:
    """The name of an entry of a flattened system, else the symbol with its indices."""
    if labels is not None:
        return labels[entry]
    return f"{symbol}[{', '.join(str(int(i)) for i in np.unravel_index(entry, shape or (1,)))}]"


def few_names(symbol: str, labels: tuple[str, ...] | None, entries: Any, shape: tuple[int, ...], most: int = 4) -> str:
    names = [entry_name(symbol, labels, int(entry), shape) for entry in entries[:most]]
    return ", ".join(names) + (f" and {len(entries) - most} more" if len(entries) > most else "")
