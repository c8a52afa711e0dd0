"""The one place that calls the user's functions: a problem seen as arrays (B, N), checked and counted.

The user's functions receive copies, unless the problem is `pure`, so that a residual which changes its argument or
returns the same buffer every time does no harm; exceptions they raise pass through unchanged.

Products without `jvp`, `jac` or `linearize` are differences: see `difference_product`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._arrays.host import from_host, gather, scatter
from implicitsolve._arrays.namespace import copy_array, eps, numpy_namespace
from implicitsolve._record import LimitReached
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.kernels._norms import norm2
from implicitsolve.linearize._checks import (
    checked_array,
    checked_blocks,
    checked_inverse,
    checked_jacobian,
    no_product,
    on_host,
    plain_matrix,
    to_shape,
)
from implicitsolve.linearize._difference_product import difference_product
from implicitsolve.linearize._systems import Systems
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.operators._base import embed
from implicitsolve.operators._wrappers import Part, guard


class CoarseResidualError(Exception):
    """The first F of a float64 x is of float32: the system is to be solved in float32. It never leaves `root`."""


class NewSystems:
    """Systems whose x0 is evaluated in the next call for running ones; `evaluator` is of both, running ones first."""

    def __init__(self, evaluator: Evaluator, x: Array, *, needs_jacobian: bool) -> None:
        self.evaluator: Evaluator = evaluator
        self.x: Array = x
        self.needs_jacobian: bool = needs_jacobian
        self.F: Array = None
        self.J: LinearOperator | None = None

    @property
    def rows(self) -> Indices:
        """Places of the new systems in the whole batch."""
        return self.evaluator.rows[-self.x.shape[0] :]

    def evaluate(self, x: Array, *, jacobian: bool) -> tuple[Array, LinearOperator | None]:
        """F and J of the others at x; what the same call gives for these systems is kept."""
        both, b = self.evaluator.xp.concat([x, self.x], axis=0), x.shape[0]
        linearizes = jacobian or self.needs_jacobian
        F, J = self.evaluator.trial(both) if linearizes else (self.evaluator.residual(both), None)
        places = np.arange(both.shape[0])
        self.F, self.J = F[b:, ...], None if J is None else Part(J, places[b:])
        return F[:b, ...], None if J is None else Part(J, places[:b])


class Evaluator(Systems):
    """Evaluates the functions of a problem, or of some of its systems, on arrays (b, N); see `Systems`."""

    def residual(self, x: Array, *, keep: bool = True) -> Array:
        """F(x) for x (b, N). With `keep` the result is a copy that no later call can change."""
        if self.entering is not None:
            return self._with_entering(x, jacobian=False)[0]
        self.tally.add("residuals")
        is_own = self.problem.pure or self.systems is not None  # rows of what F returned are a copy
        argument = self._argument(x, copy=keep)
        try:
            value = self.problem.residual(argument)
        except self.problem.rejects as error:
            value = self._reject(argument, error)
        F = self._as_array(value, "residual")
        return copy_array(F) if keep and not is_own else F

    def _reject(self, argument: Array, error: Exception) -> Array:
        """Return NaN for F where it has raised one of the problem's `rejects`; raise that again at x0."""
        if self.tally.residuals == 1:
            raise error
        self.tally.rejected += 1
        return self.xp.full_like(argument, np.nan)

    def residual_of_one(self, x: HostArray, *, keep: bool = True) -> HostArray:
        """F(x) for the only system, without bounds, as NumPy arrays (N,)."""
        tally = self.tally
        if tally.is_enforced and tally.is_spent():
            raise LimitReached
        tally.residuals += 1
        is_own = self.problem.pure or not keep
        argument = (x if is_own else x.copy()).reshape(self.shape)
        try:
            value = self.problem.residual(argument)
        except self.problem.rejects as error:
            value = self._reject(argument, error)
        is_plain = type(value) is np.ndarray and value.shape == self.shape and value.dtype == self.dtype
        F: HostArray = value.reshape(-1) if is_plain else self._as_array(value, "residual")[0]
        return F if is_own else F.copy()

    def substitute(self) -> Array:
        """The solution of a causal problem, for about the work of a residual."""
        self.tally.add("residuals")
        x = self._as_array(self.problem.substitute(), "substitute")  # type: ignore[misc]
        return x if self.problem.pure else copy_array(x)

    def trial(self, x: Array) -> tuple[Array, LinearOperator | None]:
        """F(x), and J(x) where the problem computes both at once."""
        if self.entering is not None:
            return self._with_entering(x, jacobian=True)
        if self.problem.linearize is not None and self.approximate is None:
            return self._linearization(x)
        F = self.residual(x)
        return F, None if self.approximate is None else self.jacobian(x, F)

    def attempt(self, x: Array, inside: Array, *, jacobian: bool = True) -> tuple[Array, LinearOperator | None]:
        """`trial`, or F alone, with NaN for F where x has overflowed: no function is called there, but at `inside`."""
        evaluate: Any = self.trial if jacobian else lambda x: (self.residual(x), None)
        if isinstance(x, np.ndarray) and np.isfinite(x).all():
            return evaluate(x)
        is_point = self.xp.all(self.xp.isfinite(x), axis=1)[:, None]
        F, J = evaluate(self.xp.where(is_point, x, inside))
        return self.xp.where(is_point, F, np.nan * self.xp.ones_like(F)), J

    def _linearization(self, x: Array) -> tuple[Array, LinearOperator]:
        """F(x) and J(x) of a problem with `linearize`."""
        F, J = self._linearize(x)
        F = self._as_array(F, "linearize")
        return F if self.problem.pure else copy_array(F), self.as_operator(J, "linearize")

    def _with_entering(self, x: Array, *, jacobian: bool) -> tuple[Array, LinearOperator | None]:
        """Evaluate x together with the systems that enter."""
        return self._take_entering().evaluate(x, jacobian=jacobian)

    def _linearize(self, x: Array) -> tuple[Any, Any]:
        if (kept := self._kept_at(x)) is not None:
            return kept
        self.tally.add("residuals")
        self.tally.add("linearizations")
        argument = self._argument(x, copy=True)
        try:
            value: Any = self.problem.linearize(argument)  # type: ignore[misc]
        except self.problem.rejects as error:
            shapes = {"in_shape": self.event_shape, "batch_shape": self.batch_shape}
            value = self._reject(argument, error), LinearOperator(copy_array, copy_array, **shapes, dtype=self.dtype)
        if not (isinstance(value, tuple) and len(value) == 2):
            raise TypeError(f"`linearize` must return a pair (F, J), got {type(value).__name__}")
        return value[0], self._plain(value[1], "linearize")

    def check_take(self, part: Evaluator, rows: Indices, x: Array, F: Array) -> None:
        """Raise where `part`, the first that a solve takes, has another F(x) for these rows of x and F (b, N).

        One evaluation; two more where F differs, at points near x, since it may be rounding errors at x itself.
        """
        problem, tally = self.origin[0], self.tally
        if problem.take is None or problem.pure or tally.has_taken or tally.is_spent() or "problem" in vars(part):
            return
        tally.has_taken, precision = True, eps(self.xp, self.dtype) ** 0.25

        def differ(x: Array, F: Array) -> HostArray:
            expected = gather(F, rows)
            with np.errstate(all="ignore"):
                return norm2(part.residual(gather(x, rows)) - expected) > precision * norm2(expected)

        if differ(x, F).any():
            size = np.asarray(norm2(x)) / max(1, self.size) ** 0.5
            least = from_host(np.where(size > 0, size, 1.0), x)[:, None]
            near = self.move(x, self.inward(x, precision * self.xp.maximum(self.xp.abs(x), least)))
            wrong = np.flatnonzero(differ(near, self.residual(near)))
            if wrong.size:
                raise ValueError(
                    f"`take` must return the problem of the systems that it is given, in their order: {wrong.size} of "
                    f"{rows.size}, the first of them {self.rows[rows[wrong[0]]]}, have another F than in the batch"
                )

    def matrix(self, x: Array, *, keep: bool = False) -> Any:
        """J(x) as the problem's `blocks`, `jac` or `linearize` gives it; with `keep` for the next request at x too."""
        problem = self.problem
        if problem.blocks is not None:
            self.tally.add("linearizations")
            return self._from_blocks(problem.blocks(self._argument(x, copy=True)))
        value = self._jac(x) if problem.linearize is None else self._linearize(x)
        if keep:
            self._kept = copy_array(x), value
        if problem.linearize is None:
            return value
        self._as_array(value[0], "linearize")
        return value[1]

    def _jac(self, x: Array) -> Any:
        if (kept := self._kept_at(x)) is not None:
            return kept
        self.tally.add("linearizations")
        J = self.problem.jac(self._argument(x, copy=True))  # type: ignore[misc]
        return self._plain(J, "jac")

    def _plain(self, J: Any, name: str) -> Any:
        if self.xp is not numpy_namespace or (type(J) is np.ndarray and J.dtype != object and J.ndim > 1):
            return J
        return plain_matrix(on_host(J, name, self.dtype), name)

    def _kept_at(self, x: Array) -> Any:
        """What `jac` or `linearize` has returned at x, once, if `matrix` has kept it."""
        kept, self._kept = self._kept, None
        return kept[1] if kept is not None and np.array_equal(kept[0], x) else None

    def jacobian(self, x: Array, F: Array | None) -> LinearOperator:
        """J(x) on arrays (b, N), from the best that the problem offers; `F` is F(x), which only differences need."""
        J, inverse = self._jacobian(x, F), self.approximate
        return J if inverse is None else J._alike(J.matvec, J.rmatvec, inverse=partial(inverse, x))

    def _jacobian(self, x: Array, F: Array | None) -> LinearOperator:
        problem = self.problem
        if problem.linearize is not None:
            return self._linearization(x)[1]
        if problem.jac is not None:
            return self.as_operator(self._jac(x), "jac")
        self.tally.add("linearizations")
        if problem.blocks is not None and problem.has_exact_blocks and problem.jvp is None:
            return self.as_operator(self._from_blocks(problem.blocks(self._argument(x, copy=True))), "blocks")
        return JacobianProducts(self, x, F)

    def _from_blocks(self, blocks: Any) -> BlockBandedMatrix:
        structure: Any = self.problem.block_structure
        return checked_blocks(blocks, structure, self.batch_shape, self.size)

    def operator(self, M: Any, name: str) -> LinearOperator:
        """An approximate inverse for one system, or for the whole batch, as an operator on (B, N)."""
        return checked_inverse(M, name, self.batch_shape, self.event_shape)

    def _as_array(self, value: Any, name: str) -> Array:
        """Check what a user's function returned; give it as (b, N) in the state's dtype."""
        xp, expected = self.xp, self.shape
        is_plain = type(value) is np.ndarray and xp is numpy_namespace
        if is_plain and value.shape == expected and value.dtype == self.dtype:
            rows = value.reshape(self.flat_shape)
            return rows if self.systems is None else gather(rows, self.places)
        if self.problem.reshapes and name == "residual":
            value = to_shape(value, expected)
        is_first = self.reports_coarse and self.tally.residuals == 1 and name == "residual"
        if is_first and is_plain and value.dtype == np.float32 and self.dtype == np.float64:
            raise CoarseResidualError
        return self.select(xp.reshape(checked_array(value, name, xp, self.dtype, expected), self.flat_shape))

    def _product(self, function: Callable[[Array, Array], Array], x: Array, name: str) -> Callable[[Array], Array]:
        def product(v: Array) -> Array:
            self.tally.add("jvps" if name == "jvp" else "vjps")
            if self.systems is None:
                direction = self.xp.asarray(v, copy=True)
            else:
                direction = self.xp.zeros_like(self.background)
                scatter(direction, self.places, v)
            value = self._as_array(function(self._argument(x, copy=True), self.unflatten(direction)), name)
            return self.xp.asarray(value, copy=True)

        return product

    def _products(self, x: Array, V: Array) -> Array:
        """J(x) v for each v of V (n, b, N), by one call of the problem's `jvps`."""
        for _ in range(V.shape[0]):
            self.tally.add("jvps")
        shape = (V.shape[0], *self.flat_shape)
        directions = V
        if self.systems is not None:
            directions = self.xp.zeros(shape, dtype=V.dtype)
            directions[:, self.places, :] = V
        shaped = self.xp.reshape(directions, (V.shape[0], *self.shape))
        found = self.problem.jvps(self._argument(x, copy=True), shaped)  # type: ignore[misc]
        products = self.xp.reshape(checked_array(found, "jvps", self.xp, self.dtype, (V.shape[0], *self.shape)), shape)
        return products if self.systems is None else products[:, self.places, :]

    def as_operator(self, J: Any, name: str) -> LinearOperator:
        """A user's Jacobian as a counted operator on (b, N)."""
        if scipy.sparse.issparse(J) and self.xp is not numpy_namespace:
            raise TypeError(f"`{name}` must return matrices of the library of x0, got {type(J).__name__} of SciPy")
        operator = checked_jacobian(J, name, self.batch_shape, self.size)
        flat = guard(operator, name, self.tally.add, copies=not self.problem.pure)
        return flat if self.systems is None else embed(flat, self.systems)


class JacobianProducts(LinearOperator):
    """J(x) on arrays (b, N) by one call for each product, exact or by differences; arguments are not checked."""

    def __init__(self, evaluator: Evaluator, x: Array, F: Array | None) -> None:
        problem = evaluator.problem
        if problem.jvp is not None:
            self._matvec = evaluator._product(problem.jvp, x, "jvp")
        elif F is not None:
            residual = partial(evaluator.residual, keep=False)
            self._matvec = difference_product(residual, evaluator.length, evaluator.rows, x, F, evaluator.box)
        else:
            self._matvec = no_product
        self._rmatvec = None if problem.vjp is None else evaluator._product(problem.vjp, x, "vjp")
        self.products = None if problem.jvps is None else partial(evaluator._products, x)
        self._take = lambda rows: JacobianProducts(
            evaluator.take(rows, x), gather(x, rows), None if F is None else gather(F, rows)
        )
        self._inverse = self._cast = None
        self.in_shape = self.out_shape = (evaluator.size,)
        self.batch_shape = (x.shape[0],)
        self.dtype = x.dtype

    def matvec(self, v: Array) -> Array:
        return self._matvec(v)

    def approximate_inverse(self) -> None:
        """Return None: products alone offer no approximate inverse."""
