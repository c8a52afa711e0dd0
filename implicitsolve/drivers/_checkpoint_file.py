"""The file of a checkpointed solve: its content, atomic writes, and the check that it is from the same solve."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from implicitsolve._namespace import from_host, is_array, to_host, traits_of
from implicitsolve._typing import Array, HostArray
from implicitsolve.result import Counts, NonlinearResult

FORMAT = 3


@dataclass(eq=False)
class Record:
    """A batch after some legs."""

    ends: NonlinearResult  # so far, of the flattened batch
    steps: int = 0  # of every system that is still running
    legs: int = 0


class CheckpointFile:
    """The file of a solve, or of one rank of a distributed one.

    Every rank writes its own file after the same legs. A rank that dies while others write is one leg behind: ranks
    keep the previous file too.
    """

    def __init__(self, path: Any, like: Array, settings: Mapping[str, str]) -> None:
        self.like, self.settings = like, {"format": str(FORMAT), **settings}
        self.comm: Any = like.comm if traits_of(like).is_partitioned else None
        name = os.fspath(path)
        if self.comm is not None:
            name += f".rank{self.comm.rank:03d}-of-{self.comm.size:03d}"
        self.path, self.previous = Path(name), Path(name + ".previous")
        if not self.path.parent.is_dir():
            raise ValueError(f"checkpointed: `path` must be in a folder that exists, got {name!r}")

    def write(self, record: Record) -> None:
        """Replace the old file by a complete new one: whenever the process ends, one of them exists."""
        unfinished = Path(f"{self.path}.unfinished")
        with unfinished.open("wb") as file:
            states: dict[str, Any] = {"ends.x": stored(record.ends.x), "ends.fun": stored(record.ends.fun)}
            np.savez(file, **flat(vars(record) | {"settings": self.settings}) | states)
            file.flush()
            os.fsync(file.fileno())
        if self.comm is not None and self.path.exists():
            self.path.replace(self.previous)
        unfinished.replace(self.path)

    def read(self) -> Record | None:
        """The record to resume from; None if there is none. All ranks return the same leg, or raise an error."""
        if self.comm is None:
            return self._loaded(self.path)
        records, trouble = dict[int, Record](), None
        try:
            loaded = [self._loaded(path) for path in (self.path, self.previous)]
            records = {record.legs: record for record in loaded if record is not None}
        except ValueError as error:
            trouble = error
        known = sorted(records) if trouble is None else [-1]
        legs = [set(part.tolist()) for part in self.comm.allgather(np.array(known, dtype=np.int64))]
        if trouble is not None:
            raise trouble
        if {-1} in legs:
            raise ValueError("checkpointed: the file of another rank is from a different solve")
        common, last = set.intersection(*legs), max(set.union({0}, *legs))
        if not common and last > 1:  # after the first leg a rank may have no file
            raise ValueError(
                f"checkpointed: the ranks' files are inconsistent: {str(self.path)!r} ends after leg "
                f"{max(records, default=0)}, others after leg {last}. Restore them all, or delete them all"
            )
        return records[max(common)] if common else None

    def _loaded(self, path: Path) -> Record | None:
        if not path.exists():
            return None
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                parts = nested(file)
            settings, ends = parts.pop("settings"), parts.pop("ends")
            record = Record(NonlinearResult(**ends | {"counts": Counts(**ends["counts"])}), **parts)
        except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise ValueError(f"checkpointed: the file {str(path)!r} is no checkpoint: {error}") from error
        self._compare(path, settings)
        like, is_whole = self.like, self.comm is None
        states = {name: from_host(ends[name], like) if is_whole else like.like(ends[name]) for name in ("x", "fun")}
        return replace(record, ends=replace(record.ends, **states))

    def _compare(self, path: Path, settings: Mapping[str, str]) -> None:
        """Raise unless the settings are those of the file."""
        names = dict.fromkeys([*self.settings, *settings])
        pairs = [(name, settings.get(name), self.settings.get(name)) for name in names]
        wrong = [f"`{name}` was {old} and is {new}" for name, old, new in pairs if old != new]
        if wrong:
            raise ValueError(
                f"checkpointed: the file {str(path)!r} is from a different solve: {'; '.join(wrong)}. "
                "Delete it to start over, or give another `path`"
            )


def flat(parts: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Arrays and numbers in nested mappings, tuples and dataclasses, each under the names that lead to it."""
    found: dict[str, Any] = {}
    for name, value in parts.items():
        if isinstance(value, tuple):
            value = dict(enumerate(value))
        elif is_dataclass(value):
            value = vars(value)
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = value
    return found


def nested(file: Mapping[str, HostArray]) -> dict[str, Any]:
    """The mappings that `flat` has made a file of, with plain numbers and texts."""
    found: dict[str, Any] = {}
    for place, value in file.items():
        *outer, name = place.split(".")
        inside = found
        for key in outer:
            inside = inside.setdefault(key, {})
        inside[name] = value if value.ndim else value.item()
    return found


def stored(x: Array) -> HostArray:
    """The part of an array in this process, on the host."""
    return x.local if traits_of(x).is_partitioned else to_host(x)


def digest(x: Array) -> str:
    """Dtype, shape and hash of an array."""
    values = np.ascontiguousarray(stored(x))
    return f"{values.dtype}{list(values.shape)} {hashlib.sha256(values.data).hexdigest()[:16]}"


def described(value: Any) -> str:
    """Settings as a text that is the same in every process."""
    if value is None or isinstance(value, str | bool | int | float | complex | np.generic):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{part.name}={described(getattr(value, part.name))}" for part in fields(value))
        return f"{type(value).__name__}({inside})"
    if is_array(value):
        return digest(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {described(part)}" for name, part in value.items()) + "}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(described(part) for part in value)}]"
    name = getattr(value, "__qualname__", None)
    return type(value).__qualname__ if name is None else f"{value.__module__}.{name}"
