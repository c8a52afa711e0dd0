"""Solves nonlinear systems F(x) = 0, one or a batch, detects their sparsity, and differentiates their solutions.

By Newton's method, on NumPy and CuPy arrays: `newton_krylov` takes the place of SciPy's, and the native entries are
`root`, `linear_solve`, `pull_back` and `push_forward`. Layers, diagnostics, drivers of many solves and the rest are in
subpackages, loaded on first use. Examples assume ``import numpy as np`` and ``import implicitsolve as ims``.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from implicitsolve import monitor
from implicitsolve._linear_solve import linear_solve
from implicitsolve._record import Counts, NewtonStep
from implicitsolve._root import plan, root
from implicitsolve.compat import newton_krylov
from implicitsolve.derivatives import pull_back, push_forward
from implicitsolve.derivatives._systems import AdjointResult, TangentResult
from implicitsolve.direct import BlockLU, CyclicReduction, SparseLU
from implicitsolve.errors import AccuracyWarning, BackendUnavailable, NoConvergence, require
from implicitsolve.globalize import Backtracking, ConstantForcing, Dogleg, EisenstatWalker, FullStep, Wolfe
from implicitsolve.krylov import GMRES, LGMRES, BiCGSTAB, ScipyKrylov, TruncatedInverse
from implicitsolve.linearize._jacobian import detect_structure, jacobian
from implicitsolve.nonlinear import (
    Anderson,
    BlockNewton,
    Broyden,
    CausalNewton,
    Homotopy,
    NewtonKrylov,
    Picard,
    Preconditioned,
    PseudoTransient,
    SparseNewton,
    Substitution,
)
from implicitsolve.operators import BlockBandedMatrix, LinearOperator, aslinearoperator
from implicitsolve.precondition._lagged import Lagged
from implicitsolve.problem import Problem
from implicitsolve.result import LinearResult, NonlinearResult, load
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop
from implicitsolve.structure import BlockBanded, Detection, Grid, Sparse

if TYPE_CHECKING:
    from implicitsolve import (
        adapters,
        branches,
        derivatives,
        diagnostics,
        direct,
        drivers,
        elimination,
        precondition,
        testing,
    )
    from implicitsolve.backends.numba import newton_batch
    from implicitsolve.branches import Branch, continuation
    from implicitsolve.tracing import trace

__version__ = "0.1.0"

__all__ = [
    "GMRES",
    "LGMRES",
    "AccuracyWarning",
    "AdjointResult",
    "Anderson",
    "Backtracking",
    "BiCGSTAB",
    "BlockBanded",
    "BlockBandedMatrix",
    "BlockLU",
    "BlockNewton",
    "Branch",
    "Broyden",
    "CausalNewton",
    "ConstantForcing",
    "Counts",
    "CyclicReduction",
    "Detection",
    "Dogleg",
    "EisenstatWalker",
    "FullStep",
    "Grid",
    "Homotopy",
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
    "Preconditioned",
    "Problem",
    "PseudoTransient",
    "ScipyKrylov",
    "Sparse",
    "SparseLU",
    "SparseNewton",
    "Status",
    "Substitution",
    "TangentResult",
    "TruncatedInverse",
    "Wolfe",
    "adapters",
    "aslinearoperator",
    "branches",
    "continuation",
    "derivatives",
    "detect_structure",
    "diagnostics",
    "direct",
    "drivers",
    "elimination",
    "jacobian",
    "linear_solve",
    "load",
    "monitor",
    "newton_batch",
    "newton_krylov",
    "plan",
    "precondition",
    "pull_back",
    "push_forward",
    "root",
    "testing",
    "trace",
]
__dir__: Callable[[], list[str]] = [*__all__, "__version__"].copy


# Loaded on first use: what most solves do without, and the packages around the core, which imports none of them.
_PACKAGES = ("adapters", "branches", "diagnostics", "drivers", "testing")


if not TYPE_CHECKING:  # where names that are not public are errors

    def __getattr__(name: str) -> Any:
        """Load a package or a function on first use."""
        if name in _PACKAGES:
            return importlib.import_module(f"implicitsolve.{name}")
        if name in ("Branch", "continuation"):
            return getattr(importlib.import_module("implicitsolve.branches"), name)
        if name in ("newton_batch", "trace"):
            need = "implicitsolve.trace needs JAX, which is not installed: pip install 'implicitsolve[jax]'"
            try:
                if name == "trace":
                    return require("implicitsolve.tracing", need).trace
                return importlib.import_module("implicitsolve.backends.numba").newton_batch
            except BackendUnavailable as error:
                return _unavailable(str(error))
        raise AttributeError(f"module 'implicitsolve' has no attribute {name!r}{_hint(name)}")


def _hint(name: str) -> str:
    roots = ("fsolve", "root_scalar", "solve", "brentq", "newton", "broyden1", "broyden2", "anderson", "nsolve")
    hints: dict[str, str] = dict.fromkeys(roots, ": implicitsolve.root(F, x0) takes its place")
    for other in ("least_squares", "leastsq", "minimize", "curve_fit"):
        hints[other] = f": it solves F(x) = 0; for the rest there is scipy.optimize.{name}"
    hints["fixed_point"] = ": implicitsolve.root(Problem(lambda x: x - G(x), fixed_point=True), x0) takes its place"
    hints |= dict.fromkeys(("jax", "petsc", "torch"), f": import implicitsolve.{name} first")
    hints |= dict.fromkeys(("grad", "jacrev", "vjp"), ": implicitsolve.pull_back(result, cotangent) takes its place")
    hints["Bounds"] = ": bounds=(lower, upper), or scipy.optimize.Bounds"
    places = {part.lower(): part for part in __all__}
    for package in () if name in hints or name.startswith("_") else (*_PACKAGES, "precondition", "monitor"):
        own = importlib.import_module(f"implicitsolve.{package}").__all__
        places = {part.lower(): f"{package}.{part}" for part in own} | places
    close = difflib.get_close_matches(name.lower(), places, n=1)
    return hints.get(name, f"; did you mean {places[close[0]]!r}?" if close else "")


def _unavailable(message: str) -> Any:
    """A function that raises when it is called: names can be listed and imported without the package they need."""

    def unavailable(*arguments: Any, **keywords: Any) -> Any:
        raise BackendUnavailable(message)

    unavailable.__doc__ = message
    return unavailable
