"""Exact derivatives of a residual written in NumPy: its trace, which is compared with F before and during a solve."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._summary import Representation
from implicitsolve._typing import CallersArray, DType, HostArray, Residual
from implicitsolve.errors import WrongDerivativesError
from implicitsolve.problem import Problem, spread
from implicitsolve.structure import Detection, Outcome
from implicitsolve.structure._sparse import Sparse
from implicitsolve.tracing._functions import UntraceableError
from implicitsolve.tracing._pattern import structure_of
from implicitsolve.tracing._program import Comparison, Program, disagreement, explanation, key_of, numeric

MOST_TRACES = 8  # traces that are kept for later solves of the same function


class TracedResidual(Representation):
    """What `trace` returns: a residual with exact derivatives, or the reason why it has none.

    Attributes
    ----------
    is_traced : bool
        Whether the derivatives are exact. If not, the functions below raise a TypeError.
    reason : str
        Why not, and at which line of the function; "" if traced.
    structure : Sparse or None
        Where J may have entries, whatever the branches are; None where it is dense or not known.
    evaluations : int
        Calls of the function for the trace and its comparison with NumPy, except the one at x0, which solves share.
    operations : int
        Number of operations of the traced program.
    """

    def __init__(
        self, residual: Residual, parameters: Mapping[str, CallersArray] | None, x: HostArray, batch_ndim: int
    ) -> None:
        self.residual: Residual = residual
        self.parameters: Mapping[str, CallersArray] | None = parameters
        self.shape: tuple[int, ...] = x.shape
        self.dtype: DType = x.dtype
        self.batch_ndim: int = batch_ndim
        self.reason: str = ""
        self.evaluations: int = 0
        self.operations: int = 0
        self.structure: Sparse | None = None
        self.start: tuple[HostArray, CallersArray] | None = None  # x0 and F there, until a solve takes them
        self.assembler: object = None  # the coloring, from the first solve
        self._program: Program | None = None
        self.problem: Problem = Problem(residual)  # to which the derivatives are added

    @property
    def is_traced(self) -> bool:
        """Whether the derivatives are exact."""
        return self._program is not None

    def __str__(self) -> str:
        return "exact, by a trace of F" if self.is_traced else f"differences, since F was not traced: {self.reason}"

    def _entries(self) -> dict[str, str]:
        if not self.is_traced:
            return {"not traced": self.reason}
        pattern = "dense or not known" if self.structure is None else repr(self.structure)
        return {"unknowns": f"{self.shape}", "operations": f"{self.operations}", "J": pattern}

    @property
    def program(self) -> Program:
        if self._program is None:
            raise TypeError(f"trace: the function has no exact derivatives: {self.reason}")
        return self._program

    def __call__(self, x: CallersArray) -> HostArray:
        """F(x), by the traced program where there is one."""
        x = self._as_state(x)
        return np.asarray(self.residual(x)) if self._program is None else self._program.linearize(x, self.arrays())[0]

    def jvp(self, x: CallersArray, v: CallersArray) -> HostArray:
        return self.program.jvp(self._as_state(x), self._as_state(v), self.arrays())[1]

    def vjp(self, x: CallersArray, w: CallersArray) -> HostArray:
        _, *known = self.program.linearize(self._as_state(x), self.arrays())
        return self.program.back(known, self._as_state(w))

    def parameter_jvp(self, x: CallersArray, tangents: Mapping[str, CallersArray]) -> HostArray:
        """(dF/dtheta) dtheta, for some of the parameters."""
        return self.program.by_parameters.jvp(self.arrays(), self._along(tangents), self._as_state(x))[1]

    def parameter_vjp(self, x: CallersArray, w: CallersArray) -> dict[str, HostArray]:
        """(dF/dtheta)^H w for each parameter; zero for parameters that are not floating-point."""
        by_parameters = self.program.by_parameters
        _, *known = by_parameters.linearize(self.arrays(), self._as_state(x))
        return self._for_all(by_parameters.back(known, self._as_state(w)))

    def second(
        self, x: CallersArray, w: CallersArray, v: CallersArray, tangents: Mapping[str, CallersArray]
    ) -> tuple[HostArray, dict[str, HostArray]]:
        """The derivatives of `vjp` and `parameter_vjp`, at x with w, as x moves along v and parameters along theirs."""
        at, along = (self._as_state(x), self.arrays()), (self._as_state(v), self._along(tangents))
        pulled, gradients = self.program.second(at, along, self._as_state(w))
        return pulled, self._for_all(gradients)

    def _along(self, tangents: Mapping[str, CallersArray]) -> dict[str, HostArray]:
        """A direction in the space of all numeric parameters."""
        parts = {name: (np.asarray(tangents.get(name, 0.0), v.dtype), v.shape) for name, v in self.arrays().items()}
        return {name: np.broadcast_to(*part) for name, part in parts.items()}

    def _for_all(self, gradients: Mapping[str, HostArray]) -> dict[str, HostArray]:
        return {name: np.zeros(np.shape(value)) for name, value in (self.parameters or {}).items()} | dict(gradients)

    def arrays(self) -> dict[str, HostArray]:
        """The parameters with respect to which F has derivatives: numbers and floating-point arrays."""
        return numeric(self.parameters)

    def _as_state(self, x: CallersArray) -> HostArray:
        x = np.asarray(x, self.dtype)
        if x.shape != self.shape:
            raise ValueError(f"trace: the function was traced for arrays of shape {self.shape}, got {x.shape}")
        return x

    @property
    def detection(self) -> Detection | None:
        own, how = self.structure, Outcome.TRACED
        return own if own is None else Detection(structure=own, how=how, evaluations=0, unknowns=own.unknowns)

    def evaluate(self, x: HostArray) -> CallersArray:
        """F(x) by NumPy; the first call at x0 returns the value from the comparison."""
        start, self.start = self.start, None
        return self.residual(x) if start is None or not np.array_equal(x, start[0]) else start[1]

    def confirm(self, x: HostArray) -> None:
        """Raise a `WrongDerivativesError` where F at x, the end of a failed solve, differs from the trace there."""
        if self._program is not None:
            arrays = self.arrays()
            comparison = Comparison(self.residual, lambda x, v: self.program.jvp(x, v, arrays))
            F = comparison.value(x)
            if F is None or not comparison.holds(x, F):
                raise WrongDerivativesError("F and its trace differ at the end: F changes from call to call")

    def refuse(self, reason: str) -> Problem:
        """The problem without the derivatives of this trace: a solve has contradicted them."""
        self.reason, self.structure, self._program = reason, None, None
        return replace(self.problem, derivatives=self)

    def __getstate__(self) -> Mapping[str, object]:
        """All but the program: another process traces again."""
        left_out = dict.fromkeys(("_program", "problem", "assembler", "start"))
        return vars(self) | left_out | {"reason": self.reason or "it comes from another process"}


# Traces


def trace(
    residual: Residual | Problem, x0: CallersArray, *, parameters: CallersArray = None, batch_ndim: int = 0
) -> TracedResidual:
    """Run a residual written in NumPy on arrays that stand for values, for its exact derivatives.

    Parameters
    ----------
    residual : callable or Problem
        ``F(x)``, or F with parameters as in `Problem`.
    x0 : array_like
        A point, of the shape and dtype of the solves.
    parameters : mapping of str to Array, array or float, optional
        What F depends on in addition to x, as in `Problem`: arguments of the traced program, and what
        `parameter_jvp` and `parameter_vjp` differentiate with respect to.
    batch_ndim : int, optional
        The first axes of x index independent systems. Default 0.

    Returns
    -------
    TracedResidual
        Whether the function was traced, or why not, and at which line.

    Raises
    ------
    TypeError
        If `residual` is not callable, or x0 holds no numbers.

    Notes
    -----
    The trace is compared with the function at x0 and at two points near it: values, and a product with J. A trace
    that differs is not used. Costs three evaluations of F, of which a solve shares that at x0, and 0.1 to 0.3 s. NumPy
    evaluates the derivatives, and nothing is compiled.

    Examples
    --------
    >>> def F(x, a):
    ...     out = np.zeros(x.size)
    ...     out[:-1] = np.maximum(x[1:], 0.0) - a * x[:-1]
    ...     out[-1] = x[-1] - 1.0
    ...     return out
    >>> traced = ims.trace(F, np.ones(8), parameters={"a": 2.0})
    >>> traced.structure
    <Sparse 8x8, 15 entries, at most 2 in a row>
    >>> traced.vjp(np.ones(8), np.ones(8))
    array([-2., -1., -1., -1., -1., -1., -1.,  2.])
    >>> ims.trace(lambda x: x if x[0] > 0 else 2 * x, np.ones(4)).is_traced
    False
    """
    problem = residual if isinstance(residual, Problem) else Problem(residual, batch_ndim=batch_ndim)
    problem = problem if parameters is None else replace(problem, parameters=parameters)
    x = as_inexact(x0, "x0")
    if not isinstance(x, np.ndarray):
        raise TypeError(f"trace: `x0` must be a NumPy array, got {type(x).__name__}")
    return trace_of(problem, x)


_lock = threading.RLock()
_traces: dict[object, TracedResidual] = {}


def trace_of(problem: Problem, x: CallersArray) -> TracedResidual:
    """The trace of a problem's residual for states like x: a kept one, if it still agrees, or a new one."""
    parameters = numeric(problem.parameters)
    key = key_of(problem, x, parameters)
    with _lock:
        found = _traces.pop(key, None) if key is not None else None
        if found is not None:
            kept, found = vars(found), object.__new__(TracedResidual)  # for other values of the parameters
            vars(found).update(
                kept, residual=problem.residual, parameters=problem.parameters, evaluations=1, start=None
            )
            found = found if found.is_traced and _comparison(found, problem).holds_nearby(x) else None
        found = found or _new(problem, x, parameters)
        if key is not None and found.is_traced:
            _traces[key] = found
            while len(_traces) > MOST_TRACES:
                del _traces[next(iter(_traces))]
    return found


