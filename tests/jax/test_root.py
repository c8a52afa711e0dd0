"""`implicitsolve.jax.root`: JAX's transformations of roots, and what becomes of failures."""

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import numpy as np
import pytest

import implicitsolve as ims

jax = pytest.importorskip("jax", exc_type=ImportError)
imj = import_module("implicitsolve.jax")
jnp = jax.numpy
check_grads = import_module("jax.test_util").check_grads

EXACT = {"stop": ims.NonlinearStop(rtol=1e-13), "adjoint_stop": ims.LinearStop(rtol=1e-13)}

pytestmark = pytest.mark.usefixtures("compiled_quickly", "precision")


def squares(x, a):
    return x**2 - a


def coupled(x, p):
    """Two arrays x, and a parameter of each kind."""
    return {"u": x["u"] ** 3 + x["u"] - p["a"], "v": x["v"] - p["b"] * jnp.sin(x["u"]).sum() - 0.1 * x["v"] ** 2}


def line(x, c):
    """Bratu's equation, whose sparsity the solver finds by itself."""
    inner = jnp.pad(x, 1)
    return inner[:-2] - 2 * x + inner[2:] + c * jnp.exp(x) / (x.size + 1) ** 2


def dense(x, A, b):
    return x + 0.5 * jnp.tanh(A @ x) - b


def matrix(n):
    return jnp.asarray(np.random.default_rng(0).standard_normal((n, n)) / np.sqrt(n))


def test_derivatives_to_second_order():
    start = {"u": jnp.ones(2), "v": jnp.ones((2, 1))}
    p = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(0.5)}
    check_grads(jax.jit(lambda p: imj.root(coupled, start, p, **EXACT).x), (p,), 2)


def test_derivatives_by_captured_tracers():
    solution = jax.jit(lambda a: imj.root(lambda x: squares(x, a), jnp.ones(2), **EXACT).x)
    check_grads(solution, (jnp.array([1.0, 2.0]),), 1)


@pytest.mark.parametrize("structure", [None, ims.BlockBanded(1, 1), "none"], ids=str)
def test_derivatives_of_larger_systems(structure):
    def middle(c):
        return imj.root(line, jnp.zeros(25), c, structure=structure, **EXACT).x[12]

    check_grads(jax.jit(middle), (jnp.array(1.5),), 1, modes=["rev"])


def test_jacobians_in_both_modes_agree():
    A, b = matrix(25), jnp.linspace(0.0, 1.0, 25)

    def solution(b):
        return imj.root(dense, jnp.zeros(25), A, b, **EXACT).x

    x = solution(b)
    expected = jnp.linalg.inv(jnp.eye(25) + 0.5 * (1 - jnp.tanh(A @ x) ** 2)[:, None] * A)
    for jacobian in (jax.jacfwd(solution), jax.jit(jax.jacrev(solution))):
        np.testing.assert_allclose(jacobian(b), expected, atol=1e-10)


def test_complex_roots_have_the_gradients_of_the_complex_square_root():
    c = jnp.array([1j, -1.0 + 0.2j])

    def loss(root):
        return lambda c: (root(c) * jnp.array([1.0, 1j])).sum().real

    own = loss(lambda c: imj.root(squares, jnp.array([1.0 + 1j, 0.5 + 1j]), c, **EXACT).x)
    np.testing.assert_allclose(jax.grad(own)(c), jax.grad(loss(jnp.sqrt))(c), rtol=1e-8)


def test_vmap_is_a_batch_with_a_status_for_each_system():
    a = jnp.array([[4.0, 9.0], [-1.0, 1.0], [1.0, 16.0]])
    result = jax.jit(jax.vmap(lambda a: imj.root(squares, jnp.ones(2), a)))(a)
    assert result.success.tolist() == [True, False, True]
    assert result.status[1] != ims.Status.CONVERGED
    np.testing.assert_allclose(result.x[::2], [[2.0, 3.0], [1.0, 4.0]], rtol=1e-6)
    assert result.residual_norm[1] > result.target[1]


