"""Newton's method for many small systems whose residual is compiled by Numba."""

from __future__ import annotations

import builtins
import cmath
import contextlib
import functools
import hashlib
import importlib
import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, ModuleType
from typing import Any

import numba
import numpy as np
from numba import carray, types  # pyright: ignore[reportPrivateImportUsage]
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from implicitsolve._arrays.namespace import is_array, library
from implicitsolve._typing import HostArray, Indices
from implicitsolve.backends.numba import _newton_lanes
from implicitsolve.backends.numba._blas import usable
from implicitsolve.backends.numba._jit import Kept, inner, kept, share
from implicitsolve.backends.numba._lanes import pointer_to_lanes
from implicitsolve.linearize._difference_steps import floor_length, relative_length
from implicitsolve.nonlinear._block_newton import BlockNewton
from implicitsolve.nonlinear._broyden import slowest_rate
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.problem import Problem
from implicitsolve.result import Counts, NewtonStep, NonlinearResult
from implicitsolve.solve import root
from implicitsolve.status import Status
from implicitsolve.stopping import NonlinearStop
from implicitsolve.structure import BlockBanded

importlib.import_module("numba.experimental.function_type")  # registers C functions as arguments
CACHE = 2**22  # bytes in which lanes may work: 32 ms for 200 systems of 400 unknowns, on arrays 60 ms
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
    The first call with a residual compiles it (half a second); the solver itself is compiled once for each dtype, in
    some four seconds. Both are kept on disk: ``python -m implicitsolve compile`` compiles the solver in advance. The
    code of a residual is found by its bytecode and by the values of all names in it, where these are numbers, arrays
    below 1 MB, NumPy, math, and compiled functions of the same kind; what ``numba.extending`` adds is not seen. An
    exception raised in `residual` counts as a residual that is not finite. It is raised here if none is finite at x0.

    `residual` is evaluated for sixteen systems at once where it consists of arithmetic, powers with numbers in the
    exponent and elementary functions on elements of x and p: ``out[i] = p[0] - np.exp(x[i])``. With branches on x, or
    whole arrays in an expression, it is evaluated for one after the other, in twice the time. Where a system ends does
    not depend on the others; where `BlockNewton` solves it again, that holds up to rounding.

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
    B, N = x.shape[0], int(np.prod(x.shape[1:]))
    structure = BlockBanded(0, 0, max(N, 1)) if structure is None else structure
    _check(structure, stop)
    structure.length(N)  # raises where N does not fit
    solver = _Solver(residual, x, _rows(parameters, B, x.dtype), parameters is not None, structure, stop)
    if N and B:
        solver.solve_in_lanes()
        worse = solver.norms[:, 0] > solver.norms[:, 1]  # than x0: in lanes the last point is kept, here the best
        solver.x[worse] = np.reshape(x0, solver.x.shape)[worse]
        solver.solve_others(np.flatnonzero(worse | (solver.status == Status.RUNNING)))
        if np.isnan(solver.norms[:, 1]).all():  # which is a mistake, if it is an exception
            _evaluation(residual, parameters is not None)(x[0], solver.p[0], np.empty_like(x[0]))
    else:
        compiled(*solver.form)  # raises where it cannot
        solver.status[:] = Status.CONVERGED
    return solver.result()


