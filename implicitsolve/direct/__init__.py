"""Direct solvers of block-banded systems."""

from __future__ import annotations

from implicitsolve.direct._block_lu import BlockLU
from implicitsolve.direct._cyclic_reduction import CyclicReduction
from implicitsolve.direct._factorization import Factored, Factorization, solve_factored
from implicitsolve.direct._settings import DirectMethod

__all__ = ["BlockLU", "CyclicReduction", "DirectMethod", "Factored", "Factorization", "solve_factored"]