def test_a_thousand_systems_equal_the_loop_in_one_solve(monkeypatch):
    module, sizes = import_module("implicitsolve.jax._solves"), []
    solve_on_host = module.root_on_host
    monkeypatch.setattr(module, "root_on_host", lambda f, x0, **o: sizes.append(x0.shape) or solve_on_host(f, x0, **o))
    a = jnp.asarray(np.random.default_rng(0).uniform(1.0, 9.0, (1000, 3)))

    def solve(a):
        return imj.root(squares, jnp.ones(3), a, structure=ims.BlockBanded(0, 0))

    loop = jnp.stack([solve(row).x for row in a[:50]])
    assert len(sizes) == 50
    result = jax.vmap(solve)(a)
    assert sizes[50:] == [(1000, 3)]
    np.testing.assert_array_equal(result.x[:50], loop)
    assert result.success.all()


def test_transformations_compose():
    a = jnp.array([[1.0, 4.0], [9.0, 16.0]])
    slope = jax.grad(lambda a: imj.root(squares, jnp.ones(()), a, **EXACT).x)
    expected = 0.5 / jnp.sqrt(a)
    for compose in (
        jax.jit(jax.vmap(jax.vmap(slope, in_axes=0), in_axes=1, out_axes=1)),
        jax.vmap(jax.jit(jax.vmap(slope))),
    ):
        np.testing.assert_allclose(compose(a), expected, rtol=1e-10)
    starts = jax.vmap(jax.vmap(lambda x, a: imj.root(squares, x, a).x, (0, None)), (None, 0))(
        jnp.array([1.0, -1.0]), a[0]
    )
    np.testing.assert_allclose(starts, [[1.0, -1.0], [2.0, -2.0]], rtol=1e-6)
    curvature = jax.jit(jax.vmap(jax.hessian(lambda a: imj.root(squares, jnp.ones(()), a, **EXACT).x)))(a[0])
    np.testing.assert_allclose(curvature, -0.25 * a[0] ** -1.5, rtol=1e-8)


def test_roots_in_loops_and_in_residuals():
    def cube(y, x):
        return y**3 + y - x

    def outer(x, a):
        return imj.root(cube, jnp.ones(2), x, **EXACT).x + x - a

    a = jnp.array([1.0, 2.0])
    x = jax.jit(lambda a: imj.root(outer, jnp.ones(2), a).x)(a)
    np.testing.assert_allclose((a - x) ** 3 + a - x, x, rtol=1e-6)

    @jax.jit
    def steps(x):
        return jax.lax.scan(lambda x, _: (imj.root(lambda y, x: y - x + 0.1 * y**3, x, x).x,) * 2, x, length=4)[1]

    found = steps(a)
    np.testing.assert_allclose(found[1:] - found[:-1] + 0.1 * found[1:] ** 3, 0.0, atol=1e-7)
    A = matrix(300)  # whose products take all threads
    several = jax.jit(lambda b: [imj.root(dense, jnp.zeros(300), A, c * b).x for c in (1.0, 2.0, 1.0)])(jnp.ones(300))
    for x, c in zip(several, (1.0, 2.0, 1.0), strict=True):
        assert abs(dense(x, A, c)).max() < 1e-6


def test_roots_in_other_control_flow():
    def solution(a):
        return imj.root(squares, 1.0, a, **EXACT).x

    assert jax.jit(jax.grad(jax.checkpoint(lambda a: solution(a) ** 2)))(4.0) == pytest.approx(1.0)
    chosen = jax.vmap(lambda a: jax.lax.cond(a > 5, solution, lambda a: a, a))(jnp.array([4.0, 9.0]))
    np.testing.assert_allclose(chosen, [4.0, 3.0])
    assert jax.jit(jax.grad(lambda x0: imj.root(lambda x: x**2 - 2, x0).x))(1.0) == 0.0
    assert jax.eval_shape(solution, 4.0).shape == ()


def test_programs_in_several_threads():
    program = jax.jit(jax.vmap(lambda a: imj.root(squares, jnp.ones(()), a).x))
    a = [np.full(3, i + 1.0, np.float32) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(program, a))
    np.testing.assert_allclose(found, np.sqrt(a), rtol=1e-3)
    assert not import_module("implicitsolve.jax._exchange")._sessions


def test_residuals_are_traced_once_for_each_shape():
    traces = []

    def residual(x, a):
        traces.append(x.shape)
        return x**2 - a

    for a in (1.0, 2.0, np.float64(3.0), jnp.array(4.0)):
        imj.root(residual, np.ones(3), jnp.asarray(a, float))
    jitted = jax.jit(lambda a: imj.root(residual, jnp.ones(3), a).x)
    gradient = jax.jit(jax.grad(lambda a: imj.root(residual, jnp.ones(3), a).x.sum()))
    for a in (5.0, 6.0):
        jitted(jnp.array(a)), gradient(jnp.array(a))
        jax.vmap(jitted)(jnp.array([a, 1.0]))
    assert traces == [(3,)]
    jax.jit(lambda a: imj.root(residual, jnp.ones((2, 2)), a))(jnp.array(1.0))
    assert traces == [(3,), (2, 2)]
    assert jitted._cache_size() == 1


