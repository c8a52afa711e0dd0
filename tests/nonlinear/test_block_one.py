"""BlockNewton for one system without batch axes: the same course as in a batch, and what leads out of it."""

from dataclasses import replace

import numpy as np
import pytest

from implicitsolve import BlockBanded, BlockLU, BlockNewton, NonlinearStop, Problem, root

TRIDIAGONAL = BlockBanded(1, 1)
MODES = ["broyden", "chord", "none"]


def framed(u, left=0.0, right=0.0):
    end = np.ones_like(u[..., :1])
    return np.concatenate([left * end, u, right * end], axis=-1)


def bratu(u, lam=3.0):
    p = framed(u)
    return p[..., 2:] - 2 * u + p[..., :-2] + lam * np.exp(u) / (u.shape[-1] + 1) ** 2


def burgers(u, viscosity=0.05):
    p, h = framed(u, 1.0, -1.0), 1 / (u.shape[-1] + 1)
    return viscosity * (p[..., 2:] - 2 * u + p[..., :-2]) - 0.5 * h * u * (p[..., 2:] - p[..., :-2])


def pairs(x):
    """Two unknowns in a block, of which one is coupled to its neighbours."""
    u, v = x[..., 0], x[..., 1]
    p = framed(u)
    return np.stack([p[..., 2:] - 3 * u + p[..., :-2] + 0.1 * u * v + 0.3, v - np.cos(u)], axis=-1)


PROBLEMS = {
    "bratu": (bratu, np.zeros(60), TRIDIAGONAL),
    "bratu near its fold": (lambda u: bratu(u, 3.5), np.zeros(60), TRIDIAGONAL),
    "burgers": (burgers, np.linspace(1, -1, 202)[1:-1], TRIDIAGONAL),
    "pairs": (pairs, np.full((40, 2), 0.5), BlockBanded(1, 1, 2)),
    "pairs in wide blocks": (
        lambda x: pairs(x.reshape(40, 2)).reshape(10, 8),
        np.full((10, 8), 0.5),
        BlockBanded(1, 1, 8),
    ),
}


def both(F, x0, structure, **options):
    """Results alone, and as a batch of one, which takes the general way with the kernels that a small system has."""
    alone = root(Problem(F, structure=structure), x0, **options)
    batch = Problem(lambda x: F(x[0])[None], structure=structure, batch_ndim=1)
    method = replace(options.pop("method", BlockNewton()), factor=BlockLU(backend="lapack"))
    return alone, root(batch, x0[None], method=method, **options)


@pytest.mark.parametrize("reuse", MODES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    # in float32 Burgers' equation meets its rounding before the tolerance, and then rounding decides
    [
        (name, dtype)
        for name in PROBLEMS
        for dtype in (np.float64, np.float32)
        if (name, dtype) != ("burgers", np.float32)
    ],
)
def test_the_same_course_as_in_a_batch(name, reuse, dtype):
    F, x0, structure = PROBLEMS[name]
    stop = NonlinearStop(rtol=float(np.finfo(dtype).eps) ** 0.5)
    alone, batch = both(F, x0.astype(dtype), structure, method=BlockNewton(reuse=reuse), stop=stop)
    assert alone.status == batch.status[0]
    assert alone.success or dtype == np.float32
    assert alone.x.dtype == alone.fun.dtype == dtype
    assert (alone.counts, alone.iterations) == (batch.counts, batch.iterations[0])
    np.testing.assert_allclose(alone.x, batch.x[0], rtol=0, atol=1e3 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(alone.fun, F(alone.x))
    assert alone.residual_norm == pytest.approx(np.abs(alone.fun).max())
    assert len(alone.steps) == len(batch.steps)
    for one, other in zip(alone.steps, batch.steps, strict=True):
        assert (one.iteration, one.running, one.counts) == (other.iteration, other.running, other.counts)
        for field in ("systems", "step_length", "factorized"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
        np.testing.assert_allclose(one.residual_norm, other.residual_norm, rtol=0.1, atol=100 * np.finfo(dtype).eps)


def wall(u):
    """Not finite beyond 2."""
    return np.where(u > 2.0, np.nan, bratu(u))


@pytest.mark.parametrize(
    ("F", "x0"),
    [
        (wall, np.full(40, 2.0)),  # a difference that must turn round
        (lambda u: bratu(np.trunc(u * 1e5) / 1e5), np.full(40, 0.3)),  # differences that F does not feel at first
        (lambda u: 0 * u, np.ones(40)),
        (lambda u: 0 * u + 1, np.ones(40)),  # singular
        (lambda u: u**2 + 1, np.ones(40)),  # no root
        (lambda u: np.sqrt(np.maximum(u, 0)) - 5 - np.where(u < 0, np.nan, 0), np.ones(40)),
        (lambda u: 1e-200 * bratu(u), np.zeros(40)),
        (lambda u: 1e200 * bratu(u), np.zeros(40)),
        (lambda u: 1e-170 * np.tanh(u * 1e170) - 0.3e-170, np.zeros(40)),
    ],
)
@pytest.mark.parametrize("reuse", MODES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_not_ordinary_ends_as_in_a_batch(F, x0, reuse):
    alone, batch = both(F, x0, TRIDIAGONAL, method=BlockNewton(reuse=reuse))
    assert alone.status == batch.status[0]
    assert alone.iterations == batch.iterations[0]
    np.testing.assert_allclose(alone.x, batch.x[0], rtol=1e-6)


def test_a_residual_that_changes_its_argument_and_hands_out_one_buffer():
    buffer = np.empty(60)

    def careless(u):
        buffer[:] = bratu(u)
        u[:] = np.nan
        return buffer

    careful = root(Problem(bratu, structure=TRIDIAGONAL), np.zeros(60))
    result = root(Problem(careless, structure=TRIDIAGONAL), np.zeros(60))
    assert result.counts == careful.counts
    np.testing.assert_array_equal(result.x, careful.x)
    np.testing.assert_array_equal(result.fun, careful.fun)


def test_a_monitor_sees_what_the_result_keeps():
    seen = []
    result = root(
        Problem(bratu, structure=TRIDIAGONAL), np.zeros(60), monitor=lambda step, x, F: seen.append((step, x, F))
    )
    silent = root(Problem(bratu, structure=TRIDIAGONAL), np.zeros(60))
    assert [str(step) for step, _, _ in seen] == [str(step) for step in silent.steps] == [str(s) for s in result.steps]
    for _, x, F in seen:
        np.testing.assert_array_equal(F, bratu(x))


def test_many_steps_with_one_jacobian():
    rate = 0.35 * np.cos(np.arange(40.0))
    result = root(
        Problem(lambda u: u + rate * np.sin(u) - 1, structure=BlockBanded(0, 0)),
        np.full(40, 5.0),
        method=BlockNewton(rdiff=1.0),
        stop=NonlinearStop(rtol=1e-14),
    )
    assert result.success
    assert max(np.diff(np.flatnonzero([*(bool(step.factorized.any()) for step in result.steps), True]))) > 8
