"""Newton's method for many small systems whose residual is compiled by Numba."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import is_array, library
from implicitsolve._record import Counts, NewtonStep
from implicitsolve._root import root
from implicitsolve._typing import HostArray, Indices
from implicitsolve.backends.numba import _newton_lanes
from implicitsolve.backends.numba._block_lu import usable
from implicitsolve.backends.numba._jit import share
from implicitsolve.backends.numba._residual import Residual
from implicitsolve.globalize._rules import slowest_rate
from implicitsolve.linearize._difference_steps import floor_length, relative_length
from implicitsolve.nonlinear._block_newton import BlockNewton
from implicitsolve.nonlinear._certificate import is_determined, is_unproved
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop
from implicitsolve.structure import BlockBanded

LOGGER = logging.getLogger("implicitsolve")
CACHE = 2**22  # bytes in which lanes may work: 32 ms for 200 systems of 400 unknowns, on arrays 60 ms
CONFIRMED_SYSTEMS = 4  # systems, which Python evaluates in 0.01 to 0.1 ms each
PIECES = 8  # of the batch for each thread, since systems differ in their number of steps


def newton_batch(
    residual: Callable[..., Any],
    x0: HostArray,
    parameters: HostArray | None = None,
    *,
    structure: BlockBanded | None = None,
    stop: NonlinearStop = NonlinearStop(),
) -> NonlinearResult:
    """Solve F(x) = 0 for each of many small systems, without Python between the systems.

    The method is `BlockNewton`: a Jacobian from colored differences, its LU factorization, Broyden's updates while they
    converge fast enough, and backtracking. Small real systems are solved sixteen at a time, in the lanes of vector
    registers, by one compiled loop for each thread. Systems that fail there, larger ones and complex ones are solved
    from x0 by `BlockNewton` itself, as one batch whose residual is compiled.

    Parameters
    ----------
    residual : callable
        A function that Numba can compile (decorated with ``@njit`` or not), for ONE system:
        ``residual(x, out)`` writes F(x) into `out`, or ``residual(x)`` returns it; with `parameters`
        ``residual(x, p, out)`` or ``residual(x, p)``. Division by zero gives Inf or NaN in it, as in NumPy.
    x0 : ndarray (B, N) or (B, T, k)
        Initial guesses; `residual` receives arrays of the shape of ``x0[b]``. float32, float64, complex64 or
        complex128; others become float64.
    parameters : ndarray (B, Q) or (Q,), optional
        Data that differ between the systems; `residual` receives a row.
    structure : BlockBanded, optional
        Structure of the Jacobian of one system. The default is a dense one.
    stop : NonlinearStop, optional
        Stopping rule in the maximum norm, with a limit on steps only.

    Returns
    -------
    NonlinearResult
        With a status for each system, as from `root`; a failure is a status, never an exception. ``counts.residuals``
        are evaluations of the residual of one system, summed over the systems; `steps` holds the start of all, and the
        steps of those that were not solved in lanes.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable. Numba's own errors where it cannot compile `residual`.

    Notes
    -----
    The first call with a residual compiles it (half a second), in each process. It is compiled again when a value that
    it refers to has changed: numbers, arrays, and all that compiled functions called by it refer to. Where values may
    change unseen, as those of other objects, it is compiled in each call. The solver itself is compiled once for each
    dtype, in some seven seconds, and kept on disk: ``python -m implicitsolve compile`` does so in advance.

    An exception raised in `residual` counts as a residual that is not finite. It is raised here if none is finite at
    x0. A residual may overwrite its x. CONVERGED is confirmed at a copy of x, for the first systems by Python: where
    that differs, an index may have been out of range, which compiled code does not notice, and systems fail.

    `residual` is evaluated for sixteen systems at once where it consists of arithmetic, powers with numbers in the
    exponent and elementary functions on elements of x and p: ``out[i] = p[0] - np.exp(x[i])``. With branches on x, or
    whole arrays in an expression, it is evaluated for one after the other, in twice the time. Where a system ends does
    not depend on the others; where `BlockNewton` solves it again, that holds up to rounding.

    Memory beyond x and F, for each thread, in numbers: ``k^2 T (4 lower + 3 upper + 3) + 46 N``; in lanes, where it is
    at most 4 MiB, ``16 (k^2 T (lower + upper + 1) + 46 N)``.

    Examples
    --------
    >>> import numba, numpy as np
    >>> from implicitsolve.backends.numba import newton_batch
    >>> @numba.njit
    ... def circle_and_line(x, p, out):
    ...     out[0] = x[0] ** 2 + x[1] ** 2 - p[0]
    ...     out[1] = x[0] - x[1]
    >>> radii = np.array([[2.0], [8.0]])
    >>> newton_batch(circle_and_line, np.ones((2, 2)) * [1.0, 3.0], radii).x.round(6)
    array([[1., 1.],
           [2., 2.]])
    """
    x = _starts(x0)
    B, N = x.shape[0], int(np.prod(x.shape[1:]))
    structure = BlockBanded(0, 0, max(N, 1)) if structure is None else structure
    _check(structure, stop)
    structure.length(N)  # raises where N does not fit
    form = Residual(residual, x.dtype, x.ndim - 1, parameters is not None)
    solver = _Solver(form, x, _rows(parameters, B, x.dtype), structure, stop)
    if N and B:
        solver.solve_in_lanes()
        worse = solver.norms[:, 0] > solver.norms[:, 1]  # than x0: in lanes the last point is kept, here the best
        solver.x[worse] = np.reshape(x0, solver.x.shape)[worse]
        others = worse | (solver.status == Status.RUNNING)
        if stop.judges_x and stop.judges_F:  # what a tolerance of F alone has ended may be accurate, or not
            others |= solver.status == Status.CONVERGED
        solver.solve_others(np.flatnonzero(others))
        if np.isnan(solver.norms[:, 1]).all():  # which is a mistake, if it is an exception
            solver.compiled.evaluate(x[0], solver.p[0], np.empty_like(x[0]))
        solver.confirm()
        solver.refute(np.reshape(x0, solver.x.shape))
    else:
        solver.status[:] = Status.CONVERGED
    return solver.result()


class _Solver:
    """One call of `newton_batch`: the systems, and where they ended."""

    def __init__(
        self, residual: Residual, x: HostArray, p: HostArray, structure: BlockBanded, stop: NonlinearStop
    ) -> None:
        B, shape = x.shape[0], x.shape[1:]
        k, N = structure.block_size, int(np.prod(shape))
        self.residual, self.compiled = residual, residual.machine_code()
        self.structure, self.stop = structure, stop
        self.shape, self.batch = x.shape, (N // k, k, structure.width)
        self.sides = (shape[0], shape[1] if len(shape) == 2 else 1, k)
        self.x, self.p, self.F = x.reshape((B, N)), p, np.empty((B, N), x.dtype)
        self.status, self.norms = np.full(B, int(Status.RUNNING)), np.zeros((B, 3), np.finfo(x.dtype).dtype)
        self.work = np.zeros((B, 2), np.int64)  # steps, evaluations
        self.target = np.zeros(B)
        self.steps: list[NewtonStep] = []
        self.evaluations = 0  # of one system, outside the lanes

    def solve_in_lanes(self) -> None:
        """Solve all systems but those for which the compiled method is not enough."""
        T, k, m = self.batch
        dtype, stop, bands = self.x.dtype, self.stop, self.structure
        limit = IterationLoop.STEPS if stop.max_iterations is None else stop.max_iterations
        if dtype.kind != "f" or _newton_lanes.nbytes(T, k, m, dtype.itemsize) > CACHE or not limit:
            return
        call = self.compiled.of_lanes
        precision = float(np.finfo(dtype).eps)
        rtol = stop.relative(precision) if stop.judges_F else 0.0
        atol = stop.atol if stop.judges_F else -1.0
        xtol = 0.0 if stop.judges_F else stop.error_limit(precision)
        rates = relative_length(precision, T), floor_length(precision), slowest_rate(k * min(m, T))
        measured = np.empty(len(self.x), dtype)
        settings = self.sides, bands.lower, (float(atol), rtol, xtol, *rates), limit

        def run(part: slice) -> None:
            work = _newton_lanes.workspace(T, k, bands.lower, bands.upper, self.p.shape[1], dtype)
            ends = self.status[part], self.norms[part], self.work[part]
            _newton_lanes.solve(call, self.x[part], self.p[part], self.F[part], *settings, work, *ends)
            x, p, F = self.x[part], self.p[part], self.F[part]
            _newton_lanes.evaluate(call, x, p, F, measured[part], self.sides, work)  # again: at copies of x

        share(run, len(self.x), 200.0 * self.x.size, PIECES)
        with np.errstate(all="ignore"):  # the norm of F can be infinite
            self.target = np.maximum(stop.atol, rtol * self.norms[:, 1])
            if not stop.judges_F:  # what another evaluation has to agree with
                self.target = 2 * self.norms[:, 0] + 64 * precision * self.norms[:, 1]
        ended = self.status != Status.RUNNING
        self.norms[ended, 0] = measured[ended]
        self.status[(self.status == Status.CONVERGED) & ~(measured <= self.target)] = Status.RUNNING
        self.evaluations += len(self.x)

    def solve_others(self, rows: Indices) -> None:
        """Solve some systems by `BlockNewton` on arrays."""
        if not rows.size:
            return
        x0 = self.x[rows].reshape((-1, *self.shape[1:]))
        result = root(self._problem(self.p[rows]), x0, method=BlockNewton(), stop=self.stop)
        self.x[rows], self.F[rows] = (np.reshape(part, (rows.size, -1)) for part in (result.x, result.fun))
        self.status[rows], self.work[rows, 0], self.target[rows] = result.status, result.iterations, result.target
        self.norms[rows, 0], self.norms[rows, 1] = result.residual_norm, result.initial_norm
        self.norms[rows, 2] = np.nan if result.error is None else result.error
        self.steps = [replace(step, systems=rows[step.systems]) for step in result.steps[1:]]

    def confirm(self) -> None:
        """Compare the compiled residual with Python's where systems have converged."""
        converged: list[int] = np.flatnonzero(self.status == Status.CONVERGED).tolist()
        try:
            if all(self._agrees(b) for b in converged[:CONFIRMED_SYSTEMS]):
                return
            LOGGER.warning("newton_batch: `residual` differs where Python evaluates it: an index may be out of range")
            for b in converged:
                if not self._agrees(b):
                    self.status[b] = Status.STAGNATED if np.isfinite(self.norms[b, 0]) else Status.NONFINITE
        except NotImplementedError:  # it only works where it is compiled
            return

    def refute(self, x0: HostArray) -> None:
        """Reject roots far from x0 at which F is not small: see `is_unproved` and `is_determined`."""
        if self.stop.judges_F:
            return
        unit = float(np.finfo(self.norms.dtype).eps)
        doubtful = is_unproved(self.x, x0, self.norms[:, 0], self.norms[:, 1], unit) & (self.norms[:, 0] > 0)
        rows = np.flatnonzero((self.status == Status.CONVERGED) & doubtful)
        if rows.size:
            residual = self._problem(self.p[rows]).residual
            self.status[rows[~is_determined(residual, self.x[rows], self.F[rows], unit)]] = Status.STAGNATED

    def _agrees(self, b: int) -> bool:
        """Whether Python computes the same F for a system; if it does not, Python's F is kept."""
        F = np.reshape(self.residual(self.x[b].reshape(self.shape[1:]), self.p[b]), -1)
        rounding = 64 * float(np.finfo(self.norms.dtype).eps) * self.norms[b, 1]
        if np.abs(F - self.F[b]).max() <= max(self.target[b], rounding):
            return True
        self.F[b], self.norms[b, 0] = F, np.abs(F).max()
        return False

    def _problem(self, p: HostArray) -> Problem:
        """The systems with parameters p, as a batch."""

        def residual(x: HostArray) -> HostArray:
            flat = usable(x.reshape((len(x), -1))).astype(self.x.dtype, copy=False)
            F = np.empty_like(flat)
            _newton_lanes.evaluate_each(self.compiled.of_one, flat, p, F, self.sides)
            self.evaluations += len(x)
            return F.reshape(x.shape)

        return Problem(
            residual, structure=self.structure, batch_ndim=1, take=lambda rows: self._problem(p[rows]), pure=True
        )

    def result(self) -> NonlinearResult:
        B = len(self.x)
        start = NewtonStep(
            iteration=0,
            systems=np.arange(B),
            residual_norm=self.norms[:, 1],
            target=self.target,
            counts=Counts(residuals=1),
        )
        is_known = (self.status == Status.CONVERGED) & np.isfinite(self.norms[:, 2])
        unit = float(np.finfo(self.norms.dtype).eps)
        errors = np.where(is_known, self.norms[:, 2] + unit, np.nan)
        return NonlinearResult(
            x=self.x.reshape(self.shape),
            fun=self.F.reshape(self.shape),
            error=np.where((self.status == Status.CONVERGED) & (self.norms[:, 0] == 0), unit, errors),
            status=self.status,
            residual_norm=self.norms[:, 0],
            initial_norm=self.norms[:, 1],
            target=self.target,
            iterations=self.work[:, 0],
            krylov_iterations=np.zeros(B, np.int64),
            counts=Counts(residuals=int(self.work[:, 1].sum()) + self.evaluations),
            steps=(start, *self.steps),
        )


