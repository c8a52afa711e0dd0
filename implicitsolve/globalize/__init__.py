"""Globalization of Newton steps: line searches, and forcing terms for the inner solves."""

from implicitsolve.globalize._dogleg import Dogleg
from implicitsolve.globalize._inexact_newton import (
    Backtracking,
    ConstantForcing,
    EisenstatWalker,
    FullStep,
    LineSearch,
)
from implicitsolve.globalize._wolfe import Wolfe

__all__ = ["Backtracking", "ConstantForcing", "Dogleg", "EisenstatWalker", "FullStep", "LineSearch", "Wolfe"]
