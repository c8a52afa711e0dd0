"""Problems with known answers, and checks for users' own operators and Jacobian products."""

from implicitsolve.testing._checks import dense, dot_test, taylor_test
from implicitsolve.testing._classic import burkardt_problems, classic_problems
from implicitsolve.testing._derivatives import DerivativeReport, check_derivatives
from implicitsolve.testing._gallery import get, pde_gallery
from implicitsolve.testing._problem_set import GalleryProblem
from implicitsolve.testing._product_tests import Check, structure_test

__all__ = [
    "Check",
    "DerivativeReport",
    "GalleryProblem",
    "burkardt_problems",
    "check_derivatives",
    "classic_problems",
    "dense",
    "dot_test",
    "get",
    "pde_gallery",
    "structure_test",
    "taylor_test",
]
