"""Small systems within JAX: Newton's method with a dense J, compiled; the host solves only those on which it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import lu_factor, lu_solve

from implicitsolve.globalize._rules import SUFFICIENT_DECREASE, may_be_root
from implicitsolve.jax._exchange import is_traced
from implicitsolve.jax._solves import Function, Nonlinear, Settings, implicit_solution, solution_map
from implicitsolve.nonlinear._accuracy import CONFIRMED, Progress, plain_scales, scales, units_of
from implicitsolve.nonlinear._certificate import VISIBLE
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop

LARGEST_COMPILED = 200  # from which on the host, which finds sparsity, takes less time
MOST_NEWTON_STEPS, MOST_HALVINGS = 50, 10  # what takes more is left to the host
JX_ROUNDING = 8.0  # rounding units of |J| |x| up to which F is rounding error
RUNNING, CONVERGED, STAGNATED = int(Status.RUNNING), int(Status.CONVERGED), int(Status.STAGNATED)

Array: TypeAlias = jax.Array
Arrays: TypeAlias = tuple[Array, ...]
State = dict[str, Any]


def is_solved_in_jax(settings: Settings, start: Array) -> bool:
    """Whether a system is small and real, its method left to the solver, its norm and limits known to JAX."""
    stop = settings.stop or NonlinearStop()
    is_free = settings.method == "auto" and (settings.structure is None or str(settings.structure) == "none")
    is_plain = stop.norm == "max" and stop.max_evaluations is None and stop.max_seconds is None
    return is_free and is_plain and start.size <= LARGEST_COMPILED and jnp.issubdtype(start.dtype, jnp.floating)


class Small(Nonlinear):
    """F(x, *parameters) = 0 for few unknowns."""

    @cached_property
    def attempt(self) -> Function:
        """`Newton` on these equations, on arrays of this shape."""
        return Newton(self.function, self.settings.stop or NonlinearStop()).solve

    def over(self, size: int, axes: tuple[int | None, ...]) -> Small:
        """The solve of a batch of systems, each of which ends independently."""
        found = Small(jax.vmap(self.function, in_axes=(0, *axes)), (size, *self.shape), self.dtype, self.settings)
        vars(found)["attempt"] = jax.vmap(self.attempt, in_axes=(0, *axes))
        return found

    @cached_property
    def _program(self) -> Function:
        return jax.jit(self.attempt)

    def __call__(self, start: Array, *parameters: Array) -> Arrays:
        """Solve in JAX, and on the host if a system has not converged."""
        if not is_traced(start, *parameters):
            found = self._program(start, *parameters)
            if bool((found[1] == CONVERGED).all()):
                return found
        return super().__call__(start, *parameters)

    @cached_property
    def _loop(self) -> Function:
        on_host = super()._loop

        def solve(start: Array, *parameters: Array) -> Arrays:
            found = self.attempt(start, *parameters)
            return lax.cond((found[1] == CONVERGED).all(), lambda: found, lambda: on_host(start, *parameters))

        return solve


class TracedProgress(Progress):
    """What is known of the error of x, in scalars of JAX."""

    where: ClassVar[Function] = staticmethod(jnp.where)
    larger: ClassVar[Function] = staticmethod(jnp.maximum)
    has_any: ClassVar[Function] = staticmethod(lambda condition: True)  # conditions are traced

    def pack(self, dtype: Any) -> Array:
        """All numbers in one array: XLA computes each array of a loop by a kernel of its own."""
        return jnp.stack([jnp.asarray(number, dtype) for number in vars(self).values()])

    @classmethod
    def unpack(cls, numbers: Array) -> TracedProgress:
        """The inverse of `pack`, with `doubted` false."""
        found = cls(*numbers)
        found.doubted = False
        return found


@dataclass(frozen=True)
class Newton:
    """Newton's method on F(x, *parameters) = 0 with a dense J, for one system (N,).

    Its steps are halved until ||F||_2 falls. The error of x is estimated by the simplified Newton correction with the
    factors of the step, relative to the unknowns in units that J shows. A step takes N products J v, a factorization,
    and a residual for each length; success far from x0 takes one more. Other systems end as STAGNATED or RUNNING.
    """

    function: Function
    stop: NonlinearStop

    def solve(self, x0: Array, *parameters: Array) -> Arrays:
        """The solution from x0, in the form of `outcome`."""
        F = lambda x: self.function(x, *parameters)  # noqa: E731
        state, most = self._start(x0, F(x0)), self.stop.max_iterations or MOST_NEWTON_STEPS
        state = lax.while_loop(
            lambda state: (state["status"] == RUNNING) & (state["iterations"] < min(most, MOST_NEWTON_STEPS)),
            partial(self._advance, F),
            state,
        )
        error, measure, unit = state["progress"][0], jnp.abs(state["F"]).max(), float(jnp.finfo(x0.dtype).eps)
        aim = measure * (self.stop.error_limit(unit) / error)
        target = self._target(state, unit) if self.stop.judges_F else aim
        numbers = (jnp.asarray(number, x0.dtype) for number in (measure, target, error))
        counts = state["iterations"], state["residuals"], state["iterations"] * x0.size
        return state["x"], state["status"], *numbers, *counts

    def _start(self, x0: Array, value: Array) -> State:
        """The state at x0, where F has the given value."""
        norm, count = jnp.linalg.norm(value), jnp.int32(1)
        error = jnp.where(norm == 0, jnp.finfo(x0.dtype).eps, jnp.inf)
        progress = TracedProgress(error=error, size=jnp.linalg.norm(x0)).pack(x0.dtype)
        is_root = (norm == 0) & jnp.isfinite(x0).all()
        return {
            "start": x0,
            "x": x0,
            "F": value,
            "norm": norm,
            "start_norm": norm,
            "start_measure": jnp.abs(value).max(),
            "reference": jnp.abs(x0),
            "progress": progress,
            "status": jnp.where(is_root, CONVERGED, RUNNING).astype(jnp.int32),
            "iterations": count - 1,
            "residuals": count,
        }

    def _advance(self, F: Callable[[Array], Array], state: State) -> State:
        x, unit = state["x"], float(jnp.finfo(state["x"].dtype).eps)
        J = jax.jacfwd(F)(x)
        factors = lu_factor(J)
        step = -lu_solve(factors, state["F"])
        length, value, norm, halvings = search(F, x, step, state["norm"])
        is_accepted, moved = falls(norm, state["norm"], length), length * step
        reference = jnp.where(state["iterations"] == 0, jnp.maximum(jnp.abs(x), jnp.abs(step)), state["reference"])
        progress = TracedProgress.unpack(state["progress"])
        progress.note_step(jnp.linalg.norm(moved), jnp.linalg.norm(x + moved), norm, state["norm"])
        reference *= progress.shrink
        correction, own, before = self._lengths(J, x, x + moved, reference, lu_solve(factors, value), moved, x)
        progress.note_correction(correction, own, before, 1.0, unit)
        known = {"reference": reference, "progress": progress.pack(x.dtype)}
        found = state | known | {"x": x + moved, "F": value, "norm": norm}
        found = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old).astype(old.dtype), found, state)
        (newton,) = self._lengths(J, x, x, reference, step)
        is_settled = ~is_accepted & self._is_exact(J, state, newton)
        error = jnp.where(is_settled, 2 * newton + unit, found["progress"][0])
        found["progress"] = found["progress"].at[0].set(error)
        is_held = is_settled | is_accepted & self._holds(TracedProgress.unpack(found["progress"]), found)
        is_far = is_held & ~is_settled & self.stop.judges_x & self._is_far(found, x)
        is_held &= lax.cond(is_far, lambda: self._agrees(F, factors, found, x), lambda: True)
        if self.stop.judges_x and not self.stop.judges_F:
            size = jnp.maximum(jnp.linalg.norm(found["x"]), jnp.linalg.norm(found["start"]))
            moved = jnp.linalg.norm(found["x"] - found["start"])
            is_determined = VISIBLE * found["norm"] <= unit**0.25 * jnp.linalg.norm(J @ found["x"])
            is_held &= is_determined | may_be_root(found["norm"], found["start_norm"], moved, size, unit)
        status = jnp.where(is_held, CONVERGED, jnp.where(is_accepted, RUNNING, STAGNATED))
        counts = {"iterations": state["iterations"] + 1, "residuals": state["residuals"] + 1 + halvings + is_far}
        return found | counts | {"status": status.astype(jnp.int32)}

    @staticmethod
    def _is_far(found: State, before: Array) -> Array:
        """Whether x is so far from x0 that J must be confirmed; for one unknown, from the previous point."""
        x = found["x"]
        start = jnp.where((found["norm"] > 0) & (x.size == 1), before, found["start"])
        moved, scale = jnp.abs(x - start), plain_scales(*(v[None] for v in (x, before, found["reference"])))[0]
        return ((moved > jnp.abs(start)) & (moved > 0.5 * scale)).any()

    @staticmethod
    def _agrees(F: Callable[[Array], Array], factors: Any, found: State, before: Array) -> Array:
        """Whether the previous J holds at x, as in `implicitsolve.nonlinear._accuracy.agrees`, by one product."""
        x = found["x"]
        missed = jnp.abs(lu_solve(factors, jax.jvp(F, (x,), (x,))[1]) - x)
        scale = plain_scales(*(v[None] for v in (x, before, found["reference"])))[0]
        return (missed <= CONFIRMED * scale).all()

    @staticmethod
    def _lengths(J: Array, x: Array, before: Array, reference: Array, *vectors: Array) -> list[Array]:
        """Lengths of vectors, relative to the sizes of x and of the previous point, in units of J."""
        scale: Any = scales(units_of(J[None], jnp)[0], before, x, reference, jnp)
        scale = jnp.minimum(scale, plain_scales(*(v[None] for v in (x, before, reference)))[0])
        return [jnp.abs(vector / scale).max() for vector in vectors]

    def _is_exact(self, J: Array, state: State, newton: Array) -> Array:
        """Whether F is rounding error at x, and Newton's step of that relative length negligible."""
        unit = float(jnp.finfo(J.dtype).eps)
        rounding = JX_ROUNDING * unit * (jnp.abs(J) @ jnp.abs(state["x"]))
        is_exact = (jnp.abs(state["F"]) <= rounding).all() & (newton <= self.stop.error_limit(unit))
        return is_exact & (self.stop.judges_x and not self.stop.judges_F)

    def _target(self, state: State, unit: float) -> Array:
        return jnp.maximum(self.stop.atol, self.stop.relative(unit) * state["start_measure"])

    def _holds(self, progress: Progress, state: State) -> Array:
        norm, unit = state["norm"], float(jnp.finfo(state["x"].dtype).eps)
        held = jnp.isfinite(norm) & jnp.isfinite(state["x"]).all()
        if self.stop.judges_x:
            is_accurate = (progress.error <= self.stop.error_limit(unit)) & (norm <= state["start_norm"])
            held &= (is_accurate | (norm == 0)) & ~(progress.runs_away() | progress.is_at_infinity(norm))
        if self.stop.judges_F:
            held &= jnp.abs(state["F"]).max() <= self._target(state, unit)
        return held


