"""A derivative that says CONVERGED is accurate: at large x, and with wrong structures and derivatives."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import AccuracyWarning, BlockBanded, NonlinearStop, Problem, Sparse, Status, pull_back, push_forward

ACCURATE = 1e-4  # relative error of what CONVERGED may stand for


def with_parameter(F, **options):
    """A problem F(x) = theta, whose solution has the derivative J^-1."""
    return Problem(
        F,
        parameters={"theta": np.zeros(())},
        parameter_vjp=lambda x, w: {"theta": -np.sum(w)},
        parameter_jvp=lambda x, d: -d["theta"],
        **options,
    )


def errors(problem, x, J, c):
    """Relative errors of the adjoint and the tangent where these are CONVERGED; structures may be refused."""
    found = []
    for call, matrix, argument in ((pull_back, J.T, c), (push_forward, J, {"theta": c})):
        try:
            result = call(problem, x, argument)
        except ValueError:  # a pattern that misses entries
            continue
        if result.success:
            expected = np.linalg.solve(matrix, c)
            value = result.adjoint if call is pull_back else result.tangent
            found.append(np.linalg.norm(value - expected) / np.linalg.norm(expected))
    return found


@pytest.mark.parametrize("structure", [Sparse(np.eye(30)), BlockBanded(0, 0), BlockBanded(1, 1, 2)], ids=str)
@pytest.mark.parametrize("center", [1e4, 1e5, 4e5])
def test_gradients_at_large_x_were_wrong_without_a_word(center, structure):
    theta = 4 * center * np.ones(30)
    problem = with_parameter(lambda x: 4 * x + 3 * np.sin(x) - theta, structure=structure)
    result = ims.root(problem, theta / 4)
    expected = 1 / (4 + 3 * np.cos(result.x))
    reverse = pull_back(problem, result, np.ones(30)).raise_for_status()
    np.testing.assert_allclose(reverse.adjoint, expected, rtol=1e-6)
    forward = push_forward(problem, result, {"theta": np.ones(30)}).raise_for_status()
    np.testing.assert_allclose(forward.tangent, expected, rtol=1e-6)


def test_x_scale_is_the_scale_on_which_F_varies():
    x = 1e6 + np.linspace(0, 1, 30)
    spent = []
    for x_scale in (None, 100.0):
        problem = with_parameter(lambda x: 4 * x + 3 * np.sin(x), structure=BlockBanded(0, 0), x_scale=x_scale)
        result = pull_back(problem, x, np.ones(30)).raise_for_status()
        np.testing.assert_allclose(result.adjoint, 1 / (4 + 3 * np.cos(x)), rtol=1e-5)
        spent.append(result.counts.residuals)
    assert spent[1] <= spent[0]


@settings(max_examples=60, deadline=None)
@example("dense", 2.351568869347371e-13, -1.0, 0)  # one unknown of 1e-13 among those of size 1
@example("dense", 1e-10, -1.0, 132)  # and of 1e-10: a tangent with an error of 1e-3
@given(
    st.sampled_from(["sparse", "band", "dense", "none"]),
    st.floats(-3, 8),
    st.sampled_from([-1.0, 0.0, 1.0]),
    st.integers(0, 2**32 - 1),
)
def test_a_shift_of_x_leaves_derivatives_accurate_or_failing(kind, power, sign, seed):
    rng = np.random.default_rng(seed)
    n, a, k = int(rng.integers(5, 25)), rng.uniform(3, 6), rng.uniform(0.3, 3)
    off, x = rng.uniform(-0.25, 0.25, n), np.linspace(0, 1, n) + sign * 10**power
    shift = np.roll(np.eye(n), 1, axis=0)

    def F(x):
        return a * x + 0.5 * a / k * np.sin(k * x) + off * (np.roll(x, 1) - np.roll(x, -1))

    J = np.diag(a + 0.5 * a * np.cos(k * x)) + off[:, None] * (shift - shift.T)
    structure = {
        "sparse": Sparse(J != 0),
        "band": BlockBanded(1, 1, periodic=True),
        "dense": BlockBanded(0, 0, n),
        "none": BlockBanded(0, 0, n),
    }[kind]
    at = F(x)
    problem = with_parameter(lambda x: F(x) - at, structure=structure)
    assert all(error <= ACCURATE for error in errors(problem, x, J, rng.standard_normal(n)))
    if kind == "none":  # products by differences
        forward = push_forward(with_parameter(lambda x: F(x) - at), x, {"theta": np.ones(n)})
        if forward.success:
            np.testing.assert_allclose(forward.tangent, np.linalg.solve(J, np.ones(n)), rtol=1e-3)


def ways(W, F):
    """Every way of declaring a Jacobian W of F that couples neighbors only."""
    n = len(W)
    blocks = np.zeros((n, 3, 1, 1))
    for offset in (-1, 0, 1):
        rows = np.arange(max(0, -offset), min(n, n - offset))
        blocks[rows, offset + 1, 0, 0] = W[rows, rows + offset]
    return {
        "pattern": {"structure": Sparse(W != 0)},
        "jac": {"jac": lambda x: W},
        "sparse jac": {"jac": lambda x: scipy.sparse.csr_array(W)},
        "linearize": {"linearize": lambda x: (F(x), ims.aslinearoperator(W))},
        "products": {"jvp": lambda x, v: W @ v, "vjp": lambda x, w: W.T @ w},
        "vjp beside a structure": {"vjp": lambda x, w: W.T @ w, "structure": BlockBanded(1, 1)},
        "blocks": {"blocks": lambda x: blocks, "structure": BlockBanded(1, 1)},
        "band": {"structure": BlockBanded(0, 1)},
    }


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_dropped_entry_never_gives_a_wrong_derivative(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 20))
    A = np.diag(rng.uniform(3, 5, n)) + np.diag(rng.uniform(-1, 1, n - 1), 1) + np.diag(rng.uniform(-1, 1, n - 1), -1)
    x = rng.standard_normal(n) * 10 ** rng.uniform(-2, 2)

    def F(x):
        return A @ x + 0.3 * np.sin(x)

    J = A + np.diag(0.3 * np.cos(x))
    row = int(rng.integers(1, n))
    W = np.where((np.arange(n)[:, None] == row) & (np.arange(n) == row - rng.integers(2)), 0.0, J)
    for options in ways(W, F).values():
        found = errors(with_parameter(F, **options), x, J, rng.standard_normal(n))
        assert all(error <= ACCURATE for error in found)


@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-4])
def test_a_small_entry_that_is_missing_contradicts_a_derivative(size):
    """An entry of 1.4e-4 that a search had missed, of 217 unknowns, left a CONVERGED gradient wrong by 6e-6."""
    n, c = 217, np.random.default_rng(0).standard_normal(217)
    W = 3 * np.eye(n) + 0.4 * np.eye(n, k=1)
    J = W.copy()
    J[149, 12] = size
    for options in ways(W, lambda x: J @ x).values():
        found = errors(with_parameter(lambda x: J @ x, **options), np.ones(n), J, c)
        assert all(error <= 3e-6 for error in found)  # linear solves end at 1e-6


@pytest.mark.parametrize("name", ["band", "jac", "blocks", "products", "linearize"])
def test_wrong_declarations_are_INACCURATE_and_right_ones_take_two_evaluations(name):
    n = 12
    J = 3 * np.eye(n) + 0.5 * np.eye(n, k=1) + 0.4 * np.eye(n, k=-1)
    wrong = np.where(np.eye(n, k=-1) > 0, 0.0, J)
    problems = [with_parameter(lambda x: J @ x, **ways(W, lambda x: J @ x)[name]) for W in (wrong, J)]
    for call, argument in ((pull_back, np.ones(n)), (push_forward, {"theta": np.ones(n)})):
        assert call(problems[0], np.ones(n), argument).status is Status.INACCURATE
        if name != "band":
            right = call(problems[1], np.ones(n), argument)
            assert right.success
            assert right.counts.residuals == 2 + right.counts.linearizations * (name == "linearize")


def test_a_wrong_system_leaves_the_others_of_its_batch():
    slopes = np.array([2.0, 3.0, 4.0])[:, None]
    claimed = slopes * np.array([1.0, 1.05, 1.0])[:, None]
    problem = Problem(lambda x: slopes * x, vjp=lambda x, w: claimed * w, batch_ndim=1)
    status = pull_back(problem, np.ones((3, 5)), np.ones((3, 5))).status
    assert list(status) == [Status.CONVERGED, Status.INACCURATE, Status.CONVERGED]


def cube(**options):
    return with_parameter(lambda x: x**3, jvp=lambda x, v: 3 * x**2 * v, vjp=lambda x, w: 3 * x**2 * w, **options)


@pytest.mark.parametrize("start", [1e-2, 1.0], ids=["unknown", "large"])
def test_a_derivative_at_an_inaccurate_solution_warns(start):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        result = ims.root(cube(), np.full(3, start), stop=NonlinearStop(atol=1e-4))
    assert result.success
    assert result.error is None if start < 0.1 else result.error > 1e-3
    match = "not known" if start < 0.1 else "estimated error of x is"
    for call, argument in ((pull_back, np.ones(3)), (push_forward, {"theta": np.ones(3)})):
        with pytest.warns(AccuracyWarning, match=f"{call.__name__}: .*{match}") as caught:
            call(cube(), result, argument)
        assert [entry.filename for entry in caught] == [__file__]


def test_an_accurate_solution_and_one_that_failed_do_not_warn():
    problem = Problem(lambda x: x**3 - 2, jvp=lambda x, v: 3 * x**2 * v, vjp=lambda x, w: 3 * x**2 * w)
    good = ims.root(problem, np.ones(3))
    early = ims.root(problem, np.full(3, 9.0), stop=NonlinearStop(atol=1e-12, max_iterations=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pull_back(problem, good, np.ones(3)).success
        assert pull_back(problem, early, np.ones(3)).status is Status.FORWARD_NOT_CONVERGED


@pytest.mark.parametrize("unit", [1e-300, 1e-150, 1.0, 1e290])
@pytest.mark.parametrize("size", [1e-310, 1e-290, 1.0, 1e290])
def test_extreme_numbers_raise_nothing_where_the_caller_lets_errors_raise(unit, size):
    """Squares of x and products of rounded differences did, in 71 of 150 gradients."""
    n = 3

    def F(x, theta):
        with np.errstate(all="ignore"):
            return size * (3 * (x / unit - 1) - 0.2 * np.roll(x / unit - 1, 1)) - theta

    problem = Problem(F, parameters={"theta": np.zeros(n)}, structure=BlockBanded(0, 0, n))
    with np.errstate(all="raise"):
        statuses = (
            pull_back(problem, np.full(n, unit), np.ones(n)).status,
            push_forward(problem, np.full(n, unit), {"theta": np.ones(n)}).status,
        )
    assert all(isinstance(status, Status) for status in statuses)
