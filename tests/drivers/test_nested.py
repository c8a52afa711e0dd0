"""Groups of unknowns that are solved inside each residual of the others."""

import numpy as np
import pytest
import scipy.sparse as sp

import implicitsolve as ims
from implicitsolve.drivers import Nested

PARTS, SIZE = 3, 3


def machine(x):
    """Parts in a chain, whose last output an outer unknown of each part controls."""
    e, y = x[:PARTS], x[PARTS:].reshape(PARTS, SIZE)
    before = np.concatenate([[1.0], y[:-1, -1]])
    inside = np.sinh(3 * y) - 0.2 * np.roll(y, 1, axis=1) - (e + 0.1 * before)[:, None]
    return np.concatenate([y.sum(axis=1) + 0.05 * e.mean() - 2.0, inside.reshape(-1)])


def machine_jacobian(x):
    y = x[PARTS:]
    J = np.zeros((x.size, x.size))
    J[:PARTS, :PARTS] = 0.05 / PARTS
    for part in range(PARTS):
        own = PARTS + SIZE * part + np.arange(SIZE)
        J[part, own] = 1.0
        J[own, part] = -1.0
        J[own, np.roll(own, 1)] -= 0.2
        if part:
            J[own, own[0] - 1] -= 0.1
    own = PARTS + np.arange(y.size)
    J[own, own] += 3 * np.cosh(3 * y)
    return sp.csc_array(J)


