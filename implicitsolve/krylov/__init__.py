"""Krylov methods: (A, b, M, stop) -> solution, for each system of a batch."""

from collections.abc import Callable

from implicitsolve.krylov._base import KrylovMethod, KrylovOutcome, LinearMethod, TruncatedInverse
from implicitsolve.krylov._bicgstab import BiCGSTAB
from implicitsolve.krylov._gmres import GMRES, LGMRES
from implicitsolve.krylov._scipy import ScipyKrylov

__all__ = [
    "GMRES",
    "LGMRES",
    "BiCGSTAB",
    "KrylovMethod",
    "KrylovOutcome",
    "LinearMethod",
    "ScipyKrylov",
    "TruncatedInverse",
]
__dir__: Callable[[], list[str]] = __all__.copy