def _starts(x0: HostArray) -> HostArray:
    if is_array(x0) and not isinstance(x0, np.ndarray):
        raise TypeError(f"newton_batch: `x0` must be a NumPy array, got one of {library(x0)}; `root` takes such arrays")
    x = np.array(x0, order="C")
    if x.ndim not in (2, 3):
        raise ValueError(f"newton_batch: `x0` must have shape (B, N) or (B, T, k), got {x.shape}")
    if x.dtype.kind not in "biufc":
        raise TypeError(f"newton_batch: `x0` must hold numbers, got dtype {x.dtype}")
    return x.astype(x.dtype.newbyteorder("=")) if x.dtype.char in "fdFD" else x.astype(np.float64)


def _check(structure: BlockBanded, stop: NonlinearStop) -> None:
    if not isinstance(structure, BlockBanded):
        raise TypeError(f"newton_batch: `structure` must be a BlockBanded, got {type(structure).__name__}")
    if structure.periodic:
        raise ValueError("newton_batch: `structure` must not be periodic")
    if not isinstance(stop, NonlinearStop):
        raise TypeError(f"newton_batch: `stop` must be a NonlinearStop, got {type(stop).__name__}")
    if stop.norm != "max":
        raise ValueError(f'newton_batch: `stop.norm` must be "max", got {stop.norm!r}')
    for name in ("max_evaluations", "max_seconds"):
        if getattr(stop, name) is not None:
            raise ValueError(f"newton_batch: `stop.{name}` must be None, got {getattr(stop, name)}: use max_iterations")


def _rows(parameters: HostArray | None, B: int, dtype: Any) -> HostArray:
    """Parameters as (B, Q) of x's dtype."""
    if parameters is None:
        return np.zeros((B, 1), dtype)
    p = np.asarray(parameters)
    p = np.broadcast_to(p, (B, p.size)) if p.ndim == 1 else p
    if p.dtype.kind not in "biufc":
        raise TypeError(f"newton_batch: `parameters` must hold numbers, got dtype {p.dtype}")
    if p.ndim != 2 or p.shape[0] != B:
        raise ValueError(f"newton_batch: `parameters` must have shape ({B}, Q) or (Q,), got {p.shape}")
    if p.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise TypeError("newton_batch: `parameters` must be real for a real `x0`, got complex numbers")
    return usable(p.astype(dtype, order="C"))
