"""Solves with the exact derivatives of NumPy functions: roots, gradients, batches, bounds, units, drivers."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("jax")

import implicitsolve as ims


def bratu(u, a):
    p = np.pad(u, 1)
    return 4 * u - p[2:, 1:-1] - p[:-2, 1:-1] - p[1:-1, 2:] - p[1:-1, :-2] - a * np.exp(u) / 100


U0 = np.zeros((9, 9))


def test_a_solve_takes_no_search_and_one_call_for_each_jacobian():
    plain = ims.root(bratu, U0, parameters={"a": 5.0})
    exact = ims.root(bratu, U0, parameters={"a": 5.0}, derivatives="trace")
    again = ims.root(bratu, U0, parameters={"a": 5.5}, derivatives="trace")
    assert exact.success
    np.testing.assert_allclose(exact.x, plain.x, rtol=0, atol=float(exact.error + plain.error))
    assert exact.error <= plain.error <= 1e-7
    assert exact.detection.how == "traced"
    assert exact.counts.residuals <= plain.counts.residuals
    assert again.counts.residuals < exact.counts.residuals
    assert "exact" in exact.summary()


def test_gradients_of_a_plain_function_need_nothing_written_by_hand(rng):
    def F(u, p):
        return bratu(u, p["a"]) - p["load"] / 100

    p = {"a": 3.0, "load": rng.standard_normal((9, 9)), "name": "no number"}

    def loss(p):
        return ims.root(F, U0, parameters=p, derivatives="trace").x.sum()

    result = ims.root(F, U0, parameters=p, derivatives="trace")
    found = ims.pull_back(result, np.ones((9, 9)))
    assert found.success
    d = rng.standard_normal((9, 9))
    slope = (loss(p | {"load": p["load"] + 1e-4 * d}) - loss(p | {"load": p["load"] - 1e-4 * d})) / 2e-4
    assert np.isclose(np.sum(found.gradients["load"] * d), slope, rtol=1e-7)
    assert np.isclose(found.gradients["a"], (loss(p | {"a": 3.0001}) - loss(p | {"a": 2.9999})) / 2e-4, rtol=1e-7)
    along = ims.push_forward(result, {"load": d, "a": 1.0})
    assert np.isclose(along.tangent.sum(), slope + found.gradients["a"], rtol=1e-6)
    with pytest.raises(TypeError, match="pickled"):
        ims.pull_back(pickle.loads(pickle.dumps(result)), np.ones((9, 9)))


def darcy(p, k):
    out = np.zeros_like(p) - 1e-3
    for a, b in ((np.s_[:-1], np.s_[1:]), (np.s_[:, :-1], np.s_[:, 1:])):
        flux = 2 * k[a] * k[b] / (k[a] + k[b]) * (1 + 0.1 * (p[a] + p[b]) ** 2) * (p[a] - p[b])
        out[a] += flux
        out[b] -= flux
    out[:, 0] += 2 * k[:, 0] * p[:, 0]
    return out


def test_gradients_by_as_many_parameters_as_unknowns_take_one_adjoint_solve(rng):
    p0, k = np.zeros((100, 100)), np.exp(0.5 * rng.standard_normal((100, 100)))
    result = ims.root(darcy, p0, parameters={"k": k}, derivatives="trace")
    found = ims.pull_back(result, np.ones(p0.shape)).raise_for_status()
    assert found.counts.vjps <= 2
    assert found.counts.residuals <= 4
    d = 1e-4 * k * rng.standard_normal(k.shape)
    ahead, behind = (
        ims.root(darcy, p0, parameters={"k": side}, derivatives="trace", previous=result).x.sum()
        for side in (k + d, k - d)
    )
    assert np.isclose(np.sum(found.gradients["k"] * d), (ahead - behind) / 2, rtol=2e-7)
    second, other = (found.push_forward({"k": along}).raise_for_status().gradients["k"] for along in (d, k))
    assert np.isclose(np.sum(other * d), np.sum(second * k), rtol=1e-9)


def test_second_derivatives_are_those_of_jax(rng):
    from jax import enable_x64, hessian, jacobian, jit
    from jax import numpy as jnp

    def F(x, q, xp=np):
        return x**3 + q[:7] * x - 1 + q[7] * (xp.sin(q[:7] * x) - q[:7] * xp.roll(x, 1) ** 2)

    def loss(q):
        x = jnp.ones(7)
        for _ in range(9):  # Newton's method
            x = x - jnp.linalg.solve(jacobian(F)(x, q, jnp), F(x, q, jnp))
        return (x**3).sum()

    q, exact = rng.uniform(0.3, 1.5, 8), ims.LinearStop(rtol=1e-14)
    result = ims.root(F, np.ones(7), parameters={"q": q}, derivatives="trace", stop=ims.NonlinearStop(atol=1e-14))
    found = ims.pull_back(result, 3 * result.x**2, stop=exact)
    along = [found.push_forward({"q": e}, cotangent=lambda dx: 6 * result.x * dx, stop=exact) for e in np.eye(8)]
    with enable_x64(True):
        expected = jit(hessian(loss))(q)
    rows = [one.raise_for_status().gradients["q"] for one in along]
    np.testing.assert_allclose(rows, expected, rtol=1e-9, atol=1e-12)
    for wrong in (pickle.loads(pickle.dumps(found)), ims.pull_back(ims.root(bratu, U0, parameters={"a": 1.0}), U0)):
        with pytest.raises(TypeError, match=r"trace|pickled"):
            wrong.push_forward({"a": 1.0})


def test_what_cannot_be_traced_is_solved_by_differences():
    def F(x):
        return x**3 - 2 if x.sum() > -1e9 else x

    result = ims.root(F, np.ones(3), derivatives="trace")
    assert (result.success, result.nfev) == (True, ims.root(F, np.ones(3)).nfev)
    assert "np.where" in str(result.problem.derivatives)
    assert "np.where" in result.summary()


def test_a_function_that_changes_during_the_solve_is_solved_by_differences():
    calls = []

    def F(x):
        calls.append(0)
        return x**3 - (2.0 if len(calls) < 7 else 3.0)

    result = ims.root(F, np.ones(30), derivatives="trace", method="newton-krylov")
    assert not result.problem.derivatives.is_traced
    assert "changes from call to call" in result.problem.derivatives.reason
    np.testing.assert_allclose(result.x, 3 ** (1 / 3))


def test_closures_that_change_between_solves_are_traced_again():
    level = 2.0

    def F(x):
        return x**2 - level

    assert np.allclose(ims.root(F, np.ones(4), derivatives="trace").x, np.sqrt(2))
    level = 3.0
    result = ims.root(F, np.ones(4), derivatives="trace")
    assert np.allclose(result.x, np.sqrt(3))
    assert result.problem.derivatives.is_traced


def test_products_that_are_not_finite_are_differences():
    result = ims.root(lambda x: np.sqrt(np.abs(x)) * x - x + 1e-3, np.zeros(3), derivatives="trace")
    assert result.success


def heat_after(old):
    return lambda u: u - old - 0.1 * (np.roll(u, 1) - 2 * u + np.roll(u, -1)) + 0.1 * u**3


def test_time_steps_compile_once(monkeypatch):
    from implicitsolve.tracing import _residual

    made = []
    program = _residual.Program
    monkeypatch.setattr(_residual, "Program", lambda *args: made.append(0) or program(*args))
    u, previous = np.linspace(0.1, 1.0, 40), None
    for _ in range(5):
        previous = ims.root(heat_after(u), u, parameters={"old": u}, derivatives="trace", previous=previous)
        u = previous.x
        assert previous.success
    assert len(made) == 1


def test_batches_bounds_and_units(rng):
    def F(x):
        return x**3 + 0.1 * np.roll(x, 1, axis=-1) - 2 - np.maximum(x, 1.2)

    x0 = rng.uniform(1, 2, (3, 24))
    problem = ims.Problem(F, batch_ndim=1, derivatives="trace")
    result = ims.root(problem, x0)
    assert result.success.all()
    assert result.detection.structure.nnz == 48
    bounded = ims.root(ims.Problem(F, derivatives="trace"), x0[0], bounds=(0.5, 3.0), x_scale="auto", f_scale="auto")
    np.testing.assert_allclose(bounded.x, result.x[0], rtol=1e-7)
    J = ims.jacobian(ims.Problem(F, derivatives="trace"), x0[0])
    np.testing.assert_allclose(J.todense()[:, 5], ims.trace(F, x0[0]).jvp(x0[0], np.eye(24)[5]))
    banded = ims.root(
        ims.Problem(lambda x: x**3 - 2 * np.pad(x, 1)[2:] - 1, structure=ims.BlockBanded(0, 1), derivatives="trace"),
        np.full(30, 1.5),
    )
    assert banded.success
    assert banded.counts.jvps > 0


def mixed(x):
    return np.where(x > 0, x**2, np.sin(x)) - 0.3 + 0.1 * x[::-1]


def test_small_and_dense_systems_and_the_drop_in():
    for n in (1, 3, 30):
        result = ims.root(mixed, np.ones(n), derivatives="trace")
        assert result.success
        assert result.problem.derivatives.is_traced
    np.testing.assert_allclose(ims.newton_krylov(mixed, np.ones(30), jvp="trace", f_tol=1e-10), result.x, rtol=1e-7)
    dense = ims.root(lambda x: x + 0.1 * np.mean(np.exp(x)) - 1, np.zeros(50), derivatives="trace")
    assert dense.success


def cubes_of(rows):
    return ims.Problem(lambda x: x**3 + 2 * x - np.roll(x, 1, -1) / 4 - 1, batch_ndim=1, derivatives="trace")


def test_threads_and_processes_trace_for_themselves():
    problem = ims.Problem(mixed, derivatives="trace")
    assert pickle.loads(pickle.dumps(problem)).derivatives == "trace"
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: ims.root(problem, np.ones(20 + n % 2)), range(8)))
    assert all(result.success for result in results)
    traced = pickle.loads(pickle.dumps(ims.trace(mixed, np.ones(3))))
    assert not traced.is_traced
    batch = ims.drivers.solve_batch(cubes_of, np.ones((4, 30)), executor=2, chunks=2)
    assert batch.success.all()
    assert batch.counts.jvps > 0


def test_the_pattern_has_all_branches():
    def upwind(u):
        left, right = np.diff(u, prepend=0.0), np.diff(u, append=0.0)
        return np.where(u > 0, u * left, u * right) + np.maximum(u, 0) * 0 + u - 1

    n = 40
    pattern = ims.trace(upwind, np.ones(n)).structure
    assert pattern.nnz == 3 * n - 2
    assert ims.detect_structure(upwind, np.ones(n)).structure.nnz == 2 * n - 1
    without_entries = ims.trace(lambda u: np.diff(np.delete(np.append(u, 0.0), 0), prepend=u[0]), np.ones(9))
    assert without_entries.structure.nnz == 17


def test_without_jax_the_error_names_the_extra_and_nothing_else_changes():
    code = """
