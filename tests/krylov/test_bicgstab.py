"""BiCGSTAB: the textbook recurrence, what happens where it breaks down, and what it costs."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import BiCGSTAB, LinearOperator, LinearStop, Status


def textbook(A: np.ndarray, b: np.ndarray, steps: int, M: np.ndarray | None = None) -> np.ndarray:
    """The best iterate of van der Vorst (1992) in some steps from 0, with shadow vector b and M on the right."""
    M = np.eye(len(b)) if M is None else M
    x, r, shadow = np.zeros_like(b), b.copy(), b.copy()
    p, best = r.copy(), x
    for _ in range(steps):
        v = A @ (M @ p)
        alpha = np.vdot(shadow, r) / np.vdot(shadow, v)
        s = r - alpha * v
        t = A @ (M @ s)
        omega = np.vdot(t, s) / np.vdot(t, t)
        x = x + alpha * (M @ p) + omega * (M @ s)
        r_new = s - omega * t
        beta = np.vdot(shadow, r_new) / np.vdot(shadow, r) * alpha / omega
        p = r_new + beta * (p - omega * v)
        r = r_new
        best = min(best, x, key=lambda y: np.linalg.norm(b - A @ y))
    return best


def system(rng: np.random.Generator, n: int, is_complex: bool = False) -> tuple[np.ndarray, np.ndarray]:
    A, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    if is_complex:
        A, b = A + 1j * rng.standard_normal((n, n)), b + 1j * rng.standard_normal(n)
    return A + 1.5 * n**0.5 * np.eye(n), b


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("with_M", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_iterates_are_those_of_the_textbook(rng, is_complex, with_M, steps):
    A, b = system(rng, 15, is_complex)
    M = np.linalg.inv(np.diag(np.diag(A))) if with_M else None
    stop = LinearStop(rtol=1e-14, max_iterations=steps)
    result = ims.linear_solve(A, b, M=M, method=BiCGSTAB(), stop=stop)
    assert result.iterations == steps
    np.testing.assert_allclose(result.x, textbook(A, b, steps, M), rtol=1e-8, atol=1e-10)


REGULAR = {
    "rotation": [[0, 1], [-1, 0]],
    "swap": [[0, 1], [1, 0]],
    "cycle of 3": [[0, 1, 0], [0, 0, 1], [1, 0, 0]],
    "indefinite": [[1, 0], [0, -1]],
    "skew and a little": [[1e-3, 1], [-1, 1e-3]],
}


@pytest.mark.parametrize("A", REGULAR.values(), ids=REGULAR)
@pytest.mark.parametrize("right", ["first", "ones"])
def test_a_regular_system_with_a_vanishing_product_is_solved_or_called_broken(A, right):
    """<r, A r> = 0 breaks the recurrence; what must not happen is NaN, a warning, or a wrong verdict."""
    A = np.asarray(A, dtype=float)
    b = np.eye(len(A))[0] if right == "first" else np.ones(len(A))
    result = ims.linear_solve(A, b, method=BiCGSTAB())
    assert result.status in (Status.CONVERGED, Status.BREAKDOWN)
    assert np.isfinite(result.x).all()
    assert np.linalg.norm(A @ result.x - b) == pytest.approx(result.residual_norm, abs=1e-14)
    assert result.residual_norm <= np.linalg.norm(b)


def test_a_restart_with_another_shadow_vector_solves_what_the_first_cannot():
    result = ims.linear_solve(np.asarray(REGULAR["swap"], dtype=float), np.asarray([1.0, 0.0]), method=BiCGSTAB())
    assert result.status is Status.CONVERGED


def test_progress_survives_a_lost_recurrence():
    """Convection and diffusion: the residual jumps about, and the recurrence is lost more than once."""
    n = 200
    A = 2 * np.eye(n) - 1.2 * np.eye(n, k=-1) - 0.8 * np.eye(n, k=1)
    result = ims.linear_solve(A, np.ones(n), method=BiCGSTAB(), stop=LinearStop(rtol=1e-8, max_iterations=1000))
    assert result.residual_norm < 0.1 * np.linalg.norm(np.ones(n))


@pytest.mark.parametrize("limit", [1, 7, 30, 60])
def test_the_limit_is_one_for_all_restarts_together(limit):
    shift = np.roll(np.eye(12), 1, axis=0) + 0.01 * np.eye(12)  # every run is lost after a few steps
    result = ims.linear_solve(
        shift, np.eye(12)[0], method=BiCGSTAB(), stop=LinearStop(rtol=1e-14, max_iterations=limit)
    )
    assert (result.iterations, result.status) == (limit, Status.ITERATION_LIMIT)


def test_two_products_an_iteration_and_one_that_confirms(rng):
    A, b = system(rng, 20)
    calls, preconditioned = [], []
    counted = LinearOperator(lambda v: (calls.append(None), A @ v)[1], in_shape=20)
    M = LinearOperator(lambda v: (preconditioned.append(None), v / np.diag(A))[1], in_shape=20)
    result = ims.linear_solve(counted, b, M=M, method=BiCGSTAB(), stop=LinearStop(rtol=1e-8))
    assert result.success
    assert len(calls) == result.matvecs == 2 * result.iterations + 1
    assert len(preconditioned) == 2 * result.iterations


def test_a_product_that_is_not_finite_ends_its_system_and_no_other(rng):
    A, b = np.stack([system(rng, 6)[0] for _ in range(3)]), rng.standard_normal((3, 6))
    products = []

    def operator(matrices, numbers):
        def matvec(v):
            products.append(len(v))
            w = (matrices @ v[..., None])[..., 0]
            w[numbers == 1] = np.inf
            return w

        return LinearOperator(
            matvec, in_shape=6, batch_shape=(len(numbers),), take=lambda rows: operator(matrices[rows], numbers[rows])
        )

    result = ims.linear_solve(operator(A, np.arange(3)), b, method=BiCGSTAB())
    assert list(result.status) == [Status.CONVERGED, Status.NONFINITE, Status.CONVERGED]
    assert result.iterations[1] == 1
    np.testing.assert_array_equal(result.x[1], 0.0)
    np.testing.assert_allclose(result.residual_norm[1], np.linalg.norm(b[1]))
