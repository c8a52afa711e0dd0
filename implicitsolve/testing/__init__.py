"""Checks of users' own operators, Jacobian products and structures."""

from collections.abc import Callable

from implicitsolve.testing._checks import dense, dot_test, taylor_test
from implicitsolve.testing._derivatives import DerivativeReport, check_derivatives
from implicitsolve.testing._product_tests import Check, structure_test

__all__ = ["Check", "DerivativeReport", "check_derivatives", "dense", "dot_test", "structure_test", "taylor_test"]
__dir__: Callable[[], list[str]] = __all__.copy
