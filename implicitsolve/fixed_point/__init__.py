"""Fixed-point iterations x <- G(x) for residuals F(x) = x - G(x), plain and accelerated, for each system of a batch."""

from implicitsolve.fixed_point._anderson import Anderson
from implicitsolve.fixed_point._broyden import Broyden
from implicitsolve.fixed_point._picard import Picard

__all__ = ["Anderson", "Broyden", "Picard"]
