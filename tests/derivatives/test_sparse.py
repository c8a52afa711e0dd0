"""Derivatives through roots whose J is sparse: the factors of the assembled J, against the dense solve."""

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims

N = 8
LINE = scipy.sparse.diags_array([2.0 * np.ones(N), -0.8 * np.ones(N - 1), -1.2 * np.ones(N - 1)], offsets=[0, 1, -1])
A = scipy.sparse.csr_array(scipy.sparse.kronsum(LINE, LINE))
GRID = ims.Grid(shape=(N, N))
STOP = ims.LinearStop(rtol=1e-10)


def system(structure, names=(), theta=1.0):
    functions = {
        "jvp": lambda u, v: A @ v + 3 * u**2 * v,
        "vjp": lambda u, w: A.T @ w + 3 * u**2 * w,
        "jac": lambda u: A + scipy.sparse.diags_array(3 * u**2),
    }
    return ims.Problem(
        lambda u: A @ u + u**3 - theta,
        structure=structure,
        parameters={"theta": np.array(theta)},
        parameter_jvp=lambda u, d: -d["theta"] * np.ones_like(u),
        parameter_vjp=lambda u, w: {"theta": np.array(-w.sum())},
        **{name: functions[name] for name in names},
    )


@pytest.mark.parametrize("names", [(), ("jvp",), ("jvp", "vjp"), ("jac",)], ids=lambda names: "+".join(names) or "F")
@pytest.mark.parametrize("structure", [GRID, GRID.sparse, "detect"], ids=["grid", "sparse", "detect"])
def test_adjoint_and_tangent_are_those_of_the_dense_solve(structure, names):
    problem = system(structure, names)
    result = ims.root(problem, np.zeros(N * N), method="sparse-newton", stop=ims.NonlinearStop(rtol=1e-12))
    J = A.toarray() + np.diag(3 * result.x**2)
    c = np.random.default_rng(0).standard_normal(N * N)
    pulled = ims.pull_back(problem, result, c, stop=STOP)
    lam = np.linalg.solve(J.T, c)
    assert pulled.success
    np.testing.assert_allclose(pulled.adjoint, lam, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(pulled.gradients["theta"], lam.sum(), rtol=1e-6)
    pushed = ims.push_forward(problem, result, {"theta": np.array(1.0)}, stop=STOP)
    assert pushed.success
    np.testing.assert_allclose(pushed.tangent, np.linalg.solve(J, np.ones(N * N)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("wrong", ["too narrow", "transposed"])
@pytest.mark.parametrize("names", [(), ("jvp",)], ids=["F", "jvp"])
def test_a_pattern_that_misses_entries_raises(wrong, names):
    rows, columns = (np.concatenate([np.arange(64), i]) for i in (np.arange(1, 64), np.arange(63)))
    pattern = ims.Sparse((rows, columns)) if wrong == "transposed" else ims.Sparse(np.eye(64))

    def residual(u):
        out = 3 * u - 1
        out[:-1] += u[1:] ** 2
        return out

    def jvp(u, v):
        out = 3 * v
        out[:-1] += 2 * u[1:] * v[1:]
        return out

    problem = ims.Problem(residual, structure=pattern, **({"jvp": jvp} if names else {}))
    with pytest.raises(ValueError, match="pull_back: `structure` must hold every entry of J"):
        ims.pull_back(problem, np.ones(64), np.ones(64))


@pytest.mark.parametrize("names", [(), ("jvp",), ("vjp",), ("jvp", "vjp")], ids=lambda names: "+".join(names) or "F")
@pytest.mark.parametrize("structure", ["declared", "detect"])
def test_a_row_of_all_unknowns(structure, names):
    n = 99
    w, line = np.random.default_rng(0).uniform(0.5, 2.0, n), scipy.sparse.diags_array([2.0] * n)
    line = line - scipy.sparse.diags_array([[1.0] * (n - 1)] * 2, offsets=[-1, 1])

    def residual(z):
        return np.append(line @ z[:-1] + 0.1 * z[:-1] ** 3 - z[-1] / n, w @ z[:-1] ** 2 / n - 1.0)

    def jacobian(z):
        u = z[:-1]
        border = -np.ones((n, 1)) / n, 2 * (w * u / n)[None, :]
        return scipy.sparse.block_array([[line + scipy.sparse.diags_array(0.3 * u**2), border[0]], [border[1], None]])

    functions = {"jvp": lambda z, v: jacobian(z) @ v, "vjp": lambda z, c: jacobian(z).T @ c}
    pattern = "detect" if structure == "detect" else ims.Sparse(jacobian(np.ones(n + 1)))
    problem = ims.Problem(residual, structure=pattern, **{name: functions[name] for name in names})
    result = ims.root(problem, np.ones(n + 1), stop=ims.NonlinearStop(rtol=1e-11))
    c = np.random.default_rng(1).standard_normal(n + 1)
    pulled = ims.pull_back(problem, result, c, stop=STOP)
    assert pulled.success
    np.testing.assert_allclose(pulled.adjoint, np.linalg.solve(jacobian(result.x).toarray().T, c), rtol=1e-6)
    np.testing.assert_allclose(ims.jacobian(problem, result.x).todense(), jacobian(result.x).toarray(), atol=1e-8)


def test_an_adjoint_of_a_dense_jacobian_takes_its_columns():
    M = np.random.default_rng(0).standard_normal((40, 40)) / 20 + np.eye(40)
    found = ims.pull_back(ims.Problem(lambda u: M @ u, structure="detect"), np.ones(40), np.ones(40), stop=STOP)
    np.testing.assert_allclose(found.raise_for_status().adjoint, np.linalg.solve(M.T, np.ones(40)), rtol=1e-6)


def test_an_adjoint_at_a_kink_has_a_status():
    """A detection that a kink contradicts was a TypeError."""
    problem = ims.Problem(lambda u: 2 * u + np.abs(u - 1) + 0.1 * np.roll(u, 1), structure="detect")
    for x in (np.ones(40), np.where(np.arange(40) < 3, 1.0, 1.5)):
        found = ims.pull_back(problem, x, np.ones(40))
        assert found.status in (ims.Status.CONVERGED, ims.Status.INACCURATE)


@pytest.mark.parametrize("structure", [None, "detect"])
def test_nothing_declared_has_an_adjoint_by_a_detected_or_a_full_matrix(structure):
    x, c = np.ones(N * N), np.random.default_rng(0).standard_normal(N * N)
    J = A.toarray() + np.diag(3 * x**2)
    found = ims.pull_back(system(structure), x, c, wrt=())
    np.testing.assert_allclose(found.adjoint, np.linalg.solve(J.T, c), rtol=1e-5, atol=1e-6)


def test_without_structure_nothing_has_an_adjoint():
    with pytest.raises(TypeError, match=r"pull_back: J\^H needs"):
        ims.pull_back(system("none"), np.ones(N * N), np.ones(N * N))


def test_derivatives_use_the_pattern_that_the_solve_has_detected():
    problem = ims.Problem(
        lambda x: 3 * x + x**3 - np.roll(x, 1) - 1, structure="detect", parameters={}, parameter_vjp=lambda x, w: {}
    )
    result = ims.root(problem, np.zeros(100), stop=ims.NonlinearStop(rtol=1e-12))
    assert result.detection.structure is not None
    known, again = (ims.pull_back(problem, given, np.ones(100)) for given in (result, result.x))
    assert known.counts.residuals < again.counts.residuals - 5
    assert np.allclose(known.adjoint, again.adjoint, rtol=1e-8)


def test_a_plain_residual_has_derivatives_by_the_sparsity_that_the_solve_has_detected():
    problem = system(None)
    result = ims.root(problem, np.zeros(N * N), stop=ims.NonlinearStop(rtol=1e-12))
    assert result.detection.structure is not None
    J = A.toarray() + np.diag(3 * result.x**2)
    c = np.random.default_rng(0).standard_normal(N * N)
    reverse = ims.pull_back(problem, result, c)
    np.testing.assert_allclose(reverse.adjoint, np.linalg.solve(J.T, c), rtol=1e-7)
    forward = ims.push_forward(problem, result, {"theta": np.array(1.0)})
    np.testing.assert_allclose(forward.tangent, np.linalg.solve(J, np.ones(N * N)), rtol=1e-7)
