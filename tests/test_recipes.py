"""The recipes of CONTRIBUTING.md, carried out: methods and a kernel that live outside the package."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.direct._sparse_lu import SparseLU
from implicitsolve.globalize._line_search import LineSearch, SearchStart
from implicitsolve.globalize._rules import armijo_ratio
from implicitsolve.kernels import Kernel
from implicitsolve.krylov._base import KrylovOutcome, classify, part_of, start, update
from implicitsolve.nonlinear._block_loop import BlockLoop
from implicitsolve.nonlinear._loop import IterationLoop
from implicitsolve.nonlinear._state import JacobianAssembler, LoopState
from implicitsolve.operators._sparse import SparseMatrix


@dataclass(frozen=True)
class MinimalResidual:
    """A Krylov method: x <- x + alpha M r, where alpha minimizes ||b - A x||."""

    kind: ClassVar[str] = "krylov"
    may_transform: ClassVar[bool] = True

    def solve(self, A, b, *, target, max_iterations, M=None, x0=None, confirm=True, polish=False):
        x, r, norms = start(A, b, x0)
        iterations, nonfinite = np.zeros(b.shape[0], dtype=int), ~np.isfinite(norms)
        broken = np.zeros(b.shape[0], dtype=bool)
        while (running := (norms > target) & ~nonfinite & ~broken & (iterations < max_iterations)).any():
            rows = np.flatnonzero(running)
            step = part_of(r, rows) if M is None else M.take(rows).matvec(part_of(r, rows))
            image = A.take(rows).matvec(step)
            alpha = (image * part_of(r, rows)).sum(axis=1) / (image * image).sum(axis=1)
            new = part_of(x, rows) + alpha[:, None] * step
            left = part_of(b, rows) - A.take(rows).matvec(new)
            size = np.linalg.norm(left, axis=1)
            broken[rows], better = ~(size < norms[rows]), size < norms[rows]
            x, r = update(x, rows, better, new), update(r, rows, better, left)
            norms[rows] = np.where(better, size, norms[rows])
            iterations[rows] += 1
        return KrylovOutcome(x, norms, classify(norms, target, broken=broken, nonfinite=nonfinite), iterations)


@dataclass
class SecantState(LoopState):
    """The systems that iterate, and their last steps."""

    spacing: np.ndarray  # along F, over ||F||


@dataclass(frozen=True)
class SpectralResidual:
    """A nonlinear method: x <- x - sigma F, sigma by the last step, as Barzilai and Borwein choose it."""

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = False
    eliminates = False
    rdiff = None

    def solve(self, context, start, rows=None):
        return _SpectralLoop(self, context, start, rows).run()


class _SpectralLoop(IterationLoop[SecantState]):
    STEPS = 500

    def _extend(self, state, J):
        return SecantState(**vars(state), spacing=np.full(state.rows.size, 0.1))

    def _step(self, is_last):
        state, old_F = self.state, self.state.F
        step = -state.spacing[:, None] * old_F
        found = SearchStart(
            self.evaluator, state.x, state.F, state.norms, step, np.zeros(state.norms.shape)
        ).full_step()
        moved, is_still = self._accept(found, step)
        slope = (step * (state.F - old_F)).sum(axis=1)
        state.spacing = np.divide((step * step).sum(axis=1), slope, out=np.full_like(slope, 0.1), where=slope != 0)
        failed = np.where(found.finite, int(ims.Status.RUNNING), int(ims.Status.NONFINITE))
        self._update_status(found.accepted, moved, is_still, is_last, failed)
        return {"step_length": state.spacing}


@dataclass(frozen=True)
class Halving(LineSearch):
    """A search: steps are halved until ||F|| has fallen as Armijo's rule asks."""

    def search(self, start):
        found = start.full_step()
        for _ in range(20):
            found.finite |= np.isfinite(found.norms)
            found.accepted = found.norms <= armijo_ratio(found.length, start.linear_residual) * start.norms
            if found.accepted.all():
                break
            found.length = np.where(found.accepted, found.length, 0.5 * found.length)
            start.try_length(found, found.length)
        return found.restore(start.x, start.F, start.norms)

    def cautious(self):
        return None


class Diagonals(JacobianAssembler):
    """A kind of Jacobian: diagonal, by one difference for all unknowns."""

    cost = 1

    def __init__(self, evaluator):
        self.sensitivity = np.full(evaluator.rows.size, np.nan)
        self.structure = ims.Sparse(np.eye(evaluator.size, dtype=bool))

    def assemble(self, evaluator, x, F):
        h = 1e-7 * np.maximum(np.abs(x), 1.0)
        return SparseMatrix((evaluator.residual(x + h) - F) / h, self.structure)


@dataclass(frozen=True)
class DiagonalNewton:
    """Newton's method with that Jacobian."""

    kind: ClassVar[str] = "nonlinear"
    keeps_bounds: ClassVar[bool] = True
    eliminates = False
    rdiff = None
    line_search: LineSearch = Halving()
    factor = SparseLU()
    reuse: str = "broyden"

    def assembler(self, evaluator):
        return Diagonals(evaluator)

    def solve(self, context, start, rows=None):
        return BlockLoop(self, context, start, rows).run()


