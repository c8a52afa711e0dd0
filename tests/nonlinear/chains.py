"""Equations of blocks in a chain, and a solve that checks what must hold for every result of it."""

import numpy as np
import pytest

from implicitsolve import BlockBanded, NonlinearStop, Problem, root
from tests.helpers.lines import bratu, brusselator, brusselator_start, burgers, circle, junction, troesch

TRIDIAGONAL, DIAGONAL = BlockBanded(1, 1), BlockBanded(0, 0)
MODES = ["broyden", "chord", "none"]
every_mode = pytest.mark.parametrize("reuse", MODES)


PROBLEMS = {
    "bratu": (bratu, np.zeros(60), TRIDIAGONAL),
    "bratu near its fold": (lambda u: bratu(u, 3.5), np.zeros(60), TRIDIAGONAL),
    "burgers": (burgers, np.linspace(1, -1, 82)[1:-1], TRIDIAGONAL),
    "troesch": (troesch, np.linspace(0, 1, 102)[1:-1], TRIDIAGONAL),
    "junction": (junction, np.zeros(80), TRIDIAGONAL),
    "brusselator": (lambda x: brusselator(x, B=2.0), brusselator_start(60, B=2.0), BlockBanded(1, 1, 2)),
    "circle": (circle, np.full(40, 0.3), BlockBanded(1, 1, periodic=True)),
}


def true_norm(F, x):
    return float(np.abs(F(x)).max())


def run(F, x0, structure, method="block-newton", stop=None, **functions):
    """Solve, and check what must hold for every result."""
    calls = [0]

    def counted(x):
        calls[0] += 1
        return F(x)

    x0 = x0.copy()
    saved = x0.copy()
    result = root(Problem(counted, structure=structure, **functions), x0, method=method, stop=stop)
    np.testing.assert_array_equal(x0, saved)
    assert calls[0] == result.counts.residuals
    np.testing.assert_array_equal(result.fun, F(result.x))
    assert result.residual_norm == true_norm(F, result.x)
    assert result.initial_norm == true_norm(F, x0)
    stop = stop or NonlinearStop()
    if stop.judges_F:
        assert result.success == (result.residual_norm <= max(stop.atol, (stop.rtol or 0.0) * result.initial_norm))
    else:
        assert result.success == (result.error is not None)
    return result
