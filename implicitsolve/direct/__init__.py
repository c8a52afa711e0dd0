"""Direct solvers of block-banded and sparse systems."""

from __future__ import annotations

from collections.abc import Callable

from implicitsolve.direct._block_lu import BlockLU, CyclicReduction
from implicitsolve.direct._factorization import DirectMethod, Factored, Factorization, solve_factored
from implicitsolve.direct._sparse_lu import SparseLU

__all__ = ["BlockLU", "CyclicReduction", "DirectMethod", "Factored", "Factorization", "SparseLU", "solve_factored"]
__dir__: Callable[[], list[str]] = __all__.copy
