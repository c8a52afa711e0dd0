"""One test for each bug that was found, named after what went wrong."""

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import implicitsolve as ims
from benchmarks.benchmarks.problems import get
from implicitsolve import NewtonKrylov, NonlinearStop, Problem, Status, newton_krylov, root


def no_root(x):
    """x^2 + 1 + 0.1 * (x backwards): fails in its first attempt and begins a second."""
    return x**2 + 1 + 0.1 * x[..., ::-1]


def batch_with_one_hopeless(x):
    return x**2 + np.array([-4.0, 1.0, -9.0])[:, None] + 0.1 * x[:, ::-1]


START = np.random.default_rng(1).standard_normal((3, 4))

MATRIX = np.eye(6) + 0.1 * np.arange(36.0).reshape(6, 6) / 36


def cubic(x):
    return MATRIX @ x + 0.1 * x**3 - 1


def cubic_jacobian(x):
    return MATRIX + np.diag(0.3 * x**2)


@pytest.mark.parametrize(
    "options",
    [
        {"callback": lambda x, F: None},
        {"verbose": True},
        {"inner_M": np.broadcast_to(np.eye(4), (3, 4, 4))},
        {"inner_M": np.eye(4)},
    ],
    ids=["callback", "verbose", "M of the batch", "M of one"],
)
def test_second_attempt_of_a_batch_could_not_shape_its_arrays(options):
    result = newton_krylov(batch_with_one_hopeless, START, batch_ndim=1, full_output=True, **options)[1]
    assert result.success.tolist() == [True, False, True]


def test_second_attempt_of_a_batch_showed_the_preconditioner_a_part():
    shapes = set()

    def M(x, F):
        shapes.add((x.shape, F.shape))
        return np.broadcast_to(np.eye(4), (3, 4, 4))

    result = root(Problem(batch_with_one_hopeless, batch_ndim=1), START, method=NewtonKrylov(preconditioner=M))
    assert result.success.tolist() == [True, False, True]
    assert shapes == {((3, 4), (3, 4))}


def test_second_attempt_was_hidden_from_callbacks():
    seen = []
    result = newton_krylov(no_root, START[1], callback=lambda x, F: seen.append(x), full_output=True)[1]
    trace = ims.monitor.collect()
    native = root(no_root, START[1], monitor=trace)
    assert len(trace) == len(native.steps)
    assert len(seen) >= result.nit


def test_second_attempts_of_a_batch_shared_their_limit():
    """A system had as many steps left as the one that had failed first."""
    stop = NonlinearStop(max_iterations=50)
    result = root(Problem(lambda x: no_root(x) - np.array([0.0, 0.2, 0.5])[:, None], batch_ndim=1), START, stop=stop)
    assert np.max(result.iterations) <= 50


@pytest.mark.parametrize("method", ["bicgstab", "gcrotmk", "cgs", "minres", "tfqmr", "cg", "gmres", "lgmres"])
@pytest.mark.parametrize("scale", [1e160, 1e-160])
def test_linear_methods_overflowed_with_large_residuals(method, scale):
    def F(x):
        return scale * (x * x - 2 + 0.1 * x.sum())

    result = newton_krylov(F, np.array([1.0, 2.0, 3.0]), method=method, f_tol=1e-10 * scale, full_output=True)[1]
    assert result.success


def test_pull_back_refused_the_preconditioner_of_a_single_system():
    problem = Problem(lambda x: x**2 - 2, vjp=lambda x, w: 2 * x * w)
    result = ims.pull_back(problem, np.full(2, np.sqrt(2)), np.ones(2), M=np.eye(2) / np.sqrt(8))
    assert result.linear.iterations == 1
    np.testing.assert_allclose(result.adjoint, 1 / np.sqrt(8))


def test_complex_cotangent_of_a_real_problem_lost_its_imaginary_part():
    problem = Problem(lambda x: x**2 - 2, vjp=lambda x, w: 2 * x * w)
    with pytest.raises(TypeError, match="`cotangent`"):
        ims.pull_back(problem, np.ones(2), 1j * np.ones(2))


@pytest.mark.parametrize("method", [ims.GMRES(), ims.BiCGSTAB(), ims.ScipyKrylov(function="tfqmr")], ids=str)
def test_operator_that_overwrote_its_argument_zeroed_the_solution(method):
    """The confirming product was handed the solution itself: CONVERGED with x = 0."""

    def spoiling(v):
        out = MATRIX @ v
        v[...] = 0
        return out

    result = ims.linear_solve(ims.LinearOperator(spoiling, in_shape=6), np.ones(6), method=method)
    assert result.success
    assert np.linalg.norm(MATRIX @ result.x - 1) <= 1e-6 * np.sqrt(6)


