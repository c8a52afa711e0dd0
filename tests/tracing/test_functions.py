"""NumPy's functions on arrays that stand for values: each as NumPy computes it, away from the point of the trace."""

import math

import numpy as np
import pytest
import scipy.sparse
import scipy.special

pytest.importorskip("jax")

import implicitsolve as ims

N = 12
W = np.linspace(-1.0, 2.0, N)
A = scipy.sparse.random_array((N, N), density=0.3, rng=np.random.default_rng(0), format="csr")
LONG_ROW = scipy.sparse.csr_array((np.ones(N), (np.zeros(N, int), np.arange(N))), shape=(N, N))
PLACES = np.array([3, 1, 1, 7])
work = np.empty(N)


def buffer_around(x):
    np.multiply(x, x, out=work)
    work[1:] += x[:-1]
    return work


def views_of_views(x):
    out = np.zeros(N)
    table = out.reshape(3, 4)
    table.T[1:, 0] += x[:3]
    table[1][2:] = x[5] * x[6:8]
    table[::2, ::-2] -= x[4]
    return out


def overlapping(x):
    y = x.copy()
    y[1:] += y[:-1]
    y[::3] *= y[1]
    y[[0, 2]] = y[None, 3:5]
    return y


def masks(x):
    y = x.copy()
    y[x > 0.3] = np.sqrt(x[x > 0.3]) + 1
    y[~(x > 0.3)] = -2 * x[~(x > 0.3)] + x[x > 0.3].mean()
    y[W > 1] += 1
    return y


def scalars_are_values(x):
    a = x[0]
    b = a
    a += 1
    y = np.full(N, b)
    y[0] = a
    return y


def outputs(x):
    y = np.empty_like(x)
    np.exp(x, out=y)
    np.add(y[::2], 1, out=y[::2])
    np.copyto(y[:2], x[:2])
    return y


class Bar:
    stiffness = property(lambda self: self.k)

    def __init__(self, k):
        self.k, self.last = k, None

    def force(self, x):
        out = np.zeros(2)
        out[0] = max(self.stiffness * (x[1] - x[0]) ** 3, 0.1 * x[0])
        self.last, out[1] = out[0], -out[0]
        return out


class Frame(Bar):
    def __init__(self):
        super().__init__(2.0)
        self.bars, self.f = [Bar(1.0 + i) for i in range(N - 1)], np.zeros(N)

    def force(self, x):
        self.f[:] = x if isinstance(x, np.ndarray) else np.nan
        for i, bar in enumerate(self.bars):
            self.f[i : i + 2] += bar.force(x[i : i + 2]) + super().force(x[i : i + 2])
        return self.f


