"""Sparse Jacobians, accurate enough for derivatives of a solution."""

from __future__ import annotations

from functools import partial

import numpy as np

from implicitsolve._namespace import eps
from implicitsolve._sparse_structure import Detection, Sparse
from implicitsolve._typing import HostArray
from implicitsolve.linearize._detect import detect
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.operators._sparse import SparseMatrix

MISMATCH = 1e-4  # of J v, over the largest (|J| |v|)_i; central differences leave about eps^(2/3)


def colored(assembler: SparseAssembler, evaluator: Evaluator, x: HostArray, F: HostArray) -> SparseMatrix:
    """J(x) by the colors of a pattern, for x (B, N), where F is F(x): from products where they are exact."""
    problem = evaluator.problem
    if problem.jvp is not None or problem.linearize is not None or problem.jac is not None:
        J = evaluator.jacobian(x, F)
        return assembler.products(J.matvec, x, J.rmatvec if problem.vjp is not None else None)
    h = evaluator.inward(x, assembler.lengths(x))
    return assembler.differences(partial(evaluator.residual, keep=False), x, F, h)


class ColoredMatrices:
    """Assembles sparse J of a declared pattern, for preconditioners.

    Attributes
    ----------
    cost : int
        Products, or residuals, that one assembly takes.
    """

    def __init__(self, evaluator: Evaluator, structure: Sparse) -> None:
        self._assembler = SparseAssembler(structure)
        self.cost: int = self._assembler.cost

    def assemble(self, evaluator: Evaluator, x: HostArray, F: HostArray) -> SparseMatrix:
        """J(x) for x (b, N), where F is F(x)."""
        return colored(self._assembler, evaluator, x, F)


def sparse_jacobian(
    caller: str, evaluator: Evaluator, x: HostArray, F: HostArray | None, known: Detection | None = None
) -> SparseMatrix | None:
    """J(x), for x (B, N), by the colors of the declared pattern, or else of a detected one; None if there is none.

    A pattern that the solve has detected, `known`, is used unless it misses entries at x.

    Raises
    ------
    ValueError
        If the declared pattern misses entries: J v is not what the problem's product, or a difference, gives.
    """
    problem = evaluator.problem
    if not isinstance(x, np.ndarray):
        return None

    def residual(z: HostArray) -> HostArray:
        return evaluator.residual(z, keep=True)

    if problem.sparse_structure is not None:
        found = Detection(
            structure=problem.sparse_structure.bound(evaluator.size),
            how="declared",
            evaluations=0,
            unknowns=evaluator.size,
        )
    else:
        known = None if known is None or known.structure is None else known
        found = known or detect(residual, x, shape=evaluator.event_shape, inward=evaluator.inward)
    if found.structure is None:
        return None
    assembler = SparseAssembler.of(found)
    J, product = None, evaluator.jacobian(x, F)
    if evaluator.has_exact_products:
        vjp = product.rmatvec if product._rmatvec is not None else None
        if assembler.is_exact or vjp is not None:
            J = assembler.products(product.matvec, x, vjp)
    elif assembler.is_exact and F is not None:
        h = eps(evaluator.xp, evaluator.dtype) ** (1 / 3) * np.maximum(np.abs(x), 1.0)
        h, is_free = evaluator.inward(x, h), evaluator.box is None
        one, other = (assembler.differences(residual, x, F, side) for side in (h, -h if is_free else 0.5 * h))
        J = SparseMatrix(0.5 * (one.data + other.data) if is_free else 2 * other.data - one.data, one.structure)
    if J is None:
        return None
    v = np.random.default_rng(0).choice((-1.0, 1.0), x.shape) * np.maximum(np.abs(x), 1.0)
    v = v.astype(x.dtype)
    sizes = SparseMatrix(np.abs(J.data), J.structure).matvec(np.abs(v))
    error = np.abs(J.matvec(v) - product.matvec(v)).max(axis=1)
    tolerance = max(MISMATCH, 10 * eps(evaluator.xp, evaluator.dtype) ** 0.5)
    if (error > tolerance * sizes.max(axis=1)).any():
        if found is known:
            return sparse_jacobian(caller, evaluator, x, F)
        if problem.sparse_structure is None:
            return None
        raise ValueError(
            f"{caller}: `structure` must hold every entry of J, but J v differs from the pattern's by {error.max():.1e}"
        )
    return J
