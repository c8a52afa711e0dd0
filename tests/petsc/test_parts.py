"""PETSc's direct solvers and preconditioners in the places of the library's own."""

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from implicitsolve.petsc import PETScLU, PETScPreconditioner

PETSc = pytest.importorskip("petsc4py.PETSc", reason="petsc4py is not installed")
pytestmark = pytest.mark.petsc
N = 16
TYPES = ["gamg", "asm", "ilu", "bjacobi", "hypre"]


def bratu(u):
    p = np.pad(u, 1)
    return 4 * u - (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]) - 5 * np.exp(u) / (N + 1) ** 2


def plane(**declared):
    return ims.Problem(bratu, structure=ims.Grid(shape=(N, N)), **declared)


def built(kind):
    if kind == "hypre" and not PETSc.Sys.hasExternalPackage("hypre"):
        pytest.skip("this PETSc was built without hypre")
    return PETScPreconditioner(type=kind)


def exponent_problem():
    """exp(u) a = b through a banded system, with its parameter's derivatives."""
    a = np.asarray([2.0])

    def residual(x):
        p = np.pad(x, 1)
        return p[2:] - 3 * x + p[:-2] + 0.1 * np.sin(x) + a[0]

    return ims.Problem(
        residual,
        structure=ims.BlockBanded(1, 1),
        parameters={"a": a},
        parameter_vjp=lambda x, w: {"a": np.sum(w, keepdims=True)},
        parameter_jvp=lambda x, t: np.full_like(x, t["a"][0]),
    )


@pytest.fixture(scope="module")
def expected():
    return ims.root(plane(), np.zeros((N, N)), stop=ims.NonlinearStop(rtol=1e-12)).raise_for_status().x


@pytest.mark.parametrize("kind", TYPES)
def test_preconditioners_of_sparse_jacobians(kind, expected):
    stop = ims.NonlinearStop(rtol=1e-12)
    free = ims.root(plane(), np.zeros((N, N)), method=ims.NewtonKrylov(recycle=0), stop=stop)
    result = ims.root(
        plane(), np.zeros((N, N)), method=ims.NewtonKrylov(preconditioner=built(kind), recycle=0), stop=stop
    )
    assert result.success
    np.testing.assert_allclose(result.x, expected, rtol=0, atol=1e-9)
    assert result.krylov_iterations < free.krylov_iterations / 2


def test_lu_in_sparse_newton(expected):
    result = ims.root(
        plane(), np.zeros((N, N)), method=ims.SparseNewton(factor=PETScLU()), stop=ims.NonlinearStop(rtol=1e-12)
    )
    assert result.success
    np.testing.assert_allclose(result.x, expected, rtol=0, atol=1e-10)
    with pytest.raises(TypeError, match="`factor` must be a direct method for sparse matrices"):
        ims.SparseNewton(factor=ims.BlockLU())


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_lu_of_block_banded_matrices_is_the_inverse(batch, periodic):
    rng = np.random.default_rng(0)
    blocks = rng.standard_normal((*batch, 7, 4, 2, 2)) + 8 * np.eye(2)[None] * (np.arange(4) == 1)[:, None, None]
    A = ims.BlockBandedMatrix(blocks, lower=1, upper=2, periodic=periodic)
    v, w = rng.standard_normal((2, *batch, 7, 2))
    inverse = PETScLU().factor(A)
    np.testing.assert_allclose(inverse.solve(A.matvec(v)), v, atol=1e-12)
    np.testing.assert_allclose(inverse.solve_adjoint(A.rmatvec(w)), w, atol=1e-12)
    assert np.all(np.asarray(inverse.status) == ims.Status.CONVERGED)
    if batch:
        np.testing.assert_allclose(inverse.take(np.asarray([2, 0])).matvec(v[[2, 0]]), inverse.matvec(v)[[2, 0]])
    if PETSc.ScalarType is np.float64:
        z = v + 1j * w
        np.testing.assert_allclose(inverse.solve(z), inverse.solve(v) + 1j * inverse.solve(w), atol=1e-13)


def test_linear_solve_of_a_sparse_matrix():
    A = scipy.sparse.csr_array(scipy.sparse.diags_array([-1.0, 4.0, -2.0], offsets=[-1, 0, 5], shape=(60, 60)))
    b = np.random.default_rng(1).standard_normal(60)
    for options in ({"method": PETScLU()}, {"method": ims.GMRES(), "M": PETScPreconditioner(type="ilu")}):
        result = ims.linear_solve(A, b, stop=ims.LinearStop(rtol=1e-12), **options)
        assert result.success
        np.testing.assert_allclose(A @ result.x, b, atol=1e-10)


