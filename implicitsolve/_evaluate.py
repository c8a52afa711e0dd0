"""The one place that calls the user's functions: a problem seen as arrays (B, N), checked and counted.

The user's functions receive copies, unless the problem is `pure`, so that a residual which changes its argument or
hands out one buffer again and again does no harm; exceptions they raise pass through unchanged.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from implicitsolve._differences import DifferenceLength, difference_product
from implicitsolve._namespace import (
    array_namespace,
    as_inexact,
    check_tensor,
    copied,
    gather,
    is_array,
    is_complex,
    library,
    numpy_namespace,
    scatter,
    sent,
)
from implicitsolve._typing import Array, HostArray, Indices, Namespace
from implicitsolve.operators import BlockBandedMatrix, LinearOperator, aslinearoperator
from implicitsolve.operators._base import embedded
from implicitsolve.operators._guard import guarded
from implicitsolve.problem import Problem
from implicitsolve.result import Counts

FEW = 0.75  # part of the systems from which down it pays to gather what belongs to them alone


class Tally:
    """Running counts of calls, shared by an evaluator and its subsets."""

    def __init__(self) -> None:
        self.residuals = self.jvps = self.vjps = self.linearizations = 0

    def add(self, kind: str) -> None:
        """Count one call."""
        setattr(self, kind, getattr(self, kind) + 1)

    def counts(self) -> Counts:
        """Return a snapshot."""
        return Counts(residuals=self.residuals, jvps=self.jvps, vjps=self.vjps, linearizations=self.linearizations)


class Evaluator:
    """Evaluates a problem, or some systems of it, on arrays (b, N).

    `batch_shape` is what the user's functions see. As long as most of its systems run (without `Problem.take`, to the
    end) the others stand in `background` with their last iterates, which all subsets share: a smaller problem has to
    gather what belongs to its systems, which may cost more than a few systems too many.

    Three wishes of the caller reach every method by it. Systems with one number in `groups` (B,) are rivals: once one
    has converged, the others stop. At most `capacity` systems iterate at a time, and the others wait for a place.
    Tolerances are relative to the norms in `reference` (B,) instead of those at the start.
    """

    def __init__(
        self,
        problem: Problem,
        like: Array,
        rdiff: float | None = None,
        *,
        groups: HostArray | None = None,
        capacity: int | None = None,
        reference: HostArray | None = None,
    ) -> None:
        if problem.batch_ndim > like.ndim:
            raise ValueError(f"`batch_ndim` is {problem.batch_ndim}, but x0 has only {like.ndim} axes")
        self.problem = problem
        self.xp: Namespace = array_namespace(like)
        self.dtype: Any = like.dtype
        self.batch_shape: tuple[int, ...] = tuple(like.shape[: problem.batch_ndim])
        self.event_shape: tuple[int, ...] = tuple(like.shape[problem.batch_ndim :])
        self.size: int = math.prod(self.event_shape)
        if problem.structure is not None:
            problem.structure.length(self.size)  # raises where the blocks do not fit
        self.tally: Tally = Tally()
        count = math.prod(self.batch_shape)
        self.rows: Indices = np.arange(count)  # places in the whole batch
        self.length: DifferenceLength = DifferenceLength(count, rdiff)
        self.systems: Indices | None = None  # rows of `background` that are evaluated, where `take` is missing
        self.places: Any = None  # these, where the arrays are
        self.background: Array = None
        self.groups: HostArray | None = groups
        self.capacity: int | None = capacity
        self.reference: HostArray | None = reference

    @property
    def has_exact_products(self) -> bool:
        """Whether J v needs no differences."""
        problem = self.problem
        own = problem.linearize, problem.jac, problem.jvp
        return problem.has_exact_blocks or any(part is not None for part in own)

    @property
    def flat_shape(self) -> tuple[int, int]:
        """(B, N) of what the user's functions see."""
        return math.prod(self.batch_shape), self.size

    def flatten(self, x: Array) -> Array:
        """View an array of the problem's shape as (B, N)."""
        return self.xp.reshape(x, self.flat_shape)

    def unflatten(self, x: Array) -> Array:
        """View an array (B, N) in the problem's shape."""
        return self.xp.reshape(x, self.batch_shape + self.event_shape)

    def take(self, indices: Indices, x: Array) -> Evaluator:
        """Evaluator of some of the systems; `x` (b, N) are the present iterates of all."""
        if len(indices) == self.rows.size and (indices == np.arange(self.rows.size)).all():
            return self
        systems = indices if self.systems is None else self.systems[indices]
        is_few = self.capacity is not None or len(systems) <= FEW * self.flat_shape[0]
        if self.problem.take is not None and is_few:
            return self.chosen(indices)
        part = copy.copy(self)
        part.rows, part.systems, part.places = self.rows[indices], systems, sent(systems, x)
        if self.systems is None:
            part.background = self.xp.asarray(x, copy=True)
        else:
            scatter(self.background, self.places, x)
        return part

    def chosen(self, indices: Indices) -> Evaluator:
        """Evaluator of systems by a problem of their own, for problems with `take`; indices may repeat."""
        part = copy.copy(self)
        part.rows = self.rows[indices]
        problem: Any = self.problem.take(indices if self.systems is None else self.systems[indices])  # type: ignore[misc]
        if not isinstance(problem, Problem):
            raise TypeError(f"`take` must return a Problem, got {type(problem).__name__}")
        if problem.batch_ndim != 1:
            raise ValueError(f"`take` must return a Problem with batch_ndim=1, got {problem.batch_ndim}")
        part.problem, part.batch_shape, part.systems, part.background = problem, (len(indices),), None, None
        return part

    def astype(self, dtype: Any) -> Evaluator:
        """Evaluator of the whole batch in another precision, for problems with `astype`."""
        with np.errstate(over="ignore"):
            problem: Any = self.problem.astype(dtype)  # type: ignore[misc]
        if not isinstance(problem, Problem):
            raise TypeError(f"`astype` must return a Problem, got {type(problem).__name__}")
        other = copy.copy(self)
        other.problem, other.dtype = problem, dtype
        return other

    # The problem's functions

    def residual(self, x: Array, *, keep: bool = True) -> Array:
        """F(x) for x (b, N). With `keep` the result is a copy that no later call can change."""
        self.tally.residuals += 1
        F = self._returned(self.problem.residual(self._argument(x, copy=keep)), "residual")
        return self._own(F) if keep else F

    def substituted(self) -> Array:
        """The solution of a causal problem, for about the work of a residual."""
        self.tally.residuals += 1
        return self._own(self._returned(self.problem.substitute(), "substitute"))  # type: ignore[misc]

    def trial(self, x: Array) -> tuple[Array, LinearOperator | None]:
        """F(x), and J(x) where the problem computes both at once."""
        return (self.residual(x), None) if self.problem.linearize is None else self._linearized(x)

    def _linearized(self, x: Array) -> tuple[Array, LinearOperator]:
        """F(x) and J(x) of a problem with `linearize`."""
        F, J = self._linearize(x)
        return self._own(self._returned(F, "linearize")), self.as_operator(J, "linearize")

    def _linearize(self, x: Array) -> tuple[Any, Any]:
        """What `linearize` returns."""
        self.tally.residuals += 1
        self.tally.linearizations += 1
        value: Any = self.problem.linearize(self._argument(x, copy=True))  # type: ignore[misc]
        if not (isinstance(value, tuple) and len(value) == 2):
            raise TypeError(f"`linearize` must return a pair (F, J), got {type(value).__name__}")
        return value

    def matrix(self, x: Array) -> Any:
        """J(x) as the problem's `blocks`, `jac` or `linearize` gives it."""
        problem = self.problem
        if problem.blocks is None and problem.linearize is not None:
            return self._linearize(x)[1]
        self.tally.linearizations += 1
        if problem.blocks is not None:
            return self._from_blocks(problem.blocks(self._argument(x, copy=True)))
        return problem.jac(self._argument(x, copy=True))  # type: ignore[misc]

    def selected(self, rows: Array) -> Array:
        """The evaluated systems' part of an array with a row for each system that the user's functions see."""
        return rows if self.systems is None else gather(rows, self.places)

    def jacobian(self, x: Array, F: Array | None) -> LinearOperator:
        """J(x) on arrays (b, N), from the best that the problem offers; `F` is F(x), which only differences need."""
        problem = self.problem
        if problem.linearize is not None:
            return self._linearized(x)[1]
        self.tally.linearizations += 1
        if problem.jac is not None:
            return self.as_operator(problem.jac(self._argument(x, copy=True)), "jac")
        if problem.blocks is not None and problem.has_exact_blocks and problem.jvp is None:
            return self.as_operator(self._from_blocks(problem.blocks(self._argument(x, copy=True))), "blocks")
        return self._products(x, F)

    def _from_blocks(self, blocks: Array) -> BlockBandedMatrix:
        structure: Any = self.problem.structure
        if not is_array(blocks):
            raise TypeError(f"`blocks` must return an array, got {type(blocks).__name__}")
        k = structure.block_size
        expected = (*self.batch_shape, structure.length(self.size), structure.width, k, k)
        if tuple(blocks.shape) != expected:
            raise ValueError(f"`blocks` must return an array of shape {expected}, got {tuple(blocks.shape)}")
        return BlockBandedMatrix(blocks, lower=structure.lower, upper=structure.upper, periodic=structure.periodic)

    def _products(self, x: Array, F: Array | None) -> LinearOperator:
        """J(x) from separate products, exact or by differences."""
        problem = self.problem
        if problem.jvp is not None:
            matvec = self._product(problem.jvp, x, "jvp")
        elif F is not None:
            matvec = difference_product(self, x, F)
        else:
            matvec = _no_product
        return LinearOperator(
            matvec,
            None if problem.vjp is None else self._product(problem.vjp, x, "vjp"),
            in_shape=self.size,
            batch_shape=(x.shape[0],),
            dtype=self.dtype,
            take=lambda indices: self.take(indices, x)._products(
                gather(x, indices), None if F is None else gather(F, indices)
            ),
        )

    def operator(self, M: Any, name: str) -> LinearOperator:
        """A matrix or operator of one system, or of the whole batch, as an operator on (B, N)."""
        operator = aslinearoperator(M, name)
        if operator.shape != (self.size, self.size):
            raise ValueError(f"`{name}` must have shape {(self.size, self.size)}, got {operator.shape}")
        if operator.batch_shape == self.batch_shape and self.batch_shape:
            return guarded(operator, name)
        if operator.batch_shape:
            raise ValueError(f"`{name}` must have batch shape {self.batch_shape} or none, got {operator.batch_shape}")

        size = math.prod(self.batch_shape)
        return guarded(_repeated(operator, size), name)

    # Shapes, copies and checks

    def _argument(self, x: Array, *, copy: bool) -> Array:
        if self.systems is not None:
            full = self.xp.asarray(self.background, copy=True)
            scatter(full, self.places, x)
            return self.unflatten(full)
        return self.unflatten(copied(x) if copy and not self.problem.pure else x)

    def _own(self, rows: Array) -> Array:
        """What a function returned, as an array that no later call can change."""
        return rows if self.problem.pure else copied(rows)

    def _returned(self, value: Any, name: str) -> Array:
        """Check what a user's function returned; give it as (b, N) in the state's dtype."""
        xp = self.xp
        expected = self.batch_shape + self.event_shape
        is_plain = type(value) is np.ndarray and xp is numpy_namespace
        if is_plain and value.shape == expected and value.dtype == self.dtype:
            return self.selected(value.reshape(self.flat_shape))
        if not is_array(value):
            if value is None:
                raise TypeError(f"`{name}` returned None; it must return an array of shape {expected}")
            value = as_inexact(value, name)
        if isinstance(value, np.matrix | np.ma.MaskedArray):
            value = as_inexact(value, name)
        check_tensor(value, name)
        if array_namespace(value) is not xp:
            raise TypeError(f"`{name}` must return arrays of the library of x0, got some of {library(value)}")
        if value.dtype != self.dtype:
            value = self._cast(value, name)
        if value.shape != expected and not self._is_same_up_to_ones(value.shape, expected):
            raise ValueError(f"`{name}` must return an array of shape {expected}, got {value.shape}")
        rows = xp.reshape(value, self.flat_shape)
        return self.selected(rows)

    def _cast(self, value: Array, name: str) -> Array:
        xp = self.xp
        if not xp.isdtype(value.dtype, ("bool", "integral", "real floating", "complex floating")):
            raise TypeError(f"`{name}` must return numbers, got dtype {value.dtype}")
        if is_complex(value) and not xp.isdtype(self.dtype, "complex floating"):
            raise TypeError(f"`{name}` returned complex numbers for a real x0: pass a complex x0 to solve in complex")
        return xp.astype(value, self.dtype)

    def _is_same_up_to_ones(self, shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
        """Whether two shapes differ by axes of length 1 only, or the first is the flattened second."""
        return [n for n in shape if n != 1] == [n for n in expected if n != 1] or shape == (math.prod(expected),)

    def _product(self, function: Callable[[Array, Array], Array], x: Array, name: str) -> Callable[[Array], Array]:
        def product(v: Array) -> Array:
            self.tally.add("jvps" if name == "jvp" else "vjps")
            if self.systems is None:
                direction = self.xp.asarray(v, copy=True)
            else:
                direction = self.xp.zeros_like(self.background)
                scatter(direction, self.places, v)
            value = self._returned(function(self._argument(x, copy=True), self.unflatten(direction)), name)
            return self.xp.asarray(value, copy=True)

        return product

    def as_operator(self, J: Any, name: str) -> LinearOperator:
        """A user's Jacobian as a counted operator on (b, N)."""
        operator = aslinearoperator(J, name)
        rows = math.prod(self.batch_shape)
        if operator.batch_shape != self.batch_shape and not (rows == 1 and not operator.batch_shape):
            raise ValueError(
                f"`{name}` must return an operator with batch shape {self.batch_shape}, got {operator.batch_shape}"
            )
        if operator.shape != (self.size, self.size):
            raise ValueError(f"`{name}` must return a Jacobian of shape {(self.size,) * 2}, got {operator.shape}")
        flat = guarded(operator, name, self.tally.add, copies=not self.problem.pure)
        return flat if self.systems is None else embedded(flat, self.systems)


def _no_product(v: Array) -> Array:
    raise TypeError("this Jacobian was built for adjoint products only")


def _repeated(A: LinearOperator, size: int) -> LinearOperator:
    """One operator for each system of a batch."""

    def on_rows(product: Callable[[Array], Array]) -> Callable[[Array], Array]:
        return lambda v: array_namespace(v).stack([product(v[i, ...]) for i in range(v.shape[0])])

    return LinearOperator(
        on_rows(A.matvec),
        None if A._rmatvec is None else on_rows(A.rmatvec),
        in_shape=A.shape[1],
        batch_shape=(size,),
        dtype=A.dtype,
        take=lambda indices: _repeated(A, len(indices)),
    )
