"""Derivatives of a solution with respect to the parameters, and penalties built from them."""

from collections.abc import Callable

from implicitsolve.derivatives._implicit import pull_back, push_forward
from implicitsolve.derivatives._penalty import JacobianPenalty, jacobian_penalty
from implicitsolve.derivatives._systems import AdjointResult, TangentResult

__all__ = ["AdjointResult", "JacobianPenalty", "TangentResult", "jacobian_penalty", "pull_back", "push_forward"]
__dir__: Callable[[], list[str]] = __all__.copy
