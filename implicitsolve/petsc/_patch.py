"""The points of a grid that a rank owns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Which points of a grid a rank owns, and how many around them its functions get, along each axis.

    Attributes
    ----------
    first, stop : tuple of int
        Its points are first, ..., stop - 1 along each axis.
    before, after : tuple of int
        Points of the neighbours on either side: 0 beyond the ends, unless an axis is periodic.
    shape : tuple of int
        Points of all ranks.

    Examples
    --------
    >>> from implicitsolve.petsc import Patch
    >>> patch = Patch(first=(0, 4), stop=(8, 8), before=(0, 1), after=(0, 0), shape=(8, 8))
    >>> patch.own, patch.own_shape, patch.seen_shape
    ((slice(0, 8, None), slice(1, 5, None)), (8, 4), (8, 5))
    """

    first: tuple[int, ...]
    stop: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Number of points that the rank owns along each axis."""
        return tuple(stop - first for first, stop in zip(self.first, self.stop))

    @property
    def own(self) -> tuple[slice, ...]:
        """Place of the rank's own points in the argument of its functions."""
        return tuple(slice(before, before + count) for before, count in zip(self.before, self.own_shape))

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Number of points of that argument along each axis."""
        return tuple(b + count + a for b, count, a in zip(self.before, self.own_shape, self.after))
