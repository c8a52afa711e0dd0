"""NewtonKrylov on single systems: libraries, Jacobians, Krylov methods, preconditioners, traces, settings."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as spla

import implicitsolve as ims
from implicitsolve import NewtonKrylov, NonlinearStop, Problem, Status, root

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")

N = 12
RNG = np.random.default_rng(11)
A = np.eye(N) + 0.4 * RNG.standard_normal((N, N)) / np.sqrt(N)
B = RNG.standard_normal(N)
TIGHT = NonlinearStop(rtol=1e-10)


def residual(x):
    return A @ x + 0.1 * x**3 - B


def jvp(x, v):
    return A @ v + 0.3 * x**2 * v


def jacobian(x):
    return A + np.diag(0.3 * x**2)


def operator(x):
    J = jacobian(x)
    return ims.LinearOperator(lambda v: J @ v, lambda w: J.T @ w, in_shape=N)


class ReusesBuffer(spla.LinearOperator):
    """SciPy's operator that returns one buffer for every product and overwrites what it was given."""

    def __init__(self, matrix):
        super().__init__(matrix.dtype, matrix.shape)
        self.matrix, self.out = matrix, np.empty(matrix.shape[0])

    def _matvec(self, v):
        np.matmul(self.matrix, v.reshape(-1), out=self.out)
        v[...] = 7.0
        return self.out


ROOT = root(Problem(residual, jac=jacobian), np.zeros(N), stop=NonlinearStop(rtol=1e-14)).x


def solved(problem, method=None, stop=TIGHT, x0=None):
    result = root(problem, np.zeros(N) if x0 is None else x0, method=method or NewtonKrylov(), stop=stop)
    assert result.success, result.message
    assert np.max(np.abs(residual(result.x))) <= stop.rtol * np.max(np.abs(B))
    np.testing.assert_allclose(result.x, ROOT, atol=1e-8)
    return result


def test_holomorphic_system_has_complex_roots():
    result = root(Problem(lambda z: z**3 - 1), np.array([1.0 + 0.1j, -0.4 + 0.9j, -0.4 - 0.9j]), stop=TIGHT)
    np.testing.assert_allclose(result.x, np.exp(2j * np.pi * np.array([0, 1, 2]) / 3), atol=1e-9)


JACOBIANS = {
    "jvp": {"jvp": jvp},
    "dense": {"jac": jacobian},
    "list": {"jac": lambda x: jacobian(x).tolist()},
    "csr_matrix": {"jac": lambda x: scipy.sparse.csr_matrix(jacobian(x))},
    "csc_array": {"jac": lambda x: scipy.sparse.csc_array(jacobian(x))},
    "coo_array": {"jac": lambda x: scipy.sparse.coo_array(jacobian(x))},
    "np.matrix": {"jac": lambda x: np.asmatrix(jacobian(x))},
    "scipy operator": {"jac": lambda x: spla.aslinearoperator(jacobian(x))},
    "hostile operator": {"jac": lambda x: ReusesBuffer(jacobian(x))},
    "our operator": {"jac": operator},
    "linearize": {"linearize": lambda x: (residual(x), operator(x))},
    "linearize dense": {"linearize": lambda x: (residual(x), jacobian(x))},
    "fortran": {"jac": lambda x: np.asfortranarray(jacobian(x))},
    "float32": {"jac": lambda x: jacobian(x).astype(np.float32)},
}


@pytest.mark.parametrize("kind", JACOBIANS)
@pytest.mark.parametrize("krylov", [None, ims.GMRES(), ims.BiCGSTAB()], ids=["own", "gmres", "bicgstab"])
def test_exact_jacobians_need_one_residual_per_step(kind, krylov):
    calls = [0]

    def F(x):
        calls[0] += 1
        return residual(x)

    result = solved(Problem(F, **JACOBIANS[kind]), NewtonKrylov(krylov=krylov))
    assert result.counts.residuals == result.iterations + 1
    assert result.counts.jvps > 0
    assert result.counts.vjps == 0
    assert calls[0] == (0 if "linearize" in kind else result.counts.residuals)


def test_counts_equal_the_callers():
    seen = {"residual": 0, "jvp": 0, "linearize": 0, "matvec": 0}

    def count(name, value):
        seen[name] += 1
        return value

    result = solved(Problem(lambda x: count("residual", residual(x)), jvp=lambda x, v: count("jvp", jvp(x, v))))
    assert (result.counts.residuals, result.counts.jvps) == (seen["residual"], seen["jvp"])
    assert result.counts.linearizations <= result.iterations + 1

    def linearize(x):
        J = ims.LinearOperator(lambda v: count("matvec", jvp(x, v)), in_shape=N)
        return count("linearize", (residual(x), J))

    result = solved(Problem(residual, linearize=linearize))
    assert result.counts.residuals == result.counts.linearizations == seen["linearize"]
    assert result.counts.jvps == seen["matvec"]

    seen["residual"] = 0
    result = solved(Problem(lambda x: count("residual", residual(x))))
    assert result.counts.residuals == seen["residual"]
    assert result.counts.jvps == 0


