"""Auto: which method a declared structure leads to, and what happens where it fails."""

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from benchmarks import rootless_systems
from benchmarks.benchmarks.problems import classic_problems
from implicitsolve import BlockBanded, BlockNewton, NewtonKrylov, NonlinearStop, Problem, Status, newton_krylov, root
from implicitsolve.adapters import gru_parameters, implicit_gru, implicit_rnn, rnn_parameters
from implicitsolve.nonlinear import Auto
from implicitsolve.nonlinear._sparse_newton import SparseNewton
from tests.helpers.lines import bratu
from tests.helpers.physical import RATES, collocation, robertson_reactor

TRIDIAGONAL = BlockBanded(1, 1)


def same(one, other):
    assert one.counts == other.counts
    np.testing.assert_array_equal(one.status, other.status)
    np.testing.assert_array_equal(one.x, other.x)
    assert len(one.steps) == len(other.steps)


def factorizes(result):
    return any(step.factorized.any() for step in result.steps)


def test_without_sparsity_it_is_newton_krylov():
    problem = Problem(bratu, structure="none")
    same(root(problem, np.zeros(21)), root(problem, np.zeros(21), method=NewtonKrylov()))


def test_small_systems_take_a_dense_matrix_also_where_sparsity_is_not_sought():
    """The dense methods were left out: time 1.4 of SciPy's over the classic sets."""
    problem = next(p for p in classic_problems() if p.name == "mgh05-helical-valley")
    detected, switched_off = (
        newton_krylov(problem.residual, problem.x0, structure=structure, full_output=True)[1].nfev
        for structure in (None, "none")
    )
    assert detected == switched_off


def test_sparsity_is_detected_where_nothing_is_declared():
    problem, x0 = Problem(bratu), np.zeros(200)
    result = root(problem, x0)
    same(result, root(problem, x0, method=SparseNewton()))
    assert result.success
    assert result.counts.residuals < 25 < root(Problem(bratu, structure="none"), x0).counts.residuals
    dense = Problem(lambda x: x - np.cos(x).mean())
    without = root(Problem(dense.residual, structure="none"), x0).counts.residuals
    assert root(dense, x0).counts.residuals <= without + 11  # that look for shifts


def test_arithmetic_trouble_away_from_x0_only_ends_the_search_for_sparsity():
    """The search displaces unknowns; a residual may overflow at points that the solve never visits."""

    def residual(x):
        if np.any(np.abs(x - 1.0) > 1e-5):
            raise FloatingPointError("outside of the domain")
        return x - 1.0 + 1e-9 * np.roll(x, 1)

    assert root(residual, np.ones(50), stop=NonlinearStop(rtol=0.5)).success


def test_small_blocks_are_factorized():
    problem = Problem(bratu, structure=TRIDIAGONAL)
    expected = root(problem, np.zeros(20), method=BlockNewton())
    same(root(problem, np.zeros(20)), expected)
    same(root(problem, np.zeros(20), method="auto"), expected)
    same(root(problem, np.zeros(20), method=Auto()), expected)


def weak(k, T=4):
    """Blocks of k unknowns, weakly coupled."""

    def F(x):
        y = x.reshape(T, k)
        return (
            y**3 + 2 * y - 3 + 0.1 * np.roll(y, 1, axis=1) + 0.05 * np.roll(y, 1, axis=0) * (np.arange(T) > 0)[:, None]
        ).reshape(x.shape)

    def blocks(x):
        values = np.zeros((T, 2, k, k))
        values[:, 0] = 0.05 * np.eye(k)
        values[:, 1] = np.eye(k) * (3 * x.reshape(T, 1, k) ** 2 + 2) + 0.1 * np.roll(np.eye(k), 1, axis=0)
        return values

    return F, blocks


@pytest.mark.parametrize(
    ("k", "has_blocks", "direct"),
    [
        (32, False, True),  # 64 products
        (33, False, False),
        (64, True, True),
        (65, True, False),
    ],
)
def test_the_rule(k, has_blocks, direct):
    F, blocks = weak(k)
    problem = Problem(F, structure=BlockBanded(1, 0, k), blocks=blocks if has_blocks else None)
    result = root(problem, np.zeros(4 * k))
    assert result.success
    assert factorizes(result) == direct


