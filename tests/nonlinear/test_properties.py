"""Properties that hold for every problem: truth, one step for affine systems, and invariances."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import NewtonKrylov, NonlinearStop, Problem, Status, root

pytestmark = pytest.mark.rounding

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 25)
booleans = st.booleans()
KRYLOV = {
    "own": None,
    "gmres": ims.GMRES(restart=30),
    "lgmres": ims.LGMRES(restart=30),
    "bicgstab": ims.BiCGSTAB(),
}
every_krylov = pytest.mark.parametrize("krylov", KRYLOV.values(), ids=KRYLOV.keys())


class Smooth:
    """F(x) = A x + c sin(x) - b, well conditioned, real or complex; A is (N, N) or a batch."""

    def __init__(self, seed, n, *, is_complex=False, batch=(), bend=0.3):
        rng = np.random.default_rng(seed)

        def random(*shape):
            values = rng.standard_normal(shape)
            return values + 1j * rng.standard_normal(shape) if is_complex else values

        self.A = np.eye(n) * rng.uniform(1.5, 3.0) + 0.4 * random(*batch, n, n) / math.sqrt(n)
        self.b, self.c = random(*batch, n), bend
        self.x0 = random(*batch, n)

    def residual(self, x):
        return (self.A @ x[..., None])[..., 0] + self.c * np.sin(x) - self.b

    def jvp(self, x, v):
        return (self.A @ v[..., None])[..., 0] + self.c * np.cos(x) * v

    def problem(self, exact=True):
        return Problem(self.residual, jvp=self.jvp if exact else None, batch_ndim=self.b.ndim - 1)


def max_abs(F):
    return np.max(np.abs(F), axis=-1, initial=0.0)


@given(
    seed=seeds,
    n=st.integers(1, 6),
    kind=st.sampled_from(["smooth", "kinked", "no root", "domain", "stiff", "flat", "rounded"]),
    rtol=st.sampled_from([1e-2, 1e-6, 1e-10, 1e-15, 0.0]),
    max_iterations=st.integers(0, 40),
    exact=booleans,
    line_search=st.sampled_from([ims.Backtracking(), ims.FullStep(), ims.Wolfe()]),
)
def test_what_a_result_says_is_so(seed, n, kind, rtol, max_iterations, exact, line_search):
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    functions = {
        "smooth": lambda x: A @ x + 0.1 * x**3 - b,
        "kinked": lambda x: A @ x + np.abs(x) - b,
        "no root": lambda x: x**2 + 1 + 0.1 * (A @ x),
        "domain": lambda x: np.log(x) + 0.1 * (A @ x),
        "stiff": lambda x: np.exp(5 * x) - 1 + A @ x,
        "flat": lambda x: np.tanh(A @ x) - 2,
        "rounded": lambda x: np.round(A @ x - b, 4),
    }
    calls = {"residual": 0, "jvp": 0}

    def F(x):
        calls["residual"] += 1
        with np.errstate(all="ignore"):
            return functions[kind](x)

    def jvp(x, v):
        calls["jvp"] += 1
        with np.errstate(all="ignore"):
            return (functions[kind](x + 1e-7 * v) - functions[kind](x)) / 1e-7

    x0 = rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 1)
    given_x0 = x0.copy()
    stop = NonlinearStop(rtol=rtol, max_iterations=max_iterations)
    method = NewtonKrylov(line_search=line_search)
    result = root(Problem(F, jvp=jvp if exact else None), x0, method=method, stop=stop)
    assert (result.counts.residuals, result.counts.jvps) == (calls["residual"], calls["jvp"])
    np.testing.assert_array_equal(x0, given_x0)
    fresh, first = F(result.x), F(x0)
    np.testing.assert_array_equal(result.fun, fresh)
    assert result.status in set(Status) - {Status.RUNNING, Status.STOPPED, Status.FORWARD_NOT_CONVERGED}
    assert result.iterations <= max_iterations
    assert result.success == (result.status == Status.CONVERGED)
    assert result.success == bool(max_abs(fresh) <= rtol * max_abs(first)) or not np.isfinite(max_abs(first))
    np.testing.assert_array_equal(result.residual_norm, max_abs(fresh))
    np.testing.assert_array_equal(result.initial_norm, max_abs(first))


@given(seed=seeds, n=sizes, is_complex=booleans, exact=booleans)
@every_krylov
def test_well_conditioned_problems_are_solved(krylov, seed, n, is_complex, exact):
    smooth = Smooth(seed, n, is_complex=is_complex, bend=0.2)
    result = root(smooth.problem(exact), smooth.x0, method=NewtonKrylov(krylov=krylov))
    assert result.success
    assert result.iterations <= 15


@given(seed=seeds, n=sizes, is_complex=booleans, exact=booleans, batch=st.sampled_from([(), (1,), (3,), (2, 2)]))
@every_krylov
def test_affine_problems_take_one_step_and_equal_the_dense_solve(krylov, seed, n, is_complex, exact, batch):
    affine = Smooth(seed, n, is_complex=is_complex, batch=batch, bend=0.0)
    method = NewtonKrylov(krylov=krylov, forcing=ims.ConstantForcing(eta=1e-10))
    rtol = 1e-5  # relative to max|F(x0)|; the linear solve is asked for half of that in ||F||_2
    stop = NonlinearStop(rtol=rtol, norm="2")
    result = root(affine.problem(exact), affine.x0, method=method, stop=stop)
    assert np.all(result.success)
    assert np.all(np.asarray(result.iterations) == 1)
    dense = np.linalg.solve(affine.A, affine.b[..., None])[..., 0]
    first = np.linalg.norm(affine.residual(affine.x0), axis=-1)
    worst = np.linalg.cond(affine.A) * rtol * first / np.linalg.norm(affine.A, 2, axis=(-2, -1))
    assert np.all(np.linalg.norm(result.x - dense, axis=-1) <= worst * 1.01)


@settings(max_examples=max(1, settings().max_examples // 3))
@given(seed=seeds, n=st.integers(1, 12), systems=st.integers(1, 6), is_complex=booleans, with_take=booleans)
@every_krylov
def test_batches_equal_single_systems(krylov, seed, n, systems, is_complex, with_take):
    smooth = Smooth(seed, n, is_complex=is_complex, batch=(systems,))
    hopeless = seed % systems if seed % 3 else -1  # in two of three cases one system has no root

    def build(rows):
        A, b = smooth.A[rows], smooth.b[rows]
        bad = (rows == hopeless)[:, None]

        def residual(x):
            good = (A @ x[..., None])[..., 0] + 0.3 * np.sin(x) - b
            return np.where(bad, x**2 + 2 if not is_complex else 0 * x + 1, good)

        def jvp(x, v):
            good = (A @ v[..., None])[..., 0] + 0.3 * np.cos(x) * v
            return np.where(bad, 2 * x * v if not is_complex else 0 * v, good)

        take = (lambda indices: build(rows[indices])) if with_take else None
        return Problem(residual, jvp=jvp, batch_ndim=1, take=take)

    method = NewtonKrylov(krylov=krylov, retry=False)
    together = root(build(np.arange(systems)), smooth.x0, method=method)
    order = np.random.default_rng(seed).permutation(systems)
    permuted = root(build(order), smooth.x0[order], method=method)
    for place, i in enumerate(order):
        alone = root(build(np.array([i])), smooth.x0[i : i + 1], method=method)
        for result, row in ((together, i), (permuted, place)):
            assert result.success[row] == alone.success[0] == (i != hopeless)
            if i != hopeless:
                assert result.iterations[row] == alone.iterations[0]
                assert result.krylov_iterations[row] == alone.krylov_iterations[0]
                np.testing.assert_allclose(result.x[row], alone.x[0], rtol=1e-10, atol=1e-10)


def same_course(a, b):
    assert a.counts == b.counts
    assert np.array_equal(a.iterations, b.iterations)
    assert np.array_equal(a.krylov_iterations, b.krylov_iterations)
    assert np.array_equal(a.status, b.status)


@given(seed=seeds, n=st.integers(2, 20), exact=booleans)
@every_krylov
def test_order_of_unknowns_and_equations(krylov, seed, n, exact):
    """P F(P^T y) = 0 has the solution P x, found in the same way."""
    smooth = Smooth(seed, n)
    order = np.random.default_rng(seed).permutation(n)
    back = np.argsort(order)
    method = NewtonKrylov(krylov=krylov)
    plain = root(smooth.problem(exact), smooth.x0, method=method)
    problem = Problem(
        lambda y: smooth.residual(y[back])[order],
        jvp=(lambda y, v: smooth.jvp(y[back], v[back])[order]) if exact else None,
    )
    permuted = root(problem, smooth.x0[order], method=method)
    if exact:
        assert permuted.iterations == plain.iterations
        assert abs(permuted.krylov_iterations - plain.krylov_iterations) <= 1
    np.testing.assert_allclose(permuted.x, plain.x[order], rtol=1e-6, atol=1e-6)


@given(seed=seeds, shape=st.lists(st.integers(1, 4), min_size=0, max_size=4).map(tuple), exact=booleans)
def test_shape_changes_no_bit(seed, shape, exact):
    n = math.prod(shape)
    smooth = Smooth(seed, n)
    plain = root(replace(smooth.problem(exact), structure="none"), smooth.x0)  # a search begins with the shape's grid

    def F(x):
        assert x.shape == shape
        return smooth.residual(x.reshape(n)).reshape(shape)

    def jvp(x, v):
        assert x.shape == v.shape == shape
        return smooth.jvp(x.reshape(n), v.reshape(n)).reshape(shape)

    shaped = root(Problem(F, jvp=jvp if exact else None, structure="none"), smooth.x0.reshape(shape))
    same_course(plain, shaped)
    np.testing.assert_array_equal(shaped.x.reshape(n), plain.x)
    assert shaped.x.shape == shape


@given(seed=seeds, n=sizes, angle=st.floats(0, 2 * np.pi))
def test_phase_of_complex_problems(seed, n, angle):
    """F and x may be turned in the complex plane."""
    smooth, turn = Smooth(seed, n, is_complex=True), np.exp(1j * angle)
    plain = root(smooth.problem(), smooth.x0)
    problem = Problem(
        lambda y: turn * smooth.residual(y / turn), jvp=lambda y, v: turn * smooth.jvp(y / turn, v / turn)
    )
    turned = root(problem, turn * smooth.x0)
    assert turned.iterations == plain.iterations
    np.testing.assert_allclose(turned.x / turn, plain.x, rtol=1e-7, atol=1e-7)
