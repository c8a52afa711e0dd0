"""SparseNewton: nothing declared, or a pattern; few evaluations, and honest endings where there is no sparsity."""

from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from benchmarks.sparse_problems import lines, networks, planes
from implicitsolve import Grid, NewtonKrylov, Sparse, SparseNewton


def solved(problem, method, **declared):
    stop = ims.NonlinearStop(atol=problem.tolerance(), rtol=0.0)
    result = ims.root(ims.Problem(problem.residual, **declared), problem.x0.copy(), method=method, stop=stop)
    assert result.success
    assert np.abs(problem.residual(result.x)).max() <= problem.tolerance()
    return result


@pytest.mark.parametrize(
    ("problem", "most"),
    [
        (planes.bratu(2, 24), 26),
        (planes.bratu(3, 9), 36),
        (planes.brusselator(24), 32),
        (planes.upwind(24), 45),
        (planes.radiation(24), 45),
        (lines.business_cycle(400), 45),
        (lines.periodic_orbit(200), 45),
        (networks.power_network(400), 230),
    ],
    ids=str,
)
def test_nothing_declared(problem, most):
    assert solved(problem, SparseNewton()).counts.residuals <= most


def test_products_assemble_where_there_are_any():
    n = 24
    problem = planes.bratu(2, n)
    c = 6.0 / (n + 1) ** 2

    def jvp(u, v):
        return 4.0 * v - planes.neighbors(v) - c * np.exp(u) * v

    result = solved(problem, SparseNewton(structure=Grid(shape=(n, n))), jvp=jvp)
    assert result.counts.jvps >= 5
    assert result.counts.residuals <= 12


def warning(expected):
    return (
        pytest.warns(RuntimeWarning, match="`structure` (is too narrow|J is singular)") if expected else nullcontext()
    )


@pytest.mark.parametrize(
    ("pattern", "warns"),
    [(np.eye(100, dtype=bool), True), (np.ones((100, 100), dtype=bool), False), (np.tri(100, dtype=bool), True)],
    ids=["too narrow", "too wide", "half"],
)
def test_wrong_patterns_never_make_a_false_root(pattern, warns):
    with warning(warns):
        solved(planes.bratu(1, 100), SparseNewton(structure=Sparse(pattern)))


@pytest.mark.parametrize("shape", [(100,), (3, 100)])
def test_a_structure_was_detected_where_x0_is_a_solution(shape):
    def F(x):
        return x - np.roll(x, 1, axis=-1) + x**3

    problem = ims.Problem(F, batch_ndim=len(shape) - 1)
    result = ims.root(problem, np.full(shape, 1e-12), stop=ims.NonlinearStop(atol=1e-8))
    assert np.all(result.success)
    assert result.counts.residuals == 1
    assert np.all(result.iterations == 0)


def test_batch_with_one_pattern():
    n = 60
    h = 1.0 / (n + 1) ** 2
    strengths = np.array([0.5, 1.0, 3.0])

    def residual(u):
        out = 2.0 * u - h * strengths[: u.shape[0], None] * np.exp(u)
        out[:, 1:] -= u[:, :-1]
        out[:, :-1] -= u[:, 1:]
        return out

    result = ims.root(ims.Problem(residual, batch_ndim=1), np.zeros((3, n)), method=SparseNewton())
    assert result.success.all()
    assert result.counts.residuals <= 25


def laplacian(n):
    """Of a plane of n by n points, as a sparse array."""
    line = scipy.sparse.diags_array([2.0 * np.ones(n), -np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1, -1])
    return scipy.sparse.kron(line, scipy.sparse.eye_array(n)) + scipy.sparse.kron(scipy.sparse.eye_array(n), line)