@pytest.mark.parametrize("k", [40, 128, 129])
def test_larger_blocks_precondition_or_multiply(k):
    F, _ = weak(k)
    structure = BlockBanded(1, 0, k)
    late = NewtonKrylov(preconditioner=ims.Lagged(preconditioner=ims.BlockLU(), eager=False))
    expected = root(Problem(F, structure=structure), np.zeros(4 * k), method=late if k <= 128 else NewtonKrylov())
    same(root(Problem(F, structure=structure), np.zeros(4 * k)), expected)


def test_blocks_of_the_problem_decide():
    """With `blocks` one assembly is one call; with products it is k (lower + upper + 1), and `jac` may be no matrix."""
    k, T = 50, 4
    F, blocks = weak(k)

    def jac(x):
        return ims.BlockBandedMatrix(blocks(x), lower=1, upper=0)

    structure = BlockBanded(1, 0, k)
    assert factorizes(root(Problem(F, structure=structure, blocks=blocks), np.zeros(T * k)))
    assert not factorizes(root(Problem(F, structure=structure, jac=jac), np.zeros(T * k)))
    assert not factorizes(root(Problem(F, structure=structure, jvp=lambda x, v: jac(x) @ v), np.zeros(T * k)))


def layer_of(systems, weight=1.0, size=8):
    rng = np.random.default_rng(0)
    params = {
        name: weight * value if name[0] == "U" else value for name, value in gru_parameters(8, size, rng=rng).items()
    }
    return implicit_gru(params, rng.standard_normal((systems, 30, 8)))


def slow_layer_of(systems, size=8):
    rng = np.random.default_rng(0)
    own = {name: rng.uniform(-0.25, 0.25, (size, size)) for name in ("P", "N", "V")}
    own = {"P": own["P"][None], "N": own["N"][None], "V": own["V"], "b": np.zeros(size)}
    return implicit_rnn(own, rng.standard_normal((systems, 30, size)))


@pytest.mark.parametrize("systems", [1, 4])
def test_small_layers_that_contract_slowly_take_newton_s_steps(systems):
    """Few entries are factored at once; more where Anderson's method would take more steps."""
    stop = NonlinearStop(atol=1e-8)
    found, alone = (root(slow_layer_of(systems), stop=stop, method=method) for method in ("auto", "block-newton"))
    assert found.success.all()
    assert factorizes(found)
    assert found.counts.residuals <= alone.counts.residuals + (0 if systems == 1 else 4)
    larger = root(slow_layer_of(4, size=48), stop=stop)
    assert larger.success.all()
    assert not factorizes(larger)


def test_small_layers_that_contract_fast_take_anderson_s_steps():
    stop = NonlinearStop(atol=1e-8)
    found, anderson = (root(layer_of(8), stop=stop, method=method) for method in ("auto", "anderson"))
    assert found.success.all()
    assert not factorizes(found)
    np.testing.assert_array_equal(found.x, anderson.x)
    assert found.counts == anderson.counts


def test_the_solution_of_a_layer_does_not_depend_on_the_batch():
    layer, stop = slow_layer_of(250), NonlinearStop(atol=1e-8)
    found, alone = root(layer, stop=stop), root(layer.take(np.asarray([7])), stop=stop)
    assert found.success.all()
    np.testing.assert_allclose(found.x[7], alone.x[0], atol=1e-7)


def test_small_layers_for_which_newton_s_steps_are_too_long():
    found = root(layer_of(1, weight=12.0), stop=NonlinearStop(atol=1e-8))
    assert found.success.all()
    assert factorizes(found)
    assert found.retries[0].method == "Anderson"


def test_a_wrong_structure_falls_back():
    """A diagonal declared for a tridiagonal problem."""
    problem = Problem(bratu, structure=BlockBanded(0, 0))
    alone = root(problem, np.zeros(40), method=BlockNewton(), stop=NonlinearStop(max_iterations=60))
    result = root(problem, np.zeros(40))
    assert result.success
    np.testing.assert_allclose(result.x, root(Problem(bratu), np.zeros(40)).x, atol=1e-5)
    assert alone.status != Status.CONVERGED or alone.counts.residuals > 8


def test_a_wrong_matrix_falls_back_where_products_are_differences():
    """blocks that are the negative of J: BlockNewton's line search fails at once."""
    problem = Problem(
        lambda x: x**3 + x - 3, structure=BlockBanded(0, 0), blocks=lambda x: -(3 * x**2 + 1).reshape(-1, 1, 1, 1)
    )
    assert root(problem, np.ones(4), method=BlockNewton()).status is Status.LINE_SEARCH_FAILED


