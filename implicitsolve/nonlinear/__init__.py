"""Nonlinear methods: Newton–Krylov, direct Newton, fixed-point iterations and their combinations."""

from collections.abc import Callable

from implicitsolve.nonlinear._anderson import Anderson
from implicitsolve.nonlinear._auto import Auto
from implicitsolve.nonlinear._block_newton import BlockNewton
from implicitsolve.nonlinear._broyden import Broyden
from implicitsolve.nonlinear._causal import CausalNewton, Substitution
from implicitsolve.nonlinear._fixed_point import Picard
from implicitsolve.nonlinear._homotopy import Homotopy
from implicitsolve.nonlinear._newton_krylov import NewtonKrylov
from implicitsolve.nonlinear._preconditioned import Preconditioned
from implicitsolve.nonlinear._pseudo_transient import PseudoTransient
from implicitsolve.nonlinear._sparse_newton import SparseNewton

__all__ = [
    "Anderson",
    "Auto",
    "BlockNewton",
    "Broyden",
    "CausalNewton",
    "Homotopy",
    "NewtonKrylov",
    "Picard",
    "Preconditioned",
    "PseudoTransient",
    "SparseNewton",
    "Substitution",
]
__dir__: Callable[[], list[str]] = __all__.copy
