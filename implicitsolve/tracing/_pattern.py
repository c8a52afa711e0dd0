"""Where the Jacobian of a traced program may have entries, whatever the values and the branches are.

The program is walked once. Each array that depends on the unknowns has a sparse matrix of True: the unknowns (columns)
that each of its entries (rows) may depend on. An operation that moves entries is applied to an array of their indices,
and selects rows; an entrywise one takes unions; sums and products with constant matrices multiply by patterns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import scipy.sparse

from implicitsolve._typing import CallersArray, HostArray
from implicitsolve.structure._sparse import Sparse, from_csc
from implicitsolve.tracing._flat import UFUNCS, UPDATES, FlatProgram, Operation, arrange, scatter_places
from implicitsolve.tracing._functions import UntraceableError

Rows: TypeAlias = CallersArray
"""A scipy.sparse.csr_array of True (entries of an array, unknowns); None where nothing depends on the unknowns."""
MOST_SMALL, ENTRIES_EACH = 2_000_000, 64  # entries, and more for each unknown, from which on J is dense
FLAT = frozenset(["sign", "floor", "ceil", "round", "stop_gradient"])  # whose derivative is zero
ENTRYWISE_NAMES = """bessel_i0e bessel_i1e clamp complex convert_element_type digamma div erf_inv igamma igammac
integer_pow lgamma reduce_precision regularized_incomplete_beta rsqrt select_n zeta"""
MOVES = """broadcast_in_dim concatenate dynamic_slice dynamic_update_slice gather pad reshape rev scatter
slice split squeeze stack transpose"""
FULL_SHARE = 0.3  # part of its places that a J has entries in, from which on it is dense
PATTERN_RULES: dict[str, Callable[[Step], Rows | list[Rows]]] = {}
"""The pattern of all outputs, or those of each, by the name of the primitive."""


class UnknownPatternError(Exception):
    """A primitive whose pattern is not known, or a J that is dense."""


def walk(program: FlatProgram, unknowns: int) -> Rows:
    """The pattern of a program's output by its first input."""
    rows: dict[int, Rows] = {program.inputs[0]: scipy.sparse.eye_array(unknowns, dtype=bool, format="csr")}
    for operation in program.operations:
        step = Step(operation, [rows.get(i) for i in operation.arguments], program.constants, unknowns)
        for i, var, found in zip(operation.results, operation.equation.outvars, step.patterns()):
            if found is not None and found.nnz > MOST_SMALL + ENTRIES_EACH * unknowns:
                raise UnknownPatternError("J is dense")
            rows[i] = found if np.issubdtype(var.aval.dtype, np.inexact) else None
        for i in operation.ended:
            rows.pop(i, None)
    return rows.get(program.outputs[0])


class Step:
    """An operation of a program, with the patterns of its arguments, and the values of those that are constants."""

    def __init__(
        self, operation: Operation, given: list[Rows], constants: list[HostArray | None], unknowns: int
    ) -> None:
        equation = operation.equation
        self.name, self.params, self.given, self.unknowns = equation.primitive.name, equation.params, given, unknowns
        self.function, self.outputs = operation.function, equation.outvars
        self.constants: list[HostArray | None] = [constants[i] for i in operation.arguments]
        self.is_inexact: list[bool] = [np.issubdtype(atom.aval.dtype, np.inexact) for atom in equation.invars]
        self.shapes: list[tuple[int, ...]] = [atom.aval.shape for atom in equation.invars]
        self.shape: tuple[int, ...] = equation.outvars[0].aval.shape

    def patterns(self) -> list[Rows]:
        is_smooth = any(np.issubdtype(var.aval.dtype, np.inexact) for var in self.outputs)
        if self.name in FLAT or not is_smooth or all(rows is None for rows in self.given):
            return [None] * len(self.outputs)
        if self.name not in PATTERN_RULES:
            raise UnknownPatternError(f"the pattern of `{self.name}` is not known")
        found = PATTERN_RULES[self.name](self)
        return found if isinstance(found, list) else [found] * len(self.outputs)

    def value(self, i: int) -> HostArray:
        value = self.constants[i]
        if value is None:
            raise UnknownPatternError("indices depend on the unknowns")
        return value

    def numbers(self, i: int, first: int = 0) -> HostArray:
        return np.arange(first, first + math.prod(self.shapes[i])).reshape(self.shapes[i])

    def unite(self, i: int, entries: HostArray, places: HostArray) -> Rows:
        """For each entry of the output the union of the rows of an argument's entries that go there."""
        if self.given[i] is None:
            return None
        ones, shape = np.ones(entries.size, dtype=bool), (math.prod(self.shape), math.prod(self.shapes[i]))
        return scipy.sparse.csr_array((ones, (places.reshape(-1), entries.reshape(-1))), shape) @ self.given[i]


def rows_at(rows: Rows, places: HostArray, is_there: HostArray) -> Rows:
    if rows is None:
        return None
    if is_there.all():
        return rows[places]
    picked = rows[places[is_there]]
    begins = np.zeros(places.size + 1, picked.indptr.dtype)
    begins[1:][is_there] = np.diff(picked.indptr)
    return scipy.sparse.csr_array((picked.data, picked.indices, np.cumsum(begins)), (places.size, rows.shape[1]))


