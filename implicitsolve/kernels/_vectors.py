"""Array-API reference of `rank_one`: one of Broyden's updates."""

from __future__ import annotations

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array


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