@pytest.mark.parametrize("method", ["bicgstab", "gcrotmk"])
def test_products_in_one_buffer_slowed_down_the_linear_solve(method):
    buffer = np.empty(6)

    def jvp(x, v):
        np.matmul(cubic_jacobian(x), v, out=buffer)
        return buffer

    reused = newton_krylov(cubic, np.zeros(6), method=method, jvp=jvp, f_tol=1e-9, full_output=True)[1]
    clean = newton_krylov(
        cubic, np.zeros(6), method=method, jvp=lambda x, v: cubic_jacobian(x) @ v, f_tol=1e-9, full_output=True
    )[1]
    assert reused.njvp == clean.njvp


@pytest.mark.parametrize("name", ["mgh06-watson-9", "burkardt-p01", "burkardt-p06"])
def test_mean_of_logarithms_was_not_exact_for_powers_of_two(name):
    problem = get(name)
    counts = [
        newton_krylov(
            lambda x, s=s: s * problem.residual(x), problem.x0, f_tol=s * problem.tolerance(), full_output=True
        )[1].nfev
        for s in (1.0, 2.0, 2.0**-17)
    ]
    assert len(set(counts)) == 1


@pytest.mark.parametrize("start", [0.01, 0.5])
def test_recycled_space_became_singular_and_the_jacobian_was_blamed(start):
    def F(x):
        with np.errstate(over="ignore"):
            return np.exp(x**2) - 2

    result = root(F, [start, 5.0], stop=NonlinearStop(rtol=1e-12))
    assert result.status is Status.CONVERGED


def test_hard_neighbour_lent_its_larger_space():
    """The size of the Krylov space was one number for the batch."""
    hard = np.diag(np.geomspace(1, 1e4, 30)) + np.diag(np.ones(29), 1)
    easy = 2 * np.eye(30) + np.diag(np.ones(29), 1)

    def problem(matrices):
        return Problem(
            lambda x: (matrices @ x[..., None])[..., 0] + 0.1 * x**3 - 1,
            jvp=lambda x, v: (matrices @ v[..., None])[..., 0] + 0.3 * x**2 * v,
            batch_ndim=1,
        )

    method = NewtonKrylov(max_krylov=2, recycle=0)
    together = root(problem(np.stack([hard, easy])), np.zeros((2, 30)), method=method)
    alone = root(problem(easy[None]), np.zeros((1, 30)), method=method)
    assert together.krylov_iterations[1] == alone.krylov_iterations[0]


@pytest.mark.parametrize("power", [-150, 150])
def test_length_of_x_was_looked_for_in_96_decades_only(power):
    scale = 10.0**power

    def F(y):
        with np.errstate(over="ignore"):
            return cubic(y / scale)

    assert root(F, np.zeros(6)).success


def test_wolfe_stopped_where_the_residual_was_not_a_number():
    def F(x):
        with np.errstate(invalid="ignore"):
            return np.log(x) + 3

    assert root(F, np.full(2, 2.0), method=NewtonKrylov(line_search=ims.Wolfe())).success


def test_strict_array_libraries_refused_slices_beyond_the_end():
    xp = pytest.importorskip("array_api_strict")
    matrix = xp.asarray(MATRIX)
    result = root(lambda x: xp.matmul(matrix, x) + 0.1 * x**3 - 1, xp.zeros(6))
    assert result.success


def test_zero_residual_in_a_norm_that_is_not_zero_divided_by_zero():
    result = newton_krylov(lambda x: x, np.ones(2), tol_norm=lambda F: 1.0, full_output=True)[1]
    assert result.nfev < 200


def test_early_ends_were_reported_as_the_requested_steps():
    result = newton_krylov(no_root, START[1], iter=1000, full_output=True)[1]
    assert result.nit < 1000
    assert result.native.status is not Status.STOPPED
    newton_krylov(no_root, START[1], iter=1000)  # raises nothing, as in SciPy


def test_compaction_was_counted_as_linearization():
    c = np.geomspace(1e-3, 3, 6)[:, None]
    matrices = np.eye(30) * 2 + np.random.default_rng(0).standard_normal((6, 30, 30)) * 0.15
    problem = Problem(lambda x: (matrices @ x[..., None])[..., 0] + c * x**3 - 1, batch_ndim=1)
    result = root(problem, np.zeros((6, 30)), stop=NonlinearStop(rtol=1e-12))
    assert result.success.all()
    assert result.counts.linearizations <= len(result.steps)


def test_scipys_methods_on_other_libraries_are_refused():
    xp = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match="NumPy"):
        newton_krylov(lambda x: x**2 - 2, xp.ones(3), method="tfqmr")


def test_wolfe_in_threads_changed_the_warning_filters():
    before, interval = list(warnings.filters), sys.getswitchinterval()
    method, stop = NewtonKrylov(line_search=ims.Wolfe()), NonlinearStop(max_iterations=10)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda seed: root(no_root, START[seed % 3] + seed, method=method, stop=stop), range(18)))
    finally:
        sys.setswitchinterval(interval)
    assert list(warnings.filters) == before


