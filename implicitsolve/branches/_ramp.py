"""Homotopy in a parameter that the caller names: a branch of solutions leads to where another solve begins."""

from __future__ import annotations

from typing import Any

from implicitsolve._record import Tally
from implicitsolve._typing import Array
from implicitsolve.branches._continuation import continuation
from implicitsolve.branches._system import Family
from implicitsolve.problem import Problem
from implicitsolve.stopping import NonlinearStop


def end_of_ramp(problem: Any, x0: Any, ramp: Any, stop: NonlinearStop) -> tuple[Problem, Array, Tally]:
    """The problem at the last value of a ramp, the end of the branch from x0 at its first value, and its evaluations.

    A branch that ends before ends at its last point.
    """
    if not (isinstance(ramp, tuple) and len(ramp) == 3 and isinstance(ramp[0], str)):
        raise TypeError(f'root: `ramp` must be (name, first, last), such as ("Re", 100, 2000), got {ramp!r}')
    name, first, last = ramp
    branch = continuation(
        problem, x0, first, last, parameter=name, branch_points=False, max_evaluations=stop.max_evaluations
    )
    tally = Tally(stop.max_evaluations, stop.max_seconds)
    for kind in ("residuals", "jvps", "vjps", "linearizations"):
        setattr(tally, kind, getattr(branch.counts, kind))
    return Family(problem, name).at(float(last)), branch.x[-1] if len(branch.x) else x0, tally