def test_shapes_of_one_size_are_not_confused():
    def residual(x):
        return x - jnp.arange(6.0).reshape(x.shape)

    for shape in ((2, 3), (3, 2), (6,)):
        assert imj.root(residual, jnp.zeros(shape)).x.shape == shape


def test_single_precision():
    result = imj.root(squares, jnp.ones(3), 2.0)
    assert result.x.dtype == result.residual_norm.dtype == np.float32
    assert result.success
    assert result.residual_norm <= result.target
    assert 0 < result.error <= np.sqrt(np.finfo(np.float32).eps)
    np.testing.assert_allclose(result.x, np.sqrt(2), rtol=np.sqrt(np.finfo(np.float32).eps))
    b = jnp.linspace(0.0, 1.0, 25)
    check_grads(lambda b: imj.root(dense, jnp.zeros(25), matrix(25), b).x, (b,), 1, atol=1e-2, rtol=1e-2)


def test_failures_are_reported_under_jit():
    for residual in (lambda x, a: x**2 + a, lambda x, a: x * jnp.nan + a, lambda x, a: jnp.ones_like(x) * a):
        result = jax.jit(lambda a, residual=residual: imj.root(residual, jnp.full(2, 0.3), a))(1.0)
        assert not result.success
        assert ims.Status(int(result.status)).hint


def test_the_gradient_of_a_failed_linear_solve_is_nan():
    stop = ims.LinearStop(rtol=1e-12, max_iterations=2)

    def solution(b):
        return imj.root(dense, jnp.zeros(40), matrix(40), b, adjoint_stop=stop, structure="none").x.sum()

    assert np.isnan(jax.grad(solution)(jnp.ones(40))).all()


def test_constants_and_integers_among_the_arguments():
    def residual(x, power, name, is_shifted):
        assert name == "cube"
        return x**power - (8 if is_shifted else 1)

    assert imj.root(residual, 1, 3, "cube", True).x == pytest.approx(2.0)
    slope = jax.grad(lambda a: imj.root(lambda x, a, n: x**n - a, 1.0, a, jnp.array(3), **EXACT).x)(8.0)
    assert slope == pytest.approx(1 / 12)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3.0, jnp.ones(2)), TypeError, "`residual` must be callable, got float"),
        ((lambda x: x, jnp.ones(2, bool)), TypeError, "`x0` must hold real or complex numbers, got dtype bool"),
        ((lambda x: x, jnp.ones(2, jnp.float16)), TypeError, "`x0` must have at least 32 bits"),
        ((lambda x: x, jnp.ones(0)), ValueError, "`x0` must hold at least one number"),
        ((lambda x: x[:1], jnp.ones(2)), ValueError, r"the shapes of x, \(2,\), got \(1,\)"),
        ((lambda x: (x, x), jnp.ones(2)), TypeError, "`residual` must return a pytree like x"),
        ((lambda x: x * 1j, jnp.ones(2)), TypeError, "complex numbers for a real x0"),
    ],
)
def test_wrong_arguments_raise_at_once(arguments, error, message):
    for call in (imj.root, lambda *given: jax.jit(lambda: imj.root(*given))()):
        with pytest.raises(error, match=message):
            call(*arguments)


def test_wrong_settings_raise_at_once():
    for settings in ({"method": "newton"}, {"stop": 1e-8}, {"adjoint_stop": 1e-8}, {"adjoint_method": "gmres"}):
        with pytest.raises((TypeError, ValueError), match="root: `"):
            jax.jit(lambda settings=settings: imj.root(squares, 1.0, 2.0, **settings))()


def test_errors_of_the_solver_reach_the_program():
    def solve(b):
        return imj.root(dense, jnp.zeros(25), matrix(25), b, structure=ims.BlockBanded(1, 1, 2)).x

    with pytest.raises(ValueError, match="block"):
        solve(jnp.ones(25))
    with pytest.raises(Exception, match="block"):
        jax.block_until_ready(jax.jit(solve)(jnp.ones(25)))
