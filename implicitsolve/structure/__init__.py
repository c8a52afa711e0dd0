"""Structures of a Jacobian, declared or detected: block bands, sparse patterns, grids, halves for the elimination."""

from collections.abc import Callable

from implicitsolve.structure._block_banded import BlockBanded
from implicitsolve.structure._detection import Detection, Outcome
from implicitsolve.structure._grid import Grid
from implicitsolve.structure._halves import Coupling, Half, Halves
from implicitsolve.structure._sparse import Sparse

__all__ = ["BlockBanded", "Coupling", "Detection", "Grid", "Half", "Halves", "Outcome", "Sparse"]
__dir__: Callable[[], list[str]] = __all__.copy
