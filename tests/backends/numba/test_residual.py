"""A residual of `newton_batch`: CONVERGED is what Python finds now, whatever the function refers to or does."""

import math
import types

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

import numba

from implicitsolve import Status
from implicitsolve.backends.numba import newton_batch
from implicitsolve.backends.numba._residual import Residual, describe

SQUARE = 2.0
SCALES = np.ones(2)
PARAMETERS = types.ModuleType("parameters")
PARAMETERS.square = 2.0


@numba.njit
def helper(x):
    return x * SCALES[0]


@numba.njit
def of_a_global(x, out):
    out[0] = x[0] ** 2 - SQUARE


@numba.njit
def of_an_array(x, out):
    out[0] = helper(x[0] ** 2) - 2.0


def of_a_module(x, out):
    out[0] = x[0] ** 2 - PARAMETERS.square


def closure(square=2.0):
    def function(x, out):
        out[0] = x[0] ** 2 - square

    def set_square(value):
        nonlocal square
        square = value

    return function, set_square


def compiled(function):
    return Residual(function, np.dtype(float), 1, False).machine_code()


@pytest.mark.parametrize("kind", ["global", "array", "module", "nonlocal"])
def test_an_old_problem_was_solved_when_a_value_had_changed(kind, monkeypatch):
    in_closure, set_square = closure()
    monkeypatch.setattr(PARAMETERS, "square", 2.0)
    monkeypatch.setitem(globals(), "SCALES", np.ones(2))
    function, change, root = {
        "global": (of_a_global, lambda: monkeypatch.setitem(globals(), "SQUARE", 9.0), 3.0),
        "array": (of_an_array, lambda: SCALES.__setitem__(0, 0.5), 2.0),
        "module": (of_a_module, lambda: setattr(PARAMETERS, "square", 9.0), 3.0),
        "nonlocal": (in_closure, lambda: set_square(9.0), 3.0),
    }[kind]
    before = newton_batch(function, np.ones((2, 1)))
    change()
    after = newton_batch(function, np.ones((2, 1)))
    assert before.success.all()
    assert after.success.all()
    np.testing.assert_allclose(before.x, np.sqrt(2.0), rtol=1e-7)
    np.testing.assert_allclose(after.x, root, rtol=1e-7)


def moves_x(x, out):
    out[0] = x[0] ** 2 - 2.0
    x[0] += 1.0


def writes_nothing_below_two(x, out):
    if x[0] > 2.0:
        out[0] = 0.0


def reads_beyond_the_end(x, out):
    out[0] = 0.0 * x[0] + 0.0 * x[x.size + 1] ** 0


@pytest.mark.parametrize("residual", [moves_x, writes_nothing_below_two, reads_beyond_the_end])
def test_residuals_that_are_no_functions_of_x_looked_converged(residual):
    result = newton_batch(residual, np.array([[1.0], [1.5], [3.0]]))
    for x, F, status in zip(result.x, result.fun, result.status, strict=True):
        out = np.full(1, np.nan)
        try:
            residual(x.copy(), out)
        except IndexError:
            out[0] = np.nan
        assert status != Status.CONVERGED or (abs(out[0]) <= 1e-6 and abs(out[0] - F[0]) <= 1e-9)
    assert result.success.all() == (residual is moves_x)


@settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # compiles: seconds each
@given(values=st.lists(st.floats(0.5, 50.0), min_size=1, max_size=2), in_place=st.booleans(), moves=st.booleans())
def test_converged_only_if_python_agrees_now(values, in_place, moves):
    square, step = np.array([values[0]]), 1.0 if moves else 0.0

    def residual(x, p, out):
        for i in range(x.size):
            out[i] = x[i] ** 2 - square[0] * p[0]
        x[0] += step

    p = np.array([[1.0], [2.0], [-1.0]])
    for value in values:
        if in_place:
            square[0] = value
        else:
            square = np.array([value])
        result = newton_batch(residual, np.ones((3, 2)), p)
        assert result.success.tolist() == [True, True, False]
        for b in range(2):
            out = np.empty(2)
            residual(result.x[b].copy(), p[b], out)
            assert np.abs(out).max() <= result.target[b]


def shifted(a):
    return lambda x, out: out.__setitem__(0, x[0] - a)


def test_machine_code_is_found_by_all_that_a_residual_refers_to(monkeypatch):
    found = [describe(function) for function in (shifted(1.0), shifted(1.0), shifted(-1.0), shifted(1))]
    assert found[0] == found[1]
    assert len({repr(one) for one in found}) == 3
    before = describe(of_an_array)
    monkeypatch.setitem(globals(), "SCALES", 2 * SCALES)
    assert describe(of_an_array) != before
    monkeypatch.setattr(helper, "targetoptions", helper.targetoptions | {"fastmath": True})
    assert "fastmath" in repr(describe(of_an_array))
    assert compiled(shifted(1.0)) is compiled(shifted(1.0))


@pytest.mark.parametrize("value", [[1.0], shifted, object(), np.ones(2, object)])
def test_values_that_may_change_unseen_are_not_described(value):
    with pytest.raises(TypeError):
        describe(shifted(value))


def test_functions_may_call_themselves():
    @numba.njit
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    def cube(x, out):
        out[0] = power(x[0], 3) - 8.0

    result = newton_batch(cube, np.ones((1, 1)))
    np.testing.assert_allclose(result.x, 2.0, rtol=1e-7)


def test_python_s_numbers_overflow_where_compiled_ones_are_infinite():
    def logistic(x, out):
        out[0] = x[0] - 0.5 - 1.0 / (1.0 + math.exp(2000.0 * x[0]))

    assert newton_batch(logistic, np.ones((1, 1))).success.all()
