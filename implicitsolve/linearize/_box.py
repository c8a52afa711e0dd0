"""Bounds of the unknowns, system by system, and the steps and differences that stay between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, from_host, gather, is_complex, to_host, traits_of
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.problem import spread


@dataclass(frozen=True)
class Box:
    """Lower and upper bounds (b, N); infinite where there are none."""

    lower: Array
    upper: Array

    @classmethod
    def of(cls, bounds: tuple[Any, Any], x0: Array, flat_shape: tuple[int, int]) -> Box:
        """The bounds of a problem on its states; x0 must lie between them."""
        if is_complex(x0) or traits_of(x0).is_partitioned:
            what = "complex numbers" if is_complex(x0) else "an array that is partitioned across ranks"
            raise TypeError(f"`bounds` need a real x0 on one device, got {what}")
        xp = array_namespace(x0)
        whole = (from_host(spread("bounds", side, tuple(x0.shape)), x0) for side in bounds)
        flat, *sides = (xp.reshape(part, flat_shape) for part in (x0, *whole))
        outside = np.flatnonzero(to_host((flat < sides[0]) | (flat > sides[1])))
        if outside.size:
            got = float(to_host(flat).reshape(-1)[outside[0]])
            raise ValueError(
                f"`x0` must lie within `bounds`: {outside.size} of {to_host(flat).size} entries do not, the first of "
                f"them is {got:g}; np.clip(x0, lower, upper) moves them there"
            )
        return cls(*sides)

    def take(self, rows: Indices) -> Box:
        """The bounds of some systems."""
        return Box(gather(self.lower, rows), gather(self.upper, rows))

    def clipped(self, x: Array) -> Array:
        """The nearest point within the bounds."""
        xp = array_namespace(x)
        return xp.minimum(xp.maximum(x, self.lower), self.upper)

    def room(self, x: Array, kept: HostArray) -> tuple[Array, Array]:
        """The least and the largest step (b, N) that leave the part `kept` (b,) of the distance to each bound."""
        part = from_host(1.0 - kept, x)[:, None]
        return part * (self.lower - x), part * (self.upper - x)

    def shortened(self, x: Array, step: Array, kept: HostArray) -> Array:
        """The step with each of its entries within `room`."""
        xp, (low, high) = array_namespace(x), self.room(x, kept)
        return xp.minimum(xp.maximum(step, low), high)

    def inward(self, x: Array, h: Array) -> Array:
        """Displacements of x as long as h, turned round where they would leave the box; shorter in a narrow one."""
        xp = array_namespace(x)
        down, up, size = x - self.lower, self.upper - x, xp.abs(h)
        room = xp.where(h < 0, down, up)
        other = xp.where(h < 0, up, down)
        within = xp.where(other >= size, -h, xp.where(up > down, 0.5 * up, -0.5 * down))
        return xp.where(room >= size, h, within)

    def blocks(self, x: Array, step: Array) -> HostArray:
        """Systems (b,) whose `step` points across a bound that x nearly touches."""
        xp = array_namespace(x)
        near = TOUCHING * xp.abs(step)
        blocked = ((step < 0) & (x - self.lower <= near)) | ((step > 0) & (self.upper - x <= near))
        return to_host(xp.any(blocked, axis=1))


TOUCHING = 1e-3  # distance from a bound, over that of a step across it, at which x is held by the bound
