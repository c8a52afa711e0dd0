"""Globalization of Newton steps: line searches, and forcing terms for the inner solves."""

from collections.abc import Callable

from implicitsolve.globalize._line_search import Backtracking, ConstantForcing, EisenstatWalker, LineSearch
from implicitsolve.globalize._searches import Dogleg, FullStep, Wolfe

__all__ = ["Backtracking", "ConstantForcing", "Dogleg", "EisenstatWalker", "FullStep", "LineSearch", "Wolfe"]
__dir__: Callable[[], list[str]] = __all__.copy
