"""Entries with the interface of another package."""

from implicitsolve.compat._newton_krylov import newton_krylov

__all__ = ["newton_krylov"]
