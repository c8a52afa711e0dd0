"""Preconditioners built from an assembled Jacobian and kept over Newton steps while they serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from implicitsolve._assemble import Assembler
from implicitsolve._evaluate import Evaluator
from implicitsolve._namespace import gather
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.newton._pieces import Pieces
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.status import Status
from implicitsolve.stopping import check_part, is_settings

PATIENCE = 5  # products beyond the usual number that any solve may take
UNLIMITED = 2**31 - 1
PER_SYSTEM = "has_one", "is_new", "usual", "excess"


class Buildable(Protocol):
    """Frozen settings that make an approximate inverse of a block-banded matrix."""

    def build(self, A: BlockBandedMatrix) -> LinearOperator:
        """Approximate inverse of A."""
        ...


@dataclass(frozen=True, kw_only=True)
class Lagged:
    """A preconditioner that is built from an assembled J, kept over Newton steps, and rebuilt when products rise.

    Parameters
    ----------
    preconditioner : BlockLU or one of `implicitsolve.precondition`
        What is built.
    eager : bool, optional
        Build at the first step. With False nothing is built before that has been spent on products what an assembly
        takes. Default True.

    Notes
    -----
    Each system is rebuilt when the products that its solves took beyond those of the first solve with this
    preconditioner sum up to the products of an assembly: at most twice the cost of the best moment in hindsight. A
    single solve stops, with what it has, where it has taken so many (at least 5) more than the first.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     return p[2:] - 2 * u + p[:-2] + 3 * np.exp(u) / 101**2
    >>> problem = ims.Problem(bratu, structure=ims.BlockBanded(1, 1))
    >>> method = ims.NewtonKrylov(preconditioner=ims.Lagged(preconditioner=ims.BlockLU()))
    >>> ims.root(problem, np.zeros(100), method=method).success
    True
    """

    preconditioner: Buildable
    eager: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_part("Lagged", "preconditioner", self.preconditioner, "build")


def lagged(preconditioner: Any, evaluator: Evaluator, systems: int) -> LaggedInverse | None:
    """State of a lagged preconditioner for these settings; None if they are no such settings."""
    if is_settings(preconditioner, "build"):
        preconditioner = Lagged(preconditioner=preconditioner)
    if not isinstance(preconditioner, Lagged):
        return None
    if evaluator.problem.structure is None:
        raise ValueError("NewtonKrylov: this `preconditioner` needs a problem that declares its `structure`, got None")
    return LaggedInverse(preconditioner, evaluator, systems)


class LaggedInverse:
    """The preconditioners of the running systems, and what they have saved."""

    def __init__(self, settings: Lagged, evaluator: Evaluator, systems: int) -> None:
        self.settings = settings
        self.assembler = Assembler(evaluator)
        self.inverse = Pieces()
        self.has_one = np.zeros(systems, dtype=bool)
        self.is_new = np.zeros(systems, dtype=bool)
        self.usual = np.zeros(systems, dtype=int)  # products of the first solve after a build
        self.excess = np.full(systems, self.assembler.cost if settings.eager else 0)  # products beyond that since

    def operator(self, evaluator: Evaluator, x: Array, F: Array) -> LinearOperator | None:
        """What approximates J^-1 for the running systems, built anew where it is due."""
        due = np.flatnonzero(self.excess >= self.assembler.cost)
        if due.size:
            whole = due.size == self.excess.size
            part = evaluator if whole else evaluator.take(due, x)
            J = self.assembler.assemble(part, x if whole else gather(x, due), F if whole else gather(F, due))
            inverse = self.settings.preconditioner.build(J)
            status = np.reshape(np.asarray(getattr(inverse, "status", Status.CONVERGED)), -1)
            good = np.broadcast_to(status != Status.SINGULAR, due.shape)  # a singular system goes without
            self.inverse.drop(due)
            self.has_one[due] = self.is_new[due] = good
            self.excess[due] = 0
            if good.any():
                self.inverse.replace(due[good], inverse if good.all() else inverse.take(np.flatnonzero(good)))
        return self._operator(self.inverse, x) if self.has_one.any() else None

    def _operator(self, inverse: Pieces, x: Array) -> LinearOperator:
        return LinearOperator(
            inverse.matvec,
            in_shape=x.shape[1],
            batch_shape=(x.shape[0],),
            dtype=x.dtype,
            take=lambda indices: self._operator(inverse.take(indices), gather(x, indices)),
        )

    @property
    def limit(self) -> HostArray:
        """Products after which a solve with a kept preconditioner stops, since building it anew costs no more."""
        return np.where(self.has_one & ~self.is_new, self.usual + max(self.assembler.cost, PATIENCE), UNLIMITED)

    def expire(self, failed: HostArray) -> HostArray:
        """Have preconditioners with which the solve failed built anew; return where they were old, so that it helps."""
        old = failed & self.has_one & ~self.is_new
        self.excess[old] = self.assembler.cost
        return old

    def see(self, iterations: HostArray) -> None:
        """Count the products of a solve."""
        self.usual = np.where(self.is_new, iterations, self.usual)
        self.excess = self.excess + np.maximum(iterations - self.usual, 0)
        self.is_new[:] = False

    def take(self, indices: Indices) -> None:
        """Forget systems that have ended."""
        self.inverse = self.inverse.take(indices)
        for name in PER_SYSTEM:
            setattr(self, name, getattr(self, name)[indices])

    def join(self, other: LaggedInverse) -> None:
        """Take in systems, behind the present ones."""
        for rows, inverse in other.inverse.parts:
            self.inverse.replace(self.has_one.size + rows, inverse)
        for name in PER_SYSTEM:
            setattr(self, name, np.concatenate([getattr(self, name), getattr(other, name)]))