def test_steps_of_both_attempts_are_reported():
    trace = ims.monitor.collect()
    problem = Problem(bratu, structure=BlockBanded(0, 0))
    result = root(problem, np.zeros(40), monitor=trace)
    assert list(trace) == list(result.steps)
    iterations = [step.iteration for step in result.steps]
    assert iterations == list(range(len(iterations)))
    assert result.counts == result.steps[-1].counts


def test_systems_that_are_solved_are_left_alone():
    """One system of the batch is beyond the fold: it has no root, and begins again."""
    lam = np.asarray([1.0, 3.7, 2.0])[:, None]
    problem = Problem(lambda u: bratu(u, lam), structure=TRIDIAGONAL, batch_ndim=1)
    with np.errstate(over="ignore"):
        result = root(problem, np.zeros((3, 30)), stop=NonlinearStop(max_iterations=40))
    np.testing.assert_array_equal(result.success, [True, False, True])
    both = Problem(lambda u: bratu(u, lam[[0, 2]]), structure=TRIDIAGONAL, batch_ndim=1)
    np.testing.assert_allclose(result.x[[0, 2]], root(both, np.zeros((2, 30))).x, rtol=1e-9)
    assert result.residual_norm[1] == np.abs(bratu(result.x, lam)[1]).max()


def test_only_the_systems_that_need_it_begin_again():
    """The second system's blocks have the wrong sign, its products have not."""

    def problem(sign):
        return Problem(
            lambda x: x**3 + x - 3,
            jvp=lambda x, v: (3 * x**2 + 1) * v,
            structure=BlockBanded(0, 0),
            blocks=lambda x: (sign * (3 * x**2 + 1))[..., None, None, None],
            batch_ndim=1,
            take=lambda rows: problem(sign[np.asarray(rows)]),
        )

    systems, x0 = problem(np.asarray([[1.0], [-1.0]])), np.ones((2, 4))
    block, result = root(systems, x0, method="block-newton"), root(systems, x0)
    assert list(block.status) == [Status.CONVERGED, Status.LINE_SEARCH_FAILED]
    assert result.success.all()
    assert result.iterations[0] == block.iterations[0]
    np.testing.assert_array_equal(result.x[0], block.x[0])


def test_the_iteration_limit_holds_for_both_together():
    with np.errstate(over="ignore"):
        result = root(
            Problem(lambda u: bratu(u, 5.0), structure=TRIDIAGONAL), np.zeros(30), stop=NonlinearStop(max_iterations=15)
        )
    assert not result.success
    assert result.iterations <= 15


def test_not_finite_at_the_start_is_not_tried_again():
    result = root(Problem(lambda x: x * np.nan, structure=TRIDIAGONAL), np.ones(3))
    assert result.status is Status.NONFINITE
    assert result.counts.residuals == 1
    assert len(result.steps) == 1


@pytest.mark.parametrize("name", ["singular at the start", "domain"])
def test_where_newton_s_direction_does_not_exist(name):
    if name == "singular at the start":  # J(0) = diag(0, 1): products see a range in which F lies

        def F(x):
            y = x.reshape(-1, 2)
            return np.stack([y[:, 0] ** 2 * y[:, 1], y[:, 1] ** 3 + y[:, 1] - 2], axis=-1).reshape(x.shape)

        x0, structure = np.zeros(8), BlockBanded(0, 0, 2)
    else:

        def F(x):
            with np.errstate(invalid="ignore"):
                return np.sqrt(1 - x) - 1e-3

        x0, structure = np.full(8, 0.5), BlockBanded(0, 0)
    result = root(Problem(F, structure=structure), x0)
    assert result.success, result.message
    assert np.abs(F(result.x)).max() == result.residual_norm


@pytest.mark.parametrize("method", ["auto", "block-newton"])
def test_one_unknown_on_very_different_scales(method):
    """Carrier densities, boundary layers: x from 1e-4 to 1e4 along the blocks."""
    n = 60
    scale = 10.0 ** (4 * np.sin(2 * np.pi * np.arange(n) / n))

    def F(y):
        x = y * scale
        return np.roll(x, 1) - 3 * x + np.roll(x, -1) - x**3 + np.sin(np.arange(n))

    result = root(Problem(F, structure=BlockBanded(1, 1, periodic=True)), np.full(n, 0.3) / scale, method=method)
    assert result.success, result.message


