"""BlockNewton: roots, libraries, what a step costs, units and settings."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import BlockBanded, BlockLU, BlockNewton, CyclicReduction, NonlinearStop, Problem, Status, root
from tests.helpers.lines import bratu, bratu_blocks, brusselator, brusselator_start, framed
from tests.nonlinear.chains import DIAGONAL, MODES, PROBLEMS, TRIDIAGONAL, every_mode, run, true_norm


def dense_newton(F, x):
    """Newton's method with a complex-step Jacobian, from near a root: the reference."""
    shape, n = x.shape, x.size
    for _ in range(6):
        J = np.empty((n, n))
        for i in range(n):
            z = x.astype(complex).reshape(-1)
            z[i] += 1e-30j
            J[:, i] = F(z.reshape(shape)).imag.reshape(-1) / 1e-30
        x = x - np.linalg.solve(J, F(x).reshape(-1)).reshape(shape)
    return x


@every_mode
@pytest.mark.parametrize("name", PROBLEMS)
def test_roots_are_those_of_newton_s_method(name, reuse):
    F, x0, structure = PROBLEMS[name]
    result = run(F, x0, structure, BlockNewton(reuse=reuse))
    assert result.status is Status.CONVERGED, result.message
    exact = dense_newton(F, result.x)
    assert true_norm(F, exact) < 1e-8 * result.initial_norm
    np.testing.assert_allclose(result.x, exact, atol=1e-4 * np.abs(exact).max())


@pytest.mark.parametrize("name", PROBLEMS)
def test_keeping_the_jacobian_saves_evaluations(name):
    F, x0, structure = PROBLEMS[name]
    counts = {reuse: run(F, x0, structure, BlockNewton(reuse=reuse)).counts.residuals for reuse in MODES}
    assert counts["broyden"] <= 1.1 * counts["none"]
    if "bratu" in name or "brusselator" in name:
        assert counts["broyden"] < 0.8 * counts["none"]


@pytest.mark.parametrize("cells", [200, 400])
def test_where_broyden_s_updates_mislead_they_are_dropped(cells):
    x0 = brusselator_start(cells, size=0.5)
    x0[:, 1] = 2.3 + 0.6 * (x0[:, 1] - 2.3)
    counts = [run(brusselator, x0, BlockBanded(1, 1, 2), BlockNewton(reuse=r)).counts.residuals for r in MODES]
    assert counts[0] <= 1.5 * min(counts)


@pytest.mark.parametrize(
    "factor", [BlockLU(), BlockLU(refine=1), BlockLU(pivoting="block"), CyclicReduction()], ids=repr
)
def test_every_direct_method(factor):
    result = run(
        lambda x: brusselator(x, B=2.0), brusselator_start(30, B=2.0), BlockBanded(1, 1, 2), BlockNewton(factor=factor)
    )
    assert result.success


@pytest.mark.parametrize("search", [ims.Backtracking(), ims.FullStep(), ims.Wolfe()], ids=repr)
def test_every_line_search(search):
    result = run(
        lambda u: np.arctan(10 * u) + 0.1 * (framed(u)[2:] - u),
        np.full(5, 0.05),
        TRIDIAGONAL,
        BlockNewton(line_search=search),
    )
    assert result.success


def test_the_line_search_runs_where_a_whole_step_fails():
    F, x0 = lambda u: np.arctan(u), np.full(4, 3.0)
    assert run(F, x0, DIAGONAL).success
    diverging = run(F, x0, DIAGONAL, BlockNewton(line_search=ims.FullStep()))
    assert not diverging.success


@pytest.mark.parametrize("lower", [0, 1, 4])
@pytest.mark.parametrize("upper", [0, 1, 4])
def test_one_block_and_bands_wider_than_the_matrix(lower, upper):
    for T in (1, 2, 3):
        rng = np.random.default_rng(T)
        blocks = rng.normal(size=(T, lower + upper + 1, 2, 2)) / 4
        blocks[:, lower] += 4 * np.eye(2)
        A = ims.BlockBandedMatrix(blocks, lower=lower, upper=upper)
        result = run(lambda x, A=A: A @ x + 0.1 * x**3 - 1, np.ones(2 * T), A.structure)
        assert result.success
        assert result.counts.residuals < 2 * min(T, lower + upper + 1) + 12


def dense(u):
    return ims.BlockBandedMatrix(bratu_blocks(u), lower=1, upper=1).todense()