@pytest.mark.parametrize(
    "kind",
    [scipy.sparse.csr_array, scipy.sparse.csc_matrix, scipy.sparse.coo_array, lambda A: A.toarray()],
    ids=["csr", "csc_matrix", "coo", "dense"],
)
def test_a_matrix_from_jac_is_factored(kind):
    n, calls = 20, []
    A = laplacian(n)

    def jac(u):
        calls.append(1)
        return kind(A - scipy.sparse.diags_array(5.0 / n**2 * np.exp(u.ravel())))

    problem = ims.Problem(lambda u: A @ u - 5.0 / n**2 * np.exp(u), jac=jac)
    result = ims.root(problem, np.zeros(n * n), method="sparse-newton", stop=ims.NonlinearStop(rtol=1e-10))
    assert result.success
    assert np.abs(problem.residual(result.x)).max() <= 1e-9
    assert result.counts.residuals <= 14
    assert result.counts.jvps == 0
    assert result.counts.linearizations == len(calls) <= 4


def test_linearize_may_return_a_sparse_matrix():
    A = laplacian(12)
    problem = ims.Problem(
        lambda u: A @ u + u**3 - 1.0, linearize=lambda u: (A @ u + u**3 - 1.0, A + scipy.sparse.diags_array(3 * u**2))
    )
    result = ims.root(problem, np.zeros(144), method="sparse-newton")
    assert result.success
    assert result.counts.jvps == 0


def test_the_pattern_of_jac_may_grow():
    A, here = laplacian(10), np.arange(100)

    def jac(u):  # without entries where they are zero, as they all are at the start
        far = scipy.sparse.coo_array((np.maximum(np.roll(u, 50), 0.0), (here, (here + 50) % 100)), (100, 100)).tocsr()
        far.eliminate_zeros()
        return A + far

    def residual(u):
        return A @ u - 1.0 + 0.5 * np.maximum(np.roll(u, 50), 0.0) ** 2

    result = ims.root(ims.Problem(residual, jac=jac), np.zeros(100), method="sparse-newton")
    assert result.success
    assert np.abs(residual(result.x)).max() <= 1e-5


def test_dense_matrices_of_a_batch_have_one_pattern():
    n = 30
    A = (np.diag(np.full(n, 2.0)) - np.eye(n, k=1) - np.eye(n, k=-1))[None]
    problem = ims.Problem(
        lambda u: (A @ u[..., None])[..., 0] + u**3 - np.array([[1.0], [2.0]]),
        jac=lambda u: A + 3 * u[..., None] ** 2 * np.eye(n),
        batch_ndim=1,
    )
    result = ims.root(problem, np.zeros((2, n)), method="sparse-newton")
    assert result.success.all()
    assert result.counts.jvps == 0


@pytest.mark.parametrize(
    ("J", "error", "words"),
    [
        (scipy.sparse.eye_array(20, 21), ValueError, "shape"),
        (scipy.sparse.eye_array(20, dtype=complex), TypeError, "complex"),
    ],
    ids=["shape", "complex"],
)
def test_a_wrong_matrix_from_jac_raises(J, error, words):
    with pytest.raises(error, match=words):
        ims.root(ims.Problem(lambda u: u - 1, jac=lambda u: J), np.zeros(20), method="sparse-newton")


@pytest.mark.parametrize("value", [0.0, np.nan], ids=["zero", "nan"])
def test_a_singular_matrix_from_jac_has_an_honest_status(value):
    problem = ims.Problem(lambda u: u**2 - 4, jac=lambda u: value * scipy.sparse.eye_array(20))
    result = ims.root(problem, np.ones(20), method="sparse-newton", stop=ims.NonlinearStop(max_iterations=30))
    assert not result.success or np.abs(result.x**2 - 4).max() <= 1e-6


def test_operators_from_jac_give_products():
    problem = planes.bratu(2, 16)
    c = 6.0 / 17**2

    def jac(u):
        def product(v):
            w = v.reshape(16, 16)
            return (4.0 * w - planes.neighbors(w) - c * np.exp(u) * w).ravel()

        return ims.LinearOperator(product, in_shape=256)

    assert solved(problem, SparseNewton(structure=Grid(shape=(16, 16))), jac=jac).counts.jvps > 0


