"""Solved layers that have halves."""

from dataclasses import replace

import implicitsolve as ims
from implicitsolve import LinearStop, root
from tests.adapters.layers import Case
from tests.helpers import compare

EXACT = LinearStop(rtol=1e-13)
SOLVED = ims.NonlinearStop(atol=1e-13, rtol=0.0)


def close(actual, expected, tolerance=1e-10):
    compare.close(actual, expected, tolerance)


def solved(case: Case) -> tuple[ims.Problem, ims.NonlinearResult, Case]:
    """The layer, its solution, and the case at it."""
    layer = case.layer()
    result = root(layer, method="newton-krylov", stop=SOLVED)
    assert result.success.all()
    return layer, result, replace(case, H=result.x)


def whole(layer: ims.Problem) -> ims.Problem:
    """Without the halves, and without the blocks that a direct solve would take."""
    return replace(layer, halves=None, structure=None, blocks=None)
