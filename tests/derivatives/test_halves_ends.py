"""How derivatives of problems with halves end, what is asked for, and what is claimed."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import LinearStop, pull_back, push_forward, root
from implicitsolve.status import Status
from tests.adapters.layers import make
from tests.derivatives.halves import EXACT, close, solved, whole

# Statuses and edges


def test_a_zero_cotangent_has_a_zero_adjoint(case):
    layer, result, case = solved(case)
    zero = np.zeros(case.H.shape)
    for start in (None, np.ones(case.H.shape)):
        back = pull_back(layer, result, zero, x0=start)
        assert back.success.all()
        assert (back.adjoint == 0).all()
        assert all((gradient == 0).all() for gradient in back.gradients.values())
        assert (back.linear.iterations == 0).all()
    forward = push_forward(layer, result, {"b": np.zeros_like(case.P["b"])} if "b" in case.P else {})
    assert (forward.tangent == 0).all()


def test_a_cotangent_that_is_not_finite_harms_its_own_system_only(rng):
    layer, result, case = solved(make("implicit_gru", T=5, lengths=(5, 4, 4), scale=0.8))
    cotangent = rng.standard_normal(case.H.shape)
    clean = pull_back(layer, result, cotangent)
    for block in (0, 1):
        bad = cotangent.copy()
        bad[1, block, 0] = np.nan
        back = pull_back(layer, result, bad)
        assert back.status.tolist() == [Status.CONVERGED, Status.NONFINITE, Status.CONVERGED]
        close(back.adjoint[[0, 2]], clean.adjoint[[0, 2]], 1e-12)


def test_a_forward_solve_that_failed_is_reported(rng):
    layer = make("implicit_gru", T=5, lengths=None, scale=2.0).layer()
    stop = ims.NonlinearStop(atol=1e-14, rtol=0.0, max_iterations=1)
    result = root(layer, method="newton-krylov", stop=stop)
    assert (result.status == Status.ITERATION_LIMIT).all()
    cotangent = rng.standard_normal(result.x.shape)
    assert (pull_back(layer, result, cotangent).status == Status.FORWARD_NOT_CONVERGED).all()
    assert (push_forward(layer, result, {"b": np.ones(3)}).status == Status.FORWARD_NOT_CONVERGED).all()
    one = replace(result, status=np.asarray([1, 2, 1]), error=np.full(3, 1e-10))
    assert pull_back(layer, one, cotangent).status.tolist() == [1, Status.FORWARD_NOT_CONVERGED, 1]
    few = pull_back(layer, one, cotangent, stop=LinearStop(rtol=1e-13, max_iterations=1))
    assert (few.status == Status.ITERATION_LIMIT).all()
    assert pull_back(layer, result.x, cotangent).success.all()


def without_pull(layer: ims.Problem) -> ims.Problem:
    """With the products of the halves alone."""
    return replace(layer, halves=replace(layer.halves, pull=None))


def test_only_the_gradients_that_are_wanted(case, rng):
    layer, result, case = solved(case)
    cotangent = rng.standard_normal(case.H.shape)
    everything = pull_back(layer, result, cotangent, stop=EXACT)
    weight, edge = next(iter(case.weights)), next(iter(case.adapter.boundaries(1)))
    for wrt in ((), (weight,), ("inputs",), (edge,), ("inputs", edge), (weight, "inputs")):
        for problem in (layer, without_pull(layer), whole(layer)):
            back = pull_back(problem, result, cotangent, stop=EXACT, wrt=wrt)
            assert back.gradients.keys() == set(wrt)
            close(back.adjoint, everything.adjoint)
            for key in wrt:
                close(back.gradients[key], everything.gradients[key])


def test_a_start_is_measured_before_anything_is_solved(case, rng):
    layer, result, case = solved(case)
    cotangent = rng.standard_normal(case.H.shape)
    cotangent[1] = 0.0
    first = pull_back(layer, result, cotangent, stop=EXACT)
    stop = LinearStop(rtol=1e-8)
    again = pull_back(layer, result, cotangent, x0=first.adjoint, stop=stop)
    assert (again.linear.iterations == 0).all()
    assert again.linear.matvecs == 1
    for key, value in first.gradients.items():
        close(again.gradients[key], value)
    far = pull_back(layer, result, cotangent, x0=first.adjoint + 1.0, stop=stop)
    assert far.success.all()
    close(far.adjoint, first.adjoint, 1e-6)
    assert (far.adjoint[1] == 0).all()


def test_a_system_does_not_depend_on_its_neighbours(name, rng):
    """With a loose tolerance, so that the number of steps matters, and a start that is good for some."""
    case = make(name, T=6, lengths=(6, 3, 5), scale=0.8)
    layer, result, case = solved(case)
    cotangent = rng.standard_normal(case.H.shape)
    exact, stop = pull_back(layer, result, cotangent, stop=EXACT).adjoint, LinearStop(rtol=1e-3)
    start = exact + np.asarray([0.0, 1e-2, 1.0])[:, None, None]
    for x0 in (None, start):
        back = pull_back(layer, result, cotangent, x0=x0, stop=stop)
        assert len(set(back.linear.iterations.tolist())) > (x0 is not None)
        for i in range(3):
            at = np.asarray([i])
            own = None if x0 is None else x0[at]
            alone = pull_back(layer.take(at), result.x[at], cotangent[at], x0=own, stop=stop)
            close(alone.adjoint, back.adjoint[at], 1e-12)
            assert alone.linear.iterations[0] == back.linear.iterations[i]


@dataclass(frozen=True)
class Boaster:
    """GMRES that claims more than it has achieved, so many times."""

    times: int
    calls: list[int] = field(default_factory=list)

    kind = "krylov"
    may_transform = True

    def solve(self, A, b, *, target, max_iterations, M=None, x0=None, confirm=True, polish=False):
        self.calls.append(1)
        outcome = ims.GMRES().solve(A, b, target=target, max_iterations=max_iterations, M=M, x0=x0, confirm=confirm)
        return replace(outcome, x=0.5 * outcome.x) if len(self.calls) <= self.times else outcome


def test_a_claim_that_the_product_refutes_is_not_believed(name, rng):
    layer, result, case = solved(make(name, T=5, lengths=None, scale=0.8))
    cotangent = rng.standard_normal(case.H.shape)
    stop = LinearStop(rtol=1e-9)
    expected = pull_back(layer, result, cotangent, stop=EXACT)
    for problem in (layer, without_pull(layer)):
        back = pull_back(problem, result, cotangent, method=Boaster(times=2), stop=stop)
        assert back.success.all()
        close(back.adjoint, expected.adjoint, 1e-7)
        for key, value in expected.gradients.items():
            close(back.gradients[key], value, 1e-6)
        back = pull_back(problem, result, cotangent, method=Boaster(times=99), stop=stop)
        assert (back.status == Status.STAGNATED).all()
        norms = np.linalg.norm(cotangent.reshape(3, -1), axis=1)
        assert (back.linear.residual_norm > 1e-9 * norms).all()


@pytest.mark.parametrize(("rtol", "size"), [(1e-6, 1.0), (1e-12, 1.0), (1e-6, 1e200), (1e-6, 1e-200)])
def test_large_blocks_in_float64_are_solved_in_float32_first(rng, rtol, size):
    params = ims.adapters.gru_parameters(3, 64, scale=0.15, rng=rng)
    layer = ims.adapters.implicit_gru(params, rng.standard_normal((3, 5, 3)), lengths=[5, 2, 4])
    result, cotangent = root(layer, stop=ims.NonlinearStop(atol=1e-10)), rng.standard_normal((3, 5, 64))
    cotangent[1, 2:], cotangent[2] = 0.0, 0.0
    stop = LinearStop(rtol=rtol)
    found = pull_back(layer, result, size * cotangent, stop=stop)
    exact = pull_back(layer, result, cotangent, stop=stop, method=ims.LGMRES())
    assert found.status.tolist() == [1, 1, 1]
    rest = size * cotangent - layer.linearize(result.x)[1].rmatvec(found.adjoint)
    lengths = np.linalg.norm(cotangent, axis=(1, 2))
    assert (np.linalg.norm(rest / size, axis=(1, 2)) <= 1.01 * rtol * lengths + 1e-14).all()
    for name, gradient in exact.gradients.items():
        np.testing.assert_allclose(found.gradients[name] / size, gradient, rtol=0, atol=100 * rtol)


@dataclass
class _BadInSingle:
    """A coupling whose products in float32 are of no use."""

    inner: Any
    factor: float = 1.0

    def matvec(self, v):
        return self.factor * self.inner.matvec(v)

    def rmatvec(self, w):
        return self.factor * self.inner.rmatvec(w)

    def diagonals(self):
        return self.inner.diagonals()

    def take(self, indices):
        return _BadInSingle(self.inner.take(indices), self.factor)

    def astype(self, dtype):
        return _BadInSingle(self.inner.astype(dtype), self.bad)

    bad = -40.0


@pytest.mark.parametrize("bad", [-40.0, np.nan])
def test_what_float32_cannot_solve_is_solved_in_float64(bad, rng, monkeypatch):
    monkeypatch.setattr(_BadInSingle, "bad", bad)
    layer = ims.adapters.implicit_gru(
        ims.adapters.gru_parameters(3, 64, scale=0.15, rng=rng), rng.standard_normal((2, 5, 3))
    )
    result, cotangent = root(layer), rng.standard_normal((2, 5, 64))

    def bad_half(half):
        def linearize(other):
            value, coupling = half.linearize(other)
            return value, _BadInSingle(coupling)

        return replace(half, linearize=linearize)

    halves = replace(
        layer.halves, eliminated=bad_half(layer.halves.eliminated), kept=bad_half(layer.halves.kept), pull=None
    )
    back = pull_back(replace(layer, halves=halves), result, cotangent)
    assert back.success.all()
    rest = cotangent - layer.linearize(result.x)[1].rmatvec(back.adjoint)
    assert (np.linalg.norm(rest, axis=(1, 2)) <= 1.01e-6 * np.linalg.norm(cotangent, axis=(1, 2))).all()
