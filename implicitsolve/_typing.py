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

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt


class Array(Protocol):
    """An array of a library that follows the array API standard (NumPy, CuPy, array-api-strict)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    def __array__(self) -> npt.NDArray[Any]: ...
    def __bool__(self) -> bool: ...
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __eq__(self, other: Any, /) -> Any: ...
    def __ne__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __abs__(self) -> Any: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __pow__(self, other: Any, /) -> Any: ...
    def __rpow__(self, other: Any, /) -> Any: ...
    def __matmul__(self, other: Any, /) -> Any: ...
    def __rmatmul__(self, other: Any, /) -> Any: ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __ge__(self, other: Any, /) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=Array)
"""The arrays of one library: what enters comes out."""

Namespace: TypeAlias = Any
"""The module of functions that belongs to an `Array`."""

Arrays: TypeAlias = Sequence[Array]
"""Some of them: one for each neighbour, say."""

DType: TypeAlias = Any
"""A dtype of an array library, or what NumPy takes for one."""

HostArray: TypeAlias = npt.NDArray[Any]
"""A NumPy array that holds one number, or a few, for each system of a batch."""

Indices: TypeAlias = npt.NDArray[np.intp]
"""Positions of systems in a flattened batch."""

CallersArray: TypeAlias = Any
"""An array in a caller's hands: of a function that may be annotated with one library's arrays, or of a result."""

ArrayArgument: TypeAlias = Array | npt.ArrayLike
"""What a caller may pass as an array: one of any library, a list, a number."""

MethodName: TypeAlias = Literal[
    "anderson",
    "auto",
    "block-newton",
    "broyden",
    "causal-newton",
    "homotopy",
    "newton-krylov",
    "picard",
    "pseudo-transient",
    "sparse-newton",
    "substitution",
]


class ScipyKeywords(TypedDict, total=False):
    """Keywords of `scipy.optimize.root` that mean the same here."""

    args: Any
    jac: Callable[..., CallersArray] | bool | None
    tol: float | None


Residual: TypeAlias = Callable[[CallersArray], CallersArray]
Product: TypeAlias = Callable[[CallersArray, CallersArray], CallersArray]
ParameterProduct: TypeAlias = Callable[[CallersArray, Mapping[str, CallersArray]], CallersArray]
ParameterCotangents: TypeAlias = Callable[[CallersArray, CallersArray], Mapping[str, CallersArray]]
