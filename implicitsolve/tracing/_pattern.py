"""Where the Jacobian of a traced program may have entries, whatever the values and the branches are.

The program is walked once. Each array that depends on the unknowns has a sparse matrix of True: the unknowns (columns)
that each of its entries (rows) may depend on. What moves entries is done to an array of their numbers, and selects
rows; what computes entry by entry takes the union; sums and products with constant matrices multiply by patterns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax.extend.core as jex
import numpy as np
import scipy.sparse

from implicitsolve._typing import CallersArray, HostArray

Rows: TypeAlias = CallersArray
"""A scipy.sparse.csr_array of True (entries of an array, unknowns); None where nothing depends on the unknowns."""
Constant: TypeAlias = CallersArray
"""A function that returns the value of a constant; None where it is not constant."""
MOST_SMALL, MOST_ENTRIES = 2_000_000, 64  # entries, and more for each unknown, from which on J is dense
FLAT = frozenset(["sign", "floor", "ceil", "round", "stop_gradient"])  # whose derivative is zero
INNER = "jaxpr", "call_jaxpr", "fun_jaxpr"  # programs within an equation


class UnknownPatternError(Exception):
    """A primitive whose pattern is not known, or a J that is dense."""


def walk(program: CallersArray, given: Sequence[Rows], known: Sequence[Constant], unknowns: int) -> list[Rows]:
    """The patterns of a program's outputs, for those of its inputs and the values of inputs that are constants."""
    jaxpr = program.jaxpr
    rows: dict[CallersArray, Rows] = dict(zip(jaxpr.invars, given))
    values: dict[CallersArray, Constant] = dict(zip(jaxpr.invars, known))
    values |= {var: lambda value=value: np.asarray(value) for var, value in zip(jaxpr.constvars, program.consts)}

    def constant(atom: CallersArray) -> Constant:
        return (lambda: np.asarray(atom.val)) if isinstance(atom, jex.Literal) else values.get(atom)

    for equation in jaxpr.eqns:
        step = Step(equation, [None if isinstance(a, jex.Literal) else rows.get(a) for a in equation.invars], unknowns)
        step.constants = [constant(atom) for atom in equation.invars]
        if all(part is not None for part in step.constants):
            values.update(zip(equation.outvars, step.later()))
            continue
        for var, found in zip(equation.outvars, step.patterns(), strict=True):
            if found is not None and found.nnz > MOST_SMALL + MOST_ENTRIES * unknowns:
                raise UnknownPatternError("J is dense")
            rows[var] = found if np.issubdtype(var.aval.dtype, np.inexact) else None
    return [None if isinstance(atom, jex.Literal) else rows.get(atom) for atom in jaxpr.outvars]


class Step:
    """An equation of a program, with the patterns of its arguments."""

    def __init__(self, equation: CallersArray, given: list[Rows], unknowns: int) -> None:
        self.name, self.params, self.given, self.unknowns = equation.primitive.name, equation.params, given, unknowns
        self.primitive, self.outputs = equation.primitive, equation.outvars
        self.shapes: list[tuple[int, ...]] = [atom.aval.shape for atom in equation.invars]
        self.shape: tuple[int, ...] = equation.outvars[0].aval.shape
        self.constants: list[Constant] = []

    def patterns(self) -> list[Rows]:
        """The patterns of the outputs."""
        inner = next((part for key in INNER if (part := self.params.get(key)) is not None), None)
        if inner is not None and self.name not in ("while", "scan"):
            program = inner if hasattr(inner, "consts") else jex.ClosedJaxpr(inner, ())
            return walk(program, self.given, self.constants, self.unknowns)
        is_smooth = any(np.issubdtype(var.aval.dtype, np.inexact) for var in self.outputs)
        if self.name in FLAT or not is_smooth or all(rows is None for rows in self.given):
            return [None] * len(self.outputs)
        if self.name not in RULES:
            raise UnknownPatternError(f"the pattern of `{self.name}` is not known")
        return [RULES[self.name](self)] * len(self.outputs)

    def later(self) -> list[Constant]:
        """The values of outputs that are constants, computed when they are needed."""
        cache: list[list[HostArray]] = []

        def values() -> list[HostArray]:
            if not cache:
                out = self.primitive.bind(*(part() for part in self.constants), **self.params)
                cache.append([np.asarray(part) for part in (out if self.primitive.multiple_results else [out])])
            return cache[0]

        return [lambda i=i: values()[i] for i in range(len(self.outputs))]

    def value(self, i: int) -> HostArray:
        """The value of an argument that must be a constant."""
        if self.constants[i] is None:
            raise UnknownPatternError("indices depend on the unknowns")
        return np.asarray(self.constants[i]())

    def window(self, first: int, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Slices of that shape, which begin at the arguments from `first` on."""
        begins = [int(self.value(i)) for i in range(first, len(self.shapes))]
        return tuple(slice(begin, begin + n) for begin, n in zip(begins, shape))

    def places(self, i: int = 0, after: int = 0) -> HostArray:
        """Numbers of the entries of an argument, from 1 on, or after those of others; 0 if nothing depends on x."""
        count = math.prod(self.shapes[i])
        numbers = np.arange(1, count + 1) + after if self.given[i] is not None else np.zeros(count, int)
        return numbers.reshape(self.shapes[i]).astype(np.int32)

    def pick(self, places: CallersArray, *arguments: int) -> Rows:
        """Rows of some arguments, one after the other, at places from 1; none at 0."""
        counts = (math.prod(self.shapes[i]) for i in arguments)
        parts = [
            nothing(n, self.unknowns) if self.given[i] is None else self.given[i] for i, n in zip(arguments, counts)
        ]
        rows = parts[0] if len(parts) == 1 else scipy.sparse.vstack(parts, format="csr")
        return rows_at(rows, np.asarray(places).reshape(-1))

    def unite(self, i: int, entries: HostArray, places: HostArray) -> Rows:
        """For each entry of the output the union of the rows of an argument's entries that go there."""
        if self.given[i] is None:
            return None
        ones, shape = np.ones(entries.size, dtype=bool), (math.prod(self.shape), math.prod(self.shapes[i]))
        return scipy.sparse.csr_array((ones, (places.reshape(-1), entries.reshape(-1))), shape) @ self.given[i]


def nothing(count: int, unknowns: int) -> Rows:
    """The pattern of entries that depend on nothing."""
    return scipy.sparse.csr_array((count, unknowns), dtype=bool)


def rows_at(rows: Rows, places: HostArray) -> Rows:
    """Rows at places from 1; none at 0."""
    if (places > 0).all():
        return rows[places - 1]
    picked = rows[np.maximum(places - 1, 0)]
    counts = np.diff(picked.indptr)
    begins = np.concatenate([[0], np.cumsum(np.where(places > 0, counts, 0))])
    indices = picked.indices[np.repeat(places > 0, counts)]
    return scipy.sparse.csr_array((np.ones(indices.size, bool), indices, begins), picked.shape)


def union(*parts: Rows) -> Rows:
    """What any of the parts depends on."""
    total: Rows = None
    for part in {id(part): part for part in parts if part is not None}.values():
        total = part if total is None else total + part
    return total


RULES: dict[str, Callable[[Step], Rows]] = {}
"""The pattern of the output, by the name of the primitive."""
