"""Newton's method for many small systems whose residual is compiled by Numba."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._namespace import is_array, library
from implicitsolve._typing import HostArray
from implicitsolve.backends.numba import _newton_lanes, _newton_loop
from implicitsolve.backends.numba._factors import usable
from implicitsolve.backends.numba._jit import static_size
from implicitsolve.backends.numba._newton_residual import compiled, compiled_for_lanes
from implicitsolve.backends.numba._threads import share
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop
from implicitsolve.structure import BlockBanded

STATIC = 4  # blocks of a band up to this size are compiled for it, 10 s each; a dense J is not
NEWTON_STEPS = 100  # limit where the caller set none
CACHE = 2**20  # bytes in which lanes may work: about what one core has for itself
PIECES = 8  # of the batch for each thread, since systems differ in their number of steps


@dataclass(frozen=True, kw_only=True)
class NewtonBatch:
    """Where each of B systems ended.

    Attributes
    ----------
    x, F : ndarray
        Last accepted iterates, in the shape of x0, and the residuals there.
    status : ndarray (B,) of int
        Values of `Status`.
    norms, first_norms : ndarray (B,)
        max|F| at x and at x0.
    iterations, evaluations : ndarray (B,) of int
        Accepted Newton steps, and residuals that each system took.
    """

    x: HostArray
    F: HostArray
    status: HostArray
    norms: HostArray
    first_norms: HostArray
    iterations: HostArray
    evaluations: HostArray

    @property
    def success(self) -> bool:
        """Whether every system converged."""
        return bool((self.status == Status.CONVERGED).all())


def newton_batch(
    residual: Callable[..., Any],
    x0: HostArray,
    parameters: HostArray | None = None,
    *,
    structure: BlockBanded | None = None,
    stop: NonlinearStop = NonlinearStop(),
) -> NewtonBatch:
    """Solve F(x) = 0 for each of many small systems, without Python between the systems.

    Newton's method with a Jacobian from colored differences, LU with interchanges (over the band where those inside
    the blocks do not suffice), Broyden's updates of it while they serve, and backtracking: what `BlockNewton` does, in
    one compiled loop for each thread. Small real systems are solved sixteen at a time, in the lanes of vector
    registers; one that gets stuck there is solved alone, from x0, by the same method with more safeguards.

    Parameters
    ----------
    residual : callable
        A function that Numba can compile (decorated with ``@njit`` or not), for ONE system:
        ``residual(x, out)`` writes F(x) into `out`, or ``residual(x)`` returns it; with `parameters`
        ``residual(x, p, out)`` or ``residual(x, p)``. Division by zero gives Inf or NaN in it, as in NumPy.
    x0 : ndarray (B, N) or (B, T, k)
        Starts; `residual` sees ``x0[b]``'s shape. float32, float64, complex64 or complex128; others become float64.
    parameters : ndarray (B, Q) or (Q,), optional
        Numbers that differ between the systems; `residual` sees a row.
    structure : BlockBanded, optional
        Structure of the Jacobian of one system. The default is a dense one.
    stop : NonlinearStop, optional
        Stopping rule in the maximum norm.

    Returns
    -------
    NewtonBatch
        A failure is a status, never an exception.

    Raises
    ------
    TypeError, ValueError
        If an argument is not usable. Numba's own errors where it cannot compile `residual`.

    Notes
    -----
    The first call with a residual compiles it (about a second); the solver itself is compiled once for each dtype and
    small block size and kept on disk. An exception raised in `residual` counts as a residual that is not finite.

    `residual` is evaluated for sixteen systems at once where it consists of arithmetic, powers with numbers in the
    exponent and elementary functions on elements of x and p: ``out[i] = p[0] - np.exp(x[i])``. With branches on x, or
    whole arrays in an expression, it is evaluated for one after the other, which takes twice as long (measured, with
    16 unknowns). What is returned for a system does not depend on the others in the batch.

    Memory beyond x and F, for each thread, in numbers: ``k^2 T (4 lower + 3 upper + 3) + 46 N``; in lanes, where it is
    at most 1 MiB, ``16 (k^2 T (lower + upper + 1) + 46 N)``.

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
    B, shape, N = x.shape[0], x.shape[1:], int(np.prod(x.shape[1:]))
    structure = BlockBanded(0, 0, max(N, 1)) if structure is None else structure
    _check(structure, stop)
    structure.length(N)  # raises where N does not fit
    p = _rows(parameters, B, x.dtype)
    form = residual, x.dtype.char, len(shape), parameters is not None
    F = np.empty_like(x)
    status, norms, counts = np.zeros(B, np.int64), np.zeros((B, 2), np.finfo(x.dtype).dtype), np.zeros((B, 2), np.int64)
    arrays = x.reshape((B, N)), p, F.reshape((B, N)), status, norms, counts
    if not N:
        status[:] = Status.CONVERGED
    loops = _Loops(form, shape, structure, stop)
    if N and x.dtype.kind == "f" and loops.nbytes <= CACHE and loops.limit > 0:
        loops.solve_in_lanes(*arrays)
    left = np.flatnonzero(status == Status.RUNNING)
    if left.size:
        some = [array[left] for array in arrays]
        loops.solve_one_by_one(*some)
        for array, values in zip(arrays, some):
            array[left] = values
    return NewtonBatch(
        x=x,
        F=F,
        status=status,
        norms=norms[:, 0],
        first_norms=norms[:, 1],
        iterations=counts[:, 0],
        evaluations=counts[:, 1],
    )


