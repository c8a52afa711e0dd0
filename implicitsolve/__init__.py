"""Newton–Krylov solvers for nonlinear systems, one or a batch, on NumPy and CuPy arrays.

`newton_krylov` takes the place of SciPy's; `root`, `linear_solve`, `pull_back` and `push_forward` are the native entries.
"""

from implicitsolve import monitor
from implicitsolve._scipy_entry import newton_krylov
from implicitsolve.adjoint import pull_back, push_forward
from implicitsolve.errors import NoConvergence
from implicitsolve.krylov import FGMRES, GMRES, LGMRES, BiCGSTAB, ScipyKrylov
from implicitsolve.newton import Backtracking, ConstantForcing, EisenstatWalker, FullStep, NewtonKrylov, Wolfe
from implicitsolve.operators import LinearOperator, aslinearoperator
from implicitsolve.problem import Problem
from implicitsolve.result import AdjointResult, Counts, LinearResult, NewtonStep, NonlinearResult, TangentResult
from implicitsolve.solve import linear_solve, root
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop

__version__ = "0.1.0"

__all__ = [
    "FGMRES",
    "GMRES",
    "LGMRES",
    "AdjointResult",
    "Backtracking",
    "BiCGSTAB",
    "ConstantForcing",
    "Counts",
    "EisenstatWalker",
    "FullStep",
    "LinearOperator",
    "LinearResult",
    "LinearStop",
    "NewtonKrylov",
    "NewtonStep",
    "NoConvergence",
    "NonlinearResult",
    "NonlinearStop",
    "Problem",
    "ScipyKrylov",
    "Status",
    "TangentResult",
    "Wolfe",
    "aslinearoperator",
    "linear_solve",
    "monitor",
    "newton_krylov",
    "pull_back",
    "push_forward",
    "root",
]
