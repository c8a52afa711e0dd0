"""Unknowns and equations in units of very different sizes: rows scaled by 10^+-6, columns by 10^+-9."""

import re

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from benchmarks.sparse_problems import awkward


def scaled_system(seed, is_linear):
    """F, its Jacobian, the number of unknowns, and the sizes of the equations."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 51))
    A = rng.normal(size=(n, n)) + n**0.5 * np.eye(n)
    rows, columns = 10.0 ** rng.uniform(-6, 6, n), 10.0 ** rng.uniform(-9, 9, n)
    z = rng.normal(size=n)
    cubic = 0.0 if is_linear else 0.3

    def F(x):
        return rows * (A @ (x * columns - z) + cubic * ((x * columns) ** 3 - z**3))

    def J(x):
        return rows[:, None] * (A + np.diag(3 * cubic * (x * columns) ** 2)) * columns

    return F, J, n, rows


def is_solved(result, rows):
    """Every equation, in its own unit."""
    return bool(result.success) and np.max(np.abs(result.fun) / rows) < 1e-4


def test_nonlinear_systems_with_their_jacobian():
    stop = ims.NonlinearStop(rtol=1e-12)  # of the largest equations: the smallest are 10^-12 of these
    for seed in range(12):
        F, J, n, rows = scaled_system(seed, is_linear=False)
        result = ims.root(ims.Problem(F, jac=J), np.zeros(n), stop=stop)
        assert is_solved(result, rows), seed


@pytest.mark.parametrize("is_linear", [True, False])
def test_nearly_all_are_solved_by_differences(is_linear):
    solved = 0
    for seed in range(20):
        F, _, n, rows = scaled_system(seed, is_linear)
        with np.errstate(all="ignore"):
            solved += is_solved(ims.root(F, np.zeros(n)), rows)
    assert solved >= 17


@pytest.mark.parametrize("method", ["auto", "newton-krylov"])
def test_declared_or_found_scales_solve_all_of_them(method):
    """Matrix-free too, where nearly all failed without scales."""
    for seed in range(6):
        F, J, n, rows = scaled_system(seed, is_linear=bool(seed % 2))
        sizes = 1 / np.max(np.abs(J(np.zeros(n))) / rows[:, None], axis=0)
        declared = ims.root(F, np.zeros(n), x_scale=sizes, f_scale=rows, method=method)
        found = ims.root(F, np.zeros(n), x_scale="auto", f_scale="auto", method=method)
        assert is_solved(declared, rows), seed
        assert is_solved(found, rows), seed
        assert declared.counts.residuals < found.counts.residuals


def test_the_stopping_rule_measures_in_f_scale():
    sizes = np.array([1e-3, 1e6])
    stop = ims.NonlinearStop(atol=1e-6)
    result = ims.root(lambda x: sizes * (x**2 - 2), np.ones(2), f_scale=sizes, x_scale=4.0, stop=stop)
    assert result.success
    np.testing.assert_allclose(result.residual_norm, np.max(np.abs(result.fun / sizes)), rtol=1e-12)
    np.testing.assert_array_equal(result.fun, sizes * (result.x**2 - 2))
    assert result.target == 1e-6
    assert result.initial_norm == 1.0


def test_scales_with_every_kind_of_jacobian(rng):
    sp = pytest.importorskip("scipy.sparse")
    n, band = 8, ims.BlockBanded(1, 1, 2)
    blocks = np.arange(n) // 2
    A = np.where(np.abs(np.subtract.outer(blocks, blocks)) <= 1, rng.normal(size=(n, n)), 0.0) + 6 * np.eye(n)
    rows, columns, z = 10.0 ** rng.uniform(-6, 6, n), 10.0 ** rng.uniform(-9, 9, n), rng.normal(size=n)

    def F(x):
        y = columns * x
        return rows * (A @ (y + y**3 / 3 - z))

    def J(x):
        return rows[:, None] * A * (1 + (columns * x) ** 2) * columns

    def banded(x):
        return ims.BlockBandedMatrix.from_dense(J(x), band)

    kinds = [
        {"jac": J},
        {"jac": lambda x: sp.csr_array(J(x))},
        {"jac": lambda x: ims.aslinearoperator(J(x))},
        {"linearize": lambda x: (F(x), ims.aslinearoperator(J(x)))},
        {"jvp": lambda x, v: J(x) @ v, "vjp": lambda x, w: J(x).T @ w},
        {"structure": band},
        {"structure": band, "jac": banded},
        {"structure": band, "blocks": lambda x: banded(x).blocks},
    ]
    for given in kinds:
        for x_scale, method in ((1 / columns, "newton-krylov"), ("auto", "auto")):
            problem = ims.Problem(F, x_scale=x_scale, f_scale=rows, **given)
            result = ims.root(problem, np.zeros(n), method=method)
            assert is_solved(result, rows), given


def test_each_system_of_a_batch_has_its_own_scales_and_bounds():
    sizes = np.array([1e-8, 1.0, 1e9])[:, None]

    def batch(c):
        return ims.Problem(lambda x: c * ((x / c) ** 3 - 8), batch_ndim=1, take=lambda rows: batch(c[rows]))

    for scales in ({"x_scale": sizes, "f_scale": sizes}, {"x_scale": "auto", "f_scale": "auto"}):
        for method in ("auto", "newton-krylov"):
            result = ims.root(
                batch(sizes), sizes * [[9.0], [2.1], [1.0]], bounds=(0.0, 10 * sizes), method=method, **scales
            )
            assert result.success.all()
            np.testing.assert_allclose(result.x / sizes, 2.0, rtol=1e-5)


def test_a_monitor_sees_x_and_F_in_their_units():
    seen = []
    ims.root(
        lambda x: 1e6 * (x - 3e-9), np.zeros(1), x_scale=1e-9, f_scale=1e-3, monitor=lambda *step: seen.append(step[1:])
    )
    np.testing.assert_allclose(seen[-1][0], 3e-9)
    np.testing.assert_allclose(seen[0][1], -3e-3)


@pytest.mark.parametrize(
    ("scale", "kind", "message"),
    [
        (0.0, ValueError, "`x_scale` must be positive"),
        ([1.0, np.inf], ValueError, "`x_scale` must be positive"),
        ("jac", TypeError, '`x_scale` must be positive numbers or "auto"'),
        ([1.0, 2.0, 3.0], ValueError, "`x_scale` must broadcast to the shape"),
    ],
)
def test_wrong_scales_raise(scale, kind, message):
    with pytest.raises(kind, match=message):
        ims.root(lambda x: x - 1, np.zeros(2), x_scale=scale)


def test_failures_in_units_return_the_best_point_and_advise_what_was_reached():
    """No root: (x / c)^2 + 1 = 0 in units of 1e-7 and 1e5."""
    F = lambda x: 1e5 * ((x / 1e-7) ** 2 + 1)  # noqa: E731
    problem = ims.Problem(F, x_scale=1e-7, f_scale=1e5)
    result = ims.root(problem, np.full(3, 5e-7))
    assert not result.success
    assert result.residual_norm <= result.initial_norm
    np.testing.assert_allclose(np.max(np.abs(F(result.x))) / 1e5, result.residual_norm)
    text = str(ims.diagnostics.explain(result, problem))
    for number in re.findall(r"atol=([0-9.e+-]+)\)", text):
        assert float(number) >= result.residual_norm


def test_a_sparse_matrix_from_jac_is_factored():
    """`root` used such a matrix for products only: 125 of them for Bratu's problem in the plane."""
    sp = pytest.importorskip("scipy.sparse")
    n = 30
    D = sp.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    A = (sp.kron(D, sp.eye_array(n)) + sp.kron(sp.eye_array(n), D)).tocsr()
    h = 1 / (n + 1)
    problem = ims.Problem(
        lambda u: A @ u - 5 * h**2 * np.exp(u), jac=lambda u: A - sp.diags_array(5 * h**2 * np.exp(u))
    )
    result = ims.root(problem, np.zeros(n * n))
    assert result.success
    assert result.counts.jvps == 0
    assert result.counts.residuals <= 10


