"""Branches of solutions over a parameter: continuation, special points, further solutions."""

from collections.abc import Callable

from implicitsolve.branches._branch import Branch, SpecialPoint
from implicitsolve.branches._continuation import continuation
from implicitsolve.branches._deflation import further_solutions

__all__ = ["Branch", "SpecialPoint", "continuation", "further_solutions"]
__dir__: Callable[[], list[str]] = __all__.copy