def _new(problem: Problem, x: CallersArray, parameters: Mapping[str, HostArray]) -> TracedResidual:
    found = TracedResidual(problem.residual, problem.parameters, x, problem.batch_ndim)
    if not isinstance(x, np.ndarray) or x.dtype.char not in "fdFD":
        found.reason = f"x0 is not a NumPy array of 32 or 64-bit numbers but {type(x).__name__} of {x.dtype}"
        return found
    comparison = _comparison(found, problem)
    first = comparison.value(comparison.inside(x))  # by NumPy first: what F keeps of its first call has no tracers
    found.start = None if comparison.returned is None else (x.copy(), comparison.returned)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            program = Program(problem.residual, x, parameters)
        found.operations, found._program = len(program.flat.operations), program
        found.structure = structure_of(program.flat, x.size, int(np.prod(x.shape[problem.batch_ndim :])))
        if not comparison.holds_anew(x, first):
            raise UntraceableError(disagreement(problem.residual, first, comparison.value(comparison.inside(x))))
    except Exception as error:  # whatever the function does with arrays that are none of NumPy's
        if comparison.raised is error:
            raise
        found.reason, found._program, found.structure = explanation(error), None, None
    found.start = found.start if found.is_traced or not problem.parameters else None
    found.evaluations += comparison.evaluations - (found.start is not None)
    return found


