"""The Jacobian of a problem, and its structure, for callers who need them explicitly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from implicitsolve._namespace import as_inexact, check_whole, norm2
from implicitsolve._sparse_structure import Detection
from implicitsolve._typing import Array
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._detect import BUDGET, detect
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import sparse_jacobian
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.problem import Problem
from implicitsolve.stopping import Tally, check_limit
from implicitsolve.structure import BlockBanded


def jacobian(problem: Problem | Any, x: Any) -> Any:
    """Assemble the Jacobian of a problem.

    Parameters
    ----------
    problem : Problem or callable
        The system; a callable is taken as its residual. `blocks`, `linearize`, `jac` or `jvp` are used, in this order;
        with none of them differences.
    x : array_like
        Where; of shape ``batch_shape + event_shape``.

    Returns
    -------
    BlockBandedMatrix or SparseMatrix
        J(x), of the batch shape of x: block-banded with the declared `BlockBanded`, sparse with a `Sparse` or `Grid`
        and where "detect" finds a pattern, else one dense block. Both have `todense`.

    Raises
    ------
    TypeError, ValueError
        If `problem` is neither, x does not fit it, or a declared pattern misses entries of J.

    Notes
    -----
    Takes k (lower + upper + 1) products for a `BlockBanded`, one for each color of a pattern, or N without a structure;
    or twice as many residuals: central differences, accurate to about eps^(2/3).

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> ims.jacobian(lambda x: np.array([x[0] * x[1], x[1] ** 2]), [2.0, 3.0]).todense().round(6)
    array([[3., 2.],
           [0., 6.]])
    >>> problem = ims.Problem(lambda u: np.diff(u, 2, prepend=0.0, append=0.0) + u**2, structure=ims.BlockBanded(1, 1))
    >>> ims.jacobian(problem, np.full(4, 2.0)).to_sparse("csr")
    <Compressed Sparse Row sparse array of dtype 'float64'
        with 10 stored elements and shape (4, 4)>
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    return assembled(problem, as_inexact(x, "x"), Tally())


def assembled(problem: Problem, x: Array, tally: Tally) -> BlockBandedMatrix | SparseMatrix:
    """`jacobian`, whose evaluations are counted in `tally`."""
    evaluator = Evaluator(problem, x)
    evaluator.tally = tally
    flat = evaluator.flatten(x)
    F = None if evaluator.has_exact_products else evaluator.residual(flat)
    if problem.block_structure is None:
        is_sparse = problem.sparse_structure is not None or problem.structure == "detect"
        if is_sparse and F is not None:
            evaluator.length.follow(evaluator.rows, norm2(flat))
        found = sparse_jacobian("jacobian", evaluator, flat, F, by_columns=True) if is_sparse else None
        if found is not None:
            data = evaluator.xp.reshape(found.data, (*evaluator.batch_shape, -1))
            return SparseMatrix(data, found.structure)
        problem = replace(problem, structure=BlockBanded(0, 0, max(evaluator.size, 1)))
        evaluator = Evaluator(problem, x)
        evaluator.tally = tally
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
        If x0 is partitioned across ranks, or `problem` no Problem and not callable.

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
    check_whole("detect_structure", x0, "a declared BlockBanded structure")
    evaluator = Evaluator(problem, x0)

    def residual(x: Array) -> Array:
        return evaluator.residual(x, keep=True)

    flat, shape = evaluator.flatten(x0), evaluator.event_shape
    return detect(residual, flat, shape=shape, budget=budget, bisection=bisection, inward=evaluator.inward)
