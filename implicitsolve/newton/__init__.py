"""Newton–Krylov: forcing, direction, line search and the outer loop."""

from implicitsolve.newton._forcing import ConstantForcing, EisenstatWalker
from implicitsolve.newton._line_search import Backtracking, FullStep, Wolfe
from implicitsolve.newton._solver import NewtonKrylov

__all__ = ["Backtracking", "ConstantForcing", "EisenstatWalker", "FullStep", "NewtonKrylov", "Wolfe"]