def union(*parts: Rows) -> Rows:
    total: Rows = None
    for part in {id(part): part for part in parts if part is not None}.values():
        total = part if total is None else total + part
    return total


def rule(names: str) -> Callable[[Callable[[Step], Rows]], Callable[[Step], Rows]]:
    def enter(function: Callable[[Step], Rows]) -> Callable[[Step], Rows]:
        PATTERN_RULES.update(dict.fromkeys(names.split(), function))
        return function

    return enter


@rule(" ".join([ENTRYWISE_NAMES, *UFUNCS]))
def entrywise(step: Step) -> Rows:
    """Arrays are broadcast against each other; a choice by constants takes one case at each entry."""
    is_choice = step.name == "select_n" and step.constants[0] is not None
    which = np.broadcast_to(step.value(0), step.shape).reshape(-1) + 1 if is_choice else None
    parts = []
    for i, rows in enumerate(step.given):
        if which is not None or step.shapes[i] != step.shape:
            places = np.broadcast_to(step.numbers(i), step.shape).reshape(-1)
            rows = rows_at(rows, places, np.full(places.size, True) if which is None else which == i)
        parts.append(rows)
    return union(*parts)


@rule(MOVES)
def move(step: Step) -> list[Rows]:
    """An operation that moves entries is applied to their indices from 1 on; those of a further argument follow."""
    first = np.cumsum([1, *map(math.prod, step.shapes)]).tolist()
    moved = step.function(
        *(step.numbers(i, first[i]) if inexact else step.value(i) for i, inexact in enumerate(step.is_inexact))
    )
    parts = [np.reshape(part, -1) for part in (moved if len(step.outputs) > 1 else [moved])]
    return [
        union(*(rows_at(rows, p - first[i], (p >= first[i]) & (p < first[i + 1])) for i, rows in enumerate(step.given)))
        for p in parts
    ]


@rule(" ".join(f"scatter-{name} scatter_{name}" for name in UPDATES))
def scatter_by(step: Step) -> Rows:
    if step.params["dimension_numbers"].operand_batching_dims:
        raise UnknownPatternError("updates of many arrays at once")
    places, new = scatter_places(dict(step.params), step.shapes[0], step.value(1), step.shapes[2])
    return union(step.given[0], step.unite(2, new, places))


@rule("reduce_sum reduce_max reduce_min reduce_prod")
def reduce(step: Step) -> Rows:
    kept = [1 if i in step.params["axes"] else n for i, n in enumerate(step.shapes[0])]
    places = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), step.shapes[0])
    return step.unite(0, np.arange(places.size), places)


@rule("cumsum cumprod cummax cummin cumlogsumexp sort")
def along_axis(step: Step) -> Rows:
    """Entries that depend on all entries along an axis, or on all earlier ones."""
    axis = step.params.get("axis", step.params.get("dimension"))
    index = np.moveaxis(np.arange(math.prod(step.shape)).reshape(step.shape), axis, -1)
    n = index.shape[-1]
    if n * index.size > MOST_SMALL:
        raise UnknownPatternError("J is dense")
    later = np.ones((n, n), bool) if step.name == "sort" else np.tri(n, dtype=bool)
    i, j = np.nonzero(later.T if step.params.get("reverse") else later)
    return union(*(step.unite(k, index[..., j], index[..., i]) for k in range(len(step.given))))


@rule("dot_general")
def product(step: Step) -> Rows:
    """Entries (b, i, j) from (b, i, c) and (b, j, c), where the other factor is not a constant zero."""
    contracted, batch = step.params["dimension_numbers"]
    values = [np.ones(shape) if value is None else value for shape, value in zip(step.shapes, step.constants)]
    left, right = (arrange(step.numbers(k), contracted[k], batch[k])[0] for k in (0, 1))
    there, here = (arrange(values[k] != 0, contracted[k], batch[k])[0] for k in (0, 1))
    if math.prod(left.shape) * right.shape[1] > MOST_SMALL + ENTRIES_EACH * step.unknowns:
        raise UnknownPatternError("J is dense")
    b, i, j, c = np.nonzero(there[:, :, None, :] & here[:, None, :, :])
    places = (b * left.shape[1] + i) * right.shape[1] + j
    return union(step.unite(0, left[b, i, c], places), step.unite(1, right[b, j, c], places))


def structure_of(program: FlatProgram, unknowns: int, size: int) -> Sparse | None:
    """One system's pattern of J with respect to a program's first input, all systems' x; None where J is dense."""
    try:
        rows = walk(program, unknowns)
    except UnknownPatternError:
        return None
    whole = Sparse(scipy.sparse.csr_array((unknowns, unknowns)) if rows is None else rows)
    if size != unknowns:
        rows, columns = whole.rows, whole.columns
        if (rows // size != columns // size).any():
            raise UntraceableError("the systems of the batch depend on one another")
        whole = Sparse((rows % size, columns % size), unknowns=size)
    return None if whole.nnz > FULL_SHARE * size**2 else from_csc(whole.indptr, whole.indices)
