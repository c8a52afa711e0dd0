"""JAX's primitives on arrays of NumPy, against JAX."""

from importlib import import_module

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
FlatProgram = import_module("implicitsolve.tracing._flat").FlatProgram
double_precision = import_module("implicitsolve.tracing._flat").double_precision

PLACES = np.array([[2, 0], [3, 3], [0, -1], [9, 1]])


def along(name):
    return lambda x: getattr(lax, name)(x.reshape(4, 3), axis=0, reverse=True)


CASES = {
    "windows": lambda x: jax.vmap(lambda i: lax.dynamic_slice(x, (i,), (3,)))(PLACES.ravel()),
    "clipped": lambda x: x.reshape(4, 3).at[PLACES[:, 0], PLACES[:, 1]].get(mode="clip"),
    "filled": lambda x: x.reshape(4, 3).at[:, PLACES[:, 0]].get(mode="fill", fill_value=np.nan),
    "rows": lambda x: jnp.take_along_axis(x.reshape(3, 4), PLACES[:3] % 4, axis=1),
    "transposed rows": lambda x: jax.grad(lambda x: jnp.take_along_axis(x, PLACES[:3] % 4, 1).sum())(x.reshape(3, 4)),
    "dropped": lambda x: x.reshape(4, 3).at[PLACES[:, 0]].set(7.0),
    "added": lambda x: x.reshape(4, 3).at[PLACES[:, 0] % 2, 1:].add(x[:8].reshape(4, 2)),
    "largest": lambda x: x.at[PLACES[:, 0]].max(0.5).at[3].multiply(2.0).at[PLACES[:2, 1]].min(x[0]),
    "moved": lambda x: lax.dynamic_update_slice(x, x[:5] * 2, (10,)),
    "padded": lambda x: lax.pad(x.reshape(4, 3), 0.5, ((-1, 2, 1), (3, -2, 0))),
    "batches": lambda x: lax.dot_general(x.reshape(2, 3, 2), x.reshape(2, 2, 3), (((1,), (2,)), ((0,), (0,)))),
    "sorted": lambda x: lax.sort([jnp.round(x), x[::-1], x * 2], num_keys=2)[2],
    "in columns": lambda x: lax.sort(x.reshape(4, 3), dimension=0),
    "powers": lambda x: lax.integer_pow(x, -5) + lax.integer_pow(x, 0) + lax.rsqrt(jnp.abs(x)),
    "integers": lambda x: lax.div(jnp.arange(-6, 6), 4) + lax.rem(jnp.arange(-6, 6), 4) + lax.sign(x) - ~jnp.arange(12),
    "choice": lambda x: lax.select_n(jnp.arange(12) % 3, x, -x, x * x),
    "clamped": lambda x: lax.clamp(-0.5, x, lax.complex(x, 2 * x).imag),
    "reductions": lambda x: x.reshape(4, 3).prod(0) + x.reshape(4, 3).max(0) + (x.reshape(4, 3) > 0).all(0),
    "prefixes": lambda x: along("cumsum")(x) + along("cumprod")(x) - along("cummin")(x) * along("cumlogsumexp")(x),
    "numbers": lambda x: lax.broadcasted_iota(float, (3, 12), 1) * x + lax.expand_dims(jnp.stack([x, x, x]), [0])[0],
    "of JAX": lambda x: jnp.linalg.inv(x[:9].reshape(3, 3)) + lax.fori_loop(0, 3, lambda i, s: s + i, x[0]),
}


@pytest.mark.parametrize("name", CASES)
def test_operations_give_what_jax_computes(name, rng):
    x = rng.standard_normal(12)
    found = FlatProgram(CASES[name], x)(x)[0]
    with double_precision():
        expected = np.asarray(CASES[name](jnp.asarray(x)))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)
    assert not np.shares_memory(found, x)


def test_single_precision_stays_and_what_is_not_needed_is_left_out():
    def F(x):
        jnp.linalg.inv(jnp.outer(x, x))
        return jax.jit(lambda x: 0.1 * x + jnp.sin(np.float32(2)))(x)

    program = FlatProgram(F, np.ones(3, np.float32))
    assert [operation.equation.primitive.name for operation in program.operations] == ["mul", "add"]
    assert program(np.ones(3, np.float32))[0].dtype == np.float32
