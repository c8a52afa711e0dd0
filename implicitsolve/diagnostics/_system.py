"""One system of a problem at a point, with its Jacobian on flat vectors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from implicitsolve._assemble import Assembler
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import as_inexact, check_whole, from_host, gather, is_complex, norm2, to_host
from implicitsolve._typing import Array, HostArray
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult


class System:
    """One system of a problem at x, on arrays (1, N).

    Raises
    ------
    TypeError, ValueError
        If x does not fit the problem, or `system` does not name one system of its batch.
    """

    def __init__(self, caller: str, problem: Any, x: Any, system: Any = None) -> None:
        if not isinstance(problem, Problem):
            problem = Problem(problem)
        x = getattr(x, "native", x)  # of SciPy's entry
        x = as_inexact(x.x if isinstance(x, NonlinearResult) else x, "x")
        check_whole(caller, x, "the functions of one rank's part")
        whole = Evaluator(problem, x)
        row = np.asarray([_position(caller, system, whole.batch_shape)])
        flat = whole.flatten(x)
        self.problem, self.x, self.xp = problem, gather(flat, row), whole.xp
        self.whole, self.evaluator = whole, whole.take(row, flat)
        if not whole.has_exact_products:
            whole.length.follow(self.evaluator.rows, norm2(self.x))
        with np.errstate(all="ignore"):
            self.F = self.evaluator.residual(self.x)
            self.J: LinearOperator = self.evaluator.jacobian(self.x, self.F)

    @property
    def size(self) -> int:
        """Unknowns, N."""
        return self.x.shape[1]

    def assembled(self, most: int | None = None) -> BlockBandedMatrix | None:
        """J as a matrix of the declared structure, if there is one and it takes no more than `most` products."""
        if self.problem.structure is None:
            return None
        assembler = Assembler(self.whole, central=True)
        if most is not None and assembler.cost > most:
            return None
        return assembler.assemble(self.evaluator, self.x, self.F)

    def adjoint(self) -> LinearOperator | None:
        """J^H, if the problem can multiply by it."""
        if self.J._rmatvec is not None:
            return self.J.H
        J = self.assembled()
        return None if J is None else J.flat().H

    @functools.cached_property
    def dense(self) -> HostArray:
        """J, column by column, by N products the first time."""
        columns = [to_host(self.J.matvec(from_host(unit[None, :], self.x)))[0] for unit in np.eye(self.size)]
        return np.stack(columns, axis=1) if columns else np.zeros((0, 0))

    def random(self, rng: np.random.Generator) -> Array:
        """A vector of random numbers, complex where x is."""
        values = rng.standard_normal(tuple(self.x.shape))
        return from_host(values + 1j * rng.standard_normal(values.shape) if is_complex(self.x) else values, self.x)


def _position(caller: str, system: Any, batch_shape: tuple[int, ...]) -> int:
    """Position in the flattened batch."""
    index = () if system is None else tuple(system) if isinstance(system, tuple | list) else (system,)
    if len(index) != len(batch_shape):
        expected = f"an index of {len(batch_shape)} numbers" if batch_shape else "None"
        raise ValueError(
            f"{caller}: `system` must be {expected}, since the batch has the shape {batch_shape}, got {system!r}"
        )
    if not all(-n <= int(i) < n for i, n in zip(index, batch_shape)):
        raise ValueError(f"{caller}: `system` must lie in the batch of shape {batch_shape}, got {system!r}")
    places = tuple(int(i) % n for i, n in zip(index, batch_shape))
    return int(np.ravel_multi_index(places, batch_shape)) if places else 0
