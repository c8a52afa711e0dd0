"""Newton–Krylov solvers for nonlinear systems, one or a batch, on NumPy and CuPy arrays.

`newton_krylov` takes the place of SciPy's. The native entries are `root`, `linear_solve`, `pull_back` and
`push_forward`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from implicitsolve import monitor
from implicitsolve._jacobian import jacobian
from implicitsolve._scipy_entry import newton_krylov
from implicitsolve.adjoint import pull_back, push_forward
from implicitsolve.direct import BlockLU, CyclicReduction, Factorization
from implicitsolve.elimination import even_odd, expand
from implicitsolve.errors import NoConvergence
from implicitsolve.fixed_point import Anderson, Broyden, Picard
from implicitsolve.halves import Coupling, Half, Halves
from implicitsolve.krylov import FGMRES, GMRES, LGMRES, BiCGSTAB, ScipyKrylov, TruncatedInverse
from implicitsolve.newton import (
    Backtracking,
    BlockNewton,
    ConstantForcing,
    EisenstatWalker,
    FullStep,
    Homotopy,
    Lagged,
    NewtonKrylov,
    Substitution,
    Wolfe,
)
from implicitsolve.operators import BlockBandedMatrix, LinearOperator, aslinearoperator
from implicitsolve.problem import Problem
from implicitsolve.race import RaceResult, race
from implicitsolve.regularize import JacobianPenalty, jacobian_penalty
from implicitsolve.result import AdjointResult, Counts, LinearResult, NewtonStep, NonlinearResult, TangentResult
from implicitsolve.solve import linear_solve, root
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop
from implicitsolve.stream import Solved, solve_sequences, solve_stream
from implicitsolve.structure import BlockBanded

if TYPE_CHECKING:
    from implicitsolve import adapters, precondition, testing
    from implicitsolve.backends.numba import newton_batch

__version__ = "0.1.0"

__all__ = [
    "FGMRES",
    "GMRES",
    "LGMRES",
    "AdjointResult",
    "Anderson",
    "Backtracking",
    "BiCGSTAB",
    "BlockBanded",
    "BlockBandedMatrix",
    "BlockLU",
    "BlockNewton",
    "Broyden",
    "ConstantForcing",
    "Counts",
    "Coupling",
    "CyclicReduction",
    "EisenstatWalker",
    "Factorization",
    "FullStep",
    "Half",
    "Halves",
    "Homotopy",
    "JacobianPenalty",
    "Lagged",
    "LinearOperator",
    "LinearResult",
    "LinearStop",
    "NewtonKrylov",
    "NewtonStep",
    "NoConvergence",
    "NonlinearResult",
    "NonlinearStop",
    "Picard",
    "Problem",
    "RaceResult",
    "ScipyKrylov",
    "Solved",
    "Status",
    "Substitution",
    "TangentResult",
    "TruncatedInverse",
    "Wolfe",
    "adapters",
    "aslinearoperator",
    "even_odd",
    "expand",
    "jacobian",
    "jacobian_penalty",
    "linear_solve",
    "monitor",
    "newton_batch",
    "newton_krylov",
    "precondition",
    "pull_back",
    "push_forward",
    "race",
    "root",
    "solve_sequences",
    "solve_stream",
    "testing",
]


def __getattr__(name: str) -> Any:
    """Load the packages around the core on first use: the core imports none of them."""
    if name in ("adapters", "precondition", "testing"):
        return importlib.import_module(f"implicitsolve.{name}")
    if name == "newton_batch":
        return importlib.import_module("implicitsolve.backends.numba").newton_batch
    raise AttributeError(f"module 'implicitsolve' has no attribute {name!r}")