class _Solver:
    """One call of `newton_batch`: the systems, and where they ended."""

    def __init__(
        self,
        residual: Callable[..., Any],
        x: HostArray,
        p: HostArray,
        has_parameters: bool,
        structure: BlockBanded,
        stop: NonlinearStop,
    ) -> None:
        B, shape = x.shape[0], x.shape[1:]
        k, N = structure.block_size, int(np.prod(shape))
        self.form = residual, x.dtype.char, len(shape), has_parameters
        self.structure, self.stop = structure, stop
        self.shape, self.batch = x.shape, (N // k, k, structure.width)
        self.sides = (shape[0], shape[1] if len(shape) == 2 else 1, k)
        self.x, self.p, self.F = x.reshape((B, N)), p, np.empty((B, N), x.dtype)
        self.status, self.norms = np.full(B, int(Status.RUNNING)), np.zeros((B, 2), np.finfo(x.dtype).dtype)
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
        wide = compiled_for_lanes(*self.form)
        call, is_wide = (compiled(*self.form), False) if wide is None else (wide, True)
        precision = float(np.finfo(dtype).eps)
        rtol = stop.relative(precision)
        rates = relative_length(precision, T), floor_length(precision), slowest_rate(k * min(m, T))
        settings = self.sides, bands.lower, (float(stop.atol), rtol, precision, *rates), limit

        def run(part: slice) -> None:
            work = _newton_lanes.workspace(T, k, bands.lower, bands.upper, self.p.shape[1], dtype)
            ends = self.status[part], self.norms[part], self.work[part]
            _newton_lanes.solve(call, is_wide, self.x[part], self.p[part], self.F[part], *settings, work, *ends)

        share(run, len(self.x), 200.0 * self.x.size, PIECES)
        self.target = np.maximum(stop.atol, rtol * self.norms[:, 1])

    def solve_others(self, rows: Indices) -> None:
        """Solve some systems by `BlockNewton` on arrays."""
        if not rows.size:
            return
        x0 = self.x[rows].reshape((-1, *self.shape[1:]))
        result = root(self._problem(self.p[rows]), x0, method=BlockNewton(), stop=self.stop)
        self.x[rows], self.F[rows] = (np.reshape(part, (rows.size, -1)) for part in (result.x, result.fun))
        self.status[rows], self.work[rows, 0], self.target[rows] = result.status, result.iterations, result.target
        self.norms[rows, 0], self.norms[rows, 1] = result.residual_norm, result.initial_norm
        self.steps = [replace(step, systems=rows[step.systems]) for step in result.steps[1:]]

    def _problem(self, p: HostArray) -> Problem:
        """The systems with parameters p, as a batch."""
        call = compiled(*self.form)

        def residual(x: HostArray) -> HostArray:
            flat = usable(x.reshape((len(x), -1)))
            F = np.full_like(flat, np.nan)
            _newton_lanes.evaluate_each(call, flat, p, F, self.sides)
            self.evaluations += len(x)
            return F.reshape(x.shape)

        return Problem(
            residual,
            structure=self.structure,
            batch_ndim=1,
            take=lambda rows: self._problem(p[rows]),
            pure=True,
        )

    def result(self) -> NonlinearResult:
        """What `newton_batch` returns."""
        B = len(self.x)
        start = NewtonStep(
            iteration=0,
            systems=np.arange(B),
            residual_norm=self.norms[:, 1],
            target=self.target,
            counts=Counts(residuals=1),
        )
        return NonlinearResult(
            x=self.x.reshape(self.shape),
            fun=self.F.reshape(self.shape),
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
    if p.ndim != 2 or p.shape[0] != B:
        raise ValueError(f"newton_batch: `parameters` must have shape ({B}, Q) or (Q,), got {p.shape}")
    if p.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise TypeError("newton_batch: `parameters` must be real for a real `x0`, got complex numbers")
    return usable(p.astype(dtype, order="C"))


@functools.lru_cache(maxsize=64)
def compiled(residual: Callable[..., Any], char: str, ndim: int, has_parameters: bool) -> Any:
    """C function ``(x, p, out, n0, n1, q) -> 1``, or 0 where `residual` raised, for one dtype and number of axes."""
    function = _c_function(residual, has_parameters, inner(lambda pointer: pointer), char, ndim, "one")
    function.compile()
    return function


@functools.lru_cache(maxsize=64)
def compiled_for_lanes(residual: Callable[..., Any], char: str, ndim: int, has_parameters: bool) -> Any:
    """The same for the numbers of all lanes, or None: a residual may do what `Lanes` do not, such as branch on x."""
    function = _c_function(residual, has_parameters, pointer_to_lanes, char, ndim, "lanes")
    cache: Any = function._cache
    if isinstance(cache, Kept) and cache.failed.exists():
        return None
    try:
        function.compile()
    except (NumbaError, NotImplementedError):
        if isinstance(cache, Kept):
            with contextlib.suppress(OSError):
                cache.failed.touch()
        return None
    return function


def _c_function(residual: Any, has_parameters: bool, view: Any, char: str, ndim: int, kind: str) -> Any:
    """`residual` for what `view` makes of a pointer, to be compiled, or loaded if its digest is on disk."""
    evaluate = _evaluation(residual, has_parameters)
    pointer = types.CPointer(numba.from_dtype(np.dtype(char)))
    arguments = pointer, pointer, pointer, types.intp, types.intp, types.intp
    shape_of = inner(lambda n0, n1: (n0,)) if ndim == 1 else inner(lambda n0, n1: (n0, n1))

    def wrapper(x: Any, p: Any, out: Any, n0: int, n1: int, q: int) -> int:
        shape = shape_of(n0, n1)
        try:
            evaluate(carray(view(x), shape), carray(view(p), (q,)), carray(view(out), shape))
        except Exception:  # noqa: BLE001 - Numba knows no other; what leaves a C function is printed
            return 0
        return 1

    function: Any = CFunc(wrapper, (arguments, types.intc), {}, {})
    with contextlib.suppress(TypeError, ValueError):
        key = repr((_described(residual), has_parameters, ndim, kind, "quiet"))
        function._cache = kept(wrapper, hashlib.sha256(key.encode()).hexdigest()) or function._cache
    return function


MODULES = (builtins, cmath, math, np)
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
LARGEST = 10**6  # bytes of an array that Numba compiles in


def _described(function: Any, within: tuple[Any, ...] = ()) -> Any:
    """All that its machine code depends on; TypeError where it refers to what is not known here."""
    if function in within:
        return within.index(function)
    within += (function,)
    options = None
    if isinstance(function, Dispatcher):
        options, function = repr(function.targetoptions), function.py_func
    code = function.__code__
    cells = {name: cell.cell_contents for name, cell in zip(code.co_freevars, function.__closure__ or ())}
    scope = vars(builtins) | function.__globals__ | cells
    names = sorted((_names(code) | set(cells)) & set(scope))
    values = [scope[name] for name in names] + [function.__defaults__, *(function.__kwdefaults__ or {}).items()]
    return options, _known(code, within), names, [_known(value, within) for value in values]


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))