def test_newton_krylov_with_a_structure_costs_what_root_costs():
    x, result = ims.newton_krylov(bratu, np.zeros(40), structure=TRIDIAGONAL, f_tol=1e-9, full_output=True)
    native = root(Problem(bratu, structure=TRIDIAGONAL), np.zeros(40), stop=NonlinearStop(atol=1e-9, rtol=0.0))
    assert result.success
    assert result.nfev == native.counts.residuals
    assert result.nit == native.iterations
    assert result.njvp == result.njev == 0
    np.testing.assert_array_equal(x, native.x)
    np.testing.assert_array_equal(result.x, x)
    np.testing.assert_array_equal(result.fun, bratu(x))
    assert result.status == 1
    assert np.abs(result.fun).max() <= 1e-9


def test_newton_krylov_takes_settings_as_inner_m():
    x, result = ims.newton_krylov(
        bratu, np.zeros(100), structure=TRIDIAGONAL, inner_M=ims.BlockLU(), f_tol=1e-9, full_output=True
    )
    assert result.success
    assert result.native.krylov_iterations > 0
    assert result.nfev < 30
    np.testing.assert_allclose(x, ims.newton_krylov(bratu, np.zeros(100), f_tol=1e-9), atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"method": "gmres"}, {"rdiff": 1e-7}, {"line_search": None}, {"line_search": "wolfe"}], ids=str
)
def test_newton_krylov_with_other_options_is_a_krylov_method(options):
    _, result = ims.newton_krylov(bratu, np.zeros(20), structure=TRIDIAGONAL, f_tol=1e-9, full_output=True, **options)
    assert result.success
    assert not factorizes(result.native)


def test_newton_krylov_obeys_its_stopping_rule():
    seen = []
    x, result = ims.newton_krylov(
        bratu, np.zeros(20), structure=TRIDIAGONAL, iter=2, callback=lambda x, F: seen.append((x, F)), full_output=True
    )
    assert result.native.status is Status.STOPPED
    assert len(seen) == 2
    np.testing.assert_array_equal(seen[-1][0], x)
    with pytest.raises(ims.NoConvergence):
        ims.newton_krylov(bratu, np.zeros(20), structure=TRIDIAGONAL, f_tol=1e-12, maxiter=2)
    x, result = ims.newton_krylov(bratu, np.zeros(20), structure=TRIDIAGONAL, f_tol=1e-9, x_rtol=1e-6, full_output=True)
    assert result.success


def test_newton_krylov_of_a_batch_with_a_jacobian():
    lam = np.asarray([1.0, 3.0])[:, None]

    def jac(u):
        blocks = np.ones((2, 20, 3, 1, 1))
        blocks[:, :, 1, 0, 0] = -2 + lam * np.exp(u) / 21**2
        return ims.BlockBandedMatrix(blocks, lower=1, upper=1)

    _, result = ims.newton_krylov(
        lambda u: bratu(u, lam),
        np.zeros((2, 20)),
        jac=jac,
        structure=TRIDIAGONAL,
        batch_ndim=1,
        f_tol=1e-9,
        full_output=True,
    )
    assert result.success.all()
    assert result.njev >= 1
    assert factorizes(result.native)


def test_newton_krylov_refuses_what_is_no_structure():
    with pytest.raises(ValueError, match="`structure`"):
        ims.newton_krylov(bratu, np.zeros(20), structure="tridiagonal")


def test_a_singular_jacobian_leaves_a_lagged_preconditioner_out():
    """The inverse of a singular J is NaN: with a structure the solve ended NONFINITE, without it it converged."""

    def F(u):
        p = np.pad(u, 1)
        r = np.diff(p, 2) - 1 - u**3
        r[0] = u[0] ** 3
        return r

    def jvp(u, v):
        d = np.diff(np.pad(v, 1), 2) - 3 * u**2 * v
        d[0] = 3 * u[0] ** 2 * v[0]
        return d

    problem = Problem(F, jvp=jvp, structure=BlockBanded(1, 1))
    assert root(problem, np.zeros(40), method=NewtonKrylov(preconditioner=ims.BlockLU())).success


