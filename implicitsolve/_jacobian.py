"""The Jacobian of a problem, as a user may ask for it."""

from __future__ import annotations

from typing import Any

from implicitsolve._assemble import Assembler
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import as_inexact
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.problem import Problem


def jacobian(problem: Problem, x: Any) -> BlockBandedMatrix:
    """Assemble the Jacobian of a problem with a declared structure.

    Parameters
    ----------
    problem : Problem
        With `structure`. Its `blocks`, `linearize`, `jac` or `jvp` are used, in this order; with none of them
        differences.
    x : array_like
        Where; of shape ``batch_shape + event_shape``.

    Returns
    -------
    BlockBandedMatrix
        J(x), of the batch shape of x.

    Raises
    ------
    TypeError, ValueError
        If `problem` is no Problem or declares no structure, or x does not fit it.

    Notes
    -----
    Takes k (lower + upper + 1) products, or twice as many residuals: central differences, accurate to about eps^(2/3).

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> problem = ims.Problem(lambda u: np.diff(u, 2, prepend=0.0, append=0.0) + u**2, structure=ims.BlockBanded(1, 1))
    >>> ims.jacobian(problem, np.full(4, 2.0)).todense().round(6)
    array([[2., 1., 0., 0.],
           [1., 2., 1., 0.],
           [0., 1., 2., 1.],
           [0., 0., 1., 2.]])
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"jacobian: `problem` must be a Problem, got {type(problem).__name__}")
    if problem.structure is None:
        raise ValueError("jacobian: the problem must declare its `structure`, got None")
    x = as_inexact(x, "x")
    evaluator = Evaluator(problem, x)
    flat = evaluator.flatten(x)
    F = None if evaluator.has_exact_products else evaluator.residual(flat)
    J = Assembler(evaluator, central=True).assemble(evaluator, flat, F)
    blocks = evaluator.xp.reshape(J.blocks, (*evaluator.batch_shape, *J.blocks.shape[1:]))
    return BlockBandedMatrix(blocks, lower=J.lower, upper=J.upper, periodic=J.periodic)
