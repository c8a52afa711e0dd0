"""The native entry for linear systems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import array_namespace, as_inexact, is_array, is_complex
from implicitsolve._record import Tally
from implicitsolve._typing import Array, ArrayArgument, HostArray, Namespace
from implicitsolve.direct import BlockLU, DirectMethod, solve_factored
from implicitsolve.errors import check_names
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov import LGMRES, KrylovMethod, KrylovOutcome
from implicitsolve.krylov._base import with_idle_measured
from implicitsolve.operators import BlockBandedMatrix, LinearOperator, aslinearoperator
from implicitsolve.operators._convert import as_inverse
from implicitsolve.operators._wrappers import guard
from implicitsolve.precondition._parts import build_inverse, builds_inverse, takes_sparse
from implicitsolve.result import LinearResult, per_system, status_per_system
from implicitsolve.stopping import LinearStop, kind_of


@check_names
def linear_solve(
    A: Any,
    b: Any,
    *,
    method: KrylovMethod | DirectMethod | None = None,
    M: Any = None,
    x0: ArrayArgument | None = None,
    stop: LinearStop | None = None,
) -> LinearResult:
    """Solve A x = b by a Krylov method, for one system or a batch of independent ones.

    Parameters
    ----------
    A : LinearOperator, array or sparse matrix
        Square. An array may have leading batch axes, ``(..., N, N)``.
    b : array_like
        Right-hand side of shape ``batch_shape + in_shape`` of A, or flattened ``batch_shape + (N,)``.
    method : GMRES, LGMRES, BiCGSTAB, ScipyKrylov, BlockLU, CyclicReduction or SparseLU, optional
        The last three, and `petsc.PETScLU`, are direct methods, the first two for a `BlockBandedMatrix`, `SparseLU` for
        a sparse matrix: it is factored, and the solution refined, by at most 5 steps, until the stopping rule holds.
        Default: ``BlockLU()`` for such a matrix, if neither `M` nor `x0` is given, else ``LGMRES()``,
        which keeps directions across restarts.
    M : LinearOperator, array, sparse matrix, factors or callable, optional
        Approximates the inverse of A: ``splu(A)``, a hierarchy of pyamg and a function ``r -> z`` are taken too. For a
        `BlockBandedMatrix` it may be `BlockLU` or one of `implicitsolve.precondition`, which are built from A. Default:
        A's own approximate inverse, if it has one; see `LinearOperator`.
    x0 : array_like, optional
        Start. Default 0, which saves a product.
    stop : LinearStop, optional
        Default: ||b - A x||_2 <= 1e-6 ||b||_2, at most 500 iterations.

    Returns
    -------
    LinearResult
        Solution and a status for each system; the residual norm is measured by a product at the returned x.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable.

    Examples
    --------
    >>> ims.linear_solve(np.array([[4.0, 1.0], [2.0, 3.0]]), np.array([1.0, 2.0])).x
    array([0.1, 0.6])
    """
    operator = aslinearoperator(A)
    if operator.shape[0] != operator.shape[1]:
        raise ValueError(f"linear_solve: `A` must be square, got shape {operator.shape}")
    is_plain = isinstance(operator, BlockBandedMatrix) and M is None and x0 is None
    solver: Any = (BlockLU() if is_plain else LGMRES()) if method is None else method
    stop = LinearStop() if stop is None else stop
    check_linear("linear_solve", solver, stop)
    if solver.kind == "direct":
        _check_direct(solver, A, operator, M=M, x0=x0)
    b = _fitting(operator.batch_shape, operator.out_shape, b, "b")
    start = None if x0 is None else _fitting(operator.batch_shape, operator.in_shape, x0, "x0")
    inverse = _inverse(solver, A, operator, M)
    xp = array_namespace(*(part for part in (b, start, A, M) if is_array(part)))
    b = _in_complex(xp, b, operator, inverse, start)
    tally, flat = Tally(), xp.reshape(b, (math.prod(operator.batch_shape), operator.shape[1]))
    x = None if start is None else xp.astype(xp.reshape(start, flat.shape), b.dtype)
    with np.errstate(all="ignore"):
        outcome, target = _outcome(solver, A, operator, guard(operator, "A", tally.add), flat, x, inverse, stop)
    is_state = tuple(b.shape) == operator.batch_shape + operator.out_shape
    return LinearResult(
        x=xp.reshape(outcome.x, operator.batch_shape + operator.in_shape if is_state else b.shape),
        status=status_per_system(outcome.status, operator.batch_shape),
        residual_norm=per_system(outcome.residual_norm, operator.batch_shape),
        target=math.nan if target is None else per_system(target, operator.batch_shape),
        iterations=per_system(outcome.iterations, operator.batch_shape),
        matvecs=tally.jvps + tally.vjps,
    )


def _in_complex(xp: Namespace, b: Array, *parts: Any) -> Array:
    if is_complex(b) or not any("complex" in str(part.dtype) for part in parts if part is not None):
        return b
    return xp.astype(b, xp.complex64 if xp.finfo(b.dtype).bits == 32 else xp.complex128)


def _outcome(
    solver: Any,
    A: Any,
    operator: LinearOperator,
    counted: LinearOperator,
    b: Array,
    start: Array | None,
    inverse: LinearOperator | None,
    stop: LinearStop,
) -> tuple[KrylovOutcome, HostArray | None]:
    """The outcome for right-hand sides (B, N), and the targets of the residuals; None after a direct solve."""
    if solver.kind == "direct":
        factors = solver.factor(operator if isinstance(operator, BlockBandedMatrix) else A)
        return solve_factored(counted, factors, b, stop), None
    target, M = stop.target(norm2(b), b), None if inverse is None else guard(inverse, "M")
    outcome = solver.solve(counted, b, target=target, max_iterations=stop.max_iterations, M=M, x0=start)
    return outcome if start is not None else with_idle_measured(outcome, counted, b, target), target


def _inverse(solver: Any, A: Any, operator: LinearOperator, M: Any) -> LinearOperator | None:
    """What approximates the inverse of A: M, or what A offers."""
    if M is None:
        return operator.approximate_inverse() if solver.may_transform else None
    if builds_inverse(M):
        M = build_inverse(M, A if takes_sparse(M) else operator)
    inverse = as_inverse(M, "M", operator.in_shape, operator.batch_shape)
    if (inverse.shape, inverse.batch_shape) != (operator.shape, operator.batch_shape):
        raise ValueError(
            f"linear_solve: `M` must have the shape {operator.shape} and batch shape {operator.batch_shape} of A, "
            f"got {inverse.shape} and {inverse.batch_shape}"
        )
    return inverse


def _check_direct(solver: Any, A: Any, operator: LinearOperator, **others: Any) -> None:
    """Raise unless the direct method can factor A, and all else is left out."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"linear_solve: `{name}` must be None for a direct method, got {type(value).__name__}")
    if not (isinstance(operator, BlockBandedMatrix) or takes_sparse(solver)):
        raise TypeError(f"linear_solve: a direct method needs a BlockBandedMatrix as `A`, got {type(A).__name__}")


def check_linear(caller: str, method: Any, stop: Any, *, prefix: str = "") -> None:
    """Raise unless `method` is a linear solver and `stop` a rule for one, or None, a default."""
    if method is not None and kind_of(method) not in ("krylov", "direct"):
        expected = "GMRES() or another Krylov method, or BlockLU()"
        raise TypeError(f"{caller}: `{prefix}method` must be {expected}, got {method!r}")
    if not isinstance(stop, LinearStop | None):
        raise TypeError(f"{caller}: `{prefix}stop` must be a LinearStop, got {type(stop).__name__}")


def _fitting(batch_shape: tuple[int, ...], event_shape: tuple[int, ...], b: Any, name: str) -> Array:
    b = as_inexact(b, name)
    shapes = batch_shape + event_shape, (*batch_shape, math.prod(event_shape))
    if tuple(b.shape) not in shapes:
        expected = " or ".join(str(s) for s in dict.fromkeys(shapes))
        raise ValueError(f"linear_solve: `{name}` must have shape {expected}, got {tuple(b.shape)}")
    return b