def test_linearize_is_preferred_to_jac_and_that_to_jvp():
    def unused(*_):
        raise AssertionError("must not be called")

    solved(Problem(unused, linearize=lambda x: (residual(x), operator(x)), jac=unused, jvp=unused))
    solved(Problem(residual, jac=jacobian, jvp=unused))


@pytest.mark.parametrize(
    ("functions", "error", "match"),
    [
        ({"jvp": lambda x, v: None}, TypeError, "`jvp`"),
        ({"jvp": lambda x, v: v[:3]}, ValueError, r"`jvp`.*\(12,\).*\(3,\)"),
        ({"jvp": lambda x, v: 1j * v}, TypeError, "`jvp`.*complex"),
        ({"jac": lambda x: None}, TypeError, "`jac`"),
        ({"jac": lambda x: np.eye(3)}, ValueError, r"`jac`.*\(12, 12\).*\(3, 3\)"),
        ({"jac": lambda x: np.ones((2, N, N))}, ValueError, "`jac`.*batch shape"),
        ({"jac": lambda x: x}, ValueError, "`jac`"),
        ({"jac": lambda x: 1j * np.eye(N)}, TypeError, "complex"),
        ({"linearize": lambda x: residual(x)}, TypeError, "`linearize`.*pair"),
        ({"linearize": lambda x: (residual(x), None)}, TypeError, "`linearize`"),
        ({"linearize": lambda x: (None, operator(x))}, TypeError, "`linearize`"),
    ],
)
def test_wrong_jacobians_are_named(functions, error, match):
    with pytest.raises(error, match=match):
        root(Problem(residual, **functions), np.zeros(N))


def inverse():
    return np.linalg.inv(A + 0.05 * np.eye(N))


PRECONDITIONERS = {
    "dense": inverse,
    "np.matrix": lambda: np.asmatrix(inverse()),
    "sparse": lambda: scipy.sparse.csr_array(inverse()),
    "scipy operator": lambda: spla.aslinearoperator(inverse()),
    "hostile operator": lambda: ReusesBuffer(inverse()),
    "our operator": lambda: ims.aslinearoperator(inverse()),
    "function": lambda: lambda x, F: np.linalg.inv(jacobian(x)),
    "function of operators": lambda: lambda x, F: spla.aslinearoperator(np.linalg.inv(jacobian(x))),
}


@pytest.mark.parametrize("kind", PRECONDITIONERS)
@pytest.mark.parametrize("krylov", [None, ims.GMRES(), ims.LGMRES(), ims.BiCGSTAB()])
def test_preconditioners_save_products(kind, krylov):
    plain = solved(Problem(residual, jvp=jvp), NewtonKrylov(krylov=krylov))
    method = NewtonKrylov(krylov=krylov, preconditioner=PRECONDITIONERS[kind]())
    assert solved(Problem(residual, jvp=jvp), method).counts.jvps < plain.counts.jvps


def test_preconditioner_sees_shaped_copies():
    seen = []

    def M(x, F):
        seen.append((x, F))
        x[...], F[...] = np.nan, np.nan
        return np.eye(N)

    def F(x):
        return residual(x.reshape(-1)).reshape(3, 4)

    result = root(Problem(F), np.zeros((3, 4)), method=NewtonKrylov(preconditioner=M), stop=TIGHT)
    assert result.success
    assert all(x.shape == F.shape == (3, 4) for x, F in seen)
    assert len(seen) == result.iterations


@pytest.mark.parametrize(
    ("M", "error", "match"),
    [
        (3, TypeError, "`preconditioner`"),
        (np.eye(3), ValueError, r"`preconditioner`.*\(12, 12\).*\(3, 3\)"),
        (np.ones(N), ValueError, "`preconditioner`"),
        (np.ones((2, N, N)), ValueError, "`preconditioner`.*batch"),
        (lambda x, F: None, TypeError, "`preconditioner`"),
    ],
)
def test_wrong_preconditioners_are_named(M, error, match):
    with pytest.raises(error, match=match):
        root(Problem(residual), np.zeros(N), method=NewtonKrylov(preconditioner=M))


def test_space_grows_when_it_stagnates():
    """A circulant shift plus a perturbation: GMRES makes no progress before N vectors."""
    n = 40
    problem = Problem(lambda x: np.roll(x, 1) + 0.05 * x**2 - 1.0 - (np.arange(n) == 3))
    result = root(problem, np.zeros(n), method=NewtonKrylov(max_krylov=3), stop=TIGHT)
    assert result.success


