"""Array-API references of `rank_one`, one of Broyden's updates, and of `broyden_direction`, all of them."""

from __future__ import annotations

import math

import numpy as np

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array, HostArray


def rank_one(z: Array, w: Array, amount: Array, following: Array | None) -> Array | None:
    """Add ``amount * w`` to z in place, and return ``following^H z``, which the next update needs.

    Parameters
    ----------
    z, w : Array (b, N)
        Vectors of each system.
    amount : Array (b, 1)
        Factors.
    following : Array (b, N) or None
        What z is multiplied by; nothing is returned for None.
    """
    z += w * amount
    return None if following is None else array_namespace(z).vecdot(following, z)[:, None]


def broyden_direction(S: Array, count: int, squares: HostArray, x: Array, new_x: Array) -> None:
    """Turn -H F, in S[count], into Broyden's direction at x after whole steps, and write x plus that to `new_x`.

    Parameters
    ----------
    S : Array (rows, N)
        The `count` steps taken since H was factorized, oldest first; each is the direction of its time.
    count : int
        As above.
    squares : ndarray (rows,)
        s^H s of each; that of the new direction is written.
    x, new_x : Array (N,)
        Where the last step led, and where the direction leads.
    """
    xp, z = array_namespace(S), S[count, :]
    growth = 1.0
    with np.errstate(all="ignore"):
        for j in range(count):
            gain = float(xp.vecdot(S[j, :], z)) / float(squares[j])
            if j + 1 < count:
                z += gain * S[j + 1, :]
            else:
                growth = 1 / (1 - gain) if gain != 1 else math.inf
        if math.isfinite(growth):
            z *= growth
        squares[count] = float(xp.vecdot(z, z))
        new_x[...] = x + z
