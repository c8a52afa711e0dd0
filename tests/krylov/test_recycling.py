"""Recycled Krylov spaces: what the preconditioner made of them is, and what it saves."""

from types import SimpleNamespace

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import NewtonKrylov, NonlinearStop, Problem, root
from implicitsolve.krylov._recycling import RecyclingGMRES, SpaceCollector

N, SYSTEMS = 30, 3
TIGHT = NonlinearStop(rtol=1e-10)


def matrices(rng, is_complex=False, hard=False):
    J = rng.standard_normal((SYSTEMS, N, N)) / np.sqrt(N)
    if is_complex:
        J = J + 1j * rng.standard_normal((SYSTEMS, N, N)) / np.sqrt(N)
    return J + (np.diag(np.geomspace(1e-2, 10, N)) if hard else 2 * np.eye(N))


def right_side(rng, is_complex=False):
    F = rng.standard_normal((SYSTEMS, N))
    return F + 1j * rng.standard_normal((SYSTEMS, N)) if is_complex else F


def step(linear, J, F, eta=1e-3, M=None):
    A = ims.aslinearoperator(J)
    outcome = linear.direction(A, F, np.linalg.norm(F, axis=1), np.full(len(F), eta), M)
    residual = F + np.einsum("bij,bj->bi", J, outcome.x)
    np.testing.assert_allclose(np.linalg.norm(residual, axis=1), outcome.residual_norm, rtol=1e-6, atol=1e-9)
    return outcome


def images(space):
    """U and C of a space."""
    U = space.K if space.base is not None else space.K + space.C / space.theta[:, None, None]
    return U, space.C


def apply(J, rows):
    return np.einsum("bij,bqj->bqi", J, rows)


@pytest.mark.parametrize("is_complex", [False, True])
def test_it_inverts_what_was_seen(rng, is_complex):
    """J U = C, C orthonormal, M C = U, and J M is the identity on the span of C."""
    J, F = matrices(rng, is_complex), right_side(rng, is_complex)
    linear = RecyclingGMRES(40, 200, SYSTEMS)
    step(linear, J, F)
    U, C = images(linear.space)
    np.testing.assert_allclose(apply(J, U), C, atol=1e-10)
    gram = np.einsum("bqi,bpi->bqp", C.conj(), C)
    np.testing.assert_allclose(gram, gram * np.eye(C.shape[1]), atol=1e-10)
    v = np.einsum("bq,bqi->bi", rng.standard_normal(C.shape[:2]), C)
    np.testing.assert_allclose(np.einsum("bij,bj->bi", J, linear.space.matvec(v)), v, atol=1e-9)


def test_take_is_the_part_for_some_systems(rng):
    J, F = matrices(rng), right_side(rng)
    linear = RecyclingGMRES(40, 200, SYSTEMS)
    step(linear, J, F)
    step(linear, J + 0.01, F)
    v, rows = right_side(rng), np.array([2, 0])
    np.testing.assert_allclose(linear.space.take(rows).matvec(v[rows]), linear.space.matvec(v)[rows], atol=1e-13)
    linear = linear.take(rows)
    step(linear, J[rows], F[rows])


def test_memory_is_limited(rng):
    linear = RecyclingGMRES(40, 10, SYSTEMS)
    for _ in range(6):
        step(linear, matrices(rng, hard=True), right_side(rng))
        held = linear.space.held.sum(axis=1)
        assert held.max() <= 10


def test_the_same_system_again_is_free(rng):
    """A right-hand side in what was seen needs a product or two."""
    J, F = matrices(rng, hard=True), right_side(rng)
    linear = RecyclingGMRES(40, 200, SYSTEMS)
    first = step(linear, J, F, eta=1e-6)
    again = step(linear, J, F, eta=1e-3)
    assert first.iterations.min() > 10
    assert again.iterations.max() <= 2


def test_a_space_that_has_become_singular_is_dropped():
    """Pairs of a step where J was 1e10 times larger in one direction hold noise in the other."""

    def F(x):
        with np.errstate(over="ignore"):
            return np.exp(x**2) - 2

    result = root(F, [0.01, 5.0], stop=NonlinearStop(rtol=1e-12))
    assert result.success


def hard_problem(n=200):
    return Problem(lambda x: 2 * x - np.roll(x, 1) - np.roll(x, -1) + 1e-3 * (x + x**3) - np.sin(0.3 * np.arange(n)))


def test_recycling_saves_evaluations():
    kept = root(hard_problem(), np.zeros(200), stop=TIGHT)
    forgot = root(hard_problem(), np.zeros(200), method=NewtonKrylov(recycle=0), stop=TIGHT)
    assert kept.success
    assert forgot.success
    assert kept.counts.residuals < 0.9 * forgot.counts.residuals
    np.testing.assert_allclose(kept.x, forgot.x, atol=1e-7)


@pytest.mark.parametrize("recycle", [0, 1, 5, 50])
@pytest.mark.parametrize("max_krylov", [2, 20, 400])
def test_any_amount_of_memory_finds_the_root(recycle, max_krylov):
    n = 60
    method = NewtonKrylov(recycle=recycle, max_krylov=max_krylov)
    result = root(hard_problem(n), np.zeros(n), method=method, stop=TIGHT)
    assert result.success


def test_every_library(xp, any_dtype, rng):
    linear = RecyclingGMRES(20, 12, 2)
    J = xp.asarray(matrices(rng)[:2], dtype=any_dtype)
    F = xp.asarray(right_side(rng)[:2], dtype=any_dtype)
    norms = np.asarray([float(xp.linalg.vector_norm(F[i, :])) for i in range(2)])
    for _ in range(3):
        outcome = linear.direction(ims.aslinearoperator(J), F, norms, np.full(2, 1e-3), None)
        assert outcome.x.dtype == any_dtype
        residual = F + xp.matmul(J, outcome.x[..., None])[..., 0]
        assert float(xp.linalg.vector_norm(residual)) <= 2e-3 * norms.sum()
        J = J + 0.01


@pytest.mark.parametrize(("largest", "smallest"), [(1.0, 1e-9), (1e-28, 1e-39), (1e-30, 1e-35)])
def test_single_precision_keeps_what_it_can_hold(largest, smallest):
    """Singular values below float32's rounding are noise, and 1 / 1e-39 is no number of it."""
    small = SimpleNamespace(columns=2, Q=np.eye(3, 2)[None], R=np.diag([largest, smallest])[None])
    V = np.eye(3, dtype=np.float32)[None]
    collector = SpaceCollector(V[:, 0, :], keep=5, least=np.zeros(1, dtype=int))
    collector(np.arange(1), V, V[:, :2, :], small, np.array([2]))
    space = collector.join(None, None)
    U = images(space)[0]
    assert np.isfinite(U).all()
    assert np.isfinite(space.matvec(np.ones((1, 3), dtype=np.float32))).all()
    assert np.max(np.abs(U)) <= 2 / largest or smallest / largest > np.finfo(np.float32).eps