def test_memory_limit_cuts_the_space(monkeypatch):
    from implicitsolve.krylov import _recycling

    n = 80
    F = lambda x: 3 * x - np.roll(x, 1) - np.roll(x, -1) + 0.1 * x**3 - 1 - np.arange(n) % 3  # noqa: E731
    problem = Problem(F, structure="none")
    free = root(problem, np.zeros(n), stop=TIGHT)
    monkeypatch.setattr(_recycling, "BASIS_MEMORY", 1)
    monkeypatch.setattr(_recycling, "RECYCLED_MEMORY", 1)
    cut = root(problem, np.zeros(n), stop=TIGHT)
    assert free.success
    assert cut.success
    assert all(step.krylov_iterations.max() <= 20 for step in cut.steps[1:])


@pytest.mark.parametrize(
    ("F", "x0"), [(residual, np.zeros(N)), (lambda x: x**2 + 1 + 0.1 * x[::-1], np.array([0.3, -0.7, 0.2, 1.0]))]
)
def test_monitor_sees_what_the_result_keeps(F, x0):
    trace, points = ims.monitor.collect(), []

    def keep(step, x, F):
        trace(step, x, F)
        points.append((x.copy(), F.copy()))
        x[...], F[...] = np.nan, np.nan

    clean = root(Problem(F), x0)
    result = root(Problem(F), x0, monitor=keep)
    np.testing.assert_array_equal(result.x, clean.x)
    assert result.counts == clean.counts
    assert [s.iteration for s in trace] == [s.iteration for s in result.steps] == list(range(len(trace)))
    assert trace[-1].running == 0
    assert sum(s.running == 0 for s in trace) <= 4  # the end of each attempt
    assert any(np.array_equal(x, result.x) for x, _ in points)
    for step, (x, Fx) in zip(trace, points, strict=True):
        np.testing.assert_array_equal(Fx, F(x))
        assert step.worst == np.max(np.abs(Fx))


def test_trace_tells_the_story():
    result = solved(Problem(residual, jvp=jvp))
    first, *steps = result.steps
    assert (first.iteration, first.counts.residuals, first.step_length.size) == (0, 1, 0)
    assert first.worst == result.initial_norm
    assert len(steps) == result.iterations
    assert sum(int(s.krylov_iterations[0]) for s in steps) == result.krylov_iterations
    for step in steps:
        assert step.systems.tolist() == [0]
        assert 0 < step.step_length[0] <= 1
        assert step.linear_residual[0] <= step.forcing[0] * (1 + 1e-6)
        assert step.linear_status[0] == Status.CONVERGED
        assert str(step).startswith(f"step {step.iteration}: norm(F) ")
    assert steps[-1].worst == result.residual_norm
    assert steps[-1].counts == result.counts
    assert (steps[-1].counts - first.counts).residuals == result.iterations


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"max_krylov": 0}, ValueError, "`max_krylov`"),
        ({"max_krylov": 2.5}, TypeError, "`max_krylov`"),
        ({"recycle": -1}, ValueError, "`recycle`"),
        ({"retry": 1}, TypeError, "`retry`"),
        ({"rdiff": 0}, ValueError, "`rdiff`"),
        ({"rdiff": np.nan}, ValueError, "`rdiff`"),
        ({"rdiff": "1e-7"}, TypeError, "`rdiff`"),
        ({"krylov": "gmres"}, TypeError, "`krylov`"),
        ({"forcing": 0.1}, TypeError, "`forcing`"),
        ({"forcing": None}, TypeError, "`forcing`"),
        ({"line_search": "armijo"}, TypeError, "`line_search`"),
        ({"line_search": None}, TypeError, "`line_search`"),
        ({"tolerance": 1}, TypeError, "tolerance"),
    ],
)
def test_wrong_settings_raise(settings, error, match):
    with pytest.raises(error, match=match):
        NewtonKrylov(**settings)


def test_a_solve_held_139_vectors(monkeypatch):
    """Room for few vectors, as with 10^6 unknowns and more, on a problem that takes many."""
    monkeypatch.setattr("implicitsolve.krylov._recycling.BASIS_MEMORY", 0)
    m = 60

    def bratu(u):
        p = np.pad(u.reshape(m, m), 1)
        return (4 * u - 5 * np.exp(u) / (m + 1) ** 2).reshape(-1) - (
            p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
        ).reshape(-1)

    u0 = np.zeros(m * m)
    ims.root(bratu, u0, method=NewtonKrylov())
    tracemalloc.start()
    try:
        result = ims.root(bratu, u0, method=NewtonKrylov())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.success
    assert result.counts.residuals > 150
    assert peak <= 66 * u0.nbytes  # with some of the residual's own, and what does not grow with the vectors
