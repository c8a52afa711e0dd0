"""Krylov methods: (A, b, M, stop) -> solution, for each system of a batch."""

from implicitsolve.krylov._base import KrylovMethod, KrylovOutcome, LinearMethod
from implicitsolve.krylov._bicgstab import BiCGSTAB
from implicitsolve.krylov._gmres import GMRES, LGMRES
from implicitsolve.krylov._scipy import ScipyKrylov
from implicitsolve.krylov._truncated import TruncatedInverse

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
