"""Newton's method with Krylov spaces in float32: solutions in double precision all the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import LinearOperator, NewtonKrylov, NonlinearStop, Problem, root
from implicitsolve.krylov._recycling import RecyclingGMRES
from implicitsolve.monitor import silent
from implicitsolve.nonlinear._direction import FixedMethod, SinglePrecision
from implicitsolve.nonlinear._solve import solve_root
from implicitsolve.nonlinear._state import Scheduler
from implicitsolve.status import Status
from tests.adapters.layers import ADAPTERS, make

TIGHT = NonlinearStop(atol=1e-10, rtol=0.0)
KRYLOV: dict[str, Any] = {
    "default": {},
    "no recycling": {"recycle": 0},
    "small space": {"max_krylov": 2},
    "gmres": {"krylov": ims.GMRES()},
    "lgmres": {"krylov": ims.LGMRES(), "max_krylov": 30},
    "bicgstab": {"krylov": ims.BiCGSTAB()},
    "truncated": {"krylov": ims.TruncatedInverse(order=3), "line_search": ims.FullStep()},
    "scipy": {"krylov": ims.ScipyKrylov(function="gmres")},
}


def single(**settings: Any) -> NewtonKrylov:
    return NewtonKrylov(krylov_dtype="float32", **settings)


class Seen:
    """A nonlinear problem of B systems whose Jacobian keeps the dtypes of the vectors that it multiplies."""

    def __init__(
        self, xp: Any = np, B: int = 3, n: int = 6, dtype: Any = None, casts: bool = True, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        self.xp, self.casts = xp, casts
        self.dtype = xp.float64 if dtype is None else dtype
        self.A = xp.asarray(np.eye(n) + 0.5 * rng.standard_normal((B, n, n)) / n**0.5, dtype=self.dtype)
        self.b = xp.asarray(rng.standard_normal((B, n)), dtype=self.dtype)
        self.dtypes: list[Any] = []

    def residual(self, x: Any) -> Any:
        xp = self.xp
        return xp.matmul(self.A, x[:, :, None])[:, :, 0] + 0.3 * xp.tanh(x) - self.b

    def jacobian(self, x: Any) -> LinearOperator:
        slope = 0.3 * (1 - self.xp.tanh(x) ** 2)
        return self.operator(self.A, slope)

    def operator(self, A: Any, slope: Any) -> LinearOperator:
        xp = self.xp

        def matvec(v: Any) -> Any:
            self.dtypes.append(v.dtype)
            return xp.matmul(A, v[:, :, None])[:, :, 0] + slope * v

        def part(i: Any) -> LinearOperator:
            rows = xp.asarray(i)
            return self.operator(xp.take(A, rows, axis=0), xp.take(slope, rows, axis=0))

        return LinearOperator(
            matvec,
            in_shape=A.shape[-1],
            batch_shape=(A.shape[0],),
            dtype=A.dtype,
            take=part,
            cast=(lambda dtype: self.operator(xp.astype(A, dtype), xp.astype(slope, dtype))) if self.casts else None,
        )

    def problem(self) -> Problem:
        return Problem(
            self.residual, linearize=lambda x: (self.residual(x), self.jacobian(x)), batch_ndim=1, name="seen"
        )

    @property
    def x0(self) -> Any:
        return self.xp.zeros_like(self.b)


@pytest.mark.parametrize("settings", KRYLOV.values(), ids=KRYLOV)
def test_float64_tolerances_are_reached(settings):
    for name in ("implicit_gru", "implicit_lstm", "elman"):
        layer = make(name, B=4, T=6, lengths=(6, 1, 4, 5), scale=0.8).layer()
        result = root(layer, method=single(**settings), stop=TIGHT)
        assert result.success.all()
        assert result.x.dtype == result.fun.dtype == np.float64
        np.testing.assert_allclose(result.fun, layer.residual(result.x), rtol=0, atol=1e-15)
        reference = root(layer, method=NewtonKrylov(), stop=NonlinearStop(atol=1e-13, rtol=0.0))
        np.testing.assert_allclose(result.x, reference.x, atol=2e-9)


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter(name):
    layer = make(name, B=3, T=5, lengths=(5, 1, 3), scale=0.7).layer()
    result = root(layer, method=single(), stop=NonlinearStop(atol=1e-12, rtol=0.0))
    assert result.success.all()
    assert np.abs(layer.residual(result.x)).max() <= 1e-12


@pytest.mark.parametrize("settings", KRYLOV.values(), ids=KRYLOV)
def test_products_run_in_float32(settings):
    seen = Seen()
    result = root(seen.problem(), seen.x0, method=single(**settings), stop=TIGHT)
    assert result.success.all()
    assert seen.dtypes
    assert all(dtype == np.float32 for dtype in seen.dtypes)
    assert result.counts.jvps == len(seen.dtypes)
    assert result.x.dtype == np.float64


def test_products_of_layers_run_in_float32(monkeypatch):
    from implicitsolve.adapters._transition import Derivative

    dtypes, push = [], Derivative.matvec

    def matvec(self, v):
        dtypes.append((v.dtype, self.factors.dtype))
        return push(self, v)

    monkeypatch.setattr(Derivative, "matvec", matvec)
    layer = make("implicit_gru", T=5, lengths=(5, 1, 4)).layer()
    for problem in (layer, replace(layer, halves=None)):
        dtypes.clear()
        assert root(problem, method=single(), stop=TIGHT).success.all()
        assert set(dtypes) == {(np.dtype(np.float32), np.dtype(np.float32))}
        dtypes.clear()
        assert root(problem, method=NewtonKrylov(), stop=TIGHT).success.all()
        assert set(dtypes) == {(np.dtype(np.float64), np.dtype(np.float64))}


def test_preconditioners_work_on_float32_vectors():
    seen = Seen(B=1)
    dtypes = []

    def M(x, F):
        inverse = np.linalg.inv(seen.A[0])

        def matvec(v):
            dtypes.append(v.dtype)
            return v @ inverse.T

        return LinearOperator(matvec, in_shape=6, batch_shape=(1,))

    for settings in ({}, {"krylov": ims.GMRES()}, {"krylov": ims.BiCGSTAB()}):
        seen.dtypes.clear()
        result = root(seen.problem(), seen.x0, method=single(preconditioner=M, **settings), stop=TIGHT)
        plain = root(seen.problem(), seen.x0, method=single(**settings), stop=TIGHT)
        assert result.success.all()
        assert (result.krylov_iterations < plain.krylov_iterations).all()
    assert set(dtypes) == {np.dtype(np.float64)}  # in its own precision
    assert all(dtype == np.float32 for dtype in seen.dtypes)


@pytest.mark.parametrize(
    "preconditioner", [ims.BlockLU(), ims.precondition.BlockJacobi(), ims.Lagged(preconditioner=ims.BlockLU())]
)
def test_assembled_preconditioners(preconditioner):
    layer = make("implicit_gru", B=4, T=6, lengths=(6, 1, 4, 5), scale=0.8).layer()
    result = root(layer, method=single(preconditioner=preconditioner), stop=TIGHT)
    assert result.success.all()
    assert result.x.dtype == np.float64


@pytest.mark.parametrize("settings", ["default", "gmres", "no recycling", "small space"])
@pytest.mark.parametrize("capacity", [1, 3])
def test_systems_may_wait_for_a_place(settings, capacity):
    layer = make("implicit_gru", B=7, T=6, lengths=(6, 1, 4, 5, 2, 6, 3), scale=1.0).layer()
    start = np.zeros((7, 6, 3))
    method = single(**KRYLOV[settings])
    result = solve_root(layer, start, method, TIGHT, silent, Scheduler(capacity=capacity))
    together = root(layer, start, method=method, stop=TIGHT)
    assert result.success.all()
    np.testing.assert_allclose(result.x, together.x, atol=2e-9)


@pytest.mark.parametrize("kind", ["fixed", "growing"])
def test_the_direction_is_as_accurate_as_float32_can_make_it(kind, rng):
    seen = Seen()
    J = seen.jacobian(rng.standard_normal((3, 6)))
    F = rng.standard_normal((3, 6)) * np.asarray([1e-200, 1.0, 1e200])[:, None]
    norms = np.asarray([np.linalg.norm(row / np.abs(row).max()) * np.abs(row).max() for row in F])
    linear = SinglePrecision(FixedMethod(ims.GMRES(), 50) if kind == "fixed" else RecyclingGMRES(20, 10, 3))
    for eta in (1e-2, 1e-12):
        outcome = linear.direction(J, F, norms, np.full(3, eta), None)
        remains = np.linalg.norm((J.matvec(outcome.x) + F) / norms[:, None], axis=1)
        assert outcome.x.dtype == np.float64
        assert (remains <= max(eta, 1e-5) * 1.5).all()
        np.testing.assert_allclose(outcome.residual_norm / norms, remains, atol=2e-6)
        assert (outcome.status == Status.CONVERGED).all()


def test_what_the_method_knows_is_for_double_precision(rng):
    linear = SinglePrecision(RecyclingGMRES(20, 10, 3))
    assert linear.correction is None
    seen = Seen()
    J, F = seen.jacobian(np.zeros((3, 6))), rng.standard_normal((3, 6))
    linear.direction(J, F, np.linalg.norm(F, axis=1), np.full(3, 1e-6), None)
    known = linear.correction
    assert known is not None
    for scale in (1e-150, 1.0, 1e150):
        x = known(scale * F) / scale
        assert x.dtype == np.float64
        np.testing.assert_allclose(J.matvec(x), F, atol=1e-4)
    assert SinglePrecision(FixedMethod(ims.GMRES(), 5)).correction is None


@pytest.mark.parametrize("method", ["auto", "newton-krylov", "sparse-newton", "anderson", "broyden", "homotopy"])
def test_residuals_were_called_in_double_precision_though_x0_is_single(method):
    seen = set()

    def chain(x):
        seen.add(x.dtype)
        p = np.pad(x, 1)
        return 2 * x - p[2:] - p[:-2] + x**3 - 1

    assert root(chain, np.ones(100, np.float32), method=method).x.dtype == np.float32
    assert seen == {np.dtype(np.float32)}


def test_a_shortened_step_was_taken_for_newtons():
    """Chained Rosenbrock functions from afar: F was rounding error, and the last step short by the trust region."""

    def residual(x):
        before, behind = np.append(0, x[:-1]), np.append(x[1:], 0)
        f = 8 * x * (x**2 - before) - 2 * (1 - x) + 4 * (x - behind**2)
        f[0], f[-1] = 4 * (x[0] - x[1] ** 2), 8 * x[-1] * (x[-1] ** 2 - x[-2]) - 2 * (1 - x[-1])
        return f

    with np.errstate(all="ignore"):
        result = root(residual, np.full(4, -1200.0, dtype=np.float32))
    assert not result.success or np.abs(result.x - 1).max() <= 0.01
