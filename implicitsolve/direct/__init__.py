"""Direct solvers of block-banded systems."""

from __future__ import annotations

from implicitsolve.direct._block_lu import BlockLU, CyclicReduction
from implicitsolve.direct._factorization import DirectMethod, Factored, Factorization, solve_factored

__all__ = ["BlockLU", "CyclicReduction", "DirectMethod", "Factored", "Factorization", "solve_factored"]
__dir__ = __all__.copy