@pytest.mark.parametrize("as_returned", [np.ndarray.tolist, np.ravel], ids=["list", "flat"])
def test_equations_returned_as_lists_or_flat_were_not_scaled(as_returned):
    sizes = np.array([[1.0, 1e-3], [1e3, 1e-6]])
    x0 = np.full((2, 2), 5.0)

    def F(x):
        return sizes * (x**3 - 8)

    result = ims.root(lambda x: as_returned(F(x)), x0, f_scale=sizes, x_scale=2.0)
    assert result.success
    assert result.residual_norm == np.max(np.abs(F(result.x) / sizes)) <= np.sqrt(np.finfo(float).eps) * 117
    linearized = ims.Problem(
        lambda x: as_returned(F(x)), jvp=lambda x, v: as_returned(3 * sizes * x**2 * v), f_scale=sizes
    )
    assert ims.root(linearized, x0, method="newton-krylov").success


def test_infinite_equations_warned_where_they_were_divided_by_their_size():
    result = ims.root(lambda x: np.full_like(x, np.inf), np.array([1.0 + 1j]), f_scale=3.0)
    assert result.status is ims.Status.NONFINITE


def test_units_were_tried_again_though_steps_with_the_given_jacobian_do_not_depend_on_them():
    size = 10.0 ** np.linspace(-2, 2, 30)

    def F(x):
        y = np.append(x / size, 0)
        return y[:-1] ** 2 + 0.1 * y[1:] + 1  # no root

    def jac(x):
        return scipy.sparse.diags_array([2 * x / size**2, 0.1 / size[1:]], offsets=[0, 1], format="csc")

    result = ims.root(ims.Problem(F, jac=jac), 0.3 * size)
    assert not result.success
    assert result.retries
    assert not any("units" in retry.method for retry in result.retries)


@pytest.mark.parametrize("guess", ["zero", "sizes"])
def test_sparse_systems_in_units_of_ten_decades_were_given_up(guess, rng):
    problem = awkward.heterogeneous(24) if guess == "zero" else awkward.gas_network(400)
    units, rows = (10.0 ** rng.uniform(-5, 5, problem.x0.shape) for _ in range(2))
    result = ims.root(lambda x: rows * problem.residual(x / units), units * problem.x0)
    assert result.success
    assert result.counts.residuals < 1000
    assert np.abs(problem.residual(result.x / units)).max() < 1e-6 * np.abs(problem.residual(problem.x0)).max()


def test_a_step_whose_fall_was_lost_in_the_errors_of_the_search_was_taken():
    """From 0, in units of ten decades: x then was far below its units, and differences were lost in rounding."""
    problem = awkward.heterogeneous(40)
    units = 10.0 ** np.random.default_rng(2).uniform(-5, 5, problem.x0.shape)
    result = ims.root(lambda x: problem.residual(units * x), problem.x0)
    assert result.success
    assert result.counts.residuals <= 120  # SINGULAR after 495
