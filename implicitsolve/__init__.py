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
from implicitsolve.result import AdjointResult, Counts, LinearResult, NewtonStep, NonlinearResult, TangentResult
from implicitsolve.solve import linear_solve, root
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop
from implicitsolve.structure import BlockBanded

if TYPE_CHECKING:
    from implicitsolve import adapters, diagnostics, distributed, precondition, testing
    from implicitsolve._race import RaceResult, race
    from implicitsolve.backends.numba import newton_batch
    from implicitsolve.batch import BatchResult, LostChunk, solve_batch
    from implicitsolve.checkpoint import checkpointed
    from implicitsolve.diagnostics import (
        Condition,
        Contraction,
        Explanation,
        Finding,
        Spectrum,
        condition,
        contraction,
        explain,
        plot_convergence,
        plot_spectrum,
        spectrum,
    )
    from implicitsolve.regularize import JacobianPenalty, jacobian_penalty
    from implicitsolve.stream import Solved, solve_sequences, solve_stream
    from implicitsolve.testing import check_derivatives

__version__ = "0.1.0"

__all__ = [
    "FGMRES",
    "GMRES",
    "LGMRES",
    "AdjointResult",
    "Anderson",
    "Backtracking",
    "BatchResult",
    "BiCGSTAB",
    "BlockBanded",
    "BlockBandedMatrix",
    "BlockLU",
    "BlockNewton",
    "Broyden",
    "Condition",
    "ConstantForcing",
    "Contraction",
    "Counts",
    "Coupling",
    "CyclicReduction",
    "EisenstatWalker",
    "Explanation",
    "Factorization",
    "Finding",
    "FullStep",
    "Half",
    "Halves",
    "Homotopy",
    "JacobianPenalty",
    "Lagged",
    "LinearOperator",
    "LinearResult",
    "LinearStop",
    "LostChunk",
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
    "Spectrum",
    "Status",
    "Substitution",
    "TangentResult",
    "TruncatedInverse",
    "Wolfe",
    "adapters",
    "aslinearoperator",
    "check_derivatives",
    "checkpointed",
    "condition",
    "contraction",
    "diagnostics",
    "distributed",
    "even_odd",
    "expand",
    "explain",
    "jacobian",
    "jacobian_penalty",
    "linear_solve",
    "monitor",
    "newton_batch",
    "newton_krylov",
    "plot_convergence",
    "plot_spectrum",
    "precondition",
    "pull_back",
    "push_forward",
    "race",
    "root",
    "solve_batch",
    "solve_sequences",
    "solve_stream",
    "spectrum",
    "testing",
]


# Loaded on first use: what most solves do without, and the packages around the core, which imports none of them.
_PACKAGES = ("adapters", "diagnostics", "distributed", "precondition", "testing")
_HOMES = {
    "BatchResult": "batch",
    "Condition": "diagnostics",
    "Contraction": "diagnostics",
    "Explanation": "diagnostics",
    "Finding": "diagnostics",
    "JacobianPenalty": "regularize",
    "LostChunk": "batch",
    "RaceResult": "_race",
    "Solved": "stream",
    "Spectrum": "diagnostics",
    "check_derivatives": "testing",
    "checkpointed": "checkpoint",
    "condition": "diagnostics",
    "contraction": "diagnostics",
    "explain": "diagnostics",
    "jacobian_penalty": "regularize",
    "newton_batch": "backends.numba",
    "plot_convergence": "diagnostics",
    "plot_spectrum": "diagnostics",
    "race": "_race",
    "solve_batch": "batch",
    "solve_sequences": "stream",
    "solve_stream": "stream",
    "spectrum": "diagnostics",
}


def __getattr__(name: str) -> Any:
    """Load a package or a function on first use."""
    if name in _PACKAGES:
        return importlib.import_module(f"implicitsolve.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"implicitsolve.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'implicitsolve' has no attribute {name!r}")