def test_a_broken_recurrence_was_forgotten_while_its_neighbour_ran_on(monkeypatch):
    """BiCGSTAB: A = 0 breaks down in the first run; its neighbour, whose products are inexact, needs further ones."""
    monkeypatch.setattr("implicitsolve.krylov._bicgstab.MAX_RESTARTS", 1)
    scale = np.array([[0.0], [1.0]])
    inexact = ims.LinearOperator(
        lambda v: scale * (v * np.arange(1.0, 6.0) + 1e-3 * np.abs(v)), in_shape=5, batch_shape=(2,)
    )
    result = ims.linear_solve(inexact, np.ones((2, 5)), method=ims.BiCGSTAB(), stop=ims.LinearStop(rtol=1e-10))
    assert result.status.tolist() == [Status.BREAKDOWN, Status.CONVERGED]


def without_nan():
    """Functions that are not meant for NaN: one raises, the other returns zero."""

    def refuses(x):
        assert np.isfinite(x).all()
        return np.ones_like(x) + 0 * x

    def forgives(x):
        return np.where(x > -1e300, np.sign(x), 0.0)  # 0 at NaN

    return refuses, forgives


@pytest.mark.parametrize("function", without_nan())
@pytest.mark.parametrize("n", [4, 60])
@pytest.mark.parametrize("structure", [None, ims.BlockBanded(lower=1, upper=1)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_singular_jacobians_led_to_nan_where_the_residual_was_a_false_zero(function, n, structure, batch):
    def F(x):
        seen.append(np.isfinite(x).all())
        return function(x)

    seen = []
    problem = Problem(F, structure=structure, batch_ndim=len(batch))
    result = root(problem, np.ones((*batch, n)), stop=NonlinearStop(max_iterations=20))
    assert all(seen)
    assert not np.any(result.success)


def test_missing_entries_of_a_long_row_that_nearly_cancel_went_unnoticed():
    n = 60
    signs = np.r_[1.0, -1.0] * 1e-2
    missed = []
    for j in range(2, 58, 2):
        pattern = np.eye(n, dtype=bool)
        pattern[0] = True
        declared = pattern.copy()
        declared[0, j : j + 2] = False
        J = pattern * 1.0
        J[0, j : j + 2] = signs
        problem = Problem(lambda x, J=J: J @ x, structure=ims.Sparse(declared))
        try:
            ims.jacobian(problem, np.zeros(n))
        except ValueError:
            continue
        missed.append(j)
    assert not missed


@pytest.mark.parametrize("number", [np.float64, np.float32, np.array])
def test_bounds_and_scales_that_were_numpy_scalars_had_no_dlpack(number):
    settings = {"bounds": (number(0.0), number(2.0)), "x_scale": number(2.0), "f_scale": number(4.0)}
    assert root(lambda x: x**2 - 1, np.full(3, 0.5), **settings).success
    newton_krylov(lambda x: x**2 - 1, np.full(3, 0.5), bounds=settings["bounds"])


def test_norms_that_overwrite_their_argument_changed_the_residual():
    def norm(F):
        F /= 100
        return np.max(np.abs(F))

    solved = root(cubic, np.ones(6), stop=NonlinearStop(rtol=1e-8, norm=norm))
    np.testing.assert_array_equal(solved.fun, cubic(solved.x))
    assert solved.residual_norm == norm(cubic(solved.x))
    x = newton_krylov(cubic, np.ones(6), f_tol=1e-8, tol_norm=norm)
    assert np.max(np.abs(cubic(x))) <= 1e-6


@pytest.mark.parametrize("value", [np.ones(2), 1j, None])
def test_norms_that_are_no_numbers_were_not_named(value):
    with pytest.raises(TypeError, match="norm of the stopping rule must return a real number"):
        root(cubic, np.ones(6), stop=NonlinearStop(norm=lambda F: value))


def test_lists_and_numbers_as_tangents_and_gradients_had_no_sign_or_shape():
    problem = Problem(
        lambda x: x + x**3 - 2.0,
        jvp=lambda x, v: (1 + 3 * x**2) * v,
        vjp=lambda x, w: (1 + 3 * x**2) * w,
        parameters={"a": 2.0, "b": np.zeros(3)},
        parameter_jvp=lambda x, tangents: -tangents["b"],
        parameter_vjp=lambda x, w: {"a": -float(w.sum()), "b": (-w).tolist()},
    )
    result = root(problem, np.zeros(3), stop=NonlinearStop(atol=1e-12))
    gradients = ims.pull_back(problem, result, np.ones(3)).gradients
    assert gradients["a"] == pytest.approx(0.75)
    np.testing.assert_allclose(gradients["b"], 0.25, rtol=1e-6)
    np.testing.assert_allclose(ims.push_forward(problem, result, {"b": [1, 1, 1]}).tangent, 0.25, rtol=1e-6)
    wrong = replace(problem, parameter_vjp=lambda x, w: {"a": None, "b": w})
    with pytest.raises(TypeError, match=r"parameter_vjp\['a'\]"):
        ims.pull_back(wrong, result, np.ones(3))
