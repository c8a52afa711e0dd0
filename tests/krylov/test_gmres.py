"""GMRES and LGMRES: what they minimize, how they end, what they cost."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import GMRES, LGMRES, BiCGSTAB, LinearOperator, LinearStop, Status, aslinearoperator
from implicitsolve._arrays.host import to_host
from implicitsolve.krylov._arnoldi import Arnoldi
from tests.krylov.systems import FAMILY, KINDS, norms_of, product, systems


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("with_M", "augmented"), [(False, 2), (True, 0)])
def test_the_recurrence_knows_the_residual(xp, any_dtype, rng, kind, with_M, augmented):
    is_complex = bool(xp.isdtype(any_dtype, "complex floating"))
    host = to_host(xp.zeros(0, dtype=any_dtype)).dtype
    A, r = (part.astype(host) for part in systems(rng, kind, 4, 6, is_complex))
    M = systems(rng, "regular", 4, 6, is_complex)[0].astype(host)
    directions = systems(rng, "regular", 4, 6, is_complex)[0][:, :augmented].astype(host)
    cycle = Arnoldi(
        aslinearoperator(xp.asarray(A)),
        xp.asarray(r),
        norms_of(r),
        target=np.full(4, 1e-30),
        columns=5,
        M=aslinearoperator(xp.asarray(M)) if with_M else None,
        augment=xp.asarray(directions) if augmented else None,
    ).run()
    dx, residual = to_host(cycle.dx), to_host(cycle.residual)
    measured = r - product(A, dx)
    scale = np.linalg.norm(A, axis=(1, 2)) * norms_of(dx) + norms_of(r)
    rounding = 100 * float(np.finfo(host).eps) * scale
    assert (norms_of(measured - residual) <= rounding).all()
    assert (np.abs(norms_of(measured) - cycle.norm) <= rounding).all()
    assert (cycle.norm <= norms_of(r) * (1 + 1e-6)).all()


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
def test_a_singular_inconsistent_system_breaks_down_at_the_least_squares_solution(family):
    A, b = np.diag([0.0, 1.0, 2.0, 5.0]), np.asarray([1.0, 1.0, 2.0, 3.0])
    result = ims.linear_solve(A, b, method=family())
    assert result.status is Status.BREAKDOWN
    assert result.residual_norm == pytest.approx(1.0)  # range-symmetric A: GMRES finds the least-squares residual
    assert result.iterations < 20


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


def test_without_augmentation_lgmres_is_gmres(rng):
    A, b = systems(rng, "regular", 2, 15, False)
    stop = LinearStop(rtol=1e-10, max_iterations=200)
    plain = ims.linear_solve(A, b, method=GMRES(restart=5), stop=stop)
    augmented = ims.linear_solve(A, b, method=LGMRES(restart=5, outer_k=0), stop=stop)
    np.testing.assert_array_equal(plain.x, augmented.x)


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


def test_gmres_takes_a_preconditioner_that_changes(rng):
    n = 60
    A = np.diag(np.linspace(1, 40, n)) + np.triu(rng.standard_normal((n, n)), 1)
    b, rounds = rng.standard_normal(n), []

    def inner(v):
        rounds.append(None)
        stop = LinearStop(rtol=0.5 / (1 + len(rounds) % 3))  # another accuracy in every call
        return ims.linear_solve(A, v, method=BiCGSTAB(), stop=stop).x

    result = ims.linear_solve(
        A, b, M=LinearOperator(inner, in_shape=n), method=GMRES(), stop=LinearStop(rtol=1e-10, max_iterations=40)
    )
    assert result.success
    assert len(rounds) == result.iterations
    assert result.iterations < 25
    np.testing.assert_allclose(A @ result.x, b, atol=1e-9 * np.linalg.norm(b))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: GMRES(restart=0), ValueError, ["GMRES", "restart", "at least 1", "0"]),
        (lambda: LGMRES(restart=True), TypeError, ["LGMRES", "restart", "integer", "bool"]),
        (lambda: LGMRES(outer_k=-1), ValueError, ["LGMRES", "outer_k", "at least 0", "-1"]),
        (lambda: LGMRES(outer_k="3"), TypeError, ["LGMRES", "outer_k", "integer", "str"]),
        (lambda: GMRES(30), TypeError, ["positional"]),
        (lambda: GMRES(m=30), TypeError, ["unexpected", "m"]),
    ],
    ids=["zero", "bool", "negative", "string", "positional", "unknown"],
)
def test_wrong_settings_are_named(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("cosine", "idle"), [(0.02, True), (0.04, True), (0.05, False)])
def test_ten_cycles_that_gain_less_than_a_thousandth_are_stagnation(cosine, idle):
    """A rotation: a cycle of one vector leaves the sine of the residual."""
    sine = (1 - cosine**2) ** 0.5
    A = np.asarray([[cosine, -sine], [sine, cosine]])
    result = ims.linear_solve(A, np.ones(2), method=GMRES(restart=1), stop=LinearStop(max_iterations=30))
    assert result.status is (Status.STAGNATED if idle else Status.ITERATION_LIMIT)
    assert result.iterations == (10 if idle else 30)
    assert result.residual_norm == pytest.approx(2**0.5 * sine**result.iterations)
