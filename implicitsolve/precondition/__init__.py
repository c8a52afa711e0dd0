"""Preconditioners: settings whose ``build(A)`` approximates the inverse of a matrix A.

Each returns a `LinearOperator` with products, exact adjoint products, and systems picked by `take`, so that it can be
the M of `linear_solve`, or, built from the Jacobian and kept over several steps, the preconditioner of `NewtonKrylov`.
`BlockLU` can take the place of one: its inverse is exact.

======================  =========================================  ===============================================
settings                flops of a product                         used where
======================  =========================================  ===============================================
`BlockJacobi`           1 / (lower + upper + 1) of one with A      blocks are coupled weakly; on a GPU
`Neumann`               `order` products with A more               products are cheap beside a Krylov step
`BlockGaussSeidel`      about those of one with A for each sweep   couplings go mainly one way: transport
`BlockILU`              about those of one with A                  wide bands of few block diagonals: 2-D stencils
`ILU`                   up to `fill` times those of one with A     sparse matrices, by SuperLU
`AMG`                   about eight times those of one with A      diffusion on large grids and meshes, by pyamg
======================  =========================================  ===============================================

The first four take block-banded matrices, `ILU` and `AMG` sparse ones too. Where the band is narrow, the exact
`BlockLU` costs little more than these.
"""

from collections.abc import Callable

from implicitsolve.precondition._blocks import BlockGaussSeidel, BlockILU, BlockJacobi, Neumann
from implicitsolve.precondition._sparse import AMG, ILU

__all__ = ["AMG", "ILU", "BlockGaussSeidel", "BlockILU", "BlockJacobi", "Neumann"]
__dir__: Callable[[], list[str]] = __all__.copy
