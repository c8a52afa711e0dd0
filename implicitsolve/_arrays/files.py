"""Files (npz) of arrays and numbers in nested mappings, which are replaced as a whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from implicitsolve._typing import HostArray

T = TypeVar("T")


def as_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"`path` must be a string or a path, got {type(path).__name__}")
    return Path(path)


def save(path: str | os.PathLike[str], what: str, parts: Mapping[str, object]) -> None:
    """Replace the old file by a complete new one, with its kind: whenever the process ends, one of them exists."""
    unfinished = Path(f"{as_path(path)}.{uuid.uuid4().hex[:8]}.unfinished")  # of this call alone
    try:
        with unfinished.open("xb") as file:
            np.savez(file, **flat({"what": what, **parts}))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], what: str, build: Callable[[dict[str, Any]], T]) -> T:
    """Return `build` of the parts that `save` has written; a file of another kind than `what` is a ValueError."""
    with as_path(path).open("rb") as opened:
        try:
            with np.load(opened, allow_pickle=False) as file:
                parts = nest(file)
                if (found := parts.pop("what", None)) == what:
                    return build(parts)
        except Exception as error:  # archives, headers, arrays and constructors each have errors of their own
            raise ValueError(f"the file {str(path)!r} is not {what}, or is damaged") from error
    raise ValueError(f"the file {str(path)!r} is not {what}, but {found or 'of another kind'}")


def flat(parts: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Arrays and numbers in nested mappings, tuples, dataclasses and patterns, each under the names that lead to it."""
    found: dict[str, Any] = {}
    for name, value in parts.items():
        if isinstance(value, tuple):
            value = {str(i): part for i, part in enumerate(value)}
        elif is_dataclass(value):
            value = vars(value)
        elif hasattr(value, "indptr"):  # a sparse pattern
            value = {part: vars(value)[part] for part in ("indptr", "indices")}
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = value
    return found


def nest(file: Mapping[str, HostArray]) -> dict[str, Any]:
    """The nested mappings of a file that `flat` has made, with plain numbers and strings."""
    found: dict[str, Any] = {}
    for place, value in file.items():
        *outer, name = place.split(".")
        inside = found
        for key in outer:
            inside = inside.setdefault(key, {})
        inside[name] = value if value.ndim else value.item()
    return found