def nonsymmetric(n):
    """Upwind differences and a far coupling: the transposed pattern misses most entries."""

    def residual(u):
        out = 3.0 * u + u**3 - 1.0
        out[1:] -= u[:-1]
        out[n // 2 :] += 0.5 * np.sin(u[: n - n // 2])
        return out

    rows = np.concatenate([np.arange(n), np.arange(1, n), np.arange(n // 2, n)])
    columns = np.concatenate([np.arange(n), np.arange(n - 1), np.arange(n - n // 2)])
    return residual, Sparse((rows, columns), unknowns=n)


@pytest.mark.parametrize("wrong", ["right", "too narrow", "too wide", "transposed", "empty"])
def test_declared_patterns_that_are_wrong_still_give_the_root(wrong):
    n = 120
    residual, right = nonsymmetric(n)
    pattern = {
        "right": right,
        "too narrow": Sparse(scipy.sparse.eye_array(n)),
        "too wide": right.union(Sparse((np.arange(n), np.arange(n)[::-1].copy()))),
        "transposed": Sparse(right.to_scipy().T),
        "empty": Sparse(scipy.sparse.csc_array((n, n))),
    }[wrong]
    with warning(wrong in ("too narrow", "transposed", "empty")):
        result = ims.root(ims.Problem(residual, structure=pattern), np.zeros(n), method="sparse-newton")
    assert result.success
    assert np.abs(residual(result.x)).max() <= 1e-5
    assert result.counts.residuals <= 200


def ring(n, far, by_fft=False):
    """A system on a ring, with another neighbor at distance 6; by FFT, every F_i changes with all x by rounding."""
    wave = 2 - 2 * np.cos(2 * np.pi * np.arange(n) / n)

    def residual(x):
        second = np.fft.ifft(wave * np.fft.fft(x)).real if by_fft else 2 * x - np.roll(x, 1) - np.roll(x, -1)
        return 2 * x + x**3 + second - far * np.sin(np.roll(x, 6)) - 1 - 0.1 * np.sin(np.arange(n))

    return residual


def test_a_declared_pattern_that_is_too_narrow_is_named_with_its_evidence_once():
    """It converged slowly without a word."""
    n = 400
    stop, grid = ims.NonlinearStop(atol=1e-9, rtol=0.0), Grid(shape=(n,), periodic=True)
    evidence = r"at least \d+ of 400 rows .*\(row \d+ .* color \d+: .*structure=\"detect\""

    def jvp(x, v):
        far = 1.5 * np.cos(np.roll(x, 6)) * np.roll(v, 6)
        return (4 + 3 * x**2) * v - np.roll(v, 1) - np.roll(v, -1) - far

    for product in (None, jvp):
        problem = ims.Problem(ring(n, 1.5), structure=grid, jvp=product)
        with pytest.warns(RuntimeWarning, match=evidence) as seen:
            result = ims.root(problem, np.zeros(n), stop=stop)
        assert len(seen) == 1
        assert np.abs(problem.residual(result.x)).max() <= 1e-9


def test_an_entry_hidden_by_another_of_its_color_is_noticed_by_one_evaluation():
    """The inner rows of three diagonals have all three colors: no assembly showed what they missed."""
    n, pattern = 90, scipy.sparse.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(90, 90))
    right, one_more = pattern.tolil(), pattern.tolil()
    one_more[30, 60] = 1.0

    def F(x):
        out = 4 * x + x**3 - np.roll(x, 1) - np.roll(x, -1) - 1
        out[30] += np.sin(x[60])
        out[[0, -1]] = x[[0, -1]]
        return out

    counts = []
    for structure, warns in ((right, True), (one_more, False)):
        with warning(warns):
            result = ims.root(ims.Problem(F, structure=Sparse(structure)), np.ones(n))
        counts.append(result.counts.residuals)
        assert result.success
        assert np.abs(F(result.x)).max() < 1e-6
    assert counts[1] <= 20


def test_rounding_is_no_reason_to_warn():
    stop, grid = ims.NonlinearStop(atol=1e-9, rtol=0.0), Grid(shape=(400,), periodic=True)
    problem = ims.Problem(ring(400, 0.0, by_fft=True), structure=grid)
    assert ims.root(problem, np.full(400, 3.0), stop=stop).success


def test_a_reused_pattern_that_has_become_too_narrow_is_detected_again():
    """The solve began again with products: 297 evaluations instead of 47."""
    n = 400
    stop = ims.NonlinearStop(atol=1e-9, rtol=0.0)
    first = ims.root(ring(n, 0.0), np.zeros(n), stop=stop)
    second = ims.root(ring(n, 1.5), np.zeros(n), stop=stop, previous=first)
    assert second.success
    assert second.counts.residuals <= 80
    assert (first.detection.structure.nnz, second.detection.structure.nnz) == (3 * n, 4 * n)
    third = ims.root(ring(n, 1.5), np.zeros(n), stop=stop, previous=second)
    assert third.counts.residuals < second.counts.residuals - second.detection.evaluations
    assert third.detection.structure.nnz == 4 * n


def test_entries_that_are_too_small_to_matter_are_not_sought_in_a_reused_pattern():
    """One of 10^-4 in a power flow took more evaluations than the solve without `previous`."""
    n, random = 400, np.random.default_rng(0)
    near, load = random.integers(0, n, (3, n)), random.uniform(1, 2, n)

    def network(small):
        def residual(x):
            F = 4 * x + x**3 - np.sin(x[near]).sum(axis=0) - load
            F[7] -= small * x[100:120].sum()
            return F

        return ims.Problem(residual, structure="detect")

    first = ims.root(network(0.0), np.zeros(n))
    second = ims.root(network(1e-4), 1.3 * first.x, previous=first)
    assert second.success
    assert second.counts.residuals <= 30


def with_mean(u):
    """Reaction and diffusion in the plane with a source that depends on the mean of all unknowns."""
    p = np.pad(u, 1)
    neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    return (4 * u - neighbors) * u.size - 10 * np.cosh(np.mean(u)) ** 2


def test_large_entries_of_a_full_jacobian_precondition():
    x0, stop = np.zeros((60, 60)), ims.NonlinearStop(atol=1e-6)
    result = ims.root(with_mean, x0, stop=stop)
    without = ims.root(with_mean, x0, method=NewtonKrylov(), stop=stop)
    assert result.success
    assert np.abs(with_mean(result.x)).max() <= 1e-6
    assert result.counts.residuals <= 0.25 * without.counts.residuals
    again = ims.root(with_mean, x0 + 0.01, stop=stop, previous=result)
    assert again.success
    assert again.detection.evaluations == 0
    assert again.counts.residuals <= 20


def test_none_forbids_detection():
    problem = planes.bratu(2, 16)
    plain = solved(problem, ims.NewtonKrylov()).counts
    assert solved(problem, SparseNewton(), structure="none").counts == plain
    assert solved(problem, SparseNewton(), structure="detect").counts.residuals < plain.residuals


def test_detect_structure_prints_what_it_found_and_why_not():
    found = ims.detect_structure(planes.bratu(2, 16).residual, np.zeros((16, 16)))
    assert "diagonals" in repr(found)
    assert found.reason == ""
    dense = ims.detect_structure(lambda x: x - x.mean() ** 2, np.ones(100), budget=50)
    assert dense.reason in repr(dense)
    assert "budget" in ims.detect_structure(planes.bratu(2, 16).residual, np.zeros((16, 16)), budget=3).how
    with pytest.raises(ValueError, match="detect_structure: `budget`"):
        ims.detect_structure(lambda x: x, np.ones(20), budget=0)
    with pytest.raises(TypeError, match="residual"):
        ims.detect_structure(3, np.ones(20))


@pytest.mark.parametrize(("conductance", "most"), [(0.3, 45), (1e4, 300)])
def test_network_is_searched_only_where_products_are_slow(conductance, most, rng):
    """An easy time step on a permuted grid once took three times the evaluations of Newton-Krylov."""
    n = 400
    order = rng.permutation(n)
    back = np.argsort(order)

    def residual(x):
        u = np.pad(x[order], 1)
        return (u[1:-1] - conductance * (u[2:] - 2 * u[1:-1] + u[:-2]) + u[1:-1] ** 3)[back] - 1.0

    result = ims.root(residual, np.zeros(n), stop=ims.NonlinearStop(atol=1e-8))
    assert result.success
    assert np.abs(residual(result.x)).max() <= 1e-8
    assert result.counts.residuals <= most
    plain = ims.root(ims.Problem(residual, structure="none"), np.zeros(n), stop=ims.NonlinearStop(atol=1e-8))
    assert result.counts.residuals <= 1.5 * plain.counts.residuals + 12


def test_a_tolerance_below_rounding_error_costs_no_second_attempt():
    """Where the factored J has brought F down to rounding error, Krylov iterations from x0 took 800 evaluations."""
    problem = planes.bratu(2, 30)
    result = ims.root(problem.residual, problem.x0, stop=ims.NonlinearStop(atol=1e-25, rtol=0.0))
    assert result.status == ims.Status.STAGNATED
    assert result.residual_norm < 1e-9 * result.initial_norm
    assert result.counts.residuals < 60


def test_a_pattern_of_the_method_is_refused_for_arrays_that_have_no_sparse_factors():
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match="sparse factors need arrays of NumPy or CuPy"):
        ims.root(lambda u: u**2 - 2, strict.ones(40), method=ims.SparseNewton(structure=ims.Grid(shape=(40,))))


def test_settings():
    with pytest.raises(TypeError, match="Sparse or Grid"):
        SparseNewton(structure=ims.BlockBanded(1, 1))
    with pytest.raises(ValueError, match="100 unknowns"):
        ims.root(planes.bratu(2, 8).residual, np.zeros((8, 8)), method=SparseNewton(structure=Grid(shape=(10, 10))))


def test_setting_of_bisection():
    with pytest.raises(ValueError, match='`bisection` must be True, False or "late", got 3'):
        SparseNewton(bisection=3)


@pytest.mark.parametrize("structure", [None, ims.Grid(shape=(12, 12))])
@pytest.mark.parametrize("size", [1e-300, 1e-100, 1e-17, 1e-12])
def test_starts_near_zero_cost_about_what_zero_costs(structure, size):
    def bratu(u):
        p = np.pad(u, 1)
        return 4 * u - p[2:, 1:-1] - p[:-2, 1:-1] - p[1:-1, 2:] - p[1:-1, :-2] - 5 / 13**2 * np.exp(u)

    problem = ims.Problem(bratu, structure=structure)
    from_zero, near = (ims.root(problem, np.full((12, 12), start)) for start in (0.0, size))
    assert near.success
    assert near.counts.residuals <= from_zero.counts.residuals + 12


@pytest.mark.parametrize(("n", "viscosity"), [(200, 0.005), (400, 0.01), (800, 0.02), (1600, 0.05)])
def test_shocks_by_upwind_differences(n, viscosity):
    """J is nearly singular, since a shock hardly resists a shift: long one-sided differences left nothing of that."""

    def burgers(u):
        p = np.concatenate([[1.0], u, [-1.0]])
        transport = u * np.where(u > 0, u - p[:-2], p[2:] - u) * n
        return transport - viscosity * n**2 * (p[2:] - 2 * u + p[:-2])

    result = ims.root(burgers, np.linspace(1, -1, n))
    assert result.success
    assert result.counts.residuals <= 150


def test_a_rejected_step_cost_an_evaluation_more_to_see_that_f_is_no_rounding():
    """Overpotentials of a battery, whose first whole steps are far too long, took 38 residuals."""
    A = scipy.sparse.diags_array([-1.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(60, 60)).tocsc()
    cell = ims.Problem(lambda x: A @ np.sinh(x) - 300, jac=lambda x: A @ scipy.sparse.diags_array(np.cosh(x)))
    assert ims.root(cell, np.zeros(60)).counts.residuals <= 32


def test_products_cost_evaluations_although_j_was_assembled():
    """A pattern of vegetation, which may lie anywhere, so that J is singular: 1,646 evaluations."""

    def rates(z):
        plants, water = z
        spread, seep = (sum(np.roll(u, s, axis) for s in (1, -1) for axis in (0, 1)) - 4 * u for u in z)
        growth = water * plants**2
        return np.array([growth - 0.45 * plants + 1.6 * spread, 1.8 - water - growth + 160 * seep])

    noise = 0.3 * np.random.default_rng(10).standard_normal((16, 16))
    result = ims.root(rates, np.array([1 + noise, np.ones((16, 16))]))
    assert result.success
    assert result.counts.residuals <= 1000
