"""The linear methods and preconditioners that SciPy's `newton_krylov` takes."""

from __future__ import annotations

import difflib
import inspect
import warnings
from functools import partial
from typing import Any

import scipy.sparse.linalg as spla

from implicitsolve._arrays.namespace import array_namespace
from implicitsolve._scipy_keywords import DROP_IN_REPLACEMENTS
from implicitsolve._typing import Array
from implicitsolve.krylov import GMRES, BiCGSTAB, KrylovMethod, ScipyKrylov
from implicitsolve.krylov._scipy import SCIPY_METHODS
from implicitsolve.stopping import kind_of


class UnknownOptionError(TypeError, ValueError):
    """An unknown option: a TypeError as in any call, a ValueError as in SciPy."""


def krylov_method(method: Any, maxiter: int, outer_k: int, options: dict[str, Any]) -> KrylovMethod:
    """Return the linear method of a name, a callable or an object."""
    given = {name: value for name, value in options.items() if name.startswith("inner_")}
    for name in options:
        if name not in given:
            hint = f": give {DROP_IN_REPLACEMENTS[name]}" if name in DROP_IN_REPLACEMENTS else ""
            raise UnknownOptionError(f"Unknown parameter `{name}`: newton_krylov has no such option{hint}")
    if isinstance(method, str):
        gmres = partial(GMRES, restart=maxiter)
        own: dict[str, Any] = {"gmres": gmres, "fgmres": gmres, "bicgstab": BiCGSTAB}
        if method in own and not given:
            return own[method]()
        if method not in SCIPY_METHODS:
            known = sorted({*own, *SCIPY_METHODS})
            raise ValueError(f"newton_krylov: `method` must be one of {known} or callable, got {method!r}")
    elif kind_of(method) == "krylov":
        if given:
            raise UnknownOptionError(f"Unknown parameter {sorted(given)[0]}: set it in {type(method).__name__}(...)")
        return method
    elif not callable(method) or isinstance(method, type):
        got = f"the class: write {method.__name__}()" if isinstance(method, type) else repr(method)
        raise TypeError(f"newton_krylov: `method` must be a name, a function or a Krylov method, got {got}")
    return ScipyKrylov(function=method, options=_scipy_options(method, maxiter, outer_k, given))


def _scipy_options(method: Any, maxiter: int, outer_k: int, given: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that SciPy's own solver would pass to the method."""
    function = getattr(spla, method) if isinstance(method, str) else method
    keywords: dict[str, Any] = {"maxiter": maxiter}
    if method == "gmres":
        keywords = {"restart": maxiter, "maxiter": 1}
    elif method == "lgmres":
        keywords = {"inner_m": maxiter, "maxiter": 1, "outer_k": outer_k, "outer_v": [], "store_outer_Av": False}
        keywords["prepend_outer_v"] = True
    valid = [name for name in inspect.signature(function).parameters if name not in ("self", "args", "kwargs")]
    known = {p for name in SCIPY_METHODS for p in inspect.signature(getattr(spla, name)).parameters}
    for name, value in given.items():
        option = name.removeprefix("inner_")
        if option in valid:
            keywords[option] = value
        elif option in known:
            close = difflib.get_close_matches(option, valid, n=1)
            warnings.warn(
                f"Option '{name}' is invalid for the inner method: {method}. It will be ignored. "
                "Please check inner method documentation for valid options."
                + (f" Did you mean '{close[0]}'?" if close else ""),
                stacklevel=4,
            )
        else:
            raise UnknownOptionError(f"Unknown parameter {name}: no inner method has an option {option!r}")
    return keywords


def preconditioner(M: Any, residual: Any) -> Any:
    """inner_M as the solver takes it: a function where M follows the iterates."""
    if M is None or not (hasattr(M, "update") or hasattr(M, "setup")):
        return M
    is_set_up = False

    def at(x: Array, F: Array) -> Any:
        nonlocal is_set_up
        if not is_set_up and hasattr(M, "setup"):
            M.setup(flat(x), flat(F), lambda z: flat(residual(array_namespace(z).reshape(z, x.shape))))
        elif is_set_up and hasattr(M, "update"):
            M.update(flat(x), flat(F))
        is_set_up = True
        return M

    return at


def flat(x: Array) -> Array:
    return array_namespace(x).reshape(x, (-1,))
