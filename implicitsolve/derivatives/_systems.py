"""The linear systems of derivatives of a solution, and the results of their solves."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from implicitsolve._arrays.host import from_host
from implicitsolve._arrays.namespace import array_namespace, as_inexact, eps
from implicitsolve._record import Counts
from implicitsolve._summary import summarize_derivative
from implicitsolve._typing import Array, CallersArray, HostArray
from implicitsolve.elimination._even_odd import halves_of, merge, reduced_jacobian, split
from implicitsolve.kernels._norms import Norms, norm2
from implicitsolve.krylov import LGMRES, KrylovMethod, KrylovOutcome
from implicitsolve.krylov._recycling import BASIS_MEMORY
from implicitsolve.linearize._block_groups import weights
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.nonlinear._direction import normalize, restore_norms
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._wrappers import guard
from implicitsolve.problem import Problem
from implicitsolve.result import Ending, LinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Derivative(Ending):
    """What `pull_back` and `push_forward` return beside the derivative itself."""

    status: Any
    linear: LinearResult = field(repr=False)
    counts: Counts

    def summary(self) -> str:
        """Return what is known of the derivative, and of its linear solve, as a table."""
        return summarize_derivative(self)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class AdjointResult(Derivative):
    """Result of `pull_back`.

    Attributes
    ----------
    gradients : dict of str to Array
        Gradient for each parameter of the problem.
    adjoint : Array
        Solution of J^H adjoint = cotangent, shaped like x.
    status : Status or ndarray of int
        CONVERGED, the linear solve's failure, FORWARD_NOT_CONVERGED, or INACCURATE.
    linear : LinearResult
        The adjoint solve.
    counts : Counts
        Calls of the user's functions.
    """

    _best: ClassVar[str] = "adjoint"

    gradients: dict[str, CallersArray]
    adjoint: HostArray
    _second: CallersArray = field(repr=False, default=None)

    def push_forward(
        self, tangents: Mapping[str, CallersArray], *, cotangent: Any = None, method: Any = None, stop: Any = None
    ) -> AdjointResult:
        """Exact derivative of the gradients: the product of a loss's Hessian with d theta (``derivatives="trace"``).

        Takes a solve with J and one with J^H, by factors that are kept for further directions.

        Parameters
        ----------
        cotangent : array_like or callable, optional
            How the cotangent changes: an array like x, or a function of dx. Default: not at all (a loss linear in x).
        tangents, method, stop
            As in the function `push_forward`.

        Raises
        ------
        TypeError
            If F was not traced, or the result was copied or read from a file.
        """
        if self._second is None:
            raise TypeError("push_forward: a result of `pull_back` that was pickled has no problem")
        return self._second(self, tangents, cotangent, method, None, None, stop)

    def __getstate__(self) -> dict[str, CallersArray]:
        """All but the functions of the problem."""
        return vars(self) | {"_second": None}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TangentResult(Derivative):
    """Result of `push_forward`.

    Attributes
    ----------
    tangent : Array
        Derivative of the solution along the parameters' tangents, shaped like x.
    status : Status or ndarray of int
        CONVERGED, the linear solve's failure, FORWARD_NOT_CONVERGED, or INACCURATE.
    linear : LinearResult
        The tangent solve.
    counts : Counts
        Calls of the user's functions.
    """

    _best: ClassVar[str] = "tangent"

    tangent: HostArray


ADJOINT_SPACE = 200  # vectors of the default Krylov space of one system
ROUNDS = 4  # Krylov solves, each followed by a product that measures the residual
LEAST_FLOAT32_BLOCK = 64  # unknowns in a block from which on products in float32 take half the time
LEAST_SINGLE = 5e-7  # of ||b||, to which float32 solves: 4 units of roundoff
DROWNED = 0.05  # bound of the errors of differences over ||b||; those measured are a sixth of it


class Elimination(NamedTuple):
    """The eliminated blocks from the kept ones, their coupling back to these, and the gradients if available."""

    eliminated: Array
    back: Array
    gradients: Callable[[], Mapping[str, Array]] | None


class HalfSystem:
    """J x = b, or J^H x = b, of a problem with `halves`, at one point.

    The kept blocks are computed by corrections d, ``A d = b_kept - x_kept + back``, until this residual is small. Each
    is measured by a product, and the gradients are computed with the last of these products.
    """

    def __init__(self, evaluator: Evaluator, x: Array, *, needs_adjoint: bool, wrt: Collection[str] | None) -> None:
        problem = evaluator.problem
        self.evaluator, self.axis, self.needs_adjoint, self.wrt = evaluator, problem.batch_ndim, needs_adjoint, wrt
        self.halves = halves_of("pull_back", problem)
        eliminated, kept = self.states = split(x, self.axis)
        tally = evaluator.tally
        for kind in ("residuals", "linearizations"):
            tally.add(kind)
        _, self.first = self.halves.eliminated.linearize(kept)
        _, self.second = self.halves.kept.linearize(eliminated)
        in_shape = tuple(kept.shape[self.axis :])
        reduced = reduced_jacobian(self.halves, self.first, self.second, in_shape, evaluator.batch_shape, kept.dtype)
        J = guard(reduced, "linearize", tally.add, copies=not problem.pure)
        self.A = J.H if needs_adjoint else J
        self.M: LinearOperator | None = None
        blocks, xp = problem.block_structure, evaluator.xp
        self.in_single = blocks is not None and blocks.block_size >= LEAST_FLOAT32_BLOCK and kept.dtype == xp.float64

    def solve(
        self, b: Array, start: Array | None, method: KrylovMethod | None, stop: LinearStop
    ) -> tuple[LinearResult, Mapping[str, Array] | None]:
        """Return the solution for b (B, N) and, for an adjoint system with `Halves.pull`, the gradients."""
        tally, xp, solver = self.evaluator.tally, self.evaluator.xp, long_krylov(b) if method is None else method
        self.in_single &= method is None
        self.b, spent = split(self.evaluator.unflatten(b), self.axis), tally.jvps + tally.vjps
        if start is not None:  # zero where b is
            zeroed: Any = xp.where(xp.any(b != 0, axis=1, keepdims=True), start, xp.zeros_like(start))
            start = split(self.evaluator.unflatten(zeroed), self.axis)[1]
        self._measure(start, b)
        self.target = stop.target(self.measured.two(-1), b)
        status, iterations = _statuses(self.norms, self.target, None), np.zeros(self.norms.shape, dtype=int)
        for is_first in (True, *[False] * (ROUNDS - 1)):
            active = status == Status.RUNNING
            if not active.any():
                break
            outcome = self._correct(active, solver, stop.max_iterations - iterations[active].max(), is_first=is_first)
            iterations = iterations + np.where(active, outcome.iterations, 0)
            reported = None if is_first and self.in_single else outcome.status  # in float64 it may still converge
            status = np.where(active, _statuses(self.norms, self.target, reported), status)
        is_zero = self.kept is None
        if is_zero:  # x = 0 satisfies the stopping rule
            self._measure(xp.zeros_like(self.b[1]))
        status = np.where(status == Status.RUNNING, int(Status.STAGNATED), status)
        x = self.evaluator.flatten(merge(self.elimination.eliminated, self.kept, self.axis))
        # an eliminated block on which no kept one depends may be nonfinite
        is_finite = np.isfinite(self.measured.largest(1)) & np.isfinite(self.measured.largest(2))
        linear = LinearResult(
            x=x,
            status=np.where(is_finite, status, int(Status.NONFINITE)),
            residual_norm=self.norms,
            target=self.target,
            iterations=iterations,
            matvecs=tally.jvps + tally.vjps - spent + (start is None),
        )
        return linear, None if self.elimination.gradients is None else self.elimination.gradients()

    def _correct(self, active: HostArray, solver: KrylovMethod, limit: int, *, is_first: bool) -> KrylovOutcome:
        """Correct the kept blocks of active systems, and measure the residual."""
        aim = np.where(active, self.target, np.inf)
        if is_first and self.in_single:
            outcome = _solved_in_single(solver, self.A, self.residual, self.norms, aim, limit)
        else:
            if self.M is None:
                self.M = self.A.approximate_inverse()
            options: Any = {"target": aim, "max_iterations": limit, "M": self.M, "confirm": False, "polish": is_first}
            outcome = solver.solve(self.A, self.residual, **options)
        d = self.evaluator.xp.reshape(outcome.x, self.b[1].shape)
        self._measure(d if self.kept is None else self.kept + d)
        return outcome

    def _measure(self, kept: Any, *others: Array) -> None:
        """Set the kept blocks, None for zero; compute the residual, and the norms of other arrays with it."""
        self.kept: Any = kept
        self.elimination = self._eliminate(self.b[0], kept)
        with np.errstate(all="ignore"):
            residual = self.b[1] + self.elimination.back
            if kept is not None:
                residual -= kept
        xp, systems = self.evaluator.xp, math.prod(self.evaluator.batch_shape)
        parts = [part for part in (residual, self.elimination.eliminated, kept) if part is not None]
        self.residual, *state = (xp.reshape(part, (systems, math.prod(part.shape[self.axis :]))) for part in parts)
        self.measured = Norms(self.residual, *state, *others)
        self.norms = self.measured.two(0)

    def _eliminate(self, b: Array, kept: Any) -> Elimination:
        """Compute the eliminated blocks, with right-hand side b, from the kept ones, and couple back; None is zero."""
        first, second, tally = self.first, self.second, self.evaluator.tally
        if kept is not None:  # the first half of a product, counted as the whole
            tally.add("vjps" if self.needs_adjoint else "jvps")
        if not self.needs_adjoint:
            eliminated = b if kept is None else b + first.matvec(kept)
            return Elimination(eliminated, second.matvec(eliminated), None)
        if kept is not None and self.halves.pull is not None:
            return Elimination(*self.halves.pull((first, second), self.states, b, kept, self.wrt))
        eliminated = b if kept is None else b + second.rmatvec(kept)
        return Elimination(eliminated, first.rmatvec(eliminated), None)


def _solved_in_single(
    solver: KrylovMethod, A: LinearOperator, b: Array, norms: HostArray, target: HostArray, limit: int
) -> KrylovOutcome:
    """Solve A x = b, where ||b|| are `norms`, with products in float32, as accurately as these can be."""
    unit, scale = normalize(b, norms)
    single = A.astype(unit.dtype)
    aim = np.maximum(target / scale, LEAST_SINGLE)
    M = single.approximate_inverse()
    outcome = solver.solve(single, unit, target=aim, max_iterations=limit, M=M, confirm=False, polish=True)
    return replace(outcome, x=restore_norms(outcome.x, scale, b), residual_norm=outcome.residual_norm * scale)


def _statuses(norms: HostArray, target: HostArray, reported: HostArray | None) -> HostArray:
    """Statuses by the measured residuals; a system whose solver reported convergence without meeting them continues."""
    running = np.full(norms.shape, int(Status.RUNNING))
    status = running if reported is None else np.where(reported == Status.CONVERGED, running, reported)
    status = np.where(np.isfinite(norms), status, int(Status.NONFINITE))
    return np.where(norms <= target, int(Status.CONVERGED), status)


def by_substitution(A: LinearOperator, b: Array, stop: LinearStop) -> tuple[Array | None, LinearResult | None]:
    """Solve a causal problem's system by the exact inverse of J: the solution, and the result if confirmed."""
    inverse = A.approximate_inverse()
    if inverse is None:
        return None, None
    with np.errstate(all="ignore"):
        x = inverse.matvec(b)
        norms = norm2(b - A.matvec(x))
    target = stop.target(norm2(b), b)
    if not (norms <= target).all():
        return (x, None) if np.isfinite(norms).all() else (None, None)
    status, once = np.full(norms.shape, int(Status.CONVERGED)), np.ones(norms.shape, dtype=int)
    return x, LinearResult(x=x, status=status, residual_norm=norms, target=target, iterations=once, matvecs=1)


