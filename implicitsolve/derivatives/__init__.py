"""Derivatives of a solution with respect to the parameters, and penalties built from them."""

from implicitsolve.derivatives._implicit import pull_back, push_forward
from implicitsolve.derivatives._penalty import JacobianPenalty, jacobian_penalty

__all__ = ["JacobianPenalty", "jacobian_penalty", "pull_back", "push_forward"]
