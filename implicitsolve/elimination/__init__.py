"""Even-odd elimination: a block tridiagonal system in half its unknowns."""

from collections.abc import Callable

from implicitsolve.elimination._even_odd import even_odd, expand
from implicitsolve.structure import Coupling, Half, Halves

__all__ = ["Coupling", "Half", "Halves", "even_odd", "expand"]
__dir__: Callable[[], list[str]] = __all__.copy
