"""Records of per-system arrays, which are compacted, and enlarged by further systems, as a whole."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from implicitsolve._namespace import array_namespace, gather, is_array, scatter
from implicitsolve._typing import Indices
from implicitsolve.operators._base import LinearOperator
from implicitsolve.operators._wrappers import stacked


class SystemArrays:
    """A record whose every field holds something for each of b systems; subclasses are dataclasses.

    A field is an array (b, ...), of the host or of a device; an operator on a batch of b systems; an object with
    ``take(rows)`` and ``concat(other, systems)``, which return the data of some systems, and of its own `systems`
    followed by those of another; or None.
    """

    def take(self, rows: Indices) -> Self:
        """Return the record of some systems."""
        return type(self)(*(_rows_of(part, rows) for part in vars(self).values()))

    def keep(self, rows: Indices) -> None:
        """Take the record of some systems, in place: field by field, so that few arrays are held twice at a time."""
        for name, part in vars(self).items():
            setattr(self, name, _rows_of(part, rows))

    def concat(self, other: Self, systems: int) -> Self:
        """Return the record of the present systems, which are that many, followed by those of another one."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(_joined(first, second, systems) for first, second in pairs))

    def scatter(self, rows: Indices, other: Self) -> None:
        """Write another record's systems to these rows, in place; for records of arrays alone."""
        for whole, part in zip(vars(self).values(), vars(other).values(), strict=True):
            scatter(whole, rows, part)


def _rows_of(part: Any, rows: Indices) -> Any:
    if part is None:
        return None
    if isinstance(part, np.ndarray):
        return part[rows]
    return gather(part, rows) if is_array(part) else part.take(rows)


def _joined(first: Any, second: Any, systems: int) -> Any:
    if first is None or second is None:
        return None
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    if isinstance(first, LinearOperator):
        return stacked([first, second])
    return array_namespace(first).concat([first, second], axis=0) if is_array(first) else first.concat(second, systems)
