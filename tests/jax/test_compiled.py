"""Small systems that `implicitsolve.jax.root` solves within JAX."""

from importlib import import_module

import numpy as np
import pytest

import implicitsolve as ims

jax = pytest.importorskip("jax", exc_type=ImportError)
imj = import_module("implicitsolve.jax")
jnp = jax.numpy
Status = ims.Status

pytestmark = pytest.mark.usefixtures("compiled_quickly", "precision")


@pytest.fixture
def no_host(monkeypatch):
    """The host must not be asked."""

    def fail(*arguments, **options):
        raise AssertionError("the host was asked")

    monkeypatch.setattr(import_module("implicitsolve.jax._solves"), "root_on_host", fail)


def coupled(x, p):
    return x**3 + x - p + 0.1 * jnp.roll(x, 1)


@pytest.mark.usefixtures("no_host")
def test_the_host_is_not_asked():
    def solve(p):
        return imj.root(coupled, jnp.zeros(5), p)

    p = jnp.linspace(-3.0, 3.0, 5)
    slope = jax.jit(jax.jacrev(lambda p: solve(p).x))
    result = solve(p)
    assert result.success
    assert result.products == 5 * result.iterations < result.residuals * 5
    np.testing.assert_allclose(coupled(result.x, p), 0, atol=1e-7)
    np.testing.assert_allclose(slope(p), np.linalg.inv(jax.jacfwd(coupled)(result.x, p)), atol=1e-9)
    np.testing.assert_allclose(jax.jit(jax.vmap(solve))(jnp.stack([p, 2 * p])).x[0], result.x, atol=1e-7)


@pytest.mark.usefixtures("no_host")
@pytest.mark.parametrize("stop", [ims.NonlinearStop(atol=1e-10), ims.NonlinearStop(xtol=1e-10)], ids=str)
def test_tolerances_are_kept(stop):
    result = imj.root(coupled, jnp.zeros(5), jnp.ones(5), stop=stop)
    assert result.success
    assert result.residual_norm <= 1e-10 or result.error <= 1e-10


FAILURES = {
    "no root": (lambda x: x**2 + 1, 3.0, lambda status: status not in (Status.CONVERGED, Status.RUNNING), jax.jit),
    "at infinity": (lambda x: jnp.exp(-x), 1.0, lambda status: status == Status.AT_INFINITY, jax.jit),
    "not a number": (lambda x: jnp.log(x) * jnp.nan, 1.0, lambda status: status == Status.NONFINITE, lambda f: f),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_does_not_converge_is_left_to_the_host(name):
    F, x0, is_right, wrap = FAILURES[name]
    result = wrap(lambda x0: imj.root(F, x0))(jnp.full(2, x0))
    assert is_right(Status(int(result.status)))
    assert not result.success


def test_a_hopeless_system_of_a_batch_leaves_the_others_right():
    a = jnp.array([4.0, -1.0, 9.0])
    result = jax.jit(jax.vmap(lambda a: imj.root(lambda x: x**2 - a, jnp.ones(2))))(a)
    assert result.success.tolist() == [True, False, True]
    np.testing.assert_allclose(result.x[::2, 0], [2.0, 3.0], rtol=1e-7)


@pytest.mark.usefixtures("no_host")
@pytest.mark.parametrize("error", [0.0, 1e-15, 1e-12, 1e-9, 1e-4])
def test_warm_starts_succeed(error):
    p = jnp.linspace(-3.0, 3.0, 5)
    x = imj.root(coupled, jnp.zeros(5), p, stop=ims.NonlinearStop(xtol=1e-12)).x
    result = imj.root(coupled, x * (1 + error), p)
    assert result.success
    assert result.iterations <= 3
    assert result.error <= 1.5e-8


def test_success_means_that_x_is_accurate():
    """Monotone systems from far starts, with powers and exponentials: Newton's method creeps, and has to say so."""
    rng = np.random.default_rng(0)

    def F(x, A, r, k):
        return A @ (x - r) + jnp.sinh(k * (x - r)) + (x - r) ** 3

    solve = jax.jit(lambda x0, *p: imj.root(F, x0, *p))
    for _ in range(40):
        A = rng.standard_normal((4, 4))
        r = 10.0 ** rng.uniform(-3, 3, 4)
        result = solve(jnp.asarray(r + 10.0 ** rng.uniform(-2, 2)), A @ A.T, r, rng.uniform(0, 1))
        error = np.abs(result.x / r - 1).max()
        assert not result.success or error < 1e-4
        error = np.abs(result.x - r).max() / np.abs(r).max()
        assert not result.success or error <= 100 * result.error + 1e-10


@pytest.mark.parametrize(
    ("flat", "n"),
    [(lambda x: 2 / (jnp.exp(x) + jnp.exp(-x)), 3), (lambda x: jnp.exp(-(x**2)), 1)],
    ids=["secant", "bell"],
)
def test_one_step_from_a_flat_start_was_taken_for_a_root(flat, n):
    B = np.linalg.qr(np.random.default_rng(7).standard_normal((n, n)))[0] + 2 * np.eye(n)

    def F(x, shift):
        return jnp.concatenate([flat(x[:1] - shift), x[1:] - 2]) @ B

    solve = jax.jit(lambda x0, shift: imj.root(F, x0, shift))
    for shift in (0.02, 0.0056):
        assert not solve(jnp.zeros(n), shift).success


def test_limits_and_tolerances_are_those_of_the_host_in_single_precision():
    result = imj.root(coupled, jnp.zeros(5), jnp.ones(5), stop=ims.NonlinearStop(max_iterations=1))
    assert result.status == Status.ITERATION_LIMIT
    assert result.x.dtype == jnp.float32
    assert imj.root(coupled, jnp.zeros(5), jnp.ones(5)).error < 4e-4
