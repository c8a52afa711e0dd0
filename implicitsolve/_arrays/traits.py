"""What classes of arrays offer to the solvers beyond the array API standard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from implicitsolve._typing import Array


@dataclass(frozen=True, kw_only=True)
class ArrayTraits:
    """What a class of arrays offers to the solvers beyond the array API standard; `declare_arrays` registers it."""

    kernels: tuple[str, ...] = ()  # backends with kernels for these arrays, best first
    is_partitioned: bool = False  # whether an axis may be partitioned across ranks: then no rank can address all of it
    empty_vectors: Callable[[Any, tuple[int, ...]], Any] | None = None  # (like, axes): uninitialized (*axes, N)
    # In place of those of `operators`, for block-banded matrices of such blocks:
    band_products: Callable[[Any, int, bool], Any] | None = None
    band_transposed: Callable[..., Any] | None = None
    block_lu: Callable[[Any], Any] | None = None  # (settings): the direct method in place of `BlockLU` with these


PLAIN = ArrayTraits()
_traits: dict[type, ArrayTraits] = {}


def declare_arrays(kind: type, traits: ArrayTraits) -> None:
    """Register what a class of arrays offers."""
    _traits[kind] = traits


def traits_of(x: Array) -> ArrayTraits:
    """What the class of an array offers beyond the standard."""
    return _traits.get(type(x), PLAIN)


def check_whole(owner: str, x: Array, instead: str) -> None:
    """Raise if an array may be partitioned across ranks; `instead` names what accepts such arrays."""
    if traits_of(x).is_partitioned:
        raise TypeError(f"{owner} does not accept arrays partitioned across ranks: use {instead}")
