"""F and J of a problem as functions of a PETSc program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._typing import Array, DType
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.nonlinear._offered_jacobians import OfferedJacobians
from implicitsolve.operators import LinearOperator
from implicitsolve.petsc._library import check_scalar, fill, from_rows, petsc, rows_of
from implicitsolve.problem import Problem

KEEP_F = ("newtonls", "newtontr")  # types of SNES whose function vector is F(x) where J(x) is requested


def to_petsc(problem: Problem, x0: Any, *, assemble: bool = True) -> PETScSystem:
    """Give a PETSc program the F and J of a problem.

    Parameters
    ----------
    problem : Problem or callable
        One system; a callable is taken as its residual. Its bounds and scales are not passed on.
    x0 : array_like
        Start, of the problem's shape.
    assemble : bool, optional
        Whether J is an assembled matrix where the problem declares its structure, or offers matrices; with False it is
        a shell matrix with the problem's products, and its adjoint products where it has some. Default True.

    Returns
    -------
    PETScSystem
        Vectors x and F, the matrix J, and the two functions of `SNES`.

    Raises
    ------
    TypeError
        If x0 is complex and PETSc is real.
    ValueError
        If the problem is a batch of several systems.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> from petsc4py import PETSc
    >>> from implicitsolve.petsc import to_petsc
    >>> problem = ims.Problem(lambda x: x**3 - 8, structure=ims.BlockBanded(0, 0))
    >>> system = to_petsc(problem, np.ones(5))
    >>> snes = PETSc.SNES().create(comm=system.comm)
    >>> system.attach(snes)
    >>> snes.solve(None, system.x)
    >>> system.state(system.x).round(6)
    array([2., 2., 2., 2., 2.])
    """
    problem = problem if isinstance(problem, Problem) else Problem(problem)
    x0 = as_inexact(x0, "x0")
    evaluator = Evaluator(problem, x0)
    if evaluator.rows.size != 1:
        raise ValueError(f"to_petsc: `problem` must be one system, got a batch of {evaluator.rows.size}")
    return PETScSystem(evaluator, evaluator.flatten(x0), assemble=assemble)


class PETScSystem:
    """F and J of one system for PETSc; `to_petsc` makes one.

    Attributes
    ----------
    comm : petsc4py.PETSc.Comm
        This process alone. For several ranks there is `Mesh`.
    x, F : petsc4py.PETSc.Vec
        The start, and a vector for F.
    J : petsc4py.PETSc.Mat
        The Jacobian: assembled, or a shell with products.
    is_assembled : bool
        Which of the two.
    """

    def __init__(self, evaluator: Evaluator, x: Array, *, assemble: bool = True) -> None:
        check_scalar("implicitsolve.petsc", x.dtype)
        self.evaluator: Evaluator = evaluator
        self.dtype: DType = x.dtype
        self.comm: Any = petsc().COMM_SELF
        self.x: Any = petsc().Vec().createSeq(x.shape[1], comm=self.comm)
        self.x.setArray(x[0])
        self.F: Any = self.x.duplicate()
        self._assembled = assembler_of(evaluator, x) if assemble else None
        self.is_assembled: bool = self._assembled is not None
        self._shell = Shell(x.dtype)
        self._start: Any = self.x.copy()
        self._known: dict[str, Any] = {}  # F and J at x0, which gave the matrix its pattern, for the first request
        if self._assembled is not None:
            F = None if evaluator.has_exact_products else evaluator.residual(x)
            self._known = {"F": F, "J": self._assembled(evaluator, x, F)}
            self.J: Any = from_rows(rows_of(self._known["J"], zeros=True), self.comm)
        else:
            self.J = petsc().Mat().createPython((x.shape[1], x.shape[1]), context=self._shell, comm=self.comm)
            self.J.setUp()

    def attach(self, snes: Any) -> None:
        """Set the functions of an `SNES`."""
        snes.setFunction(self.function, self.F)
        snes.setJacobian(self.jacobian, self.J)

    def array(self, vec: Any) -> Array:
        """A vector as an array (1, N)."""
        return vec.getArray(readonly=True)[None].astype(self.dtype)

    def state(self, vec: Any) -> Array:
        """A vector as an array of the problem's shape."""
        return self.evaluator.unflatten(self.array(vec))

    def function(self, snes: Any, x: Any, F: Any) -> None:
        """Compute F(x); the function of `SNESSetFunction`."""
        known = self._known_at(x, "F")
        F.setArray((self.evaluator.residual(self.array(x)) if known is None else known)[0])

    def jacobian(self, snes: Any, x: Any, J: Any, P: Any) -> None:
        """Compute J(x); the function of `SNESSetJacobian`."""
        evaluator, point = self.evaluator, self.array(x)
        known = self._known_at(x, "J")
        if known is None:
            F = None
            if not evaluator.has_exact_products:
                is_known = snes.getType() in KEEP_F
                F = self.array(snes.getFunction()[0]) if is_known else evaluator.residual(point)
            if self._assembled is not None:
                fill(P, rows_of(self._assembled(evaluator, point, F), zeros=True))
            else:
                evaluator.length.follow(evaluator.rows, norm2(point))
                self._shell.operator = evaluator.jacobian(point, F)
        J.assemble()
        P.assemble()

    def _known_at(self, x: Any, name: str) -> Any:
        """What is known at x0, once."""
        known = self._known.pop(name, None)
        return known if known is not None and x.equal(self._start) else None


class Shell:
    """The context of a matrix that has products alone."""

    operator: LinearOperator  # J on arrays (1, N), which `jacobian` sets

    def __init__(self, dtype: DType) -> None:
        self.dtype: DType = dtype

    def mult(self, mat: Any, v: Any, w: Any) -> None:
        w.setArray(self._product(self.operator.matvec, v.getArray(readonly=True)))

    def multTranspose(self, mat: Any, v: Any, w: Any) -> None:  # noqa: N802 (PETSc's name)
        w.setArray(np.conj(self._product(self.operator.rmatvec, np.conj(v.getArray(readonly=True)))))

    def _product(self, product: Any, v: Any) -> Any:
        return product(v[None].astype(self.dtype))[0]


def assembler_of(evaluator: Evaluator, x: Array) -> Callable[..., Any] | None:
    """J(x) as a matrix, from what the problem offers or declares; None if it has products alone."""
    problem = evaluator.problem
    if problem.block_structure is not None:
        return Assembler(evaluator).assemble
    offered = OfferedJacobians.of(evaluator, x)
    if offered is None and problem.sparse_structure is not None:
        return SparseAssembler(problem.sparse_structure.sparse).assemble
    return None if offered is None else offered.assemble