frame = Frame()
FUNCTIONS = {
    "objects": lambda x: frame.force(x) + np.r_[x[1:], 1.0] * np.vectorize(lambda v: v * v)(x),
    "pad": lambda x: np.pad(x, 1, mode="edge")[:-2] + np.pad(x, (0, 2))[2:],
    "roll": lambda x: np.roll(x, 2) - np.roll(x.reshape(3, 4), -1, axis=1).ravel(),
    "diff": lambda x: np.diff(x, prepend=0.0) + np.diff(x, 2, prepend=[1.0], append=x[0]),
    "einsum": lambda x: np.einsum("ij,kj,k->i", x.reshape(N, 1), W.reshape(N, 1), x),
    "where": lambda x: np.where(x > 0, x**2, np.where(W > 0, -x, 0.0)),
    "clip": lambda x: np.clip(x, -0.5, 0.5) + x.clip(min=0),
    "extrema": lambda x: np.maximum(x, W) - np.minimum(x[::-1], 0) + np.fmax(x, 0.1) + x.max() * np.min(x),
    "interp": lambda x: np.interp(x, W, W**2),
    "convolve": lambda x: np.convolve(x, [1.0, -2.0, 1.0], mode="same") + np.convolve(x, x)[:N],
    "bincount": lambda x: np.bincount(np.arange(N) // 2, weights=x, minlength=N),
    "add.at": lambda x: np.add.at(y := np.zeros(N), PLACES, x[:4] * 2) or y,
    "reduceat": lambda x: np.repeat(np.add.reduceat(x, [0, 3, 7]), 4),
    "fft": lambda x: np.fft.ifft(np.fft.fft(x) * W).real + np.fft.irfft(np.fft.rfft(x), N),
    "solve": lambda x: np.linalg.solve(np.diag(2 + x**2) + 0.1, W),
    "special": lambda x: scipy.special.expit(x) + scipy.special.erf(x) * scipy.special.gammaln(2 + x**2),
    "sparse": lambda x: A @ x + x @ A + A.dot(x) + A.T @ (x * x) + LONG_ROW @ x,
    "matrix of rows": lambda x: (A @ np.stack([x, x**2], axis=1)).sum(axis=1),
    "powers": lambda x: x**3 + abs(x) ** 1.5 + 2**x + np.power(x, 2) + (1 + x * x) ** -2 + np.float_power(x, 2),
    "promotion": lambda x: (x * np.arange(N, dtype=np.int32) + np.float32(0.1)) // 0.3 + x % 0.7,
    "reductions": lambda x: x - x.mean() + np.std(x) + x.reshape(4, 3).sum(axis=1).prod() + np.linalg.norm(x),
    "cumulative": lambda x: np.cumsum(x) + np.cumprod(1 + 0.1 * x) + np.add.accumulate(x[::-1]),
    "joins": lambda x: np.concatenate([[x[0]], x[1:5], np.ones(3), np.hstack([x[:2], x[2:4]])]),
    "lists": lambda x: np.array([xi * (i + 1) for i, xi in enumerate(x)]),
    "table of lists": lambda x: (np.array([[x[0], 1.0], [2.0, x[1]]]) @ np.ones((2, 6))).ravel(),
    "sorting": lambda x: np.sort(x) + x[np.argsort(-x)],
    "gather": lambda x: x[[0, *range(11)]] + np.take(x, np.arange(N)[::-1]) + x.reshape(3, 4)[:, [0, 1, 1, 3]].ravel(),
    "split": lambda x: np.concatenate(np.split(x, 3)[::-1]) + np.vstack(np.array_split(x, 2)).ravel(),
    "products": lambda x: np.outer(x, W) @ x + np.dot(W, x) * np.cross(x.reshape(4, 3), [1.0, 2.0, 3.0]).ravel(),
    "flat": lambda x: np.fromiter([1.0], float) * x.reshape(3, 4).T.flat[:] + x.T.flatten(),
    "math": lambda x: np.array([math.exp(v) + math.atan2(v, 1.0) for v in x]),
    "piecewise": lambda x: np.piecewise(x, [x < 0, x > 0.5], [lambda v: -v, 2.0, lambda v: v**2]),
    "guards": lambda x: x**2 if np.isfinite(x).all() and not np.any(np.isnan(x)) else x,
    "tables": lambda x: W[np.clip(3 * x + 5, 0, 10).astype(int)] * x,
    "choose": lambda x: np.choose(np.arange(N) % 2, [x, x**2]),
    "gradient": lambda x: np.gradient(x, 0.1) + np.trapezoid(x) + np.polyval([1.0, 2.0, 3.0], x),
    "views": views_of_views,
    "aliases": overlapping,
    "masks": masks,
    "out": outputs,
    "numbers": scalars_are_values,
    "diagonal": lambda x: (np.fill_diagonal(M := np.zeros((N, N)), x) or M) @ W,
    "buffer": buffer_around,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_products_are_those_of_numpy(name, rng):
    F = FUNCTIONS[name]
    traced = ims.trace(F, rng.standard_normal(N))
    assert traced.is_traced, traced.reason
    for _ in range(3):
        x, v = rng.standard_normal(N), rng.standard_normal(N)
        value = np.array(F(x))
        own, product = traced.program.jvp(x, v, {})
        np.testing.assert_allclose(own, value, rtol=1e-12, atol=1e-13 * abs(value).max())
        h = 1e-6
        slope = (np.array(F(x + h * v)) - np.array(F(x - h * v))) / (2 * h)
        np.testing.assert_allclose(product, slope, atol=1e-7 * (1 + abs(slope).max()))
        w = rng.standard_normal(N)
        assert math.isclose(w @ product, traced.vjp(x, w) @ v, rel_tol=1e-10, abs_tol=1e-10)
    if traced.structure is not None:
        J = np.stack([traced.jvp(x, e) for e in np.eye(N)], axis=1)
        assert not J[traced.structure.to_scipy().toarray() == 0].any()


def test_complex_arrays_and_other_precisions(rng):
    z = rng.standard_normal(5) + 1j * rng.standard_normal(5)
    traced = ims.trace(lambda z: z**2 - np.exp(z) * z[::-1], z)
    v = rng.standard_normal(5) + 0j
    np.testing.assert_allclose(traced.jvp(z, v), 2 * z * v - np.exp(z) * (v * z[::-1] + v[::-1]), rtol=1e-12)
    assert abs(np.vdot(v, traced.jvp(z, z)) - np.vdot(traced.vjp(z, v), z)) < 1e-12
    single = ims.trace(lambda x: np.sin(x) / 3, np.ones(4, np.float32))
    assert single.jvp(np.ones(4), np.ones(4)).dtype == np.float32


def branches(x):
    return x if x[0] > 0 else -x


def converts(x):
    return np.full(x.shape, float(x[0]))


def counts(x, calls=[]):  # noqa: B006 - the state that it keeps
    calls.append(0)
    return x * len(calls)


def loops(x):
    y = x.copy()
    for _ in range(3000):
        y[1] = y[1] + y[0]
    return y


@pytest.mark.parametrize(
    ("F", "reason"),
    [
        (lambda x: np.ma.array(x).filled(0.0), "enter numpy.ma"),
        (lambda x: work[:4] + float(work[0]) + np.fromiter(x, float), "np.zeros"),
        (branches, "np.where"),
        (converts, "leave it out"),
        (lambda x: x + np.random.default_rng().standard_normal(x.shape), "changes from call to call"),
        (counts, "as parameters (test_functions.py, line"),
        (loops, "too long"),
        (lambda x: x + np.flatnonzero(x > 0).size, "np.where"),
        (lambda x: np.zeros(x.size + 1) + x[0], "shape"),
    ],
)
def test_what_cannot_be_traced_is_solved_by_differences_and_says_why(F, reason):
    traced = ims.trace(F, np.ones(4))
    assert not traced.is_traced
    assert reason in traced.reason
    if F in (branches, converts, loops):
        assert f"test_functions.py, line {F.__code__.co_firstlineno + 1 + 2 * (F is loops)}, in" in traced.reason
    with pytest.raises(TypeError, match="no exact derivatives"):
        traced.jvp(np.ones(4), np.ones(4))


def test_nothing_of_the_users_is_changed():
    import jax

    before = work.copy(), vars(np).copy(), jax.config.jax_enable_x64
    x = np.ones(N)
    assert ims.trace(buffer_around, x).is_traced
    buffer_around(x)
    assert ims.trace(frame.force, x).is_traced
    assert type(work) is type(frame.f) is np.ndarray
    assert isinstance(frame.bars[0].last, float)
    assert (x == 1).all()
    assert vars(np) == before[1]
    assert jax.config.jax_enable_x64 == before[2]
    assert jax.numpy.ones(1).dtype == "float32"