def marked_singular(linear: LinearResult, J: LinearOperator, b: Array) -> LinearResult:
    """The result, SINGULAR where J, assembled from differences, is singular within their errors.

    They change J x by about eps^(2/3) ||J|| ||x||, which must be less than ||b||. ||J|| is the root mean square of its
    singular values, estimated by one product with random signs.
    """
    xp, N = array_namespace(b), b.shape[1]
    signs = from_host(np.sign(weights(N, 1)[:, 0]), b)
    with np.errstate(all="ignore"):
        size = norm2(J.matvec(xp.zeros_like(b) + signs)) / math.sqrt(max(N, 1))
        lost = eps(xp, b.dtype) ** (2 / 3) * size * norm2(linear.x) >= DROWNED * norm2(b)
    lost &= np.isin(linear.status, (Status.CONVERGED, Status.STAGNATED)) & (norm2(b) > 0)
    return replace(linear, status=np.where(lost, int(Status.SINGULAR), linear.status)) if lost.any() else linear


def long_krylov(b: Array) -> LGMRES:
    """LGMRES for b (B, N) that restarts only when its vectors would exceed `BASIS_MEMORY` numbers."""
    systems, N = max(1, b.shape[0]), max(1, b.shape[1])
    columns = min(BASIS_MEMORY // (2 * systems * N), math.isqrt(BASIS_MEMORY // (3 * systems)))
    return LGMRES(restart=max(LGMRES().restart, min(ADJOINT_SPACE, columns)))


def checked_wrt(problem: Problem, wrt: Any) -> frozenset[str] | None:
    """Raise unless `wrt` names parameters of the problem and their gradients are available."""
    if wrt is None:
        if problem.parameters and problem.parameter_vjp is None:
            raise TypeError("pull_back: the problem has parameters but no `parameter_vjp`")
        return None
    wrt = names_of(wrt)
    unknown = sorted(wrt - set(problem.parameters or wrt))
    if unknown:
        raise ValueError(f"pull_back: `wrt` must name parameters of the problem, got {unknown}")
    if wrt and problem.parameter_vjp is None:
        raise TypeError("pull_back: the problem has no `parameter_vjp` for the gradients of `wrt`")
    return wrt


def names_of(wrt: Any) -> Any:
    if wrt is None:
        return None
    if isinstance(wrt, str) or not (isinstance(wrt, Collection) and all(isinstance(name, str) for name in wrt)):
        raise TypeError(f"pull_back: `wrt` must be a collection of names, got {wrt!r}")
    return frozenset(wrt)


def gradients_of(caller: str, problem: Problem, raw: Any, wrt: Collection[str] | None = None) -> dict[str, Array]:
    """Return the checked d loss / d theta from what `parameter_vjp` returned, for the parameters in `wrt` or all."""
    if not isinstance(raw, Mapping):
        raise TypeError(f"{caller}: `parameter_vjp` must return a mapping, got {type(raw).__name__}")
    chosen = {name: value for name, value in raw.items() if wrt is None or name in wrt}
    gradients = {name: -as_given(value, f"parameter_vjp[{name!r}]") for name, value in chosen.items()}
    return checked_gradients(caller, problem, gradients, wrt)


def as_given(value: Any, name: str) -> Any:
    return value if hasattr(value, "shape") else as_inexact(value, name)


def checked_gradients(
    caller: str, problem: Problem, gradients: dict[str, Array], wrt: Collection[str] | None
) -> dict[str, Array]:
    """Raise unless there is a gradient of the right shape for each parameter in `wrt`."""
    for name, value in (problem.parameters or {}).items():
        if wrt is not None and name not in wrt:
            continue
        if name not in gradients:
            raise ValueError(f"{caller}: `parameter_vjp` must return a gradient for {name!r}")
        if tuple(gradients[name].shape) != tuple(np.shape(value)):
            shapes = f"{tuple(np.shape(value))}, got {tuple(gradients[name].shape)}"
            raise ValueError(f"{caller}: `parameter_vjp` must return for {name!r} the parameter's shape {shapes}")
    return gradients
