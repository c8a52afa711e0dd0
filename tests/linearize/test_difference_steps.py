"""Lengths of the differences that fill a Jacobian: from x where it tells, from F and J where it does not; no units."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import BlockBanded, BlockNewton, NonlinearStop, Problem, root
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._difference_steps import DifferenceSteps
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.structure import BlockBanded as Structure

DIAGONAL = BlockBanded(0, 0)


class Probe:
    """A residual that keeps where it was called."""

    def __init__(self, function):
        self.function, self.points = function, []

    def __call__(self, x):
        self.points.append(x.copy())
        return self.function(x)


def assemble(F, x, structure=DIAGONAL, **options):
    """J and the points at which F was called for it."""
    probe = Probe(F)
    evaluator = Evaluator(Problem(probe, structure=structure), x)
    flat = evaluator.flatten(x)
    F0 = evaluator.residual(flat)
    probe.points.clear()
    return Assembler(evaluator, **options).assemble(evaluator, flat, F0), probe.points


def cubic(x):
    return x**3 + x - 1


@given(power=st.integers(-200, 200))
def test_steps_have_the_units_of_x(power):
    unit = 2.0**power
    x = np.asarray([0.7, -1.3, 2.0])
    _, points = assemble(cubic, x)
    _, scaled = assemble(lambda y: cubic(y / unit), x * unit)
    assert len(points) == len(scaled)
    for one, other in zip(points, scaled, strict=True):
        np.testing.assert_array_equal(one * unit, other)


@given(power=st.integers(-200, 200))
def test_steps_do_not_depend_on_the_units_of_f(power):
    x = np.asarray([0.7, -1.3, 2.0])
    _, points = assemble(cubic, x)
    _, scaled = assemble(lambda y: cubic(y) * 2.0**power, x)
    np.testing.assert_array_equal(points, scaled)


@pytest.mark.parametrize("rdiff", [1e-3, 1e-6])
def test_rdiff_is_relative_to_x(rdiff):
    x = np.full(4, 3.0)
    _, points = assemble(cubic, x, rdiff=rdiff)
    np.testing.assert_allclose(points[0] - x, rdiff * 3.0, rtol=1e-6)


def test_forward_differences_err_linearly_and_central_ones_quadratically():
    x, exact = np.full(3, 1.5), 3 * 1.5**2 + 1

    def error(**options):
        J, _ = assemble(cubic, x, **options)
        return abs(J.blocks[0, 0, 0, 0, 0] / exact - 1)

    assert error(rdiff=1e-3) / error(rdiff=1e-4) == pytest.approx(10, rel=0.1)
    assert error(rdiff=1e-2, central=True) / error(rdiff=1e-3, central=True) == pytest.approx(100, rel=0.1)
    assert error(central=True) < 1e-9
    assert 1e-6 < error() < 1e-3


@pytest.mark.parametrize("unit", [1e-12, 1e-10, 1e-9, 1e-7, 1e-6, 1e-3, 1.0, 1e6, 1e12])
@pytest.mark.parametrize("method", [BlockNewton(), BlockNewton(reuse="none")], ids=["broyden", "none"])
def test_a_start_at_zero_finds_the_unit_of_x(unit, method):
    """The guess is 1; the first Newton step corrects it, for at most three assemblies."""
    probe = Probe(lambda x: np.exp(x / unit) - 2 + 0.1 * (np.roll(x, 1) - x) / unit)
    with np.errstate(over="ignore"):
        result = root(Problem(probe, structure=Structure(1, 1, periodic=True)), np.zeros(6), method=method)
    assert result.success, result.message
    np.testing.assert_allclose(result.x, unit * np.log(2), rtol=1e-6)
    assert len(probe.points) <= 60


def test_a_start_at_zero_in_one_unknown_only():
    units = np.asarray([1.0, 1e-7])

    def F(x):
        y = x / units
        with np.errstate(over="ignore"):
            return np.stack([y[..., 0] ** 2 - 2 + 0.1 * y[..., 1], np.exp(y[..., 1]) - 3], axis=-1)

    x0 = np.zeros((5, 2))
    x0[:, 0] = 1.0
    result = root(Problem(F, structure=BlockBanded(0, 0, 2)), x0, stop=NonlinearStop(rtol=1e-10))
    assert result.success
    np.testing.assert_allclose(result.x[:, 1], 1e-7 * np.log(3), rtol=1e-8)
    assert result.counts.residuals < 40


def test_iterates_that_grow_take_their_steps_along():
    """x goes from 1e-6 to 1: differences of the first length would be rounding error at the end."""
    result = root(
        Problem(lambda x: x**3 - 1 + 1e-3 * x, structure=DIAGONAL), np.full(4, 1e-2), stop=NonlinearStop(rtol=1e-12)
    )
    assert result.success
    assert result.counts.residuals < 80


def test_a_system_at_its_root_and_one_that_does_not_move():
    def F(x):
        return x * np.asarray([[1.0], [0.0]]) + np.asarray([[0.0], [0.0]])

    result = root(Problem(F, structure=DIAGONAL, batch_ndim=1), np.asarray([[0.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_array_equal(result.success, [True, True])
    assert result.counts.residuals == 1


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.complex128])
def test_steps_are_felt_in_every_precision(dtype):
    x = np.full(4, 1e-3 + (1e-3j if np.dtype(dtype).kind == "c" else 0), dtype=dtype)
    J, points = assemble(lambda x: 1 + x, x)
    assert points[0].dtype == dtype
    np.testing.assert_allclose(np.diag(J.todense()[0]), 1.0, rtol=1e-2)
    assert len(points) == 1


def test_one_equation_that_feels_a_step_is_enough():
    """The first is rounded to hundredths; of the size of all of F, the change of the second is nothing."""
    J, points = assemble(lambda x: x + np.asarray([1e14, 0.0]), np.ones(2))
    assert len(points) == 1
    assert J.todense()[0, 1, 1] == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("name", ["rdiff"])
def test_settings(name):
    with pytest.raises(ValueError, match="`rdiff`"):
        BlockNewton(**{name: 0.0})
    with pytest.raises(ValueError, match="`rdiff`"):
        BlockNewton(**{name: -1e-3})
    with pytest.raises(TypeError, match="`rdiff`"):
        BlockNewton(**{name: "small"})


FARTHER, MAX_ADJUSTMENTS = 1e4, 8
ROW = np.zeros(1, dtype=int)
YES, NO = np.asarray([True]), np.asarray([False])


@pytest.mark.parametrize(
    ("length", "relative"), [(8000, 2.0**-13), (10_000, 2.0**-26 * 10_000), (10**6, 1e-3), (10**7, 1e-3)]
)
def test_long_systems_take_longer_steps(length, relative):
    x = np.broadcast_to(np.ones(1), (1, length, 1))
    assert DifferenceSteps(1, 1).relative(x) == pytest.approx(relative)
    assert DifferenceSteps(1, 1, rdiff=1e-5).relative(x) == 1e-5


def test_an_unknown_at_zero_takes_the_size_of_the_others_and_then_of_itself():
    x = np.zeros((1, 4, 3))
    x[..., 0], x[..., 1] = 3.0, 4.0
    steps = DifferenceSteps(1, 3, rdiff=0.5, least=1.0)
    steps.follow(ROW, x)
    np.testing.assert_allclose(steps.floor, [[3.0, 4.0, (25 / 3) ** 0.5]])
    np.testing.assert_array_equal(steps.is_guess, [[False, False, True]])
    x[..., 2] = 7.0
    steps.follow(ROW, x)
    np.testing.assert_allclose(steps.floor, [[3.0, 4.0, 7.0]])
    assert not steps.is_guess.any()


def test_steps_that_nothing_feels_grow_and_come_back_in_the_end():
    steps = DifferenceSteps(2, 1)
    steps.follow(slice(None), np.ones((2, 3, 1)))
    rows, before = np.arange(2), steps.floor.copy()
    for attempt in range(MAX_ADJUSTMENTS):
        again = steps.adjust(rows, 0, np.asarray([False, True]), np.asarray([True, True]), attempt)
        np.testing.assert_array_equal(again, [True, False])
        np.testing.assert_allclose(steps.floor / before, [[FARTHER ** (attempt + 1)], [1.0]])
    assert not steps.adjust(rows, 0, np.asarray([False, True]), np.asarray([True, True]), MAX_ADJUSTMENTS).any()
    np.testing.assert_allclose(steps.floor, before)
    assert not steps.adjust(rows, 0, np.asarray([False, True]), np.asarray([True, True]), 0).any()  # nor ever again


def test_steps_to_where_f_is_not_finite_turn_round_and_then_shrink():
    x = np.ones((1, 3, 1))
    steps = DifferenceSteps(1, 1, rdiff=1e-4)
    steps.follow(ROW, x)
    lengths = []
    for attempt in range(3):
        assert steps.adjust(ROW, 0, NO, NO, attempt).all()
        lengths.append(steps.lengths(ROW, x)[0, 0, 0])
    np.testing.assert_allclose(lengths, [-1e-4, 1e-4 / FARTHER, -1e-4 / FARTHER**2])
    assert not steps.adjust(ROW, 0, YES, YES, 3).any()
    np.testing.assert_allclose(steps.lengths(ROW, x)[0, 0, 0], lengths[-1])
    steps.follow(ROW, x)
    np.testing.assert_allclose(steps.lengths(ROW, x)[0, 0, 0], 1e-4)