def falls(norm: Array, before: Array, length: Array) -> Array:
    return norm <= (1 - SUFFICIENT_DECREASE * length) * before


def search(F: Callable[[Array], Array], x: Array, step: Array, norm: Array) -> Arrays:
    """Halve a step until ||F|| falls: its length, F and ||F|| at its end, and how often it was halved."""

    def halve(trial: Arrays) -> Arrays:
        return at(0.5 * trial[0], trial[3] + 1)

    def at(length: Array, halvings: Array) -> Arrays:
        value = F(x + length * step)
        return length, value, jnp.linalg.norm(value), halvings

    return lax.while_loop(
        lambda trial: ~falls(trial[2], norm, trial[0]) & (trial[3] < MOST_HALVINGS),
        halve,
        at(jnp.ones((), x.dtype), jnp.int32(0)),
    )


def solution_in_jax(function: Function, settings: Settings, start: Array) -> Function:
    """`solution_map` by dense solves, NaN where J is singular; on the host where its method was chosen."""
    if settings.adjoint_method is not None or settings.adjoint_stop is not None:
        return implicit_solution(function, start.size, start.dtype, settings)

    def solve(b: Array, x: Array, parameters: Arrays, *, is_transposed: bool) -> Array:
        J = jax.jacfwd(lambda x: function(x, *parameters))(x)
        found = jnp.linalg.solve(J.T if is_transposed else J, b)
        return jnp.where(jnp.isfinite(found).all(), found, jnp.nan)

    forward, backward = (partial(solve, is_transposed=kind) for kind in (False, True))
    return jax.jit(solution_map(lambda x, parameters: function(x, *parameters), forward, backward))
