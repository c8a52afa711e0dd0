"""Which systems of a problem are evaluated, and their points: arrays (b, N) and what the user's functions get."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import numpy as np

from implicitsolve._arrays.host import from_host, gather, scatter, send_indices
from implicitsolve._arrays.namespace import array_namespace, copy_array
from implicitsolve._record import Tally
from implicitsolve._typing import Array, HostArray, Indices, Namespace
from implicitsolve.linearize._difference_product import Box, DifferenceLength
from implicitsolve.operators import LinearOperator
from implicitsolve.problem import Problem, chosen, with_derivatives
from implicitsolve.structure import BlockBanded, Grid, Sparse

GATHERED = 0.75  # fraction of the systems below which gathering their data pays


class Systems:
    """A problem, or some systems of it, on arrays (b, N).

    `batch_shape` is the batch shape of the user's functions. As long as most of its systems run (without
    `Problem.take`, to the end) the others stand in `background` with their last iterates, which all subsets share: a
    smaller problem has to gather the data of its systems, which may cost more than a few systems too many. It is
    taken from when at most the part `few` of the systems run.
    """

    def __init__(
        self,
        problem: Problem,
        like: Array,
        rdiff: float | None = None,
        *,
        few: float = GATHERED,
        tally: Tally | None = None,
    ) -> None:
        if problem.batch_ndim > like.ndim:
            raise ValueError(f"`batch_ndim` is {problem.batch_ndim}, but x0 has only {like.ndim} axes")
        problem = with_derivatives(problem, like)
        self.xp: Namespace = array_namespace(like)
        self.dtype: Any = like.dtype
        self.event_shape: tuple[int, ...] = tuple(like.shape[problem.batch_ndim :])
        self.size: int = math.prod(self.event_shape)
        self.problem: Problem = problem
        self._set_batch(tuple(like.shape[: problem.batch_ndim]))
        places = np.arange(self.flat_shape[0])
        self.origin: tuple[Problem, Indices, tuple[int, ...]] = problem, places, self.shape  # whose systems are taken
        if isinstance(problem.structure, BlockBanded):
            problem.structure.length(self.size)  # raises where the blocks do not fit
        elif isinstance(problem.structure, Sparse | Grid):
            problem.structure.check_size(self.size)
        for argument in ("names", "equations"):
            labels = getattr(problem, argument)
            if labels is not None and len(labels) != self.size:
                raise ValueError(f"Problem: `{argument}` must be {self.size} names, got {len(labels)}")
        self.box: Box | None = None if problem.bounds is None else Box.of(problem, like, self.flat_shape)
        self.tally: Tally = Tally() if tally is None else tally
        self.rows: Indices = places  # in the whole batch
        self.rdiff: float | None = rdiff
        self.systems: Indices | None = None  # rows of `background` that are evaluated, where `take` is missing
        self.places: Any = None  # these, where the arrays are
        self.background: Array = None
        self.few: float = few
        self.reports_coarse = False  # whether a first F of float32, where x is of float64, raises
        self.entering: Any = None  # `NewSystems`, until the next evaluation of F
        self._kept: tuple[Array, Any] | None = None  # x, and what `jac` or `linearize` returned there
        self.approximate: Callable[[Array], LinearOperator] | None = None  # the inverse of `jac_approx` at x

    def _set_batch(self, batch_shape: tuple[int, ...]) -> None:
        """Evaluate a problem whose functions take that batch."""
        self.batch_shape: tuple[int, ...] = batch_shape
        self.shape: tuple[int, ...] = batch_shape + self.event_shape  # of the user's states
        self.flat_shape: tuple[int, int] = math.prod(batch_shape), self.size  # the same as (B, N)

    @property
    def has_exact_products(self) -> bool:
        """Whether J v needs no differences."""
        problem = self.problem
        has_own = problem.linearize is not None or problem.jac is not None or problem.jvp is not None
        return has_own or (problem.blocks is not None and problem.blocks_exact)

    @property
    def offers_inverse(self) -> bool:
        """Whether J may come with an approximate inverse at each trial point."""
        return self.problem.linearize is not None or self.approximate is not None

    def flatten(self, x: Array) -> Array:
        """View an array of the problem's shape as (B, N)."""
        return self.xp.reshape(x, self.flat_shape)

    def unflatten(self, x: Array) -> Array:
        """View an array (B, N) in the problem's shape."""
        return self.xp.reshape(x, self.shape)

    def take(self, indices: Indices, x: Array) -> Self:
        """Evaluator of some of the systems; `x` (b, N) are the present iterates of all."""
        if len(indices) == self.rows.size and (indices == np.arange(self.rows.size)).all():
            return self
        systems = indices if self.systems is None else self.systems.take(indices)
        has_own = "problem" not in vars(self)  # it was taken
        if (has_own or self.problem.take is not None) and len(systems) <= self.few * self.flat_shape[0]:
            return self.chosen(indices)
        part = self._of(indices)
        part.systems, part.places = systems, send_indices(systems, x)
        if self.systems is None:
            part.background = self.xp.asarray(x, copy=True)
        return part

    def chosen(self, indices: Indices) -> Self:
        """Evaluator of systems by a problem of their own, taken when it is first needed; indices may repeat."""
        part, (problem, places, shape) = self._of(indices), self.origin
        part.origin = problem, places[indices if self.systems is None else self.systems[indices]], shape
        vars(part).pop("problem", None)
        part._set_batch((len(indices),))
        part.systems = part.background = None
        return part

    def __getattr__(self, name: str) -> Any:
        if name != "problem":
            raise AttributeError(name)
        self.problem = problem = chosen(*self.origin)
        return problem

    @cached_property
    def length(self) -> DifferenceLength:
        """Lengths of the differences in products with J, shared by all parts of the batch."""
        return DifferenceLength(self.flat_shape[0], self.rdiff)

    def _of(self, indices: Indices) -> Self:
        part = copy.copy(self)
        part.entering, part.length = None, self.length
        part.rows, part.box = self.rows.take(indices), None if self.box is None else self.box.take(indices)
        return part

    def _take_entering(self) -> Any:
        """The systems that enter, which the next evaluation does not see again."""
        entering, self.entering = self.entering, None
        return entering

    # Points of evaluation

    def move(self, x: Array, step: Array | float = 0.0, length: HostArray | None = None) -> Array:
        """``x + length step`` for x, step (b, N) and length (b,), 1 by default; within the bounds."""
        with np.errstate(all="ignore"):
            new_x = x + (step if length is None else from_host(length, x)[:, None] * step)
        if self.box is None:
            return new_x
        return self.box.clip(self.xp.where(self.xp.isnan(new_x), x, new_x))

    def inward(self, x: Array, h: Array) -> Array:
        """Displacements h of x (b, N), in any shape, turned round where they would leave the bounds."""
        if self.box is None:
            return h
        return self.xp.reshape(self.box.inward(x, self.xp.reshape(h, x.shape)), h.shape)

    def select(self, rows: Array) -> Array:
        """The evaluated systems' part of an array with a row for each system of the user's functions."""
        return rows if self.systems is None else gather(rows, self.places)

    def _argument(self, x: Array, *, copy: bool) -> Array:
        if self.box is not None:
            x, copy = self.box.clip(x), False  # at the bound, where rounding has carried x beyond it
        if self.systems is not None:
            full = self.xp.asarray(self.background, copy=True)
            scatter(full, self.places, x)
            return self.unflatten(full)
        return self.xp.reshape(copy_array(x) if copy and not self.problem.pure else x, self.shape)
