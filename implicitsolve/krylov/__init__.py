"""Krylov methods: (A, b, M, stop) -> solution, for each system of a batch."""

from implicitsolve.krylov._base import KrylovMethod, KrylovOutcome
from implicitsolve.krylov._bicgstab import BiCGSTAB
from implicitsolve.krylov._gmres import FGMRES, GMRES, LGMRES
from implicitsolve.krylov._scipy import ScipyKrylov
from implicitsolve.krylov._truncated import TruncatedInverse

__all__ = ["FGMRES", "GMRES", "LGMRES", "BiCGSTAB", "KrylovMethod", "KrylovOutcome", "ScipyKrylov", "TruncatedInverse"]
