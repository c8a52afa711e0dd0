"""A problem for each value of a parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from implicitsolve._arrays.namespace import as_inexact
from implicitsolve._parameters import POSITIONAL, Parametrized
from implicitsolve._typing import HostArray
from implicitsolve.problem import Problem

OF_PARAMETER = "residual", "jvp", "vjp", "jac", "linearize", "blocks", "parameter_jvp"  # that depend on the parameter


class Family:
    """The problem for each value of its parameter.

    `problem` is F(x, lam), a Problem whose functions have the parameter as a further argument, or lam -> Problem;
    `parameter` the name of that argument, None for the last positional one.
    """

    def __init__(self, problem: Any, parameter: str | None) -> None:
        if not (isinstance(problem, Problem) or callable(problem)):
            raise TypeError(
                "continuation: `problem` must be a function F(x, lam), a Problem of such functions, or a function "
                f"lam -> Problem, got {type(problem).__name__}"
            )
        if not isinstance(parameter, str | None):
            raise TypeError(f"continuation: `parameter` must be a name, got {type(parameter).__name__}")
        self.makes_problems = False
        if not isinstance(problem, Problem):
            self.makes_problems, parameter = _form(problem, parameter)
        self.problem: Any = problem if self.makes_problems or isinstance(problem, Problem) else Problem(problem)
        self.parameter = parameter

    def at(self, lam: float) -> Problem:
        if self.makes_problems:
            problem: Any = self.problem(lam)
            if not isinstance(problem, Problem):
                raise TypeError(
                    "continuation: a `problem` of one argument must return a Problem for each value of the parameter, "
                    f"got {type(problem).__name__}; a residual is a function F(x, lam)"
                )
        elif self.problem.derivatives is not None:  # the parameter is an argument of the traced program
            problem = replace(self.problem, parameters=lam if self.parameter is None else {self.parameter: lam})
        else:
            given = {name: getattr(self.problem, name) for name in OF_PARAMETER}
            problem = replace(self.problem, **{name: self._bound(f, lam) for name, f in given.items() if f is not None})
        if problem.batch_ndim:
            raise ValueError(
                f"continuation: `problem` must be one system, got batch_ndim={problem.batch_ndim}: "
                "follow the branches of a batch one by one"
            )
        declared = [name for name in ("bounds", "x_scale", "f_scale") if getattr(problem, name) is not None]
        if declared:
            raise ValueError(f"continuation: `problem` must not have `{declared[0]}`, which branches do not keep")
        return problem

    def _bound(self, function: Callable[..., Any], lam: float) -> Callable[..., Any]:
        name, function = self.parameter, function.function if isinstance(function, Parametrized) else function
        if name is None:
            return lambda *arguments: function(*arguments, lam)
        return lambda *arguments: function(*arguments, **{name: lam})


def real_start(caller: str, x0: Any) -> HostArray:
    x = as_inexact(x0, "x0")
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
        kind = f"{x.dtype} array of {type(x).__module__.partition('.')[0]}"
        raise TypeError(f"{caller}: `x0` must hold real numbers on NumPy arrays, got a {kind}")
    if not x.size:
        raise ValueError(f"{caller}: `x0` must have at least one unknown, got none")
    return x.astype(np.float64)


def _form(function: Callable[..., Any], parameter: str | None) -> tuple[bool, str | None]:
    """Whether a function is lam -> Problem: it has one argument; and the name of F's second one, if it is keyword-only.

    F(x, lam) is called as such, whether or not the parameter has a default.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False, parameter
    parameters = signature.parameters.values()
    kinds = [p.kind for p in parameters]
    if parameter is not None:
        names = list(signature.parameters)
        if parameter not in names and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise TypeError(f"continuation: `parameter` must be one of {names[1:]}, got {parameter!r}")
        return False, parameter
    if sum(kind in POSITIONAL for kind in kinds) != 1 or inspect.Parameter.VAR_POSITIONAL in kinds:
        return False, None
    keywords = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    named = [p.name for p in keywords if p.default is p.empty] or [p.name for p in keywords]
    if len(named) > 1:
        raise TypeError(f"continuation: give the name of the parameter, parameter={named[0]!r} or another of {named}")
    return not named, named[0] if named else None