class _Loops:
    """The compiled loops for one kind of system, with what their arguments have in common."""

    def __init__(
        self, form: tuple[Any, str, int, bool], shape: tuple[int, ...], structure: BlockBanded, stop: NonlinearStop
    ) -> None:
        dtype, k, N = np.dtype(form[1]), structure.block_size, int(np.prod(shape))
        self.form, self.dtype, self.shape = form, dtype, (N // k, k, structure.width)
        self.sides = (shape[0], shape[1] if len(shape) == 2 else 1, k)
        self.bands = (structure.lower, structure.upper)
        self.size = static_size(k) if k <= STATIC and k < N else ()
        precision = float(np.finfo(dtype).eps)
        rtol = precision**0.5 if stop.rtol is None else float(stop.rtol)
        slowest = 0.1 ** (2.0 / (k * min(structure.width, max(N // k, 1)) + 1))  # a new J is to bring two digits
        self.tolerances = (float(stop.atol), rtol, precision, precision**0.25, slowest)
        self.limit = NEWTON_STEPS if stop.max_iterations is None else stop.max_iterations

    @property
    def nbytes(self) -> int:
        """Memory in which lanes work."""
        return _newton_lanes.nbytes(*self.shape, self.dtype.itemsize)

    def solve_in_lanes(self, x: HostArray, p: HostArray, F: HostArray, *ends: HostArray) -> None:
        """Solve what a method with few safeguards solves, and leave the rest as it is."""
        wide = compiled_for_lanes(*self.form)
        call, is_wide = (compiled(*self.form), False) if wide is None else (wide, True)
        settings = self.sides, self.bands[0], self.size, self.tolerances, self.limit

        def run(part: slice) -> None:
            work = _newton_lanes.workspace(*self.shape, p.shape[1], self.dtype)
            parts = x[part], p[part], F[part]
            _newton_lanes.solve(call, is_wide, *parts, *settings, work, *(end[part] for end in ends))

        share(run, len(x), 200.0 * x.size, PIECES)

    def solve_one_by_one(self, x: HostArray, p: HostArray, F: HostArray, *ends: HostArray) -> None:
        """Solve one system after the other, and say how each ended."""
        call = compiled(*self.form)
        settings = self.sides, self.bands, self.size, self.tolerances, self.limit

        def run(part: slice) -> None:
            work = _newton_loop.workspace(*self.shape[:2], *self.bands, self.dtype)
            parts = x[part], p[part], F[part]
            _newton_loop.solve(call, *parts, *settings, work, *(end[part] for end in ends))

        share(run, len(x), 1000.0 * x.size, PIECES)


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


def _rows(parameters: HostArray | None, B: int, dtype: Any) -> HostArray:
    """Parameters as (B, Q) of x's dtype."""
    if parameters is None:
        return np.zeros((B, 1), dtype)
    p = np.asarray(parameters)
    if p.ndim == 1:
        p = np.broadcast_to(p, (B, p.size))
    if p.ndim != 2 or p.shape[0] != B:
        raise ValueError(f"newton_batch: `parameters` must have shape ({B}, Q) or (Q,), got {p.shape}")
    if p.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise TypeError("newton_batch: `parameters` must be real for a real `x0`, got complex numbers")
    return usable(p.astype(dtype, order="C"))
