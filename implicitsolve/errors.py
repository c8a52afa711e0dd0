"""Exceptions of the package. A caller's mistake raises ValueError or TypeError; these are for the rest."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from implicitsolve._typing import Array

if TYPE_CHECKING:
    _ScipyNoConvergence = Exception  # what it is; SciPy ships no types
else:
    from scipy.optimize import NoConvergence as _ScipyNoConvergence

P = ParamSpec("P")
T = TypeVar("T")


class AccuracyWarning(RuntimeWarning):
    """A solve met the caller's tolerance of F at an x whose estimated error exceeds 1e-3 of it.

    `pull_back` and `push_forward` warn of derivatives at such an x, and at one whose error is not known.

    Examples
    --------
    >>> import warnings
    >>> from implicitsolve import AccuracyWarning
    >>> warnings.simplefilter("error", AccuracyWarning)  # in a program: an exception in place of the warning
    >>> warnings.simplefilter("default", AccuracyWarning)
    """


class NoConvergence(_ScipyNoConvergence):
    """A solve ended without meeting its stopping rule.

    A subclass of `scipy.optimize.NoConvergence` with the same first argument, the best iterate.

    Attributes
    ----------
    x : Array
        Best iterate.
    result : NonlinearResult, LinearResult or AdjointResult
        Everything that is known about the solve.

    Examples
    --------
    >>> try:
    ...     ims.newton_krylov(lambda x: x**2 + 1, 0.5)
    ... except ims.NoConvergence as error:
    ...     error.result.success
    False
    """

    def __init__(self, x: Array, message: str = "", result: Any = None) -> None:
        super().__init__(x)
        self.x = x
        self.message = message
        self.result = result

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with all three arguments."""
        return (type(self), (self.x, self.message, self.result))


class BackendUnavailable(ImportError):  # noqa: N818 (a condition, as NoConvergence is)
    """The requested backend is not installed; the message names the package to install.

    Raised only for a backend that was named: ``backend="auto"`` takes another.
    """


class WrongDerivativesError(RuntimeError):
    """Derivatives of a trace that F contradicts, or that are not finite: the solve begins again with differences."""


def require(module: str, need: str) -> Any:
    """Import a module of an optional package; `need` names what needs it, and the remedy."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendUnavailable(f"{need} ({error})") from error


FUNCTION = "problem, a function that has them, such as lambda x: F(x, *args)"
MEANT: dict[str, tuple[str, ...]] = {  # the first whose first word is an argument
    "f_rtol": ("rtol",),
    "f_tol": ("atol",),
    "fun": ("residual",),
    "maxfev": ("max_evaluations",),
    "maxiter": ("max_iterations", "max_points", "stop=LinearStop(max_iterations=...)"),
    "progress": ("monitor=implicitsolve.monitor.table()",),
    "restart": ("krylov=GMRES(restart=...)", "method=GMRES(restart=...)"),
    "rtol": ("stop=LinearStop(rtol=...)",),
    "tol": ("xtol (of x), atol or rtol (of F)", "atol", "stop"),
}
MEANT |= dict.fromkeys(("jac_sparsity", "sparsity"), ("structure",))
MEANT |= dict.fromkeys(("x_rtol", "x_tol", "xatol"), ("xtol",)) | {"fatol": ("atol",), "ftol": ("rtol",)}
MEANT |= dict.fromkeys(("args", "parameters"), (FUNCTION,)) | dict.fromkeys(("Dfun", "fprime", "jacobian"), ("jac",))

OTHER_NAMES: dict[str, tuple[str, ...]] = {  # attributes of a result, and what other libraries call them
    "x": ("root", "sol", "solution", "u", "value", "y", "zero"),
    "fun": ("F", "fvec", "resid", "residual"),
    "success": ("converged",),
    "status": ("flag", "ier", "info", "retcode"),
    "message": ("mesg",),
    "iterations": ("n_iter", "niter", "num_steps"),
    "counts": ("function_calls", "infodict", "nhev", "njvp", "nvjp", "stats"),
    "residual_norm": ("cost", "norm", "optimality"),
    "jacobian()": ("J", "fjac", "grad", "jac"),
    "steps": ("history", "trace"),
}


def missing(result: object, name: str) -> AttributeError:
    """The error for an attribute that a result does not have, which names what takes its place."""
    meant = [ours for ours, others in OTHER_NAMES.items() if name in others and hasattr(result, ours.rstrip("()"))]
    hint = f": `result.{meant[0]}` takes its place" if meant else ""
    return AttributeError(f"{type(result).__name__} has no attribute {name!r}{hint}", name=name, obj=result)


def unknown(owner: str, keywords: Collection[str], known: Collection[str]) -> TypeError:
    """The error for a keyword that is not known, which names what it may stand for."""
    name = min(set(keywords) - set(known))
    meant = [text for text in MEANT.get(name, ()) if re.split(r"\W", text)[0] in known]
    close = meant or difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; it takes {', '.join(known)}"
    return TypeError(f"{owner}: unexpected keyword argument `{name}`{hint}")


class ChecksKeywords:
    """A base of dataclasses whose constructor names what an unknown keyword may stand for."""

    def __new__(cls, *arguments: object, **keywords: object) -> Self:
        """Raise where a keyword is unknown, or an argument that has a name was given without it."""
        known: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
        if not keywords.keys() <= known.keys():
            raise unknown(cls.__name__, keywords, known)
        if len(arguments) > (most := cls.__init__.__code__.co_argcount - 1):
            message = f"{cls.__name__}: takes {most} positional arguments, got {len(arguments)}"
            raise TypeError(f"{message}: give the others by name, such as {list(known)[most]}=...")
        return super().__new__(cls)


def check_names(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose message for an unknown keyword names what it may stand for."""
    known = inspect.signature(function).parameters

    @wraps(function)
    def check_keywords(*arguments: P.args, **keywords: P.kwargs) -> T:
        if not keywords.keys() <= known.keys():
            raise unknown(function.__name__, keywords, known)
        return function(*arguments, **keywords)

    return check_keywords


def is_of_call(error: TypeError) -> bool:
    """Whether Python raised this error because this package called a function with the wrong arguments."""
    trace: Any = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    is_ours = trace.tb_frame.f_globals.get("__name__", "").startswith(__package__)
    return is_ours and re.search(r"\(\) (missing|takes|got) .*argument", str(error)) is not None
