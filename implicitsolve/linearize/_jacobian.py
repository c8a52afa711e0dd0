"""The Jacobian of a problem, and its structure, for callers who want them as such."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicitsolve._namespace import as_inexact
from implicitsolve._typing import HostArray
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._detect import BUDGET, Detection, detect
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.problem import Problem
from implicitsolve.stopping import check_limit


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
    if problem.block_structure is None:
        raise ValueError(
            f"jacobian: the problem must declare its `structure` as BlockBanded, got {problem.structure!r}"
        )
    x = as_inexact(x, "x")
    evaluator = Evaluator(problem, x)
    flat = evaluator.flatten(x)
    F = None if evaluator.has_exact_products else evaluator.residual(flat)
    J = Assembler(evaluator, central=True).assemble(evaluator, flat, F)
    blocks = evaluator.xp.reshape(J.blocks, (*evaluator.batch_shape, *J.blocks.shape[1:]))
    return BlockBandedMatrix(blocks, lower=J.lower, upper=J.upper, periodic=J.periodic)


def detect_structure(problem: Problem | Any, x0: Any, *, budget: int = BUDGET, bisection: bool = True) -> Detection:
    """Find where the Jacobian of a residual has entries, by evaluations near x0.

    Where F_i does not depend on x_j, it stays the same, bit for bit, as x_j changes. Diagonals and stencils are found
    in 10 to 30 evaluations, other patterns by halving groups of unknowns in 50 to several hundred. Their number hardly
    grows with that of the unknowns.

    Parameters
    ----------
    problem : Problem or callable
        The system; a callable is taken as its residual. The structure that it declares is not used.
    x0 : array_like
        A point, of shape ``batch_shape + event_shape``: its axes show grids and fields. The systems of a batch get one
        structure.
    budget : int, optional
        Evaluations at most. Default 400.
    bisection : bool, optional
        Whether patterns without diagonals are sought. Default True.

    Returns
    -------
    Detection
        Its `structure` is a `Sparse`, for ``Problem(structure=...)``, or None; then `reason` says why. `evaluations` is
        what the search has cost.

    Raises
    ------
    TypeError
        If x0 is no NumPy array or list, or `problem` no Problem and not callable.

    Notes
    -----
    A residual that is not local in floating point (transforms, means, products with dense matrices, random numbers) has
    a dense Jacobian. Before a structure is returned, J d is compared with the change of F along a random d.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> def heat(u):
    ...     p = np.pad(u, 1)
    ...     return 4 * u - p[2:, 1:-1] - p[:-2, 1:-1] - p[1:-1, 2:] - p[1:-1, :-2] + u**3 - 1
    >>> found = ims.detect_structure(heat, np.zeros((40, 40)))
    >>> found.structure
    <Sparse 1600x1600, 7840 entries, at most 5 in a row>
    >>> result = ims.root(ims.Problem(heat, structure=found.structure), np.zeros((40, 40)), method="sparse-newton")
    >>> result.success
    True
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    check_limit("detect_structure", "budget", budget, least=1)
    x0 = as_inexact(x0, "x0")
    if not isinstance(x0, np.ndarray):
        raise TypeError(f"detect_structure: `x0` must be a NumPy array, got {type(x0).__name__}")
    evaluator = Evaluator(problem, x0)

    def residual(x: HostArray) -> HostArray:
        return evaluator.residual(x, keep=True)

    return detect(residual, evaluator.flatten(x0), shape=evaluator.event_shape, budget=budget, bisection=bisection)
