"""SciPy's keywords and method names: accepted where they mean the same here, else their replacement is named."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from implicitsolve.problem import Problem
from implicitsolve.stopping import NonlinearStop, check_tolerance

REPLACEMENTS = {
    "callback": "pass monitor=f, which is called as f(step, x, F)",
    "disp": "pass monitor=implicitsolve.monitor.table()",
    "eps": "pass method=NewtonKrylov(rdiff=...)",
    "f_rtol": "pass stop=NonlinearStop(rtol=...)",
    "f_tol": "pass stop=NonlinearStop(atol=...)",
    "fprime": "pass jac=f, or Problem(F, jac=f)",
    "full_output": "the result holds `x`, `success`, `message` and `counts`",
    "fun": "the function is the first argument, `problem`",
    "hess": "Newton's method for F(x) = 0 needs first derivatives alone: `jac`, or Problem(F, jvp=...)",
    "inner_M": "pass method=NewtonKrylov(preconditioner=...)",
    "jac_sparsity": "pass Problem(F, structure=Sparse(pattern)), or leave it out: the pattern is detected",
    "maxfev": "pass stop=NonlinearStop(max_evaluations=...)",
    "maxiter": "pass stop=NonlinearStop(max_iterations=...)",
    "guess": "the start is the second argument, `x0`",
    "options": "pass stop=NonlinearStop(atol=..., max_iterations=...) and method=NewtonKrylov(...)",
    "x_tol": "pass stop=NonlinearStop(xtol=...), the accuracy of x: a small step alone does not end a solve",
}
SYNONYMS = {"M": "inner_M", "fatol": "f_tol", "ftol": "f_rtol", "max_iter": "maxiter", "max_nfev": "maxfev"}
SYNONYMS |= {"func": "fun", "verbose": "disp"} | dict.fromkeys(("init", "start", "x", "x_init", "xin"), "guess")
SYNONYMS |= dict.fromkeys(("band", "sparsity"), "jac_sparsity") | dict.fromkeys(("diff_step", "epsfcn"), "eps")
SYNONYMS |= dict.fromkeys(("Dfun", "J", "jacobian"), "fprime") | dict.fromkeys(("x_rtol", "xatol", "xtol"), "x_tol")
DROP_IN_REPLACEMENTS = {name: f"{SYNONYMS[name]}=" for name in ("M", "fatol", "ftol", "xatol")} | {
    "args": "a function that has them: newton_krylov(lambda x: F(x, *args), x0)",
    "atol": "f_tol=",
    "disp": "verbose=",
    "fprime": "jac=",
    "jac_options": "its entries as keywords",
    "max_iterations": "maxiter=",
    "maxfev": "maxiter=",
    "monitor": "callback=, or implicitsolve.root",
    "nit": "iter=",
    "options": "its entries as keywords",
    "preconditioner": "inner_M=",
    "rtol": "f_rtol=",
    "stop": "f_tol= and maxiter=, or implicitsolve.root",
    "tol": "f_tol=",
    "xtol": "x_rtol=",
}
METHOD_REPLACEMENTS = {
    "broyden1": '"broyden"',
    "broyden2": '"broyden"',
    "df-sane": '"newton-krylov"',
    "diagbroyden": '"anderson"',
    "excitingmixing": '"anderson"',
    "gmres": "NewtonKrylov(krylov=GMRES())",
    "hybr": '"auto", which assembles and factors the Jacobian where that is faster',
    "krylov": '"newton-krylov"',
    "lgmres": "NewtonKrylov(krylov=LGMRES())",
    "linearmixing": '"picard"',
    "newton": '"auto", or "newton-krylov"',
    "lm": '"auto" for a root; for least squares use scipy.optimize.least_squares',
}


def adapt_keywords(
    problem: Any, stop: NonlinearStop | None, given: Mapping[str, Any], settings: Iterable[type]
) -> tuple[Any, NonlinearStop | None]:
    """The problem and the stopping rule with SciPy's `args`, `jac` and `tol`; other keywords raise a TypeError.

    `settings` are the classes whose fields a caller may have taken for arguments of `root`.
    """
    for name in given:
        if name not in ("args", "jac", "tol"):
            raise TypeError(f"root: {_replacement(name, settings)}")
    args, jac, tol = given.get("args", ()), given.get("jac"), given.get("tol")
    if tol is not None:
        if stop is not None:
            raise TypeError("root: give `tol` or `stop`, not both")
        check_tolerance("root", "tol", tol)
        stop = NonlinearStop(atol=tol)
    if isinstance(problem, Problem):
        for name in set(given) - {"tol"}:
            raise TypeError(f"root: `{name}` is for a plain function: a Problem has its own, Problem(F, jac=...)")
        return problem, stop
    args = args if isinstance(args, tuple) else (args,)
    residual = _bound(problem, args)
    if jac is True:  # F and J at once
        return Problem(lambda x: _pair(residual(x))[0], linearize=lambda x: _pair(residual(x))), stop
    if jac is None or jac is False:
        return residual, stop
    if not callable(jac):
        raise TypeError(
            f"root: `jac` must be a function x -> J(x), or True, got {jac!r}; without it J is by differences"
        )
    return Problem(residual, jac=_bound(jac, args)), stop


def _pair(value: Any) -> tuple[Any, Any]:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        raise TypeError(f"root: with `jac=True` the function must return a pair (F, J), got {type(value).__name__}")
    return value[0], value[1]


def _bound(function: Any, args: tuple[Any, ...]) -> Any:
    if not args or not callable(function):
        return function
    return lambda x: function(x, *args)


def _replacement(name: str, settings: Iterable[type]) -> str:
    known = SYNONYMS.get(name, name)
    if known in REPLACEMENTS:
        return f"`{name}`: {REPLACEMENTS[known]}"
    owners = {field.name: kind for kind in settings for field in fields(kind)}
    if name in owners:
        return f"`{name}` belongs to {owners[name].__name__}: {owners[name].__name__}(..., {name}=...)"
    names = [*owners, "method", "stop", "monitor", "args", "jac", "tol"]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f"unexpected keyword argument `{name}`" + (f"; did you mean `{close[0]}`?" if close else "")


def method_hint(method: str, known: Iterable[str]) -> str:
    """What SciPy's name of a method, or a misspelled one, stands for here; "" where nothing comes close."""
    if method in METHOD_REPLACEMENTS:
        return f"; for SciPy's {method!r} take {METHOD_REPLACEMENTS[method]}"
    close = difflib.get_close_matches(method.lower().replace("_", "-"), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
