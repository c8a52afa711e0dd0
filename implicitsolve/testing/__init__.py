"""Problems with known answers, and checks for users' own operators and Jacobian products."""

from implicitsolve.testing._checks import dense, dot_test, structure_test, taylor_test
from implicitsolve.testing._classic import burkardt_problems, classic_problems
from implicitsolve.testing._gallery import get, pde_gallery
from implicitsolve.testing._problem_set import GalleryProblem

__all__ = [
    "GalleryProblem",
    "burkardt_problems",
    "classic_problems",
    "dense",
    "dot_test",
    "get",
    "pde_gallery",
    "structure_test",
    "taylor_test",
]
