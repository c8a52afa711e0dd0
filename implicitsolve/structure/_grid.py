"""Stencils on a grid as the structure of a Jacobian."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np

from implicitsolve._summary import Representation
from implicitsolve._typing import Indices
from implicitsolve.errors import ChecksKeywords
from implicitsolve.stopping import check_flag, check_limit
from implicitsolve.structure._sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class Grid(ChecksKeywords, Representation):
    """A stencil on a grid: each point is coupled to a few points near it, all fields with each other.

    Parameters
    ----------
    shape : tuple of int
        Points along each axis.
    stencil : int, "box", or list of tuples of int, optional
        A number r: r neighbors on either side along each axis (the default 1 is the five-point stencil in the plane);
        "box": all points that differ by at most one along each axis (nine in the plane); or the offsets themselves, one
        integer for each axis. The point itself is always included.
    periodic : bool or tuple of bool, optional
        Whether the grid is periodic, along all axes or along each. Default False.
    fields : int, optional
        Unknowns at a point. Default 1.
    fields_last : bool, optional
        Whether the fields are the last axis of x0 (interleaved) instead of the first (stacked). Default False.

    Examples
    --------
    >>> from implicitsolve.structure import Grid
    >>> Grid((32, 32), fields=2, periodic=True).sparse
    <Sparse 2048x2048, 20480 entries, at most 10 in a row>
    """

    shape: tuple[int, ...] = field(kw_only=False)
    stencil: int | Literal["box"] | tuple[tuple[int, ...], ...] = 1
    periodic: bool | tuple[bool, ...] = False
    fields: int = 1
    fields_last: bool = False

    def __post_init__(self) -> None:
        shape: Any = self.shape
        if isinstance(shape, int | np.integer):
            shape = (shape,)
        if not isinstance(shape, tuple | list) or not shape:
            raise TypeError(f"Grid: `shape` must be a tuple of integers, got {shape!r}")
        for points in shape:
            check_limit("Grid", "shape", points, least=1)
        check_limit("Grid", "fields", self.fields, least=1)
        axes = len(shape)
        object.__setattr__(self, "shape", tuple(int(points) for points in shape))
        flags: Any = [self.periodic] * axes if isinstance(self.periodic, bool | np.bool_) else self.periodic
        if not isinstance(flags, tuple | list | np.ndarray) or len(flags) != axes:
            raise ValueError(f"Grid: `periodic` must be a bool or one for each of {axes} axes, got {self.periodic!r}")
        for flag in flags:
            check_flag("Grid", "periodic", flag)
        check_flag("Grid", "fields_last", self.fields_last)
        object.__setattr__(self, "stencil", _checked_stencil(self.stencil, axes))

    @property
    def unknowns(self) -> int:
        """Points times fields."""
        return math.prod(self.shape) * self.fields

    @property
    def offsets(self) -> list[tuple[int, ...]]:
        """Offsets of the stencil, the point itself first."""
        axes = len(self.shape)
        if isinstance(self.stencil, str):
            found = list(itertools.product((-1, 0, 1), repeat=axes))
        elif isinstance(self.stencil, int):
            steps = [d for d in range(-self.stencil, self.stencil + 1) if d]
            found = [tuple(d if a == axis else 0 for a in range(axes)) for axis in range(axes) for d in steps]
        else:
            found = list(self.stencil)
        here = (0,) * axes
        return [here, *(offset for offset in dict.fromkeys(found) if offset != here)]

    @cached_property
    def sparse(self) -> Sparse:
        """The pattern as `Sparse`."""
        axes = len(self.shape)
        is_ring = self.periodic if isinstance(self.periodic, tuple) else (self.periodic,) * axes
        points = np.indices(self.shape).reshape(axes, -1)
        count = points.shape[1]
        rows: list[Indices] = []
        columns: list[Indices] = []
        for offset in self.offsets:
            there = points + np.array(offset)[:, None]
            keep = np.ones(count, dtype=bool)
            for axis, (n, ring) in enumerate(zip(self.shape, is_ring)):
                if ring:
                    there[axis] %= n
                else:
                    keep &= (there[axis] >= 0) & (there[axis] < n)
            rows.append(np.flatnonzero(keep))
            columns.append(np.asarray(np.ravel_multi_index(tuple(there[:, keep]), self.shape)))
        points_only = Sparse((np.concatenate(rows), np.concatenate(columns)), unknowns=count)
        return points_only if self.fields == 1 else points_only.with_fields(self.fields, fields_last=self.fields_last)

    def check_size(self, unknowns: int) -> None:
        """Raise a ValueError if a system with so many unknowns does not fit."""
        if unknowns != self.unknowns:
            raise ValueError(
                f"Grid: {self.shape} points with {self.fields} fields have {self.unknowns} unknowns, "
                f"but a system has {unknowns}"
            )


def _checked_stencil(stencil: Any, axes: int) -> Any:
    """The stencil, its offsets as tuples of integers."""
    if isinstance(stencil, int | np.integer):
        check_limit("Grid", "stencil", cast("int", stencil))
        return stencil
    if isinstance(stencil, str) and stencil == "box":
        return stencil
    expected = f'Grid: `stencil` must be a number, "box" or a list of offsets, got {stencil!r}'
    if isinstance(stencil, str):
        raise ValueError(expected)
    try:
        offsets = tuple(tuple(operator.index(d) for d in offset) for offset in stencil)
    except TypeError:
        raise TypeError(expected) from None
    if any(len(offset) != axes for offset in offsets):
        raise ValueError(f"Grid: an offset of `stencil` needs one integer for each of {axes} axes")
    return offsets
