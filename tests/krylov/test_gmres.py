"""GMRES, FGMRES and LGMRES: what they minimize, how they end, what they cost."""

from __future__ import annotations

import tracemalloc

import array_api_strict
import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import FGMRES, GMRES, LGMRES, BiCGSTAB, LinearOperator, LinearStop, Status, aslinearoperator
from implicitsolve._namespace import to_host
from implicitsolve.krylov._arnoldi import arnoldi_cycle

FAMILY = [GMRES, FGMRES, LGMRES]
KINDS = ["regular", "singular", "singular, consistent", "nilpotent"]


def systems(rng: np.random.Generator, kind: str, batch: int, n: int, is_complex: bool) -> tuple[np.ndarray, np.ndarray]:
    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if is_complex else 0)

    if kind == "regular":
        return random(batch, n, n) + 3 * np.eye(n), random(batch, n)
    if kind == "nilpotent":
        return np.triu(random(batch, n, n), 1), random(batch, n)
    A = random(batch, n, n // 2) @ random(batch, n // 2, n)
    return A, random(batch, n) if kind == "singular" else (A @ random(batch, n, 1))[..., 0]


def product(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (A @ v[..., None])[..., 0]


def norms_of(v: np.ndarray) -> np.ndarray:
    return np.linalg.norm(v, axis=1).astype(np.float64)


# --------------------------------------------------------------------------------------------------- one Arnoldi cycle


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_M", [False, True])
@pytest.mark.parametrize("augmented", [0, 2])
def test_the_recurrence_knows_the_residual(xp, any_dtype, rng, kind, with_M, augmented):
    is_complex = bool(xp.isdtype(any_dtype, "complex floating"))
    host = to_host(xp.zeros(0, dtype=any_dtype)).dtype
    A, r = (part.astype(host) for part in systems(rng, kind, 4, 6, is_complex))
    M = systems(rng, "regular", 4, 6, is_complex)[0].astype(host)
    directions = systems(rng, "regular", 4, 6, is_complex)[0][:, :augmented].astype(host)
    cycle = arnoldi_cycle(
        aslinearoperator(xp.asarray(A)),
        xp.asarray(r),
        norms_of(r),
        target=np.full(4, 1e-30),
        columns=5,
        M=aslinearoperator(xp.asarray(M)) if with_M else None,
        augment=xp.asarray(directions) if augmented else None,
    )
    dx, residual = to_host(cycle.dx), to_host(cycle.residual)
    measured = r - product(A, dx)
    scale = np.linalg.norm(A, axis=(1, 2)) * norms_of(dx) + norms_of(r)
    rounding = 100 * float(np.finfo(host).eps) * scale
    assert (norms_of(measured - residual) <= rounding).all()
    assert (np.abs(norms_of(measured) - cycle.norm) <= rounding).all()
    assert (cycle.norm <= norms_of(r) * (1 + 1e-6)).all()


@pytest.mark.parametrize("augmented", [0, 2])
@pytest.mark.parametrize("is_complex", [False, True])
def test_the_basis_is_orthonormal_and_satisfies_the_arnoldi_relation(rng, augmented, is_complex):
    A, r = systems(rng, "regular", 3, 8, is_complex)
    M = systems(rng, "regular", 3, 8, is_complex)[0]
    seen = []
    arnoldi_cycle(
        aslinearoperator(A),
        r,
        norms_of(r),
        target=np.asarray([1e-30, 0.3 * norms_of(r)[1], 1e-30]),
        columns=6,
        M=aslinearoperator(M),
        augment=rng.standard_normal((3, augmented, 8)).astype(A.dtype) if augmented else None,
        on_finish=lambda which, V, Z, small, columns: seen.append((which, V.copy(), Z.copy(), small.H.copy(), columns)),
    )
    assert sorted(np.concatenate([which for which, *_ in seen])) == [0, 1, 2]
    for which, V, Z, H, columns in seen:
        for i, m in enumerate(columns):
            basis = V[i, : m + 1]
            np.testing.assert_allclose(basis @ basis.conj().T, np.eye(m + 1), atol=1e-13)
            np.testing.assert_allclose(A[which[i]] @ Z[i, :m].T, basis.T @ H[i, : m + 1, :m], atol=1e-12)


def test_the_residual_is_the_least_over_the_krylov_space(rng):
    A, b = systems(rng, "regular", 2, 9, False)
    for m in range(1, 8):
        result = ims.linear_solve(A, b, method=GMRES(restart=m), stop=LinearStop(rtol=0, max_iterations=m))
        for i in range(2):
            space = np.linalg.qr(np.stack([np.linalg.matrix_power(A[i], j) @ b[i] for j in range(m)], axis=1))[0]
            y = np.linalg.lstsq(A[i] @ space, b[i], rcond=None)[0]
            least = np.linalg.norm(b[i] - A[i] @ space @ y)
            np.testing.assert_allclose(result.residual_norm[i], least, rtol=1e-6, atol=1e-12)
            np.testing.assert_allclose(result.x[i], space @ y, atol=1e-6)


@pytest.mark.parametrize("method", [GMRES(restart=4), LGMRES(restart=3, outer_k=2), FGMRES(restart=50)], ids=str)
def test_the_residual_never_rises(rng, method):
    A, b = systems(rng, "regular", 3, 20, False)
    A = A + 2 * np.eye(20, k=1)
    before = norms_of(b)
    for limit in range(1, 30):
        result = ims.linear_solve(A, b, method=method, stop=LinearStop(rtol=1e-14, max_iterations=limit))
        assert (result.residual_norm <= before * (1 + 1e-12)).all(), limit
        before = result.residual_norm


# ---------------------------------------------------------------------------------------------------- how a solve ends


@pytest.mark.parametrize("family", FAMILY)
def test_happy_breakdown_ends_at_the_grade_of_b(xp, any_dtype, family):
    """b has parts along 3 eigenvectors only: 3 iterations, and the space is exhausted."""
    A = xp.asarray(np.diag(np.arange(1.0, 13.0)), dtype=any_dtype)
    b = xp.asarray(np.repeat([1.0, 0.0], [3, 9]), dtype=any_dtype)
    rtol = 1e-5 if xp.finfo(any_dtype).bits == 32 else 1e-13
    result = ims.linear_solve(A, b, method=family(), stop=LinearStop(rtol=rtol))
    assert result.status is Status.CONVERGED
    assert result.iterations == 3
    assert result.matvecs == 4
    np.testing.assert_allclose(to_host(result.x)[:3], [1, 1 / 2, 1 / 3], rtol=1e-4)


@pytest.mark.parametrize("family", FAMILY)
def test_an_identity_takes_one_iteration(family):
    result = ims.linear_solve(3 * np.eye(5), np.arange(5.0), method=family(), stop=LinearStop(rtol=1e-15))
    assert (result.status, result.iterations) == (Status.CONVERGED, 1)


@pytest.mark.parametrize("family", FAMILY)
def test_a_singular_consistent_system_converges(rng, family):
    A = np.diag([0.0, 0.0, 1.0, 2.0, 5.0])
    b = A @ rng.standard_normal(5)
    result = ims.linear_solve(A, b, method=family(), stop=LinearStop(rtol=1e-12))
    assert result.status is Status.CONVERGED
    assert np.linalg.norm(A @ result.x - b) <= 1e-12 * np.linalg.norm(b)


@pytest.mark.parametrize("family", FAMILY)
def test_a_singular_inconsistent_system_breaks_down_at_the_least_squares_solution(family):
    A, b = np.diag([0.0, 1.0, 2.0, 5.0]), np.asarray([1.0, 1.0, 2.0, 3.0])
    result = ims.linear_solve(A, b, method=family())
    assert result.status is Status.BREAKDOWN
    assert result.residual_norm == pytest.approx(1.0)  # range-symmetric A: GMRES finds the least-squares residual
    assert result.iterations < 20


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("rank", [1, 3, 7])
def test_any_singular_inconsistent_system_ends_soon_and_says_so(rng, family, rank):
    A = rng.standard_normal((8, rank)) @ rng.standard_normal((rank, 8))
    result = ims.linear_solve(A, rng.standard_normal(8), method=family())
    assert result.status in (Status.BREAKDOWN, Status.STAGNATED)
    assert result.iterations < 60
    assert np.isfinite(result.x).all()


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("x0", [None, np.ones(3)], ids=["from 0", "from x0"])
def test_the_zero_matrix_breaks_down_and_moves_nothing(family, x0):
    result = ims.linear_solve(np.zeros((3, 3)), np.asarray([1.0, 2.0, 2.0]), method=family(), x0=x0)
    assert result.status is Status.BREAKDOWN
    assert result.residual_norm == 3
    np.testing.assert_array_equal(result.x, np.zeros(3) if x0 is None else x0)


@pytest.mark.parametrize("family", FAMILY)
def test_a_restart_that_can_make_no_progress_is_stagnation_not_a_limit(family):
    """The cyclic shift: no space of fewer than N vectors reduces the residual of e_1."""
    shift, e1 = np.roll(np.eye(12), 1, axis=0), np.eye(12)[0]
    result = ims.linear_solve(shift, e1, method=family(restart=11))
    assert result.status is Status.STAGNATED
    assert result.iterations < 200
    assert result.residual_norm == 1.0
    result = ims.linear_solve(shift, e1, method=family(restart=12), stop=LinearStop(rtol=1e-12))
    assert (result.status, result.iterations) == (Status.CONVERGED, 12)


def test_lgmres_goes_on_where_short_restarts_stagnate():
    n = 200
    laplacian = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    stop = LinearStop(rtol=1e-8, max_iterations=1500)
    plain = ims.linear_solve(laplacian, np.ones(n), method=GMRES(restart=10), stop=stop)
    augmented = ims.linear_solve(laplacian, np.ones(n), method=LGMRES(restart=10), stop=stop)
    assert plain.status is not Status.CONVERGED
    assert augmented.status is Status.CONVERGED
    assert augmented.iterations < 300


@pytest.mark.parametrize("family", FAMILY)
def test_a_tolerance_below_rounding_error_ends_in_stagnation(rng, family):
    A, b = systems(rng, "regular", 1, 10, False)
    result = ims.linear_solve(A[0], b[0], method=family(), stop=LinearStop(rtol=0))
    assert result.status in (Status.STAGNATED, Status.CONVERGED)
    assert result.residual_norm < 1e-13 * np.linalg.norm(b)
    assert result.iterations < 100


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("restart", [1, 2, 100])
def test_restarts_shorter_and_longer_than_the_system(rng, family, restart):
    A, b = systems(rng, "regular", 2, 6, False)
    A = A + 6 * np.eye(6)
    result = ims.linear_solve(A, b, method=family(restart=restart), stop=LinearStop(rtol=1e-10))
    assert result.success.all()
    np.testing.assert_allclose(result.x, np.linalg.solve(A, b[..., None])[..., 0], rtol=1e-8)


def test_without_augmentation_lgmres_is_gmres(rng):
    A, b = systems(rng, "regular", 2, 15, False)
    stop = LinearStop(rtol=1e-10, max_iterations=200)
    plain = ims.linear_solve(A, b, method=GMRES(restart=5), stop=stop)
    augmented = ims.linear_solve(A, b, method=LGMRES(restart=5, outer_k=0), stop=stop)
    np.testing.assert_array_equal(plain.x, augmented.x)


# ----------------------------------------------------------------------------------------------------- preconditioning


@pytest.mark.parametrize("family", FAMILY)
def test_the_exact_inverse_takes_one_iteration(xp, any_dtype, rng, family):
    A, b = systems(rng, "regular", 2, 6, bool(xp.isdtype(any_dtype, "complex floating")))
    inverse = xp.asarray(np.linalg.inv(A), dtype=any_dtype)
    rtol = 1e-4 if xp.finfo(any_dtype).bits == 32 else 1e-11
    result = ims.linear_solve(
        xp.asarray(A, dtype=any_dtype),
        xp.asarray(b, dtype=any_dtype),
        M=inverse,
        method=family(),
        stop=LinearStop(rtol=rtol),
    )
    assert (result.status == Status.CONVERGED).all()
    assert (result.iterations == 1).all()


@pytest.mark.parametrize("family", FAMILY)
def test_a_preconditioner_is_applied_once_an_iteration_and_saves_them(rng, family):
    d = np.logspace(0, 5, 60)
    A = np.diag(d) + np.triu(0.1 * rng.standard_normal((60, 60)), 1)
    b, calls = rng.standard_normal(60), []
    M = LinearOperator(lambda v: (calls.append(None), v / d)[1], in_shape=60)
    stop = LinearStop(rtol=1e-8, max_iterations=60)
    method = family(restart=60)
    plain = ims.linear_solve(A, b, method=method, stop=stop)
    helped = ims.linear_solve(A, b, method=method, M=M, stop=stop)
    assert helped.success
    assert helped.iterations < plain.iterations / 3
    assert len(calls) == helped.iterations
    assert np.linalg.norm(A @ helped.x - b) <= 1e-8 * np.linalg.norm(b)  # the true residual: M stands on the right


def test_fgmres_takes_a_preconditioner_that_changes(rng):
    n = 60
    A = np.diag(np.linspace(1, 40, n)) + np.triu(rng.standard_normal((n, n)), 1)
    b, rounds = rng.standard_normal(n), []

    def inner(v):
        rounds.append(None)
        stop = LinearStop(rtol=0.5 / (1 + len(rounds) % 3))  # another accuracy in every call
        return ims.linear_solve(A, v, method=BiCGSTAB(), stop=stop).x

    result = ims.linear_solve(
        A, b, M=LinearOperator(inner, in_shape=n), method=FGMRES(), stop=LinearStop(rtol=1e-10, max_iterations=40)
    )
    assert result.success
    assert len(rounds) == result.iterations
    assert result.iterations < 25
    np.testing.assert_allclose(A @ result.x, b, atol=1e-9 * np.linalg.norm(b))


def test_fgmres_with_noise_for_a_preconditioner(rng):
    n = 30
    A, b = np.diag(np.linspace(1, 3, n)), rng.standard_normal(n)
    M = LinearOperator(lambda v: v * rng.uniform(0.5, 1.5, v.shape), in_shape=n)
    result = ims.linear_solve(A, b, M=M, method=FGMRES(), stop=LinearStop(rtol=1e-10, max_iterations=60))
    assert result.success
    np.testing.assert_allclose(A @ result.x, b, atol=1e-9 * np.linalg.norm(b))


# ---------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("family", FAMILY)
def test_products_are_one_an_iteration_and_one_a_cycle(rng, family):
    A, b = systems(rng, "regular", 1, 30, False)
    calls = []
    counted = LinearOperator(lambda v: (calls.append(None), A[0] @ v)[1], in_shape=30)
    result = ims.linear_solve(counted, b[0], method=family(restart=10), stop=LinearStop(rtol=1e-10, max_iterations=25))
    assert result.iterations == 25
    columns = {GMRES: [10, 10, 5], FGMRES: [10, 10, 5], LGMRES: [10, 11, 4]}[family]
    assert result.matvecs == len(calls) == sum(columns) + len(columns)


@pytest.mark.parametrize("family", FAMILY)
def test_without_confirmation_no_product_is_spent_on_residuals(rng, family):
    A, b = systems(rng, "regular", 2, 12, False)
    calls = []
    counted = LinearOperator(lambda v: (calls.append(None), product(A, v))[1], in_shape=12, batch_shape=(2,))
    outcome = family(restart=5).solve(counted, b, target=1e-3 * norms_of(b), max_iterations=100, confirm=False)
    assert len(calls) == outcome.iterations.max()
    np.testing.assert_allclose(outcome.residual_norm, norms_of(b - product(A, outcome.x)), rtol=1e-6)


def test_systems_that_have_finished_are_not_multiplied(rng):
    n, batch = 40, 10
    A = np.repeat(np.eye(n)[None], batch, axis=0)
    A[3] = np.diag(np.linspace(1, 50, n))
    b = rng.standard_normal((batch, n))
    rows = []

    def operator(matrices):
        def matvec(v):
            rows.append(len(v))
            return product(matrices, v)

        return LinearOperator(
            matvec, in_shape=n, batch_shape=(len(matrices),), take=lambda indices: operator(matrices[indices])
        )

    for family in FAMILY:
        rows.clear()
        result = ims.linear_solve(operator(A), b, method=family(restart=40), stop=LinearStop(rtol=1e-10))
        assert result.success.all()
        assert (np.delete(result.iterations, 3) == 1).all()
        assert result.iterations[3] > 20
        assert rows[0] == batch
        assert sum(rows) <= 2 * batch + result.matvecs  # the first, the last, and one row in each of the others


@pytest.mark.parametrize(("with_M", "vectors"), [(False, 1), (True, 2)])
def test_a_column_costs_as_many_vectors_as_the_docstring_says(with_M, vectors):
    n = 20_000
    d = np.linspace(1, 2, n)
    b = 1 + np.sin(np.arange(n))
    A = LinearOperator(lambda v: d * v, in_shape=n)
    M = LinearOperator(lambda v: v, in_shape=n) if with_M else None
    peaks = []
    for restart in (8, 16):  # beyond 16 the room grows as columns come
        tracemalloc.start()
        ims.linear_solve(A, b, M=M, method=GMRES(restart=restart), stop=LinearStop(rtol=1e-3))
        peaks.append(tracemalloc.get_traced_memory()[1] / (8 * n))
        tracemalloc.stop()
    assert peaks[1] - peaks[0] == pytest.approx(8 * vectors, abs=1)
    assert peaks[0] < 8 * vectors + 16


class Transfers:
    """Counts what moves numbers from a strict array to Python or NumPy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        kind = type(array_api_strict.zeros(1))
        for name in ("__dlpack__", "__bool__", "__float__", "__int__", "__complex__", "__array__", "__buffer__"):
            if hasattr(kind, name):
                monkeypatch.setattr(kind, name, self.counted(getattr(kind, name)))

    def counted(self, method):
        def wrapper(*arguments, **keywords):
            self.count += 1
            return method(*arguments, **keywords)

        return wrapper


@pytest.mark.parametrize("family", FAMILY)
def test_one_transfer_to_the_host_an_iteration(monkeypatch, family):
    xp = array_api_strict
    d = xp.linspace(1, 40, 60)
    A = LinearOperator(lambda v: d * v, in_shape=60, dtype=xp.float64)
    b = xp.ones(60)
    transfers = Transfers(monkeypatch)
    result = ims.linear_solve(A, b, method=family(restart=12), stop=LinearStop(rtol=1e-12, max_iterations=48))
    assert result.iterations > 30
    cycles = result.matvecs - result.iterations
    assert transfers.count <= result.iterations + 2 * cycles + 4


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: GMRES(restart=0), ValueError, ["GMRES", "restart", "at least 1", "0"]),
        (lambda: FGMRES(restart=2.5), TypeError, ["FGMRES", "restart", "integer", "float"]),
        (lambda: LGMRES(restart=True), TypeError, ["LGMRES", "restart", "integer", "bool"]),
        (lambda: LGMRES(outer_k=-1), ValueError, ["LGMRES", "outer_k", "at least 0", "-1"]),
        (lambda: LGMRES(outer_k="3"), TypeError, ["LGMRES", "outer_k", "integer", "str"]),
        (lambda: GMRES(30), TypeError, ["positional"]),
        (lambda: GMRES(m=30), TypeError, ["unexpected", "m"]),
    ],
    ids=["zero", "float", "bool", "negative", "string", "positional", "unknown"],
)
def test_wrong_settings_are_named(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_settings_are_values():
    assert GMRES() == GMRES(restart=30) != FGMRES()
    assert len({LGMRES(), LGMRES(outer_k=3)}) == 1
    with pytest.raises(AttributeError):
        GMRES().restart = 3


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("with_M", [False, True])
def test_a_basis_that_grows_is_the_same(monkeypatch, rng, family, with_M):
    n = 90
    d = np.stack([np.linspace(1, 1 + 10.0**p, n) for p in (0, 2, 4)])

    def diagonal(d):
        take = lambda rows: diagonal(d[rows])  # noqa: E731
        return LinearOperator(lambda v: d * v, in_shape=n, batch_shape=(len(d),), take=take)

    A, M = diagonal(d), diagonal(np.ones((3, n))) if with_M else None
    b = rng.standard_normal((3, n))

    def solved():
        return ims.linear_solve(A, b, M=M, method=family(restart=n), stop=LinearStop(rtol=1e-11))

    grown = solved()
    monkeypatch.setattr("implicitsolve.krylov._arnoldi.FIRST_COLUMNS", n)
    expected = solved()
    assert grown.success.all()
    assert grown.iterations.max() > 40
    np.testing.assert_array_equal(grown.iterations, expected.iterations)
    np.testing.assert_allclose(grown.x, expected.x, rtol=1e-12)


def near_identity(rng, size: int, n: int, norm: float) -> np.ndarray:
    return np.eye(n) + norm * rng.standard_normal((size, n, n)) / np.sqrt(n)


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("with_M", [False, True])
def test_a_polish_saves_a_product(rng, family, with_M):
    dense, b = near_identity(rng, 4, 200, 0.1), rng.standard_normal((4, 200))
    A, target = ims.aslinearoperator(dense), 1e-6 * np.linalg.norm(b, axis=1)
    M = ims.aslinearoperator(np.broadcast_to(np.eye(200), dense.shape).copy()) if with_M else None
    plain = family().solve(A, b, target=target, max_iterations=50, M=M, confirm=False)
    polished = family().solve(A, b, target=target, max_iterations=50, M=M, confirm=False, polish=True)
    norms = np.linalg.norm(b - np.einsum("bij,bj->bi", dense, polished.x), axis=1)
    assert (polished.iterations <= plain.iterations).all()
    assert polished.iterations.sum() < plain.iterations.sum()
    assert (norms <= target).all()
    assert (polished.status == ims.Status.CONVERGED).all()
    np.testing.assert_allclose(polished.residual_norm, norms, rtol=0.3)
    for i in range(4):  # each system for itself
        part = A.take(np.asarray([i]))
        alone = family().solve(
            part, b[i : i + 1], target=target[i : i + 1], max_iterations=50, confirm=False, polish=True
        )
        np.testing.assert_allclose(alone.x[0], polished.x[i], rtol=1e-12)


def test_a_polish_that_would_gain_little_is_not_tried(rng):
    d = np.linspace(0.05, 2.0, 80)
    A, b = ims.aslinearoperator(np.diag(d)[None]), rng.standard_normal((1, 80))
    target = 1e-4 * np.linalg.norm(b, axis=1)
    plain, polished = (
        GMRES(restart=80).solve(A, b, target=target, max_iterations=80, confirm=False, polish=polish)
        for polish in (False, True)
    )
    np.testing.assert_array_equal(polished.x, plain.x)
    np.testing.assert_array_equal(polished.residual_norm, plain.residual_norm)


def test_what_is_confirmed_is_not_polished(rng):
    dense, b = near_identity(rng, 1, 60, 0.1), rng.standard_normal((1, 60))
    A, target = ims.aslinearoperator(dense), 1e-6 * np.linalg.norm(b, axis=1)
    plain, polished = (
        GMRES().solve(A, b, target=target, max_iterations=50, confirm=True, polish=polish) for polish in (False, True)
    )
    np.testing.assert_array_equal(polished.x, plain.x)


@pytest.mark.parametrize(("cosine", "idle"), [(0.02, True), (0.04, True), (0.05, False)])
def test_ten_cycles_that_gain_less_than_a_thousandth_are_stagnation(cosine, idle):
    """A rotation: a cycle of one vector leaves the sine of the residual."""
    sine = (1 - cosine**2) ** 0.5
    A = np.asarray([[cosine, -sine], [sine, cosine]])
    result = ims.linear_solve(A, np.ones(2), method=GMRES(restart=1), stop=LinearStop(max_iterations=30))
    assert result.status is (Status.STAGNATED if idle else Status.ITERATION_LIMIT)
    assert result.iterations == (10 if idle else 30)
    assert result.residual_norm == pytest.approx(2**0.5 * sine**result.iterations)