@pytest.mark.parametrize("entry", [0.0, np.nan])
@pytest.mark.parametrize("package", ["petsc", "mumps"])
def test_a_singular_or_nonfinite_matrix_is_a_status(entry, package):
    if package == "mumps" and not PETSc.Sys.hasExternalPackage("mumps"):
        pytest.skip("this PETSc was built without MUMPS")
    blocks = np.zeros((5, 1, 1, 1)) + 1.0
    blocks[2] = entry
    inverse = PETScLU(package=package).factor(ims.BlockBandedMatrix(blocks, lower=0, upper=0))
    assert inverse.status is ims.Status.SINGULAR
    assert np.isnan(inverse.solve(np.ones(5))).all()


def test_derivatives_by_the_same_parts():
    problem, stop = exponent_problem(), ims.LinearStop(rtol=1e-12)
    result = ims.root(problem, np.zeros(40), stop=ims.NonlinearStop(rtol=1e-13))
    cotangent = np.random.default_rng(2).standard_normal(40)
    gradient = ims.pull_back(problem, result, cotangent, stop=stop).gradients["a"]
    tangent = ims.push_forward(problem, result, {"a": np.ones(1)}, stop=stop).tangent
    for options in ({"method": PETScLU()}, {"M": PETScPreconditioner(type="ilu")}, {"M": PETScLU()}):
        np.testing.assert_allclose(
            ims.pull_back(problem, result, cotangent, stop=stop, **options).gradients["a"], gradient, rtol=1e-9
        )
        np.testing.assert_allclose(
            ims.push_forward(problem, result, {"a": np.ones(1)}, stop=stop, **options).tangent, tangent, rtol=1e-8
        )


def test_derivatives_of_a_sparse_problem():
    theta = {"c": np.asarray([1.0])}
    problem = plane(parameters=theta, parameter_vjp=lambda x, w: {"c": np.sum(w * np.exp(x)).reshape(1)})
    result = ims.root(problem, np.zeros((N, N)), stop=ims.NonlinearStop(rtol=1e-12))
    stop, cotangent = ims.LinearStop(rtol=1e-11), np.ones((N, N))
    plain = ims.pull_back(problem, result, cotangent, stop=stop).gradients["c"]
    for options in ({"method": PETScLU()}, {"M": PETScPreconditioner()}):
        found = ims.pull_back(problem, result, cotangent, stop=stop, **options)
        assert found.success
        np.testing.assert_allclose(found.gradients["c"], plain, rtol=1e-7)


def test_mistakes_raise():
    A = ims.BlockBandedMatrix(np.ones((4, 1, 1, 1)), lower=0, upper=0)
    with pytest.raises(ValueError, match="PETSc does not use here: pc_gamg_limit"):
        PETScPreconditioner(options={"pc_gamg_limit": 0.1}).build(A)
    with pytest.raises(TypeError, match="`options` must be a mapping"):
        PETScLU(options=["pc_type"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`A` must be a BlockBandedMatrix or a sparse matrix"):
        PETScLU().factor(np.eye(3))
    with pytest.raises(ims.errors.BackendUnavailable, match="no direct solver 'umfpuck'"):
        PETScLU(package="umfpuck").factor(A)
    if np.dtype(PETSc.ScalarType).kind != "c":
        with pytest.raises(TypeError, match="built with real numbers"):
            PETScLU().factor(ims.BlockBandedMatrix(np.ones((4, 1, 1, 1)) * 1j, lower=0, upper=0))


def test_options_reach_petsc():
    A = ims.BlockBandedMatrix(np.full((30, 3, 1, 1), [[[-1.0]], [[2.5]], [[-1.0]]]), lower=1, upper=1)
    levels = PETScPreconditioner(type="ilu", options={"pc_factor_levels": 2}).build(A)
    assert levels.solvers[0].pc.getType() == "ilu"
    solver = PETScPreconditioner(type="jacobi", options={"ksp_type": "gmres", "ksp_rtol": 1e-12}).build(A)
    b = np.random.default_rng(3).standard_normal(30)
    np.testing.assert_allclose(A.matvec(solver.matvec(b)), b, atol=1e-9)
