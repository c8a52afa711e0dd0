"""`pull_back` and `push_forward` against dense linear algebra and finite differences of the solution."""

import pickle

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as spla
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import LinearStop, NonlinearStop, Problem, Status, pull_back, push_forward, root
from tests.derivatives.layer import EXACT, Layer


def operator(layer, x):
    J = layer.jacobian(x)
    return ims.LinearOperator(
        lambda v: (J @ v[..., None])[..., 0],
        lambda w: (np.conj(np.swapaxes(J, -1, -2)) @ w[..., None])[..., 0],
        in_shape=layer.n,
        batch_shape=layer.batch,
        dtype=J.dtype,
    )


WAYS = {
    "jvp and vjp": lambda layer: {"jvp": layer.jvp, "vjp": layer.vjp},
    "vjp alone": lambda layer: {"vjp": layer.vjp},
    "jac": lambda layer: {"jac": layer.jacobian},
    "jac operator": lambda layer: {"jac": lambda x: operator(layer, x)},
    "linearize": lambda layer: {"linearize": lambda x: (layer.residual(x), operator(layer, x))},
    "jvp, vjp and jac": lambda layer: {"jvp": layer.jvp, "vjp": layer.vjp, "jac": layer.jacobian},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("batch", [(), (3,), (1,), (2, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_pull_back_equals_the_dense_adjoint(way, batch, dtype):
    layer = Layer(batch=batch, dtype=dtype)
    problem, solution = layer.solved(**way(layer))
    result = pull_back(problem, solution, layer.cotangent, stop=EXACT)
    lam = layer.dense_adjoint(solution.x)
    assert np.all(result.success)
    assert np.shape(result.success) == batch
    np.testing.assert_allclose(result.adjoint, lam, rtol=1e-9, atol=1e-10)
    expected = {name: -value for name, value in layer.parameter_vjp(solution.x, lam).items()}
    assert result.gradients.keys() == expected.keys()
    for name, value in expected.items():
        assert result.gradients[name].shape == layer.parameters[name].shape
        np.testing.assert_allclose(result.gradients[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("names", [["A"], ["b", "c"], ["A", "b", "c"]], ids=str)
def test_push_forward_equals_the_dense_solve(way, batch, names):
    layer = Layer(batch=batch)
    problem, solution = layer.solved(**way(layer))
    tangents = {name: layer.tangents[name] for name in names}
    by_differences = way is WAYS["vjp alone"]
    result = push_forward(problem, solution, tangents, stop=LinearStop(rtol=1e-6) if by_differences else EXACT)
    right = -layer.parameter_jvp(solution.x, tangents)
    expected = np.linalg.solve(layer.jacobian(solution.x), right[..., None])[..., 0]
    assert np.all(result.success)
    np.testing.assert_allclose(result.tangent, expected, atol=1e-5 if by_differences else 1e-10)


@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(1, 12), batch=st.sampled_from([(), (3,)]), is_complex=st.booleans()
)
def test_the_two_modes_agree(seed, n, batch, is_complex):
    """<cotangent, dx> = sum over parameters of <gradient, d theta>."""
    layer = Layer(seed, n, batch, dtype="complex128" if is_complex else "float64")
    problem, solution = layer.solved()
    back = pull_back(problem, solution, layer.cotangent, stop=EXACT)
    forward = push_forward(problem, solution, layer.tangents, stop=EXACT)
    left = np.vdot(layer.cotangent, forward.tangent)
    right = sum(np.vdot(back.gradients[name], layer.tangents[name]) for name in layer.parameters)
    scale = np.linalg.norm(layer.cotangent) * np.linalg.norm(forward.tangent)
    assert abs(left - right) <= 1e-9 * (scale + 1)


@pytest.mark.parametrize(
    "method", [ims.GMRES(), ims.LGMRES(restart=4), ims.BiCGSTAB(), ims.ScipyKrylov(function="tfqmr")], ids=str
)
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_methods(method, batch):
    layer = Layer(batch=batch)
    problem, solution = layer.solved()
    back = pull_back(problem, solution, layer.cotangent, method=method, stop=LinearStop(rtol=1e-9))
    assert np.all(back.success)
    np.testing.assert_allclose(back.adjoint, layer.dense_adjoint(solution.x), rtol=1e-6, atol=1e-7)
    assert np.all(push_forward(problem, solution, layer.tangents, method=method).success)


def test_a_solution_alone_will_do():
    layer = Layer()
    problem, solution = layer.solved()
    for given_x in (solution.x, solution.x.tolist()):
        result = pull_back(problem, given_x, layer.cotangent, stop=EXACT)
        assert result.status is Status.CONVERGED
        np.testing.assert_allclose(result.adjoint, layer.dense_adjoint(solution.x), rtol=1e-9)
        assert push_forward(problem, given_x, layer.tangents).success


def test_forward_not_converged_is_reported():
    layer = Layer()
    problem = layer.problem()
    unsolved = root(problem, layer.x0, stop=NonlinearStop(max_iterations=0))
    for result in (pull_back(problem, unsolved, layer.cotangent), push_forward(problem, unsolved, layer.tangents)):
        assert result.status is Status.FORWARD_NOT_CONVERGED
        assert not result.success
        assert result.linear.success
        with pytest.raises(ims.NoConvergence) as caught:
            result.raise_for_status()
        assert caught.value.result is result
    back = pull_back(problem, unsolved, layer.cotangent)
    assert back.gradients.keys() == layer.parameters.keys()


def test_statuses_belong_to_each_system():
    c = np.array([[4.0], [-1.0], [9.0]])
    problem = Problem(
        lambda x: x**2 - c,
        jvp=lambda x, v: 2 * x * v,
        vjp=lambda x, w: 2 * x * w,
        parameters={"c": c},
        parameter_vjp=lambda x, w: {"c": -w},
        parameter_jvp=lambda x, tangents: -tangents["c"],
        batch_ndim=1,
    )
    solution = root(problem, np.ones((3, 1)))
    result = pull_back(problem, solution, np.ones((3, 1)))
    assert result.status[[0, 2]].tolist() == [1, 1]
    assert result.status[1] != Status.CONVERGED
    np.testing.assert_allclose(result.gradients["c"][[0, 2], 0], [1 / 4, 1 / 6], rtol=1e-5)
    assert "1 of 3 systems" in result.message
    forward = push_forward(problem, solution, {"c": np.ones((3, 1))})
    np.testing.assert_allclose(forward.tangent[[0, 2], 0], [1 / 4, 1 / 6], rtol=1e-5)


def test_neighbours_do_not_matter():
    layer = Layer(batch=(4,))
    problem, solution = layer.solved()
    x = solution.x.copy()
    x[2] = np.nan
    with np.errstate(invalid="ignore"):
        result = pull_back(problem, x, layer.cotangent, stop=EXACT)
    assert result.success.tolist() == [True, True, False, True]
    expected = layer.dense_adjoint(solution.x)
    np.testing.assert_allclose(result.adjoint[[0, 1, 3]], expected[[0, 1, 3]], rtol=1e-9)


def test_limit_of_the_linear_solve():
    layer = Layer(n=30)
    problem, solution = layer.solved()
    result = pull_back(problem, solution, layer.cotangent, stop=LinearStop(rtol=1e-14, max_iterations=3))
    assert result.status is Status.ITERATION_LIMIT
    assert result.linear.iterations == 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_cotangent_that_is_not_finite(value):
    layer = Layer()
    problem, solution = layer.solved()
    cotangent = layer.cotangent.copy()
    cotangent[3] = value
    with np.errstate(invalid="ignore"):
        result = pull_back(problem, solution, cotangent)
    assert result.status is Status.NONFINITE


def test_zero_cotangent_costs_one_product():
    layer = Layer()
    problem, solution = layer.solved()
    result = pull_back(problem, solution, np.zeros(layer.n))
    assert result.success
    assert result.linear.matvecs == 1
    assert not result.adjoint.any()


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_shapes_are_kept(shape):
    problem = Problem(
        lambda x: x**2 - 2,
        jvp=lambda x, v: 2 * x * v,
        vjp=lambda x, w: 2 * x * w,
        parameter_vjp=lambda x, w: {"p": w},
        parameter_jvp=lambda x, tangents: tangents["p"],
        parameters={"p": np.zeros(shape)},
    )
    solution = root(problem, np.ones(shape))
    back = pull_back(problem, solution, np.ones(shape))
    forward = push_forward(problem, solution, {"p": np.ones(shape)})
    assert back.adjoint.shape == back.gradients["p"].shape == forward.tangent.shape == shape
    assert isinstance(back.status, Status)
    assert isinstance(back.success, bool)


def test_nothing_to_differentiate():
    problem = Problem(lambda x: x, vjp=lambda x, w: w, batch_ndim=1)
    for shape in ((0, 3), (3, 0), (0, 0)):
        result = pull_back(problem, root(problem, np.zeros(shape)), np.zeros(shape))
        assert result.adjoint.shape == shape
        assert np.all(result.success)
    assert pull_back(Problem(lambda x: x, vjp=lambda x, w: w), np.zeros(0), np.zeros(0)).success


@pytest.mark.parametrize(
    "make",
    [lambda M: M, scipy.sparse.csr_array, spla.aslinearoperator, ims.aslinearoperator],
    ids=["dense", "sparse", "scipy", "ours"],
)
def test_preconditioner_and_start(make):
    layer = Layer(n=30)
    problem, solution = layer.solved()
    plain = pull_back(problem, solution, layer.cotangent, stop=EXACT)
    M = make(np.linalg.inv(layer.jacobian(solution.x)).T)
    helped = pull_back(problem, solution, layer.cotangent, M=M, stop=EXACT)
    assert helped.success
    assert helped.linear.iterations <= 2 < plain.linear.iterations
    np.testing.assert_allclose(helped.adjoint, plain.adjoint, rtol=1e-9, atol=1e-10)
    again = pull_back(problem, solution, layer.cotangent, x0=plain.adjoint, stop=LinearStop(rtol=1e-8))
    assert again.linear.iterations == 0
    M = make(np.linalg.inv(layer.jacobian(solution.x)))
    assert push_forward(problem, solution, layer.tangents, M=M, stop=EXACT).linear.iterations <= 2


def test_counts_and_the_linear_result():
    layer, calls = Layer(), {"vjp": 0, "residual": 0}

    def vjp(x, w):
        calls["vjp"] += 1
        return layer.vjp(x, w)

    problem, solution = layer.solved(jvp=layer.jvp, vjp=vjp)
    result = pull_back(problem, solution, layer.cotangent)
    assert result.counts.vjps == result.linear.matvecs == calls["vjp"]
    assert (result.counts.residuals, result.counts.jvps) == (2, 0)  # one difference of F confirms J
    rest = layer.vjp(solution.x, result.linear.x) - layer.cotangent
    assert result.linear.residual_norm == pytest.approx(np.linalg.norm(rest), abs=1e-14)


def test_results_pickle():
    layer = Layer()
    problem, solution = layer.solved()
    for result in (pull_back(problem, solution, layer.cotangent), push_forward(problem, solution, layer.tangents)):
        again = pickle.loads(pickle.dumps(result))
        assert again.status is result.status
        np.testing.assert_array_equal(again.linear.x, result.linear.x)


def test_nothing_is_mutated_or_shared():
    layer = Layer()

    def spoil(function):
        def spoiling(*arguments):
            value = function(*arguments)
            for argument in arguments:
                if isinstance(argument, np.ndarray):
                    argument[...] = np.nan
            return value

        return spoiling

    problem, solution = layer.solved()
    clean = pull_back(problem, solution, layer.cotangent)
    hostile = Problem(
        layer.residual,
        jvp=spoil(layer.jvp),
        vjp=spoil(layer.vjp),
        parameters=layer.parameters,
        parameter_jvp=spoil(layer.parameter_jvp),
        parameter_vjp=spoil(layer.parameter_vjp),
    )
    x, cotangent = solution.x.copy(), layer.cotangent.copy()
    result = pull_back(hostile, solution, layer.cotangent)
    np.testing.assert_array_equal(result.adjoint, clean.adjoint)
    forward = push_forward(hostile, solution, layer.tangents)
    np.testing.assert_array_equal(forward.tangent, push_forward(problem, solution, layer.tangents).tangent)
    np.testing.assert_array_equal(solution.x, x)
    np.testing.assert_array_equal(layer.cotangent, cotangent)
    assert not np.shares_memory(result.adjoint, layer.cotangent)


def test_a_hard_adjoint_is_not_restarted():
    """Restarts would cost it several times as many products."""
    n = 120
    d = np.concatenate([np.linspace(-1.0, -0.1, n // 2), np.linspace(0.1, 1.0, n // 2)])
    problem = Problem(lambda x: d * x, jvp=lambda x, v: d * v, vjp=lambda x, w: d * w)
    result = pull_back(problem, np.zeros(n), np.ones(n), stop=ims.LinearStop(rtol=1e-10))
    assert result.success
    assert 40 < result.linear.iterations <= n
    restarted = pull_back(problem, np.zeros(n), np.ones(n), stop=ims.LinearStop(rtol=1e-10), method=ims.LGMRES())
    assert restarted.linear.iterations > 1.5 * result.linear.iterations
    np.testing.assert_allclose(result.adjoint, 1 / d, rtol=1e-8)