def test_sparse_matrix_of_jac_is_factored():
    n = 200

    def jac(u):
        off = -np.ones(n - 1)
        return scipy.sparse.diags_array([off, 2 - np.exp(u) / (n + 1) ** 2, off], offsets=[-1, 0, 1])

    def residual(u):
        p = np.pad(u, 1)
        return 2 * u - p[2:] - p[:-2] - np.exp(u) / (n + 1) ** 2

    result = root(Problem(residual, jac=jac), np.zeros(n))
    assert result.success
    assert factorizes(result)
    assert result.counts.jvps == 0
    assert result.counts.linearizations <= 2


def test_sparsity_is_detected_for_exact_products_too():
    """The drop-in with jvp= once took twice the calls that it took without."""

    def jvp(x, v):
        h = 1e-6
        return (bratu(x + h * v) - bratu(x - h * v)) / (2 * h)

    plain, exact = root(bratu, np.zeros(100)), root(Problem(bratu, jvp=jvp), np.zeros(100))
    assert exact.success
    assert exact.counts.residuals + exact.counts.jvps <= plain.counts.residuals + 3


@pytest.mark.parametrize("kind", ["dense", "operator"])
def test_jac_was_evaluated_twice_at_x0(kind):
    n = 120
    A = np.random.default_rng(0).standard_normal((n, n)) / (2 * np.sqrt(n))
    points = []

    def jac(x):
        points.append(x.copy())
        J = np.eye(n) + A / np.cosh(A @ x)[:, None] ** 2
        return J if kind == "dense" else scipy.sparse.linalg.aslinearoperator(J)

    result = root(Problem(lambda x: x + np.tanh(A @ x) - 1.0, jac=jac), np.zeros(n))
    assert result.success
    assert len({x.tobytes() for x in points}) == len(points) == result.counts.linearizations


def test_some_systems_of_a_batch_by_another_method_were_indexed_beyond_their_number():
    rng = np.random.default_rng(0)
    lengths = np.array([1, 1, 2, 7, 11, 5])
    params = rnn_parameters(3, 5, scale=0.8, rng=rng)
    layer = implicit_rnn(params, rng.standard_normal((6, 11, 3)), lengths=lengths)
    assert root(layer).success.all()


def test_preconditioners_of_some_systems_of_a_batch_were_indexed_beyond_their_number():
    scales = np.array([1.0, 6.0, 3.0, 7.0, 12.0])[:, None] / 31**2  # the second and the last two have no root

    def residual(u):
        with np.errstate(over="ignore"):
            return np.diff(u, n=2, prepend=0.0, append=0.0) + scales * np.exp(u)

    method = NewtonKrylov(preconditioner=ims.BlockLU())
    found = root(Problem(residual, batch_ndim=1, structure=BlockBanded(1, 1)), np.zeros((5, 30)), method=method)
    assert found.success.tolist() == [True, False, True, False, False]


def test_no_step_of_the_hybrid_method_on_robertson_s_kinetics_led_to_products():
    together = Problem(lambda x: np.stack(list(map(robertson_reactor, x))), batch_ndim=1)
    stop, x0 = NonlinearStop(atol=1e-12), np.array([1.0, 0.0, 0.0])
    alone = root(robertson_reactor, x0, stop=stop)
    assert alone.success
    assert alone.counts.residuals <= 300
    assert root(together, np.stack([x0, alone.x]), stop=stop).success.all()


def test_a_batch_with_slow_systems_is_not_solved_twice():
    """It took 22 evaluations: Newton's method began when Anderson's had solved the others."""
    rng = np.random.default_rng(4)
    inputs, params = rng.standard_normal((16, 20, 8)), gru_parameters(8, 8, rng=rng)
    params = {name: 7.3 * value if name[0] == "U" else value for name, value in params.items()}
    result = root(implicit_gru(params, inputs), stop=NonlinearStop(atol=1e-8, rtol=0.0))
    assert result.success.all()
    assert result.retries[0].systems.size == 16
    assert result.counts.residuals <= 12


def test_half_the_blocks_follow_where_steps_for_all_of_them_have_failed():
    """F at x0 was kept for all blocks, and compared with that of half of them."""
    layer = rootless_systems.layer("rnn", 1.0)
    result = root(layer)
    assert np.all(result.success)
    assert result.retries


def test_full_ill_conditioned_systems_beyond_a_hundred_unknowns_had_no_dense_jacobian():
    F, x0 = collocation(400, RATES[2])
    result = root(F, x0)
    assert result.success
    assert result.counts.residuals <= 1500
    assert [retry.method for retry in result.retries] == ["DenseNewton"]
