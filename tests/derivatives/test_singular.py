"""Derivatives where J is singular: differences make it regular by their errors, which must not pass for a gradient."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import BlockBanded, LinearStop, Problem, Sparse, Status, pull_back, push_forward


def second_differences(x, ends):
    """The second differences of lines (B, T, 1), with values beyond the ends, or those of the ends for None."""
    first, last = (x[..., :1, :], x[..., -1:, :]) if ends is None else (np.full_like(x[..., :1, :], ends),) * 2
    beyond = np.concatenate([first, x, last], axis=-2)
    return beyond[..., :-2, :] - 2 * beyond[..., 1:-1, :] + beyond[..., 2:, :]


def insulated(x):
    return second_differences(x + x**3 / 3, None)


def cooled(x):
    return second_differences(x + x**3 / 3, 0.0)


def derivative(F, x, cotangent, structure, *, is_push, batch_ndim=0, **settings):
    """Of a loss by a shift of F, or of the solution by it."""
    if not is_push:
        return pull_back(Problem(F, structure=structure, batch_ndim=batch_ndim), x, cotangent, **settings)
    problem = Problem(
        F,
        structure=structure,
        batch_ndim=batch_ndim,
        parameters={"a": np.zeros_like(x)},
        parameter_jvp=lambda x, tangents: -tangents["a"],
    )
    return push_forward(problem, x, {"a": cotangent}, **settings)


every_direction = pytest.mark.parametrize("is_push", [False, True], ids=["pull_back", "push_forward"])


@every_direction
@pytest.mark.parametrize("T", [10, 100, 1000])
@pytest.mark.parametrize("method", [None, ims.BlockLU(), ims.LGMRES()], ids=repr)
def test_insulated_line_has_no_derivative(T, method, is_push):
    rng = np.random.default_rng(T)
    x, g = rng.uniform(0.5, 1.5, (2, T, 1))
    result = derivative(insulated, x, g, BlockBanded(1, 1), is_push=is_push, method=method)
    assert result.status != Status.CONVERGED if isinstance(method, ims.LGMRES) else result.status == Status.SINGULAR


@every_direction
@pytest.mark.parametrize("T", [10, 1000, 20_000])
def test_cooled_lines_of_all_lengths_have_one(T, is_push):
    rng = np.random.default_rng(T)
    x, g = rng.uniform(0.5, 1.5, (2, T, 1))
    result = derivative(cooled, x, g, BlockBanded(1, 1), is_push=is_push)
    assert result.status == Status.CONVERGED
    solution = result.tangent if is_push else result.adjoint
    slope = 1 + x**2  # J = (second differences) diag(1 + x^2)
    lines = slope * solution if is_push else solution
    back = second_differences(lines, 0.0) if is_push else slope * second_differences(lines, 0.0)
    assert np.linalg.norm(back - g) <= 1e-3 * np.linalg.norm(g)


@every_direction
def test_singular_system_leaves_the_others_of_its_batch(is_push):
    rng = np.random.default_rng(1)
    x, g = rng.uniform(0.5, 1.5, (2, 3, 20, 1))

    def F(x):
        return np.concatenate([cooled(x[:1]), insulated(x[1:2]), cooled(x[2:])])

    result = derivative(F, x, g, BlockBanded(1, 1), is_push=is_push, batch_ndim=1)
    assert list(result.status) == [Status.CONVERGED, Status.SINGULAR, Status.CONVERGED]


@every_direction
@pytest.mark.parametrize("smallest", [0.0, 1e-4])
def test_sparse_matrix_with_a_small_singular_value(smallest, is_push):
    rng = np.random.default_rng(2)
    U, V = (np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(2))
    A = U * np.r_[np.ones(7), smallest] @ V.T
    result = derivative(
        lambda x: A @ np.sin(x), np.full(8, 0.3), rng.standard_normal(8), Sparse(A != 0), is_push=is_push
    )
    assert result.status == (Status.CONVERGED if smallest else Status.SINGULAR)


@every_direction
def test_zero_cotangent_of_a_singular_system_is_zero(is_push):
    x = np.linspace(1.0, 2.0, 10)[:, None]
    result = derivative(insulated, x, np.zeros_like(x), BlockBanded(1, 1), is_push=is_push)
    assert not np.any(result.tangent if is_push else result.adjoint)


def test_exact_products_take_the_status_of_the_solve():
    """A nearly singular J that is exact determines the gradient."""
    problem = Problem(lambda x: 1e-13 * x, jvp=lambda x, v: 1e-13 * v, vjp=lambda x, w: 1e-13 * w)
    result = pull_back(problem, np.ones(3), np.ones(3), stop=LinearStop(rtol=1e-10))
    assert result.status == Status.CONVERGED
    np.testing.assert_allclose(result.adjoint, 1e13, rtol=1e-9)
