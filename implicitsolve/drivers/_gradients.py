"""Streaming training: forward and adjoint solves of many systems in a batch that is refilled, and summed gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from implicitsolve._arrays.host import gather, scatter
from implicitsolve._arrays.namespace import array_namespace, as_inexact
from implicitsolve._record import Counts
from implicitsolve._root import NonlinearMethod
from implicitsolve._typing import Array, CallersArray, HostArray, Indices
from implicitsolve.derivatives import AdjointResult, pull_back
from implicitsolve.derivatives._systems import long_krylov, names_of
from implicitsolve.drivers._stream import solve_stream
from implicitsolve.kernels._norms import norm_max
from implicitsolve.krylov import KrylovMethod, KrylovOutcome
from implicitsolve.monitor import Monitor, observer
from implicitsolve.nonlinear import Anderson
from implicitsolve.nonlinear._solve import solve_root
from implicitsolve.nonlinear._state import Scheduler
from implicitsolve.operators import LinearOperator
from implicitsolve.problem import Problem, chosen
from implicitsolve.result import Ending, NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import LinearStop, NonlinearStop, check_choice

FAILED = ("leave out", "count")
ANDERSON = Anderson()


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class StreamGradients(Ending):
    """Result of `stream_gradients`.

    Attributes
    ----------
    gradients : dict of str to Array
        Sums over the counted systems. A parameter of single systems, such as a layer's inputs, has one gradient for
        each system, zero where it is not counted.
    solution : NonlinearResult
        Of all systems, as in `solve_stream`.
    adjoint : Array
        Solutions of J^H adjoint = cotangent, shaped like x; zero for systems that are not counted.
    status : ndarray of int
        CONVERGED where both solves converged, else the status of the one that failed.
    counted : ndarray of bool
        Systems whose gradients are in the sums.
    counts : Counts
        Calls of the user's functions, by both solves.
    """

    _best: ClassVar[str] = "solution.x"

    gradients: dict[str, CallersArray]
    solution: NonlinearResult = field(repr=False)
    adjoint: CallersArray
    status: Any
    counted: HostArray
    counts: Counts


def stream_gradients(
    problem: Problem,
    cotangent: Callable[[CallersArray, Indices], Any] | Any,
    x0: Any = None,
    *,
    batch_size: int,
    method: NonlinearMethod | str = "auto",
    stop: NonlinearStop | None = None,
    monitor: Monitor | None = None,
    adjoint_method: KrylovMethod | None = None,
    adjoint_stop: LinearStop | None = None,
    wrt: Collection[str] | None = None,
    failed: str = "leave out",
    adjoint_monitor: Monitor | None = None,
) -> StreamGradients:
    """Solve a batch, and the adjoint systems of a loss, with at most `batch_size` active systems; sum the gradients.

    One call serves one step of an optimizer: the systems of the step, any number of them, pass through a batch
    that is refilled, first forward and then backward. The gradients are those of `root` and `pull_back` for the whole
    batch, up to the tolerances.

    Parameters
    ----------
    problem : Problem
        A batch, with `take`, and what `pull_back` needs.
    cotangent : callable or array_like
        d loss / d x, of the shape of x; or ``cotangent(x, systems)``, which returns it for the solutions x of some
        systems, ``(len(systems), ...)``, at most `batch_size`, whose places in the flattened batch are `systems`. It is
        called once for each solved system, in the order of the batch.
    x0 : array_like, optional
        As in `root`.
    batch_size : int
        Systems that iterate at a time.
    method, stop, monitor : optional
        Of the forward solve, as in `solve_stream`.
    adjoint_method : Krylov method, optional
        Default: for a fixed-point problem x = G(x) Anderson's method on the adjoint fixed point, whose places are
        refilled after every product, and `LGMRES` for systems on which it fails; for other problems, as for a given
        method, `pull_back` for `batch_size` systems at a time.
    adjoint_stop : LinearStop, optional
        Default: ||cotangent - J^H lam||_2 <= 1e-6 ||cotangent||_2.
    wrt : collection of str, optional
        Names of the parameters whose gradients are requested. Default: all.
    failed : {"leave out", "count"}, optional
        Treatment of systems whose forward or adjoint solve failed. Default "leave out": the gradient at a point
        that is not a solution is not that of the loss. With "count" they are in the sums, as in `pull_back`, unless x
        is not finite.
    adjoint_monitor : callable, optional
        Called with every step of Anderson's method on the adjoint systems.

    Returns
    -------
    StreamGradients
        Sums of gradients, both solutions, and a status for each system, in the order of the batch.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable: see `solve_stream` and `pull_back`. Exceptions of `cotangent` pass unchanged.

    See Also
    --------
    solve_stream : The forward solve alone.
    pull_back : Gradients of a whole batch.

    Notes
    -----
    Krylov spaces and histories are held for `batch_size` systems, the linearization at the solution and the adjoint for
    all. The results repeat bitwise; in another batch size they differ by rounding errors.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> params = ims.adapters.gru_parameters(2, 4, rng=rng)
    >>> layer = ims.adapters.implicit_gru(params, rng.standard_normal((50, 9, 2)))
    >>> def cotangent(x, systems):  # of the loss sum(x**2) / 2
    ...     return x
    >>> found = ims.drivers.stream_gradients(layer, cotangent, batch_size=8)
    >>> found.gradients["U"].shape, int(found.counted.sum()), bool(found.success.all())
    ((4, 4), 50, True)
    """
    check_choice("stream_gradients", "failed", failed, FAILED)
    watch = observer("stream_gradients", adjoint_monitor, name="adjoint_monitor")
    solution = solve_stream(problem, x0, batch_size=batch_size, method=method, stop=stop, monitor=monitor)
    xp, axes = array_namespace(solution.x), problem.batch_ndim
    event = tuple(solution.x.shape[axes:])
    x = xp.reshape(solution.x, (-1, *event))
    status = np.array(solution.status).reshape(-1)
    usable = np.isfinite(norm_max(xp.reshape(x, (x.shape[0], math.prod(event)))))
    rows = np.flatnonzero(usable & ((status == Status.CONVERGED) | (failed == "count")))
    given = _cotangent(cotangent, x, rows, int(batch_size))
    size = int(batch_size)
    if adjoint_method is None and problem.fixed_point and problem.substitute is None:
        adjoint_method = _Refilled(size, watch)
        size = max(1, rows.size)
    adjoints = _Adjoints(problem, x, {"method": adjoint_method, "stop": adjoint_stop, "wrt": names_of(wrt)})
    for first in range(0, rows.size, size):
        part = slice(first, min(first + size, rows.size))
        adjoints.add(rows[part], given[part, ...], status, leaves_out=failed == "leave out")
    return StreamGradients(
        gradients=adjoints.sums,
        solution=solution,
        adjoint=xp.reshape(adjoints.adjoint, solution.x.shape),
        status=status.reshape(solution.x.shape[:axes]),
        counted=adjoints.counted.reshape(solution.x.shape[:axes]),
        counts=solution.counts + adjoints.counts,
    )


def _cotangent(given: Any, x: Array, rows: Indices, size: int) -> Array:
    expected = (rows.size, *x.shape[1:])
    if not callable(given):
        whole = as_inexact(given, "cotangent")
        if math.prod(whole.shape) != math.prod(x.shape) or tuple(whole.shape[1 - x.ndim :]) != tuple(x.shape[1:]):
            raise ValueError(f"stream_gradients: `cotangent` must have the shape of x, got {tuple(whole.shape)}")
        return gather(array_namespace(whole).reshape(whole, x.shape), rows)
    found = array_namespace(x).zeros(expected, dtype=x.dtype, device=x.device)
    for first in range(0, rows.size, size):
        some = rows[first : first + size]
        value, shape = as_inexact(given(gather(x, some), some), "cotangent"), (some.size, *x.shape[1:])
        if tuple(value.shape) != shape:
            raise ValueError(f"stream_gradients: `cotangent` must return shape {shape}, got {tuple(value.shape)}")
        found[first : first + some.size, ...] = value
    return found


class _Adjoints:
    """Adjoints of the systems of a batch at their solutions x (B, ...), and sums of the gradients."""

    def __init__(self, problem: Problem, x: Array, options: dict[str, Any]) -> None:
        xp, given, wrt = array_namespace(x), problem.parameters or {}, options["wrt"]
        self.problem, self.x, self.options = problem, x, options
        self.adjoint: Array = xp.zeros_like(x)
        self.counted: HostArray = np.zeros(x.shape[0], dtype=bool)
        self.counts = Counts()
        self.sums: dict[str, Array] = {
            name: xp.zeros_like(xp.asarray(value)) for name, value in given.items() if wrt is None or name in wrt
        }

    def add(self, rows: Indices, cotangent: Array, status: HostArray, *, leaves_out: bool) -> None:
        """Solve for some systems and add their gradients; update `status` where the adjoint solve has failed."""
        found = self._pull(rows, cotangent)
        good = np.asarray(found.linear.success)
        worse = ~good & (status[rows] == Status.CONVERGED)
        status[rows[worse]] = np.asarray(found.linear.status)[worse]
        kept = np.flatnonzero(good | (not leaves_out))
        if not kept.size:
            return
        if kept.size < rows.size:  # again without the failed ones, from the solutions
            rows, start = rows[kept], gather(found.adjoint, kept)
            found = self._pull(rows, gather(cotangent, kept), method=None, x0=start)
        scatter(self.adjoint, rows, found.adjoint)
        self.counted[rows] = True
        for name, value in found.gradients.items():
            whole = self.sums.get(name)
            if whole is None:
                self.sums[name] = value
            elif tuple(value.shape) == tuple(whole.shape):
                self.sums[name] = whole + value
            else:  # what belongs to one system
                scatter(whole, rows, value)

    def _pull(self, rows: Indices, cotangent: Array, **others: Any) -> AdjointResult:
        is_whole = rows.size == self.x.shape[0]
        part = self.problem if is_whole and self.problem.batch_ndim == 1 else chosen(self.problem, rows, self.x.shape)
        found = pull_back(part, gather(self.x, rows), cotangent, **(self.options | others))
        self.counts += found.counts
        return found


@dataclass(frozen=True)
class _Refilled(KrylovMethod):
    """Anderson's method for A x = b with A = I - G, in a batch of `capacity` systems that is refilled."""

    capacity: int
    monitor: Monitor

    def solve(
        self, A: LinearOperator, b: Array, *, target: HostArray, max_iterations: int, M: Any = None, **options: Any
    ) -> KrylovOutcome:
        """Solve on arrays (B, N); see `KrylovMethod`."""
        x, norms, x0 = array_namespace(b).zeros_like(b), np.zeros(target.size), options.pop("x0", None)
        status, iterations = np.full(target.size, int(Status.CONVERGED)), np.zeros(target.size, dtype=int)
        rows = np.flatnonzero(np.isfinite(target))  # of others nothing is asked
        start = (b if M is None else M.matvec(b)) if x0 is None else x0  # not zero, where a product would give b again
        problem = _affine(A, b, M)
        if rows.size < target.size:
            problem, start = problem.take(rows), gather(start, rows)  # type: ignore[misc]
        stop = NonlinearStop(norm="2", rtol=1.0, max_iterations=max_iterations)
        scheduler = Scheduler(capacity=self.capacity, reference=target[rows])
        found = solve_root(problem, start, ANDERSON, stop, self.monitor, scheduler)
        scatter(x, rows, found.x)
        norms[rows], status[rows], iterations[rows] = found.residual_norm, found.status, 1 + found.iterations
        if (bad := np.flatnonzero(status != Status.CONVERGED)).size:
            right, part = gather(b, bad), None if M is None else M.take(bad)
            options |= {"target": target[bad], "M": part, "max_iterations": max_iterations}
            other = long_krylov(right).solve(A.take(bad), right, **options)
            scatter(x, bad, other.x)
            norms[bad], status[bad], iterations[bad] = other.residual_norm, other.status, other.iterations
        return KrylovOutcome(x, norms, status, iterations)


def _affine(A: LinearOperator, b: Array, M: Any) -> Problem:
    """A x - b on arrays (B, N), with M as the approximate inverse that A offers."""

    def linearize(x: Array) -> tuple[Array, LinearOperator]:
        J = LinearOperator(A.matvec, in_shape=b.shape[1], batch_shape=(b.shape[0],), dtype=b.dtype, inverse=lambda: M)
        return A.matvec(x) - b, J

    return Problem(
        lambda x: A.matvec(x) - b,
        linearize=None if M is None else linearize,
        batch_ndim=1,
        fixed_point=True,
        pure=True,
        take=lambda rows: _affine(A.take(rows), gather(b, rows), None if M is None else M.take(rows)),
    )
