"""PETSc's SNES as a method of `root`, and F and J for PETSc's own programs."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.petsc import PETScSNES, to_petsc

PETSc = pytest.importorskip("petsc4py.PETSc", reason="petsc4py is not installed")
pytestmark = pytest.mark.petsc
N = 50


def bratu(u, c=3.0):
    p = np.pad(u, 1)
    return p[2:] - 2 * u + p[:-2] + c * np.exp(u) / (N + 1) ** 2


def jvp(u, v):
    p = np.pad(v, 1)
    return p[2:] - 2 * v + p[:-2] + 3 * np.exp(u) * v / (N + 1) ** 2


DECLARED = {
    "band": {"structure": ims.BlockBanded(1, 1)},
    "sparse": {"structure": ims.Grid(shape=(N,))},
    "matrix": {
        "jac": lambda u: ims.jacobian(ims.Problem(bratu, jvp=jvp, structure=ims.BlockBanded(1, 1)), u).todense()
    },
    "products": {"jvp": jvp, "vjp": jvp, "structure": "none"},
    "differences": {"structure": "none"},
}


# The first radius of PETSc 3.18 is 0.2 in the units of x, too short for GMRES without a preconditioner.
@pytest.mark.parametrize("options", [{}, {"snes_type": "newtontr", "snes_tr_delta0": 100.0}, {"ksp_type": "fgmres"}])
@pytest.mark.parametrize("way", DECLARED)
def test_the_library_s_own_root(way, options):
    if way == "differences" and options.get("snes_type") == "newtontr":
        pytest.skip("PETSc's trust region multiplies by J^T")
    problem, stop = ims.Problem(bratu, **DECLARED[way]), ims.NonlinearStop(rtol=1e-11)
    expected = ims.root(problem, np.zeros(N), stop=stop).raise_for_status()
    result = ims.root(
        problem, np.zeros(N), method=PETScSNES({"ksp_rtol": 1e-10, "ksp_gmres_restart": N, **options}), stop=stop
    )
    assert result.success
    np.testing.assert_allclose(result.x, expected.x, rtol=0, atol=1e-10 * np.max(expected.x))
    np.testing.assert_array_equal(result.fun, bratu(result.x))
    assert result.residual_norm <= result.target == 1e-11 * result.initial_norm
    norms = [step.worst for step in result.steps]
    assert norms[0] == result.initial_norm
    assert len(norms) == result.iterations + 1
    assert sum(int(step.krylov_iterations.sum()) for step in result.steps) == result.krylov_iterations > 0


def test_a_shell_matrix_counts_its_products():
    result = ims.root(
        ims.Problem(bratu, **DECLARED["products"]), np.zeros(N), method=PETScSNES({"ksp_gmres_restart": 60})
    )
    assert result.counts.jvps >= result.krylov_iterations
    both = ims.root(
        ims.Problem(bratu, jvp=jvp, structure=ims.BlockBanded(1, 1)), np.zeros(N), method=PETScSNES(assemble=False)
    )
    assert both.counts.jvps >= both.krylov_iterations > 3 * both.iterations


@pytest.mark.parametrize(
    ("problem", "x0", "stop", "options", "expected"),
    [
        (lambda x: x**2 + 1, [3.0, 2.0], {}, {}, {"LINE_SEARCH_FAILED", "STAGNATED", "ITERATION_LIMIT"}),
        (lambda x: x**3 - 8, [30.0, 20.0], {"max_iterations": 2}, {}, {"ITERATION_LIMIT"}),
        (lambda x: x**3 - 8, [30.0, 20.0], {"max_iterations": 0}, {}, {"ITERATION_LIMIT"}),
        (lambda x: x**3 - 8, [30.0, 20.0], {"max_evaluations": 4}, {}, {"EVALUATION_LIMIT"}),
        (lambda x: x * np.nan, [1.0, 2.0], {}, {}, {"NONFINITE"}),
        (lambda x: x**2 - 4, [0.0, 0.0], {}, {"pc_type": "lu"}, {"SINGULAR", "LINEAR_SOLVE_FAILED"}),
    ],
)
def test_a_failure_is_a_status_and_never_converged(problem, x0, stop, options, expected):
    declared = ims.Problem(problem, jac=lambda x: np.diag(2 * x) if options else np.diag(3 * x**2 + 1e-3))
    stop = ims.NonlinearStop(**{"atol": 1e-10, **stop})
    with np.errstate(all="ignore"):
        result = ims.root(declared, np.asarray(x0), method=PETScSNES(options), stop=stop)
        assert result.status.name in expected
        np.testing.assert_array_equal(result.fun, problem(result.x))
    assert not result.residual_norm > result.initial_norm


def test_a_monitor_sees_every_step_and_may_end_the_solve():
    seen = []

    def monitor(step, x, F):
        seen.append((step.iteration, x.shape, float(np.max(np.abs(F)))))
        return step.iteration == 2

    result = ims.root(ims.Problem(bratu, **DECLARED["band"]), np.zeros(N), method=PETScSNES(), monitor=monitor)
    assert result.status is ims.Status.STOPPED_BY_MONITOR
    assert [step for step, *_ in seen] == [0, 1, 2]
    assert seen[2][1:] == ((N,), result.residual_norm)


def test_an_exception_of_the_residual_passes_unchanged():
    def residual(x):
        raise LookupError("no data here")

    with pytest.raises(LookupError, match="no data here"):
        ims.root(ims.Problem(residual, structure="none"), np.zeros(3), method=PETScSNES())


def test_mistakes_raise():
    with pytest.raises(ValueError, match="must leave snes_max_it, snes_rtol to `stop`"):
        PETScSNES({"snes_rtol": 1e-3, "-snes_max_it": 3})
    with pytest.raises(ValueError, match="PETSc does not use here: ksp_kind"):
        ims.root(ims.Problem(bratu, **DECLARED["band"]), np.zeros(N), method=PETScSNES({"ksp_kind": "cg"}))
    with pytest.raises(ValueError, match="one system, got a batch of 2"):
        ims.root(ims.Problem(lambda x: x**2 - 2, batch_ndim=1), np.ones((2, 3)), method=PETScSNES())
    with pytest.raises(ValueError, match="cannot keep `bounds`"):
        ims.root(lambda x: x**2 - 2, np.ones(3), method=PETScSNES(), bounds=(0, 3))


@pytest.mark.parametrize("way", ["band", "sparse", "matrix", "products"])
def test_f_and_j_of_a_petsc_program(way):
    system = to_petsc(ims.Problem(bratu, **DECLARED[way]), np.linspace(0, 1, N))
    rng = np.random.default_rng(0)
    u, v, w = np.linspace(0, 2, N), *rng.standard_normal((2, N))
    snes = PETSc.SNES().create(comm=system.comm)
    system.attach(snes)
    x, F = system.x.copy(), system.F.copy()
    x.setArray(u)
    snes.computeFunction(x, F)
    np.testing.assert_array_equal(system.state(F), bratu(u))
    snes.computeJacobian(x, system.J)
    right, left = system.x.duplicate(), system.x.duplicate()
    right.setArray(v)
    system.J.mult(right, left)
    np.testing.assert_allclose(left.getArray(), jvp(u, v), atol=1e-3)
    right.setArray(w)
    system.J.multTranspose(right, left)
    np.testing.assert_allclose(left.getArray(), jvp(u, w), atol=1e-3)  # J is symmetric
    assert system.is_assembled == (way != "products")


def test_the_error_of_x_decides_by_default():
    cubic, exact = ims.Problem(lambda x: x**3 + x - 5), 1.5159802276928
    method = PETScSNES({"snes_linesearch_type": "bt"})
    result = ims.root(cubic, np.array([1e5]), method=method)
    assert result.success
    assert abs(result.x[0] / exact - 1) <= 10 * result.error + 1e-13
    assert result.error <= 2e-8
    again = ims.root(cubic, result.x, method=method)
    assert again.success
    assert again.iterations <= 2
    away = ims.root(ims.Problem(lambda x: np.exp(-x)), np.array([1.0]), method=method)
    assert not away.success
    assert away.error is None
