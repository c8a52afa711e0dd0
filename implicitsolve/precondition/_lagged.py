"""Inverses kept over Newton steps: each system's own, and preconditioners built from an assembled Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._arrays.namespace import array_namespace, copy_array
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.direct import DirectMethod
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._wrappers import SystemArrays
from implicitsolve.precondition._parts import Preconditioner, build_inverse, builds_inverse, takes_sparse
from implicitsolve.status import Status
from implicitsolve.stopping import check_flag
from implicitsolve.structure import BlockBanded, Grid, Sparse

FEW_SYSTEMS = 0.1  # of the systems: where fewer get other inverses at a time, those of the others are not copied
MORE_PRODUCTS = 5  # products beyond the usual number that any solve may take
UNLIMITED = 2**31 - 1  # iterations: the largest number of 32 bits


class BatchedInverse:
    """One inverse for each system, in parts (systems, inverse); the latest part holds; else the identity."""

    def __init__(self, parts: list[tuple[Indices, Any]] | None = None) -> None:
        self.parts: list[tuple[Indices, Any]] = [] if parts is None else parts

    def matvec(self, F: Array) -> Array:
        return self._apply(lambda inverse, F: inverse.matvec(F), F, copy_array)

    def negative(self, F: Array) -> Array:
        """-A^-1 F for F (b, N), a new array, where every system has a factorization."""
        return self._apply(lambda inverse, F: inverse.negative(F), F, array_namespace(F).empty_like)

    def _apply(self, solve: Callable[[Any, Array], Array], F: Array, start: Callable[[Array], Array]) -> Array:
        parts = self.parts
        if parts and parts[0][0].size == F.shape[0]:
            z, parts = solve(parts[0][1], F), parts[1:]
        else:
            z = start(F)
        for rows, inverse in parts:
            scatter(z, rows, solve(inverse, gather(F, rows)))
        return z

    def replace(self, rows: Indices, inverse: Any) -> None:
        self.release(rows)
        self.parts = [*self.parts[:1], *_without(self.parts[1:], rows), (rows, inverse)]

    def release(self, rows: Indices) -> None:
        """Drop the inverses of systems that are to get new ones; for a few systems the first part is not copied."""
        hidden = np.concatenate([rows, *(part for part, _ in self.parts[1:])])
        if self.parts and hidden.size > FEW_SYSTEMS * self.parts[0][0].size:
            self.parts = _without(self.parts[:1], hidden) + _without(self.parts[1:], rows)

    def drop(self, rows: Indices) -> None:
        self.parts = _without(self.parts, rows)

    def take(self, indices: Indices) -> BatchedInverse:
        parts: list[tuple[Indices, Any]] = []
        for rows, inverse in self.parts:
            place = np.full(int(max(rows.max(), indices.max(initial=0))) + 1, -1)
            place[rows] = np.arange(rows.size)
            chosen = place[indices]
            inside = np.flatnonzero(chosen >= 0)
            if inside.size:
                chosen = chosen[inside]
                is_whole = chosen.size == rows.size and (chosen == np.arange(rows.size)).all()
                parts.append((inside, inverse if is_whole else inverse.take(chosen)))
        return BatchedInverse(parts)

    def concat(self, other: BatchedInverse, systems: int) -> BatchedInverse:
        parts = [(systems + rows, inverse) for rows, inverse in other.parts]
        return BatchedInverse(self.parts + parts)


def _without(parts: list[tuple[Indices, Any]], rows: Indices) -> list[tuple[Indices, Any]]:
    kept: list[tuple[Indices, Any]] = []
    for old, inverse in parts:
        stay = ~np.isin(old, rows)
        if stay.all():
            kept.append((old, inverse))
        elif stay.any():
            kept.append((old[stay], inverse.take(np.flatnonzero(stay))))
    return kept


@dataclass(frozen=True, kw_only=True)
class Lagged:
    """A preconditioner that is built from an assembled J, kept over Newton steps, and rebuilt when products rise.

    Parameters
    ----------
    preconditioner : BlockLU or one of `implicitsolve.precondition`
        What is built.
    eager : bool, optional
        Build at the first step. With False nothing is built until products have cost as much as an assembly. Default
        True.
    structure : BlockBanded, Sparse or Grid, optional
        Structure of the part of J that is assembled, such as a local operator to which a mean or integral is added.
        Default: what the problem declares.

    Notes
    -----
    A system's preconditioner is rebuilt when the products of its solves, in excess of those of the first solve with
    it, add up to the cost of an assembly: at most twice the cost of the best moment in hindsight. A single solve ends
    early, with the iterate it has, once its own excess reaches that cost (at least 5 products).

    Examples
    --------
    >>> def bratu(u):
    ...     p = np.pad(u, 1)
    ...     return p[2:] - 2 * u + p[:-2] + 3 * np.exp(u) / 101**2
    >>> problem = ims.Problem(bratu, structure=ims.BlockBanded(1, 1))
    >>> method = ims.NewtonKrylov(preconditioner=ims.Lagged(preconditioner=ims.BlockLU()))
    >>> ims.root(problem, np.zeros(100), method=method).success
    True
    """

    preconditioner: Preconditioner | DirectMethod
    eager: bool = True
    structure: BlockBanded | Sparse | Grid | None = None

    def __post_init__(self) -> None:
        if not builds_inverse(self.preconditioner):
            expected = "BlockLU() or one of implicitsolve.precondition"
            raise TypeError(f"Lagged: `preconditioner` must be {expected}, got {self.preconditioner!r}")
        check_flag("Lagged", "eager", self.eager)
        if not isinstance(self.structure, BlockBanded | Sparse | Grid | None):
            raise TypeError(
                f"Lagged: `structure` must be BlockBanded, Sparse or Grid, got {type(self.structure).__name__}"
            )


def lagged(preconditioner: Any, evaluator: Evaluator, systems: int) -> LaggedInverse | None:
    """State of a lagged preconditioner for these settings; None if they are other settings."""
    if builds_inverse(preconditioner):
        preconditioner = Lagged(preconditioner=preconditioner)
    if not isinstance(preconditioner, Lagged):
        return None
    problem, structure = evaluator.problem, preconditioner.structure
    structure = structure or problem.block_structure or problem.sparse_structure
    if isinstance(structure, BlockBanded):
        return LaggedInverse.unbuilt(preconditioner, Assembler(evaluator, structure=structure), systems)
    sparse = takes_sparse(preconditioner.preconditioner)
    if structure is None or not sparse:
        expected = "BlockBanded, Sparse or Grid" if sparse else "BlockBanded"
        raise ValueError(
            f"NewtonKrylov: this `preconditioner` needs a problem that declares its `structure` as {expected}, "
            f"got {problem.structure if structure is None else structure!r}"
        )
    structure.check_size(evaluator.size)
    return LaggedInverse.unbuilt(preconditioner, SparseAssembler(structure.sparse), systems)


@dataclass
class LaggedState(SystemArrays):
    """The preconditioners of some systems, and how well they still converge."""

    inverse: BatchedInverse
    has_inverse: HostArray
    is_fresh: HostArray
    usual: HostArray  # products of the first solve after a build
    excess: HostArray  # products beyond that since


class LaggedInverse:
    """The preconditioners of the running systems, each built at some earlier step."""

    def __init__(self, settings: Lagged, assembler: Assembler | SparseAssembler, state: LaggedState) -> None:
        self.settings, self.assembler, self.state = settings, assembler, state

    @classmethod
    def unbuilt(cls, settings: Lagged, assembler: Assembler | SparseAssembler, systems: int) -> LaggedInverse:
        excess = np.full(systems, assembler.cost if settings.eager else 0)
        no, none = np.zeros(systems, dtype=bool), np.zeros(systems, dtype=int)
        return cls(settings, assembler, LaggedState(BatchedInverse(), no, no.copy(), none, excess))

    def operator(self, evaluator: Evaluator, x: Array, F: Array) -> LinearOperator | None:
        """Approximate J^-1 for the running systems, after a rebuild where it is due."""
        state = self.state
        due = np.flatnonzero(state.excess >= self.assembler.cost)
        if due.size:
            whole = due.size == state.excess.size
            part = evaluator if whole else evaluator.take(due, x)
            J = self.assembler.assemble(part, x if whole else gather(x, due), F if whole else gather(F, due))
            inverse = build_inverse(self.settings.preconditioner, J)
            status = np.reshape(np.asarray(getattr(inverse, "status", Status.CONVERGED)), -1)
            good = np.broadcast_to(status != Status.SINGULAR, due.shape)  # a singular system goes without
            state.inverse.drop(due)
            state.has_inverse[due] = state.is_fresh[due] = good
            state.excess[due] = 0
            if good.any():
                state.inverse.replace(due[good], inverse if good.all() else inverse.take(np.flatnonzero(good)))
        return self._operator(state.inverse, x) if state.has_inverse.any() else None

    def _operator(self, inverse: BatchedInverse, x: Array) -> LinearOperator:
        return LinearOperator(
            inverse.matvec,
            in_shape=x.shape[1],
            batch_shape=(x.shape[0],),
            dtype=x.dtype,
            take=lambda indices: self._operator(inverse.take(indices), gather(x, indices)),
        )

    @property
    def _is_stale(self) -> HostArray:
        return self.state.has_inverse & ~self.state.is_fresh

    @property
    def limit(self) -> HostArray:
        """Products after which a solve with a stale preconditioner stops, since a rebuild costs no more."""
        return np.where(self._is_stale, self.state.usual + max(self.assembler.cost, MORE_PRODUCTS), UNLIMITED)

    def expire(self, failed: HostArray) -> HostArray:
        """Mark stale preconditioners with which the solve failed for a rebuild; return the systems concerned."""
        stale = failed & self._is_stale
        self.state.excess[stale] = self.assembler.cost
        return stale

    def count(self, iterations: HostArray) -> None:
        state = self.state
        state.usual = np.where(state.is_fresh, iterations, state.usual)
        state.excess = state.excess + np.maximum(iterations - state.usual, 0)
        state.is_fresh[:] = False

    def take(self, rows: Indices) -> LaggedInverse:
        return LaggedInverse(self.settings, self.assembler, self.state.take(rows))

    def concat(self, other: LaggedInverse, systems: int) -> LaggedInverse:
        return LaggedInverse(self.settings, self.assembler, self.state.concat(other.state, systems))
