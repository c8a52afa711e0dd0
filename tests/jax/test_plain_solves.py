"""Functions written in JAX in the plain solves, which are for NumPy arrays."""

import numpy as np
import pytest

import implicitsolve as ims

jax = pytest.importorskip("jax", exc_type=ImportError)
jnp = jax.numpy


def residual(x):
    return jnp.stack([x[0] ** 2 + x[1] - 3, x[0] - x[1]])


SOLUTION = (np.sqrt(13) - 1) / 2


def test_numpy_starts_with_functions_that_return_arrays_of_jax():
    with jax.enable_x64(True):
        jac, x0 = jax.jacfwd(residual), np.ones(2)
        problem = ims.Problem(residual, jvp=lambda x, v: jax.jvp(residual, (x,), (v,))[1])
        for x in (
            ims.root(residual, x0).x,
            ims.root(problem, x0, method="newton-krylov").x,
            ims.root(ims.Problem(residual, jac=jac), x0, method="newton-krylov").x,
            ims.root(residual, x0, jac=jac).x,
            ims.newton_krylov(residual, x0, jac=jac),
            ims.newton_krylov(residual, x0),
        ):
            assert type(x) is np.ndarray
            np.testing.assert_allclose(x, SOLUTION, atol=1e-5)
    np.testing.assert_allclose(ims.root(residual, np.ones(2, np.float32)).x, SOLUTION, rtol=1e-3)


def test_single_precision_is_not_taken_for_double():
    with pytest.raises(TypeError, match=r"`residual` returned an array of JAX of dtype float32.*jax_enable_x64"):
        ims.root(residual, np.ones(2))


def test_starts_of_jax_are_refused_with_what_to_do():
    for call in (ims.root, ims.newton_krylov, lambda f, x0: jax.jit(lambda x0: ims.root(f, x0).x)(x0)):
        with pytest.raises(TypeError, match=r"`x0` must not be an array of jax(lib)?: pass .* implicitsolve.jax.root"):
            call(residual, jnp.ones(2))
    with pytest.raises(TypeError, match="`b` must not be an array of jax"):
        ims.linear_solve(np.eye(2), jnp.ones(2))
