"""Linear operators: the base class and its algebra, block-banded matrices, and conversion from and to SciPy."""

from collections.abc import Callable

from implicitsolve.operators._base import LinearOperator
from implicitsolve.operators._block_banded import BlockBandedMatrix
from implicitsolve.operators._convert import aslinearoperator

__all__ = ["BlockBandedMatrix", "LinearOperator", "aslinearoperator"]
__dir__: Callable[[], list[str]] = __all__.copy
