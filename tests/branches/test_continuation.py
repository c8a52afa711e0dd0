"""Branches with known folds, branch points and ends, by all kinds of linear algebra."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import Status, continuation
from tests.branches.problems import Brusselator, arch, bratu, bratu_plane, circle, ends_at, pitchfork

N = 24


def bratu_fold(points):
    """The fold of the discretized equation, by maximizing lam over the height of the symmetric solution."""

    def lam_at(height):
        middle = points // 2
        start = height * np.sin(np.pi * np.arange(1, points + 1) / (points + 1))

        def F(z):
            return np.append(bratu(z[:-1], z[-1]), z[middle] - height)

        return -scipy.optimize.fsolve(F, np.append(start, 3.4), xtol=1e-13)[-1]

    return -scipy.optimize.minimize_scalar(lam_at, bracket=(1.1, 1.2, 1.3), tol=1e-7).fun


def jac(u, lam):
    n = u.size
    ones = np.ones(n - 1) * (n + 1) ** 2
    return scipy.sparse.diags_array([ones, -2 * (n + 1) ** 2 + lam * np.exp(u), ones], offsets=[-1, 0, 1])


def jvp(u, v, lam):
    return np.diff(v, 2, prepend=0, append=0) * (u.size + 1) ** 2 + lam * np.exp(u) * v


PROBLEMS = {
    "residual": bratu,
    "jac": ims.Problem(bratu, jac=jac),
    "all derivatives": ims.Problem(
        bratu, jac=jac, parameters={"lam": 0.0}, parameter_jvp=lambda u, d, lam: np.exp(u) * d["lam"]
    ),
    "products": ims.Problem(bratu, jvp=jvp),
    "blocks": ims.Problem(bratu, structure=ims.BlockBanded(1, 1, 1)),
    "grid": ims.Problem(bratu, structure=ims.Grid(shape=(N - 1,))),
    "Krylov": ims.Problem(bratu, structure="none"),
    "family": lambda lam: ims.Problem(lambda u: bratu(u, lam)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_both_branches_of_bratu_and_the_fold_between(name):
    branch = continuation(PROBLEMS[name], np.zeros(N - 1), 0, 4, events={"top": ends_at(3)})
    assert branch.success, branch.message
    (fold,) = branch.of_kind("fold")
    assert fold.lam == pytest.approx(bratu_fold(N - 1), rel=1e-7)
    assert branch.x[-1].max() == pytest.approx(3, abs=1e-6)
    for x, lam, norm, target in zip(branch.x, branch.lam, branch.residual_norm, branch.target):
        assert np.abs(bratu(x, lam)).max() == pytest.approx(norm, abs=1e-12)
        assert norm <= target


def test_folds_of_bratu_approach_those_of_the_continuous_problem():
    errors = []
    for n in (15, 31):
        line = continuation(bratu, np.zeros(n), 0, 4, events={"top": ends_at(2)}).of_kind("fold")[0].lam
        plane = continuation(bratu_plane, np.zeros((n, n)), 0, 8, events={"top": ends_at(2)}).of_kind("fold")[0].lam
        errors.append([3.513830719 - line, 6.808124423 - plane])
    assert np.divide(*errors) == pytest.approx([4, 4], rel=0.03)  # second order


@pytest.mark.parametrize("end", [2.0, np.inf])
def test_a_circle_is_closed(end):
    branch = continuation(circle, [1.0], 0, 2, interval=(-end, end))
    assert branch.success
    assert "closed" in branch.message
    assert [fold.lam for fold in branch.of_kind("fold")] == pytest.approx([1, -1], abs=1e-9)
    assert branch.lam[-1] == pytest.approx(branch.lam[0], abs=1e-12)
    assert (np.abs(branch.x[:, 0] ** 2 + branch.lam**2 - 1) <= branch.target).all()


def test_a_branch_ends_where_the_parameter_leaves_its_interval():
    there = continuation(arch, [-1.5], -2, 2)  # monotone outside, folded inside
    assert there.success
    assert there.lam[-1] == 2
    fold = 2 / 27**0.5
    assert sorted(point.lam for point in there.of_kind("fold")) == pytest.approx([-fold, fold], abs=1e-9)
    back = continuation(circle, [1.0], 0, 2)
    assert back.success
    assert back.lam[-1] == 0
    assert back.x[-1] == pytest.approx(-1, abs=1e-9)


@pytest.mark.parametrize("structure", [None, "none"])
def test_a_falling_parameter_is_as_good_as_a_rising_one(structure):
    falling = continuation(ims.Problem(bratu, structure=structure), np.zeros(15), 0, -3)
    rising = continuation(ims.Problem(lambda u, lam: bratu(u, -lam), structure=structure), np.zeros(15), 0, 3)
    assert falling.success
    assert not falling.special
    np.testing.assert_allclose(falling.lam, -rising.lam, atol=1e-7)
    assert falling.counts.residuals == pytest.approx(rising.counts.residuals, rel=0.1)
    assert not continuation(bratu, np.zeros(15), 0, -1, branch_points=False).special


def test_a_branch_point_and_the_branch_through_it():
    trivial = continuation(pitchfork, [0.0], -1, 1)
    assert trivial.success
    assert not trivial.x.any()
    (point,) = trivial.of_kind("branch point")
    assert point.lam == pytest.approx(0, abs=1e-7)
    assert not trivial.of_kind("fold")
    for sign in (1, -1):
        direction = sign * point.direction[0], sign * point.direction[1]
        other = continuation(pitchfork, point.x, point.lam, 1, direction=direction)
        assert other.success
        assert other.x[-1, 0] == pytest.approx(other.x[1, 0] / abs(other.x[1, 0]), abs=1e-7)


def test_every_branch_point_of_the_trivial_solution():
    def F(u, lam):  # u'' + lam u - u^3
        return np.diff(u, 2, prepend=0, append=0) * (u.size + 1) ** 2 + lam * u - u**3

    branch = continuation(F, np.zeros(24), 1, 200, max_step=0.05)
    exact = 4 * 25**2 * np.sin(np.arange(1, 5) * np.pi / 50) ** 2
    assert [point.lam for point in branch.special] == pytest.approx(exact, rel=1e-7)


def test_a_branch_that_leaves_at_an_angle_is_reached_along_the_given_direction():
    def F(x, lam):
        return lam * x - x**2

    (point,) = continuation(F, [0.0], -1, 1).of_kind("branch point")
    other = continuation(F, point.x, point.lam, 1, direction=point.direction)
    assert other.success
    assert other.x[-1] == pytest.approx(1)


@pytest.mark.parametrize("gap", [0.1, 1e-2, 1e-3])
def test_a_narrow_gap_is_not_jumped(gap):
    branch = continuation(lambda x, lam: x**2 - lam**2 - gap**2, [1.0], -1, 1)
    assert branch.success
    assert not branch.special
    assert (branch.x > 0).all()


def test_hopf_points_and_stability_of_the_brusselator():
    model = Brusselator()
    branch = continuation(model.residual, model.x0, 0.3, 1.2, eigenvalues=6)
    hopf = branch.of_kind("hopf")
    assert [point.lam for point in hopf] == pytest.approx([model.hopf(1), model.hopf(2)], rel=1e-9)
    # The pair lies on the axis: its frequency is the root of the determinant.
    assert hopf[0].frequency == pytest.approx(2.1395, abs=1e-4)
    assert (branch.stable == (branch.lam < model.hopf(1))).all()
    assert branch.eigenvalues.shape == (len(branch), 6)


def test_eigenvalues_of_a_large_matrix_are_those_near_the_shift():
    model = Brusselator(points=160)
    for count, shift in ((4, 2.1j), (20, 0.0)):
        branch = continuation(model.residual, model.x0, 0.45, 0.6, eigenvalues=count, shift=shift)
        assert [point.lam for point in branch.of_kind("hopf")] == pytest.approx([model.hopf(1)], rel=1e-7)


def test_a_named_parameter_is_passed_by_keyword():
    def F(x, mu=1.0, lam=0.0):
        return x - mu * lam

    by_name = continuation(F, [0.0], 0, 1, parameter="lam")
    assert by_name.parameter == "lam"
    assert by_name.x[-1] == pytest.approx(1)
    assert continuation(F, [0.5], 1, 2, parameter="mu").x[-1] == pytest.approx(0)


def test_events_are_located_and_do_not_end_the_branch():
    branch = continuation(circle, [1.0], 0, 2, events={"half": lambda x, lam: x[0] - 0.5})
    (point,) = branch.of_kind("half")
    assert point.lam == pytest.approx(0.75**0.5, abs=1e-8)
    assert branch.lam[point.index] < point.lam < branch.lam[point.index + 1]


@pytest.mark.parametrize("name", ["fold", "branch point", "hopf", "none"])
def test_a_file_holds_the_whole_branch(name, tmp_path):
    model = Brusselator(points=7)
    branch = {
        "fold": lambda: continuation(circle, [1.0], 0, 2),
        "branch point": lambda: continuation(pitchfork, [0.0], -1, 1),
        "hopf": lambda: continuation(model.residual, model.x0, 0.3, 0.8, eigenvalues=4),
        "none": lambda: continuation(lambda x, lam: x**2 + 1 + lam, [1.0], 0, 1),
    }[name]()
    branch.save(tmp_path / "branch.npz")
    same = ims.Branch.load(tmp_path / "branch.npz")
    assert repr(same) == repr(branch)
    assert same.summary() == branch.summary()
    assert same.counts == branch.counts
    np.testing.assert_array_equal(same.x, branch.x)
    for old, new in zip(branch.special, same.special, strict=True):
        for field, value in vars(old).items():
            np.testing.assert_equal(getattr(new, field), value)


def test_resumption_equals_the_uninterrupted_run(tmp_path):
    whole = continuation(bratu, np.zeros(9), 0, 4, max_points=20)
    part = continuation(bratu, np.zeros(9), 0, 4, max_points=8)
    assert part.status == Status.ITERATION_LIMIT
    assert len(part) == 8
    part.save(tmp_path / "branch.npz")
    for first in (part, ims.Branch.load(tmp_path / "branch.npz")):
        resumed = continuation(bratu, previous=first, max_points=12)
        np.testing.assert_allclose(resumed.lam, whole.lam, rtol=1e-9)
        np.testing.assert_allclose(resumed.x, whole.x, rtol=1e-9)
        assert [str(p) for p in resumed.special] == [str(p) for p in whole.special]


@settings(max_examples=5, deadline=None)
@given(exponents=st.tuples(*[st.integers(-30, 30)] * 3))
def test_powers_of_two_change_nothing_properties(exponents):
    a, b, c = (2.0**k for k in exponents)

    def scaled(x, lam):
        return a * arch(x / b, lam / c)

    plain = continuation(arch, [-1.5], -2, 2)
    other = continuation(scaled, [-1.5 * b], -2 * c, 2 * c)
    np.testing.assert_array_equal(other.x / b, plain.x)
    np.testing.assert_array_equal(other.lam / c, plain.lam)


@settings(max_examples=8, deadline=None)
@given(p=st.floats(-1.5, 1.5), q=st.floats(0.3, 3))
def test_folds_of_cubics_properties(p, q):
    """lam = x^3 - q x + p has its folds where 3 x^2 = q."""
    branch = continuation(lambda x, lam: lam - (x**3 - q * x + p), [-3.0], p - 27 + 3 * q, p + 27 - 3 * q)
    assert branch.success
    x = (q / 3) ** 0.5
    expected = [p + 2 * q * x / 3, p - 2 * q * x / 3]
    assert [fold.lam for fold in branch.of_kind("fold")] == pytest.approx(expected, abs=1e-6)