GROUPS = [PARTS + SIZE * part + np.arange(SIZE) for part in range(PARTS)]
START = np.zeros(PARTS + PARTS * SIZE)
WAYS = {
    "plain": ims.Problem(machine),
    "pattern": ims.Problem(machine, structure=ims.Sparse(machine_jacobian(START + 0.3))),
    "jac": ims.Problem(machine, jac=machine_jacobian),
    "dense jac": ims.Problem(machine, jac=lambda x: machine_jacobian(x).toarray()),
    "linearize": ims.Problem(machine, linearize=lambda x: (machine(x), machine_jacobian(x))),
    "jvp": ims.Problem(machine, jvp=lambda x, v: machine_jacobian(x) @ v),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_whole_system_is_solved(way):
    nested = Nested(WAYS[way], GROUPS, START)
    outer = ims.root(nested.problem)
    assert outer.success
    result = ims.root(WAYS[way], nested.expand(outer.x))
    assert result.success
    assert result.iterations <= 2
    assert np.abs(machine(result.x)).max() < 1e-7
    assert nested.problem.initial_guess("default", None).shape == (PARTS,)
    np.testing.assert_allclose(result.x, ims.root(WAYS["jac"], START).x, rtol=1e-6)


def test_the_outer_problem_counts_outer_residuals_alone():
    nested = Nested(WAYS["jac"], GROUPS, START)
    outer = ims.root(nested.problem)
    assert outer.success
    assert outer.counts.residuals <= 25
    assert nested.evaluations > outer.counts.residuals
    assert all(result.success for result in nested.results)


def test_products_with_the_jacobian_are_exact():
    nested = Nested(WAYS["jac"], GROUPS, START, stop=ims.NonlinearStop(xtol=1e-13))
    e = np.linspace(0.5, 1.5, PARTS)
    R, J = nested.linearize(e)
    v, w, h = np.cos(np.arange(PARTS)), np.sin(1.0 + np.arange(PARTS)), 1e-5
    difference = (nested.residual(e + h * v) - nested.residual(e - h * v)) / (2 * h)
    np.testing.assert_allclose(J @ v, difference, rtol=1e-6)
    np.testing.assert_allclose(w @ (J @ v), v @ J.rmatvec(w), rtol=1e-12)
    np.testing.assert_allclose(J @ (J.approximate_inverse() @ R), R, rtol=1e-10)
    np.testing.assert_allclose(J.H @ (J.approximate_inverse().H @ R), R, rtol=1e-10)


def test_many_outer_unknowns_take_about_one_product_for_each_step():
    n = 600

    def F(x):
        e, y = x[:n], x[n:]
        return np.concatenate([2.1 * e - np.roll(e, 1) - np.roll(e, -1) + y - 1, y**3 + y - e])

    def jac(x):
        one = sp.eye_array(n)
        ring = 2.1 * one - sp.csr_array(np.roll(np.eye(n), 1, axis=0) + np.roll(np.eye(n), -1, axis=0))
        return sp.block_array([[ring, one], [-one, sp.diags_array(3 * x[n:] ** 2 + 1)]], format="csc")

    nested = Nested(ims.Problem(F, jac=jac), [np.arange(n, 2 * n)], np.zeros(2 * n))
    outer = ims.root(nested.problem)
    assert outer.success
    assert outer.counts.jvps <= 4 * outer.iterations


def test_equations_may_have_other_numbers_than_the_unknowns_they_determine():
    order = np.roll(np.arange(START.size), 4)
    shuffled = ims.Problem(lambda x: machine(x)[order], jac=lambda x: machine_jacobian(x).tocsr()[order])
    places = np.argsort(order)
    nested = Nested(shuffled, GROUPS, START, equations=[places[group] for group in GROUPS])
    outer = ims.root(nested.problem)
    assert outer.success
    np.testing.assert_allclose(nested.expand(outer.x), ims.root(WAYS["jac"], START).x, rtol=1e-6)


def sweep(x):
    """The parts one after the other, each by Newton's method."""
    x = x.copy()
    for group in GROUPS:
        for _ in range(8):
            x[group] -= np.linalg.solve(machine_jacobian(x).toarray()[np.ix_(group, group)], machine(x)[group])
    return x


def test_a_function_may_solve_the_groups():
    nested = Nested(WAYS["jac"], GROUPS, START, inner=sweep)
    assert ims.root(nested.problem).success
    assert not nested.results


def test_what_a_function_leaves_unsolved_is_named():
    names = {"control": PARTS, "state": PARTS * SIZE}
    problem = ims.Problem(machine, jac=machine_jacobian, names=names)
    with pytest.raises(ValueError, match=r"`inner` must return x with all groups solved.*state\[0\]"):
        ims.root(Nested(problem, GROUPS, START, inner=lambda x: x + 0.1).problem)


def test_a_group_that_has_no_solution_makes_the_outer_residual_nan():
    def F(x):
        return np.array([x[1] - 3.0, x[1] ** 2 + 1.0 + 0 * x[0]])

    nested = Nested(F, [[1]], np.ones(2))
    assert np.isnan(nested.residual(np.ones(1))).all()
    assert not nested.results[-1].success
    assert not ims.root(nested.problem).success


def test_trial_points_whose_groups_have_no_solution_are_stepped_back_from():
    def F(x):  # y = sqrt(e) exists for e >= 0 alone; the full first step leads to e < 0
        return np.array([np.log(x[1]), x[1] ** 2 - x[0]])

    nested = Nested(ims.Problem(F, bounds=([-np.inf, 1e-8], [np.inf, 10.0])), [[1]], np.array([30.0, 5.0]))
    outer = ims.root(nested.problem)
    assert outer.success
    np.testing.assert_allclose(nested.expand(outer.x), [1, 1], rtol=1e-6)


def test_names_bounds_and_scales_of_the_outer_unknowns_are_those_of_the_whole():
    problem = ims.Problem(
        lambda x: x**2 - 1,
        names=["a", "b", "c"],
        equations=["A", "B", "C"],
        bounds=(0.0, [4.0, 5.0, 6.0]),
        x_scale=[1.0, 2.0, 4.0],
        f_scale=2.0,
        rejects=ValueError,
    )
    outer = Nested(problem, [[1]], np.full(3, 2.0), equations=[[1]]).problem
    assert outer.names == ("a", "c")
    assert outer.equations == ("A", "C")
    np.testing.assert_array_equal(outer.bounds, [[0, 0], [4, 6]])
    np.testing.assert_array_equal(outer.x_scale, [1, 4])
    np.testing.assert_array_equal(outer.f_scale, [2, 2])
    assert outer.rejects == (ValueError,)


@pytest.mark.parametrize(
    ("groups", "equations", "message"),
    [
        ([], None, "at least one group"),
        ([[0], []], None, r"got none in groups\[1\]"),
        ([[0], [3]], None, "from 0 to 2"),
        ([[-1]], None, "from 0 to 2"),
        ([[0, 1], [1]], None, "must not overlap, got 1"),
        ([[0, 1, 2]], None, "must leave an unknown outside"),
        ([[0, 1]], [[0]], "as many as each group"),
        ([[0], [1]], [[2], [2]], "`equations` must not overlap"),
    ],
)
def test_wrong_groups_are_refused(groups, equations, message):
    with pytest.raises(ValueError, match=message):
        Nested(lambda x: x - 1, groups, np.zeros(3), equations=equations)


def test_groups_that_are_no_integers_are_refused():
    with pytest.raises(TypeError, match="`groups` must be integers, got float64"):
        Nested(lambda x: x - 1, [[0.5]], np.zeros(3))


def test_a_group_that_depends_on_a_later_one_is_refused():
    with pytest.raises(ValueError, match=r"groups\[0\] depends on groups\[1\]: put that one first, or join them"):
        ims.root(Nested(WAYS["jac"], [GROUPS[1], GROUPS[0], *GROUPS[2:]], START).problem)


def test_a_batch_is_refused():
    with pytest.raises(ValueError, match="must be one system, got batch_ndim=1"):
        Nested(ims.Problem(lambda x: x - 1, batch_ndim=1), [[0]], np.zeros((2, 2)))
