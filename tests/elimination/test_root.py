"""`root` with and without elimination: the same roots, statuses, norms and counts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve.status import Status
from tests.adapters.cases import NEAREST
from tests.adapters.layers import make
from tests.elimination.layers import ATOL, SIZES, TIGHT, case_of
from tests.helpers.compare import close

# `root` with and without


METHODS = {
    "auto": "auto",
    "newton-krylov": "newton-krylov",
    "block-newton": ims.BlockNewton(),
    "bicgstab": ims.NewtonKrylov(krylov=ims.BiCGSTAB()),
    "gmres": ims.NewtonKrylov(krylov=ims.GMRES(), max_krylov=40),
    "float32": ims.NewtonKrylov(krylov_dtype="float32"),
    "homotopy": ims.Homotopy(),
}
ELIMINATES = [key for key in METHODS if key != "block-newton"]


def check_result(layer: ims.Problem, result: ims.NonlinearResult, atol: float = ATOL) -> None:
    """What every result must say of itself."""
    assert result.x.shape == result.fun.shape
    assert result.x.dtype == result.fun.dtype
    fresh = layer.residual(result.x)
    np.testing.assert_allclose(result.fun, fresh, rtol=0, atol=32 * np.finfo(fresh.dtype).eps)
    B = result.x.shape[0]
    np.testing.assert_array_equal(result.residual_norm, np.abs(result.fun).reshape(B, -1).max(axis=1, initial=0.0))
    np.testing.assert_array_equal(result.success, result.residual_norm <= atol)
    for values in (result.status, result.iterations, result.krylov_iterations, result.initial_norm):
        assert values.shape == (B,)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", METHODS)
def test_root_with_and_without_halves(key, size):
    turn = list(METHODS).index(key) + list(SIZES).index(size)  # so that every layer has its turn
    method, case = METHODS[key], case_of(NEAREST[turn % len(NEAREST)], size)
    layer = case.layer()
    result = ims.root(layer, method=method, stop=TIGHT)
    full = ims.root(replace(layer, halves=None), method=method, stop=TIGHT)
    np.testing.assert_array_equal(result.status, full.status)
    assert result.success.all()
    close(result.x, full.x, 1e-9)
    assert (result.x[~np.broadcast_to(case.valid, result.x.shape)] == 0).all()
    check_result(layer, result)


@given(
    st.integers(0, 2**32 - 1), st.sampled_from(NEAREST), st.integers(1, 7), st.integers(1, 3), st.booleans(), st.data()
)
def test_root_of_any_layer(seed, name, T, B, is_ragged, data):
    lengths = data.draw(st.lists(st.integers(1, T), min_size=B, max_size=B)) if is_ragged else None
    case = make(name, seed=seed, B=B, T=T, k=2, lengths=lengths, scale=0.6)
    layer = case.layer()
    result = ims.root(layer, method="newton-krylov", stop=TIGHT)
    full = ims.root(replace(layer, halves=None), method="newton-krylov", stop=TIGHT)
    assert result.success.all()
    check_result(layer, result)
    if full.success.all():
        close(result.x, full.x, 1e-8)


def test_the_start_is_what_is_kept_of_it(rng):
    case = case_of("implicit_gru", "odd")
    layer = case.layer()
    x0 = rng.uniform(-1, 1, case.H.shape)
    before = x0.copy()
    result = ims.root(layer, x0, stop=TIGHT)
    np.testing.assert_array_equal(x0, before)
    x0[:, ::2] = np.nan
    again = ims.root(layer, x0, stop=TIGHT)
    np.testing.assert_array_equal(result.x, again.x)
    x0[1, 1] = np.nan  # of the second system
    hurt = ims.root(layer, x0, stop=TIGHT)
    assert hurt.status.tolist() == [Status.CONVERGED, Status.NONFINITE, Status.CONVERGED]
    np.testing.assert_array_equal(hurt.x[[0, 2]], result.x[[0, 2]])
    assert not np.isfinite(hurt.residual_norm[1])
    assert hurt.x.shape == hurt.fun.shape == case.H.shape


@pytest.mark.parametrize("size", ["T1", "T2", "odd", "ragged"])
@pytest.mark.parametrize("key", ["newton-krylov", "float32", "homotopy"])
@pytest.mark.parametrize("t", [0, 1])
def test_inputs_that_are_not_finite_affect_only_their_sequence(size, key, t):
    """The only block of a sequence of one position is eliminated: there is no residual that could tell."""
    case = case_of("implicit_gru", size)
    clean = ims.root(case.layer(), method=METHODS[key], stop=TIGHT)
    if t >= case.lengths[1]:
        return
    case.P["inputs"][1, t] = np.nan
    layer, start = case.layer(), np.zeros(case.H.shape)
    result = ims.root(layer, start, method=METHODS[key], stop=TIGHT)
    assert result.status.tolist() == [Status.CONVERGED, Status.NONFINITE, Status.CONVERGED]
    assert not np.isfinite(result.residual_norm[1])
    assert not np.isfinite(result.fun[1]).all()
    close(result.x[[0, 2]], clean.x[[0, 2]], 1e-9)


@pytest.mark.parametrize("limit", [0, 1])
def test_systems_that_did_not_converge_are_reported(limit):
    layer = case_of("implicit_gru", "odd", scale=2.0).layer()
    stop = ims.NonlinearStop(atol=1e-14, rtol=0.0, max_iterations=limit)
    result = ims.root(layer, method="newton-krylov", stop=stop)
    assert (result.status == Status.ITERATION_LIMIT).all()
    assert (result.iterations <= limit).all()
    check_result(layer, result, 1e-14)


def test_the_two_norm_is_that_of_all_blocks():
    layer = case_of("implicit_gru", "ragged").layer()
    result = ims.root(layer, stop=replace(TIGHT, norm="2"))
    norms = np.linalg.norm(layer.residual(result.x).reshape(3, -1), axis=1)
    np.testing.assert_allclose(result.residual_norm, norms, atol=1e-15)
    assert result.success.all()


@pytest.mark.parametrize("size", ["T1", "odd", "ragged even"])
def test_norms_of_the_caller_see_whole_states(size):
    case = case_of("implicit_gru", size)
    layer, seen = case.layer(), []

    def norm(F):
        seen.append(F.copy())
        F[...] = 0.0  # of the copy
        return float(np.abs(seen[-1]).sum())

    result = ims.root(layer, method="newton-krylov", stop=replace(TIGHT, norm=norm))
    assert all(F.shape == case.H.shape[1:] for F in seen)
    assert result.success.all()
    np.testing.assert_allclose(result.residual_norm, np.abs(layer.residual(result.x)).sum(axis=(1, 2)), atol=1e-14)
    weights = np.arange(case.H.shape[1])[:, None]  # which blocks they are
    weighted = ims.root(layer, stop=replace(TIGHT, norm=lambda F: float(np.abs(weights * F).max(initial=0.0))))
    assert weighted.success.all()


@pytest.mark.parametrize("size", ["T1", "T2", "odd", "ragged"])
def test_monitors_see_whole_states(size):
    case = case_of("implicit_gru", size)
    layer, seen = case.layer(), []
    result = ims.root(layer, method="newton-krylov", stop=TIGHT, monitor=lambda *what: seen.append(what))
    silent = ims.root(layer, method="newton-krylov", stop=TIGHT)
    np.testing.assert_array_equal(result.x, silent.x)
    assert len(seen) == len(result.steps) == len(silent.steps)
    if size == "T1":
        return
    assert [step.iteration for step, _, _ in seen] == list(range(len(seen)))
    for step, x, F in seen:
        assert x.shape == F.shape == case.H.shape
        np.testing.assert_allclose(F, layer.residual(x), rtol=0, atol=1e-14)
        np.testing.assert_array_equal(step.residual_norm, np.abs(F[step.systems]).max(axis=(1, 2)))
        x[...] = F[...] = np.nan  # copies


class Counted:
    """A problem whose functions count their calls; every product with a coupling is a half of one."""

    def __init__(self, problem: ims.Problem) -> None:
        self.calls = dict.fromkeys(("apply", "linearize", "push", "pull", "residual", "whole"), 0)
        halves = problem.halves
        assert halves is not None
        self.problem = replace(
            problem,
            residual=self._counting(problem.residual, "residual"),
            linearize=self._counting(problem.linearize, "whole"),
            jvp=None,
            vjp=None,
            blocks=None,
            take=None,
            halves=ims.elimination.Halves(eliminated=self._half(halves.eliminated), kept=self._half(halves.kept)),
        )

    def _counting(self, function: Any, name: str) -> Any:
        def counted(*arguments):
            self.calls[name] += 1
            return function(*arguments)

        return counted

    def _half(self, half: ims.elimination.Half) -> ims.elimination.Half:
        def linearize(other):
            self.calls["linearize"] += 1
            value, coupling = half.linearize(other)
            return value, _CountedCoupling(self, coupling)

        return ims.elimination.Half(apply=self._counting(half.apply, "apply"), linearize=linearize)


class _CountedCoupling:
    def __init__(self, owner: Counted, coupling: ims.elimination.Coupling) -> None:
        self.owner, self.coupling = owner, coupling

    def matvec(self, v):
        self.owner.calls["push"] += 1
        return self.coupling.matvec(v)

    def rmatvec(self, w):
        self.owner.calls["pull"] += 1
        return self.coupling.rmatvec(w)

    def take(self, indices):
        return _CountedCoupling(self.owner, self.coupling.take(indices))

    def diagonals(self):
        return self.coupling.diagonals()

    def astype(self, dtype):
        return _CountedCoupling(self.owner, self.coupling.astype(dtype))


@pytest.mark.parametrize("key", ELIMINATES)
def test_counts_are_those_of_the_calls(key):
    counted = Counted(case_of("implicit_gru", "odd", scale=1.5).layer())
    result = ims.root(counted.problem, method=METHODS[key], stop=TIGHT)
    assert result.success.all()
    calls, counts = counted.calls, result.counts
    assert calls["residual"] == calls["whole"] == 0
    assert calls["push"] == 2 * counts.jvps
    assert calls["pull"] == 2 * counts.vjps == 0
    assert calls["linearize"] == 2 * counts.linearizations
    extra = calls["apply"] + calls["linearize"] - 2 * counts.residuals
    assert extra in (0, 1)  # to expand the solution is half a residual, and nothing where all systems ended at once


def test_a_batch_without_take_is_solved_as_one_with(name):
    layer = case_of(name, "ragged").layer()
    result, other = (ims.root(one, method="newton-krylov", stop=TIGHT) for one in (layer, replace(layer, take=None)))
    close(other.x, result.x, 1e-12)
    np.testing.assert_array_equal(other.status, result.status)
    np.testing.assert_array_equal(other.iterations, result.iterations)


def test_elimination_saves_products():
    layer = make("implicit_gru", B=4, T=12, k=8, lengths=None, scale=0.5).layer()
    method = ims.NewtonKrylov()
    whole = ims.root(replace(layer, halves=None), method=method, stop=TIGHT)
    half = ims.root(layer, method=method, stop=TIGHT)
    assert half.counts.residuals + half.counts.jvps < 0.7 * (whole.counts.residuals + whole.counts.jvps)


def test_methods_that_were_made_for_all_blocks_get_them():
    layer = make(T=5, lengths=None).layer()
    shapes = []

    def M(x, F):
        shapes.append(x.shape)
        return ims.LinearOperator(lambda v: v, in_shape=x.shape[1:], batch_shape=x.shape[:1])

    for method in (
        ims.NewtonKrylov(preconditioner=M),
        ims.NewtonKrylov(preconditioner=ims.BlockLU()),
        ims.NewtonKrylov(krylov=ims.TruncatedInverse(), line_search=ims.FullStep()),
        ims.BlockNewton(),
    ):
        result = ims.root(layer, method=method, stop=ims.NonlinearStop(atol=1e-8, rtol=0.0))
        assert result.success.all()
    assert set(shapes) == {(3, 5, 3)}


def test_a_user_of_halves_needs_no_adapter():
    """x_t = cos(x_(t-1) + x_(t+1)) / 2, with zeros beyond the ends, and nothing but the two halves."""

    class Sum:
        def __init__(self, slope, matrix):
            self.slope, self.matrix = slope, matrix

        def matvec(self, v):
            return self.slope * (self.matrix @ v)

        def rmatvec(self, w):
            return self.matrix.T @ (self.slope * w)

        def diagonals(self):
            previous = np.tril(self.matrix, -1 if self.matrix.shape[0] > self.matrix.shape[1] else 0)
            return self.slope * previous.sum(axis=1)[:, None], self.slope * (self.matrix - previous).sum(axis=1)[
                :, None
            ]

        def take(self, indices):
            raise AssertionError("one system has no parts")

        def astype(self, dtype):
            return Sum(self.slope.astype(dtype), self.matrix.astype(dtype))

    T = 9
    neighbours = np.eye(T, k=1) + np.eye(T, k=-1)

    def half(own, others):
        matrix = neighbours[np.ix_(own, others)]

        def linearize(other):
            return np.cos(matrix @ other) / 2, Sum(-np.sin(matrix @ other) / 2, matrix)

        return ims.elimination.Half(apply=lambda other: linearize(other)[0], linearize=linearize)

    even, odd = np.arange(0, T, 2), np.arange(1, T, 2)
    problem = ims.Problem(
        lambda x: x - np.cos(neighbours @ x) / 2,
        fixed_point=True,
        halves=ims.elimination.Halves(eliminated=half(even, odd), kept=half(odd, even)),
    )
    x0 = np.zeros((T, 1))
    for method in ("auto", ims.NewtonKrylov(krylov_dtype="float32"), ims.Homotopy()):
        result = ims.root(problem, x0, method=method, stop=TIGHT)
        full = ims.root(replace(problem, halves=None), x0, method=method, stop=TIGHT)
        assert result.success
        assert full.success
        close(result.x, full.x, 1e-10)
        assert np.abs(problem.residual(result.x)).max() <= 2 * ATOL
    assert ims.elimination.even_odd(problem).structure is None
    assert ims.elimination.even_odd(problem).parameter_jvp is ims.elimination.even_odd(problem).initial_guess is None


def test_the_last_evaluation_expands_the_solution_though_it_reuses_memory():
    layer = case_of("implicit_gru", "odd", scale=1.5, B=1).layer()
    room = {}

    def reused(half, name):
        def apply(other):
            value = half.apply(other)
            room.setdefault(name, np.empty_like(value))[...] = value
            return room[name]

        return replace(half, apply=apply)

    halves = replace(layer.halves, eliminated=reused(layer.halves.eliminated, 0), kept=reused(layer.halves.kept, 1))
    result = ims.root(replace(layer, halves=halves, pure=False), method="anderson", stop=TIGHT)
    assert result.counts.residuals == result.steps[-1].counts.residuals
    np.testing.assert_array_equal(result.x, ims.root(layer, method="anderson", stop=TIGHT).x)
    room[0][...] = np.nan
    assert np.abs(layer.residual(result.x)).max() <= 1e-9