def _known(value: Any, within: tuple[Any, ...]) -> Any:
    """A value as text and tuples: a number, an array, code, a compiled function, or what `MODULES` have."""
    if type(value) in PLAIN:
        return type(value).__name__, repr(value)
    if type(value) is tuple:
        return tuple(_known(part, within) for part in value)
    if isinstance(value, CodeType):
        names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        return value.co_code, value.co_exceptiontable, value.co_argcount, names, _known(value.co_consts, within)
    if isinstance(value, ModuleType) and value in MODULES:
        return value.__name__
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc" and value.nbytes <= LARGEST:
        return value.dtype.str, value.shape, value.strides, value.tobytes()
    if isinstance(value, Dispatcher):
        return _described(value, within)
    names = [name for module in MODULES for name, other in vars(module).items() if other is value]
    if not names:
        raise TypeError
    return names


def _evaluation(residual: Callable[..., Any], has_parameters: bool) -> Any:
    """One form, ``(x, p, out)``, for the four that `residual` may have."""
    if not callable(residual):
        raise TypeError(f"newton_batch: `residual` must be callable, got {type(residual).__name__}")
    function = getattr(residual, "py_func", residual)
    options: Any = {**getattr(residual, "targetoptions", {}), "error_model": "numpy", "parallel": False}
    options.pop("nopython", None)
    user = numba.njit(**options)(function)
    arguments = len(inspect.signature(function).parameters)
    least = 2 if has_parameters else 1
    if arguments not in (least, least + 1):
        names = "(x, p, out) or (x, p)" if has_parameters else "(x, out) or (x)"
        raise TypeError(f"newton_batch: `residual` must take {names}, got {arguments} arguments")
    if arguments == 3:
        return user
    if has_parameters:

        def evaluate(x: Any, p: Any, out: Any) -> None:
            out[:] = user(x, p)
    elif arguments > least:

        def evaluate(x: Any, p: Any, out: Any) -> None:
            user(x, out)
    else:

        def evaluate(x: Any, p: Any, out: Any) -> None:
            out[:] = user(x)

    return numba.njit(error_model="numpy")(evaluate)
