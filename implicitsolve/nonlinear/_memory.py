"""What a solve leaves to the next one of a related problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace
from implicitsolve._sparse_structure import Detection, Sparse
from implicitsolve._typing import Array
from implicitsolve.krylov._recycling import RecycledSpace
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.nonlinear._sparse_inverse import SparseInverses
from implicitsolve.precondition._batched import BatchedInverse
from implicitsolve.problem import Problem


@dataclass
class SolveMemory:
    """What is known of J after a solve.

    Attributes
    ----------
    declared : BlockBanded, Sparse, Grid, str or None
        The problem's structure.
    detection : Detection or None
        The sparsity that was used, or why none was; without values.
    assembler : SparseAssembler or None
        The coloring.
    inverses : SparseInverses or None
        The ordering of the factors, and what iterations with J have cost.
    inverse : BatchedInverse or None
        The last factors.
    space : RecycledSpace or None
        Recycled Krylov vectors.
    keeps : bool
        Whether factors and spaces, which take most memory, are kept too.
    """

    declared: Any = None
    detection: Detection | None = None
    assembler: SparseAssembler | None = None
    inverses: SparseInverses | None = None
    inverse: BatchedInverse | None = None
    space: RecycledSpace | None = None
    keeps: bool = False

    @property
    def described(self) -> str:
        """The sparsity that was used, in words."""
        return "" if self.detection is None else str(self.detection)


def memory_of(caller: str, problem: Problem, x0: Array, previous: Any) -> SolveMemory:
    """What a previous result left to a solve of `problem` from x0.

    Raises
    ------
    TypeError, ValueError
        If it is no result, or one of unknowns or a declared structure other than these.
    """
    if previous is None:
        return SolveMemory()
    if not hasattr(previous, "_memory"):
        raise TypeError(f"{caller}: `previous` must be the result of an earlier solve, got {type(previous).__name__}")
    x, memory = previous.x, previous._memory
    batch_shape = tuple(x0.shape[: problem.batch_ndim])
    if x.shape != x0.shape or np.shape(previous.status) != batch_shape:
        raise ValueError(
            f"{caller}: `previous` must have unknowns of shape {tuple(x0.shape)}, batch shape {batch_shape}, "
            f"got {tuple(x.shape)}, batch shape {np.shape(previous.status)}"
        )
    if x.dtype != x0.dtype or array_namespace(x) is not array_namespace(x0):
        raise ValueError(f"{caller}: `previous` must have unknowns of {x0.dtype} in the library of x0, got {x.dtype}")
    if memory is None:
        return SolveMemory()
    structure, earlier = problem.structure, memory.declared
    if not (_is_open(structure) or _is_open(earlier) or _is_same(structure, earlier)):
        raise ValueError(f"{caller}: `previous` must have the problem's structure, {structure!r}, got {earlier!r}")
    return memory


def _is_open(structure: Any) -> bool:
    return structure is None or isinstance(structure, str)


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Sparse) and isinstance(second, Sparse):
        return first.has_entries_of(second)
    return bool(first == second)