def _comparison(found: TracedResidual, problem: Problem) -> Comparison:
    arrays, bounds = found.arrays(), problem.bounds
    bounds = bounds and tuple(spread("bounds", side, found.shape) for side in bounds)
    return Comparison(found.residual, lambda x, v: found.program.jvp(x, v, arrays), bounds, problem.rejects)


# The functions of a problem


class Functions:
    """F by NumPy and its exact products, for one solve: F and its trace are compared wherever J is taken."""

    def __init__(self, found: TracedResidual) -> None:
        self.found, self.arrays = found, found.arrays()
        self.comparison = Comparison(found.residual, lambda x, v: found.program.jvp(x, v, self.arrays))
        self._last: tuple[HostArray, HostArray] | None = None
        self._linear: tuple[HostArray, list[CallersArray]] | None = None

    def residual(self, x: HostArray) -> CallersArray:
        F = self.found.evaluate(x)
        if type(F) is np.ndarray and F.shape == self.found.shape:
            self._last = x.copy(), F.copy()
        return F

    def linearize(self, x: HostArray) -> list[CallersArray]:
        """F and the data for products, after a check that the trace agrees with F here."""
        if self._linear is None or not np.array_equal(x, self._linear[0]):
            linear, last = self.found.program.linearize(x, self.arrays), self._last
            if last is not None and np.array_equal(x, last[0]) and not self.comparison.holds(x, last[1]):
                raise WrongDerivativesError("F and its trace differ at a later point: F changes from call to call")
            self._linear = x.copy(), linear
        return self._linear[1]

    def jvp(self, x: HostArray, v: HostArray) -> HostArray:
        return self.jvps(x, v[None])[0]

    def jvps(self, x: HostArray, V: HostArray) -> HostArray:
        value, *known = self.linearize(x)
        products = self.found.program.along(known, V)
        if not np.isfinite(products).all() and np.isfinite(value).all():
            raise WrongDerivativesError("products with J are not finite at x, where F is")
        return products

    def vjp(self, x: HostArray, w: HostArray) -> HostArray:
        return self.found.program.back(self.linearize(x)[1:], w)


def add_derivatives(problem: Problem, x: CallersArray) -> Problem:
    """The problem with the exact derivatives that it does not have itself."""
    found = trace_of(problem, x)
    found.problem = problem
    if not found.is_traced:
        return replace(problem, derivatives=found, residual=found.evaluate if found.start else problem.residual)
    functions = Functions(found)
    given: dict[str, CallersArray] = {"residual": functions.residual}
    if problem.jvp is None and problem.jac is None and problem.linearize is None:
        given |= {"jvp": functions.jvp, "jvps": functions.jvps}
    if problem.vjp is None:
        given |= {"vjp": functions.vjp}
    if found.arrays():
        own = {"parameter_jvp": found.parameter_jvp, "parameter_vjp": found.parameter_vjp}
        given |= {name: function for name, function in own.items() if getattr(problem, name) is None}
    return replace(problem, **given, derivatives=found, take=None)