import sys
import numpy as np, implicitsolve as ims
assert ims.root(lambda x: x**2 - 2, np.ones(2)).success
assert "jax" not in sys.modules
sys.modules["jax"] = None
for use in (lambda: ims.trace(np.sin, np.ones(2)), lambda: ims.root(np.sin, np.ones(2), derivatives="trace")):
    try:
        use()
    except ims.BackendUnavailable as error:
        assert "implicitsolve[jax]" in str(error), error
    else:
        raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_continuation_takes_the_exact_derivative_by_the_parameter():
    branch = ims.continuation(
        ims.Problem(lambda u, lam: bratu(u, lam), derivatives="trace"), np.zeros((9, 9)), 0.0, 4.0
    )
    plain = ims.continuation(lambda u, lam: bratu(u, lam), np.zeros((9, 9)), 0.0, 4.0)
    np.testing.assert_allclose(branch.x[-1], plain.x[-1], rtol=1e-6)
    assert branch.counts.jvps > plain.counts.jvps


def test_exact_zeros_in_the_jacobian_do_no_harm_to_multigrid():
    from benchmarks.sparse_problems import planes

    cavity = planes.driven_cavity(24)
    assert ims.root(cavity.residual, cavity.x0, derivatives="trace").success


@pytest.mark.parametrize("kind", [MemoryError, TypeError, StopIteration, KeyboardInterrupt])
def test_exceptions_of_F_pass_where_its_trace_is_compared(kind):
    error, left = kind("boom"), 0

    def F(x):
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return 3 * x + np.sin(x) - 1

    for at in (0, 2, 3, 4, 5):  # call 1 is the trace
        left = at
        with pytest.raises(kind) as info:
            ims.root(F, np.zeros(5), derivatives="trace")
        assert info.value is error


@pytest.mark.parametrize("name", ["driven_cavity", "gray_scott", "radiation", "minimal_surface", "food_web"])
def test_no_entry_of_J_is_outside_the_pattern(name, rng):
    from benchmarks.sparse_problems import planes

    problem = getattr(planes, name)(7)
    traced = ims.trace(problem.residual, problem.x0)
    x = problem.x0 + rng.uniform(0.1, 1.0, problem.x0.shape)
    J = np.stack([traced.jvp(x, v.reshape(x.shape)).ravel() for v in np.eye(x.size)], axis=1)
    assert not J[~traced.structure.to_scipy().toarray()].any()
