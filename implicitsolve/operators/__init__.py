"""Matrix-free linear operators: the base class, its algebra, and conversion from and to SciPy."""

from implicitsolve.operators._base import LinearOperator
from implicitsolve.operators._convert import aslinearoperator

__all__ = ["LinearOperator", "aslinearoperator"]
