"""Globalization of Newton steps: line searches, and forcing terms for the inner solves."""

from implicitsolve.globalize._dogleg import Dogleg
from implicitsolve.globalize._forcing import ConstantForcing, EisenstatWalker
from implicitsolve.globalize._line_search import Backtracking, FullStep, LineSearch
from implicitsolve.globalize._wolfe import Wolfe

__all__ = ["Backtracking", "ConstantForcing", "Dogleg", "EisenstatWalker", "FullStep", "LineSearch", "Wolfe"]
