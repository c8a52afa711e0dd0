"""Newton's method: directions from Krylov spaces or from a factorized Jacobian, line search and the outer loop."""

from implicitsolve.newton._auto import Auto
from implicitsolve.newton._block import BlockNewton
from implicitsolve.newton._forcing import ConstantForcing, EisenstatWalker
from implicitsolve.newton._homotopy import Homotopy
from implicitsolve.newton._lagged import Lagged
from implicitsolve.newton._line_search import Backtracking, FullStep, Wolfe
from implicitsolve.newton._solver import NewtonKrylov
from implicitsolve.newton._substitution import Substitution

__all__ = [
    "Auto",
    "Backtracking",
    "BlockNewton",
    "ConstantForcing",
    "EisenstatWalker",
    "FullStep",
    "Homotopy",
    "Lagged",
    "NewtonKrylov",
    "Substitution",
    "Wolfe",
]
