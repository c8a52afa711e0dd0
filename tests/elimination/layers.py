"""Layers that couple nearest neighbours, of odd, even and ragged lengths."""

from typing import Any

import implicitsolve as ims
from tests.adapters.layers import Case, make

SIZES = {
    "T1": {"T": 1, "lengths": None},
    "T2": {"T": 2, "lengths": None},
    "T3": {"T": 3, "lengths": None},
    "even": {"T": 6, "lengths": None},
    "odd": {"T": 5, "lengths": None},
    "ragged": {"T": 5, "lengths": (4, 1, 5)},
    "ragged even": {"T": 6, "lengths": (2, 3, 1)},
}
ATOL = 1e-11
TIGHT = ims.NonlinearStop(atol=ATOL, rtol=0.0)


def case_of(name: str, size: str, **kwargs: Any) -> Case:
    return make(name, **(SIZES[size] | {"scale": 0.8} | kwargs))
