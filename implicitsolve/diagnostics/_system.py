"""One system of a problem at a point, with its F and J."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from implicitsolve._arrays.host import from_host, gather, to_host
from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._linear_solve import linear_solve
from implicitsolve._typing import Array, HostArray
from implicitsolve.direct import BlockLU
from implicitsolve.direct._sparse_lu import SparseLU
from implicitsolve.errors import NoConvergence
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_jacobian import sparse_jacobian
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import LinearStop

DENSE = 500  # unknowns up to which J is written out
ASSEMBLY = 1000  # products that an assembly of J may take
ACCURACY = 1e-6  # of linear solves without a matrix


def unwrap(result: Any) -> Any:
    """The native result of what a solve returned, or of the exception that it raised."""
    result = result.result if isinstance(result, NoConvergence) else result
    return getattr(result, "native", result)


def row_of(caller: str, index: Any, batch_shape: tuple[int, ...]) -> int:
    given = () if index is None else tuple(index) if isinstance(index, tuple | list) else (index,)
    if len(given) != len(batch_shape):
        expected = f"an index of {len(batch_shape)} numbers" if batch_shape else "None"
        raise ValueError(
            f"{caller}: `system` must be {expected}, since the batch has the shape {batch_shape}, got {index!r}"
        )
    if not all(-n <= int(i) < n for i, n in zip(given, batch_shape)):
        raise ValueError(f"{caller}: `system` must lie in the batch of shape {batch_shape}, got {index!r}")
    places = tuple(int(i) % n for i, n in zip(given, batch_shape))
    return int(np.ravel_multi_index(places, batch_shape)) if places else 0


class System:
    """One system of a problem at x, on arrays (1, N)."""

    def __init__(self, caller: str, problem: Problem | Callable[[Array], Array], x: Any, index: Any = None) -> None:
        problem = problem if isinstance(problem, Problem) else Problem(problem)
        given = unwrap(x)
        self.detection = given.detection if isinstance(given, NonlinearResult) else None
        x = as_inexact(given.x if isinstance(given, NonlinearResult) else given, "x")
        self.given = x
        whole = Evaluator(problem, x)
        row = np.asarray([row_of(caller, index, whole.batch_shape)])
        flat = whole.flatten(x)
        self.caller, self.problem, self.x, self.xp = caller, problem, gather(flat, row), whole.xp
        self.whole, self.evaluator = whole, whole.take(row, flat)
        if not whole.has_exact_products:
            whole.length.follow(self.evaluator.rows, norm2(self.x))
        with np.errstate(all="ignore"):
            self.F = self.evaluator.residual(self.x)
            self.J: LinearOperator = self.evaluator.jacobian(self.x, self.F)

    @property
    def size(self) -> int:
        return self.x.shape[1]

    @functools.cached_property
    def matrix(self) -> BlockBandedMatrix | SparseMatrix | None:
        """J of the declared structure, or of one that the solve has detected, or that a search finds in a large J."""
        if self.problem.block_structure is not None:
            assembler = Assembler(self.whole, central=True)
            return assembler.assemble(self.evaluator, self.x, self.F) if assembler.cost <= ASSEMBLY else None
        declared, found = self.problem.structure, self.detection
        is_known = found is not None and found.structure is not None
        if declared == "none" or (declared is None and not is_known and self.size <= DENSE):
            return None
        return sparse_jacobian(self.caller, self.evaluator, self.x, self.F, found)

    @functools.cached_property
    def adjoint(self) -> LinearOperator | None:
        """J^H, if the problem can multiply by it."""
        if self.J._rmatvec is not None:
            return self.J.H
        J = self.matrix
        return None if J is None else J.flat().H if isinstance(J, BlockBandedMatrix) else J.H

    @functools.cached_property
    def dense(self) -> HostArray:
        """J written out, by N products where it is not assembled."""
        if self.matrix is not None:
            return self.matrix.to_sparse("csc").toarray()
        return to_host(self.J.matmat(from_host(np.eye(self.size)[None], self.x)))[0]

    @functools.cached_property
    def factors(self) -> LinearOperator | None:
        """The inverse of the matrix."""
        J = self.matrix
        return (
            None if J is None else SparseLU().factor(J) if isinstance(J, SparseMatrix) else BlockLU().factor(J).flat()
        )

    @functools.cached_property
    def step(self) -> Array:
        """J^-1 F(x), the shortest one where J is singular."""
        if self.size <= DENSE:
            solved: HostArray = np.linalg.lstsq(self.dense, to_host(self.F)[0])[0]
            return from_host(solved[None], self.x)
        with np.errstate(all="ignore"):
            return self.solve(self.J, self.F) if self.factors is None else self.factors.matvec(self.F)

    def solve(self, A: LinearOperator, b: Array, failed: list[int] | None = None) -> Array:
        """A^-1 b by products; the status is added to `failed` if it is one."""
        result = linear_solve(A, b, stop=LinearStop(rtol=ACCURACY, max_iterations=2 * self.size))
        if failed is not None:
            failed.extend(np.asarray(result.status)[~np.asarray(result.success)].tolist())
        return result.x

    def residual(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.evaluator.residual(x)
