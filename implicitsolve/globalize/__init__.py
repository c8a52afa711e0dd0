"""Globalization of Newton steps: line searches, and forcing terms for the inner solves."""

from implicitsolve.globalize._line_search import Backtracking, ConstantForcing, EisenstatWalker, LineSearch
from implicitsolve.globalize._searches import Dogleg, FullStep, Wolfe

__all__ = ["Backtracking", "ConstantForcing", "Dogleg", "EisenstatWalker", "FullStep", "LineSearch", "Wolfe"]
__dir__ = __all__.copy