@pytest.fixture
def matrices(rng):
    A = rng.standard_normal((3, 6, 6)) * 0.2 + 3 * np.eye(6)
    return A, rng.standard_normal((3, 6))


def test_a_krylov_method(matrices):
    A, b = matrices
    operator = ims.LinearOperator(
        lambda v: np.einsum("bij,bj->bi", A, v),
        lambda w: np.einsum("bij,bi->bj", A, w),
        in_shape=6,
        batch_shape=(3,),
        take=lambda rows: ims.LinearOperator(
            lambda v: np.einsum("bij,bj->bi", A[rows], v), in_shape=6, batch_shape=(len(rows),), dtype=float
        ),
        dtype=float,
    )
    result = ims.linear_solve(operator, b, method=MinimalResidual(), stop=ims.LinearStop(rtol=1e-10))
    assert result.success.all()
    np.testing.assert_allclose(result.x, np.linalg.solve(A, b[..., None])[..., 0], rtol=1e-8)


def test_a_krylov_method_within_newton(matrices):
    A, b = matrices
    problem = ims.Problem(
        lambda x: np.einsum("bij,bj->bi", A, x) + x**3 - b,
        vjp=lambda x, w: np.einsum("bij,bi->bj", A, w) + 3 * x**2 * w,
        batch_ndim=1,
        parameters={"b": b},
        parameter_vjp=lambda x, w: {"b": -w},
    )
    method = ims.NewtonKrylov(krylov=MinimalResidual())
    result = ims.root(problem, np.zeros((3, 6)), method=method, stop=ims.NonlinearStop(atol=1e-10))
    assert result.success.all()
    reference = ims.root(problem, np.zeros((3, 6)), stop=ims.NonlinearStop(atol=1e-12))
    np.testing.assert_allclose(result.x, reference.x, rtol=1e-7)


def test_a_nonlinear_method(matrices):
    A, b = matrices
    S = A + np.swapaxes(A, 1, 2)
    problem = ims.Problem(lambda x: np.einsum("bij,bj->bi", S, x) + 0.1 * x**3 - b, batch_ndim=1)
    result = ims.root(problem, np.zeros((3, 6)), method=SpectralResidual(), stop=ims.NonlinearStop(atol=1e-8))
    assert result.success.all()
    assert np.abs(problem.residual(result.x)).max() <= 1e-8
    assert result.steps[-1].iteration == result.iterations.max()
    limited = ims.root(problem, np.zeros((3, 6)), method=SpectralResidual(), stop=ims.NonlinearStop(max_iterations=1))
    assert set(limited.status.tolist()) <= {int(ims.Status.ITERATION_LIMIT), int(ims.Status.CONVERGED)}


def test_a_search():
    problem = ims.Problem(np.arctan, batch_ndim=1)
    result = ims.root(problem, np.array([[10.0], [0.5], [-3.0]]), method=ims.NewtonKrylov(line_search=Halving()))
    assert result.success.all()
    assert (result.steps[1].step_length < 1).any()


def test_a_kind_of_jacobian():
    target = np.linspace(1.0, 3.0, 12).reshape(3, 4)
    calls = []

    def residual(x):
        calls.append(len(x))
        return x**3 + np.arctan(x) - target

    result = ims.root(
        ims.Problem(residual, batch_ndim=1),
        np.full((3, 4), 5.0),
        method=DiagonalNewton(),
        stop=ims.NonlinearStop(atol=1e-9),
    )
    assert result.success.all()
    assert np.abs(residual(result.x)).max() <= 1e-9
    assert len(calls) <= 30


def test_an_adapter(rng):
    W, inputs = 0.3 * rng.standard_normal((4, 4)), rng.standard_normal((5, 4))

    def dense_layer(params, inputs):
        """X with X = tanh(X W + inputs), each row a system."""

        def slope(x):
            return 1 - np.tanh(x @ params["W"] + inputs) ** 2

        return ims.Problem(
            lambda x: x - np.tanh(x @ params["W"] + inputs),
            jvp=lambda x, v: v - slope(x) * (v @ params["W"]),
            vjp=lambda x, w: w - (slope(x) * w) @ params["W"].T,
            batch_ndim=1,
            parameters=params,
            parameter_jvp=lambda x, t: -slope(x) * (x @ t["W"]),
            parameter_vjp=lambda x, w: {"W": -x.T @ (slope(x) * w)},
            fixed_point=True,
        )

    problem = dense_layer({"W": W}, inputs)
    ims.testing.check_derivatives(problem, np.zeros((5, 4))).raise_if_wrong()
    result = ims.root(problem, np.zeros((5, 4)))
    assert result.success.all()
    assert ims.pull_back(problem, result, np.ones((5, 4))).gradients["W"].shape == (4, 4)


def test_a_kernel_implementation():
    calls = []

    def reference(x):
        return x + 1

    def fused(x):
        calls.append(len(x))
        return x + 1

    kernel = Kernel("plus_one", reference)
    kernel.implement("lapack", fused, lambda like, **facts: like.size > 3)
    for size in (2, 5):
        x = np.zeros(size)
        np.testing.assert_array_equal(kernel.select(x)(x), reference(x))
    assert calls == [5]