EXACT = {
    "blocks": {"blocks": bratu_blocks},
    "dense": {"jac": dense},
    "matrix": {"jac": lambda u: ims.BlockBandedMatrix(bratu_blocks(u), lower=1, upper=1)},
    "operator": {"jac": lambda u: ims.aslinearoperator(dense(u))},
    "jvp": {"jvp": lambda u, v: dense(u) @ v},
}


@every_mode
@pytest.mark.parametrize("kind", EXACT)
def test_exact_jacobians_need_one_residual_for_a_step(kind, reuse):
    result = run(bratu, np.zeros(30), TRIDIAGONAL, BlockNewton(reuse=reuse), NonlinearStop(rtol=1e-10), **EXACT[kind])
    assert result.success
    assert result.counts.residuals == len(result.steps)
    factorized = sum(int(step.factorized.sum()) for step in result.steps)
    assert result.counts.linearizations == factorized
    assert result.counts.jvps == (3 * factorized if kind in ("operator", "jvp") else 0)


def test_none_is_newton_s_method():
    """Quadratic convergence: an exact J in every step."""
    stop = NonlinearStop(rtol=1e-13)
    result = run(
        lambda x: x**2 - 2, np.full(3, 2.0), DIAGONAL, BlockNewton(reuse="none"), stop, jac=lambda x: np.diag(2 * x)
    )
    x, expected = 2.0, []
    for _ in range(result.iterations):
        x = x - (x * x - 2) / (2 * x)
        expected.append(abs(x * x - 2))
    np.testing.assert_allclose([step.worst for step in result.steps[1:]], expected, rtol=1e-6, atol=1e-15)


@every_mode
def test_linearize_is_called_once_where_j_is_needed(reuse):
    calls = {"residual": 0, "linearize": 0}

    def F(u):
        calls["residual"] += 1
        return bratu(u)

    def linearize(u):
        calls["linearize"] += 1
        return bratu(u), dense(u)

    problem = Problem(F, linearize=linearize, structure=TRIDIAGONAL)
    result = root(problem, np.zeros(30), method=BlockNewton(reuse=reuse))
    assert result.success
    assert result.counts.linearizations == calls["linearize"]
    assert result.counts.residuals == calls["residual"] + calls["linearize"]
    assert calls["linearize"] <= result.iterations + 1


def test_a_singular_diagonal_is_no_obstacle():
    """Blocks of zeros on the diagonal of a nonsingular J."""

    def F(x):
        y = x.reshape(-1, 2)
        return np.stack([y[:, 1] + 0.1 * y[:, 1] ** 3 - 1, y[:, 0] - 2], axis=-1).reshape(x.shape)

    result = run(F, np.ones(8), TRIDIAGONAL)
    assert result.success
    np.testing.assert_allclose(result.x[::2], 2.0)


def test_a_monitor_sees_every_step():
    seen = []

    def monitor(step, x, F):
        seen.append((step.iteration, x.copy(), F.copy(), step.worst))
        x[...] = F[...] = np.nan  # copies

    trace = ims.monitor.collect()
    result = root(
        Problem(bratu, structure=TRIDIAGONAL),
        np.zeros(20),
        method="block-newton",
        monitor=ims.monitor.combine(monitor, trace),
    )
    assert result.success
    assert [iteration for iteration, *_ in seen] == list(range(len(result.steps)))
    assert list(trace) == list(result.steps)
    for _, x, F, worst in seen:
        np.testing.assert_array_equal(F, bratu(x))
        assert worst == np.abs(F).max()
    np.testing.assert_array_equal(seen[-1][1], result.x)
    counts = [step.counts.residuals for step in result.steps]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == result.counts.residuals
    assert result.steps[1].factorized.all()
    assert not result.steps[0].factorized.size


def test_a_structure_is_needed():
    with pytest.raises(ValueError, match="BlockNewton: the problem must declare its `structure`"):
        root(Problem(bratu), np.zeros(20), method=BlockNewton())
    with pytest.raises(ValueError, match="multiple of `block_size` = 3"):
        root(Problem(bratu, structure=BlockBanded(1, 1, 3)), np.zeros(20), method=BlockNewton())


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"reuse": "always"}, ValueError, "`reuse`"),
        ({"factor": 3}, TypeError, "`factor`"),
        ({"factor": BlockLU}, TypeError, "`factor`"),
        ({"line_search": "armijo"}, TypeError, "`line_search`"),
        ({"rdiff": 0.0}, ValueError, "`rdiff`"),
    ],
)
def test_settings_are_checked(wrong, error, match):
    with pytest.raises(error, match=f"BlockNewton: {match}"):
        BlockNewton(**wrong)
