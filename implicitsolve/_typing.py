"""The types and the shape letters that every docstring of the package uses.

Shape letters
-------------
B : independent systems of a batch.
T : blocks of one system (the length of a sequence).
k : unknowns of one block.
d : inputs of one block.
m : vectors of a Krylov space.
N : all unknowns of one system.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = Any
"""An array of a library that follows the array API standard (NumPy, CuPy, array-api-strict)."""

Namespace: TypeAlias = Any
"""The module of functions that belongs to an `Array`."""

HostArray: TypeAlias = npt.NDArray[Any]
"""A NumPy array that holds one number, or a few, for each system of a batch."""

Indices: TypeAlias = npt.NDArray[np.intp]
"""Positions of systems in a flattened batch."""

Residual: TypeAlias = Callable[[Array], Array]
Product: TypeAlias = Callable[[Array, Array], Array]
