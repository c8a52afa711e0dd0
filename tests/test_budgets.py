"""Limits of evaluations and of time, and monitors that end a solve."""

import time
from typing import Any

import numpy as np
import pytest
from scipy.optimize import NoConvergence

import implicitsolve as ims
from benchmarks.sparse_problems import lines
from implicitsolve import NonlinearStop, Problem, Status

RNG = np.random.default_rng(20)
STEEP = RNG.standard_normal((40, 40)) / 6
SLACK = 4  # one residual for each method that "auto" tries and precision, and one for what was eliminated


def steep(x):
    return x - np.tanh(1.5 * x @ STEEP + 1)


def chain(u, c=3.0):
    p = np.pad(u, 1)
    return p[2:] - 2 * u + p[:-2] + c * np.exp(u) / (u.size + 1) ** 2


def gru_layer() -> Problem:
    rng = np.random.default_rng(1)
    params = ims.adapters.gru_parameters(3, 64, rng=rng, scale=0.3)
    return ims.adapters.implicit_gru(params, rng.standard_normal((2, 5, 3)))


CASES: dict[str, tuple[Any, Any, Any]] = {
    "krylov": (Problem(steep), np.zeros(40), "newton-krylov"),
    "bicgstab": (Problem(steep), np.zeros(40), ims.NewtonKrylov(krylov=ims.BiCGSTAB())),
    "scipy": (Problem(steep), np.zeros(40), ims.NewtonKrylov(krylov=ims.ScipyKrylov(function="gcrotmk"))),
    "fixed point": (Problem(steep, fixed_point=True), np.zeros(40), "auto"),
    "batch": (Problem(steep, fixed_point=True, batch_ndim=1), np.zeros((3, 40)), "auto"),
    "picard": (Problem(steep, fixed_point=True), np.zeros(40), "picard"),
    "broyden": (Problem(steep, fixed_point=True), np.zeros(40), "broyden"),
    "homotopy": (Problem(steep, fixed_point=True), np.zeros(40), "homotopy"),
    "detection": (Problem(chain), np.zeros(60), "auto"),
    "blocks": (Problem(chain, structure=ims.BlockBanded(1, 1)), np.zeros(60), "auto"),
    "block batch": (
        Problem(lambda u: np.stack([chain(v) for v in u]), structure=ims.BlockBanded(1, 1), batch_ndim=1),
        np.zeros((2, 60)),
        "block-newton",
    ),
    "sizes from J": (Problem(steep, x_scale="auto", f_scale="auto"), np.zeros(40), "auto"),
    "halves": (gru_layer(), None, "auto"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("limit", [1, 2, 9, 30])
def test_no_stage_of_a_solve_exceeds_the_limit_of_evaluations(name, limit):
    problem, x0, method = CASES[name]
    result = ims.root(problem, x0, method=method, stop=NonlinearStop(max_evaluations=limit, rtol=1e-13))
    assert result.counts.evaluations <= limit + SLACK
    status = np.asarray(result.status)
    assert np.isin(status[~np.asarray(result.success)], [s for s in Status if s != Status.RUNNING]).all()
    assert (np.asarray(result.residual_norm) <= np.asarray(result.initial_norm)).all()
    assert (
        np.asarray(result.success).all()
        or result.counts.evaluations >= limit
        or not (status == Status.EVALUATION_LIMIT).any()
    )


@pytest.mark.parametrize("name", CASES)
def test_a_solve_that_needs_what_it_may_take_has_converged(name):
    problem, x0, method = CASES[name]
    free = ims.root(problem, x0, method=method)
    bounded = ims.root(problem, x0, method=method, stop=NonlinearStop(max_evaluations=free.counts.evaluations))
    np.testing.assert_array_equal(free.status, bounded.status)
    np.testing.assert_array_equal(free.x, bounded.x)


@pytest.mark.parametrize("name", CASES)
def test_a_solve_without_time_ends_at_x0(name):
    problem, x0, method = CASES[name]
    result = ims.root(problem, x0, method=method, stop=NonlinearStop(max_seconds=0))
    assert (np.asarray(result.status) == Status.TIME_LIMIT).all()
    assert result.counts.evaluations <= SLACK


def test_the_time_limit_holds_within_a_krylov_space():
    calls = []

    def slow(x):
        calls.append(1)
        time.sleep(0.005)  # or longer on a busy machine: then there are fewer calls
        return steep(x)

    result = ims.root(slow, np.zeros(40), method="newton-krylov", stop=NonlinearStop(max_seconds=0.1, rtol=1e-14))
    assert result.status is Status.TIME_LIMIT
    assert len(calls) <= 0.1 / 0.005 + SLACK


def test_the_drop_in_has_the_same_limits():
    with pytest.raises(NoConvergence) as caught:
        ims.newton_krylov(chain, np.zeros(60), f_tol=1e-14, max_evaluations=4)
    assert caught.value.result.status is Status.EVALUATION_LIMIT  # type: ignore[attr-defined]
    _, result = ims.newton_krylov(chain, np.zeros(60), max_seconds=0.0, full_output=True)
    assert result.status == Status.TIME_LIMIT


@pytest.mark.parametrize(
    "limits", [{"max_evaluations": 0}, {"max_evaluations": 1.5}, {"max_seconds": -1.0}, {"max_seconds": "1 s"}]
)
def test_a_limit_out_of_range_is_refused(limits):
    with pytest.raises((TypeError, ValueError), match=next(iter(limits))):
        NonlinearStop(**limits)
    with pytest.raises((TypeError, ValueError), match=next(iter(limits))):
        ims.newton_krylov(chain, np.zeros(60), **limits)


@pytest.mark.parametrize("name", CASES)
def test_a_monitor_ends_a_solve_with_all_its_methods(name):
    problem, x0, method = CASES[name]
    seen = ims.monitor.collect()

    def third(step, x, F):
        return np.bool_(step.iteration == 2)

    result = ims.root(
        problem, x0, method=method, stop=NonlinearStop(rtol=1e-14), monitor=ims.monitor.combine(third, seen)
    )
    assert (np.isin(result.status, (Status.STOPPED_BY_MONITOR, Status.CONVERGED))).all()
    assert seen[-1].iteration <= 2


def test_what_a_monitor_returns_by_accident_ends_nothing():
    assert ims.root(chain, np.zeros(60), monitor=lambda step, x, F: "printed").success


def test_a_race_in_turn_shares_one_limit():
    starts = [np.full(40, value) for value in (0.0, 1.0, 2.0)]
    result = ims.drivers.race(steep, starts, method="newton-krylov", stop=NonlinearStop(max_evaluations=9))
    assert result.counts.evaluations <= 9 + SLACK
    assert result.status is Status.EVALUATION_LIMIT


def test_a_checkpointed_solve_counts_the_calls_of_all_legs(tmp_path):
    for limit in (10, 20):
        stop = NonlinearStop(rtol=1e-14, max_evaluations=limit)
        result = ims.drivers.checkpointed(
            Problem(steep), np.zeros(40), tmp_path / "legs.npz", every=1, method="newton-krylov", stop=stop
        )
        assert result.status is Status.EVALUATION_LIMIT
        assert limit <= result.counts.evaluations <= limit + SLACK
    ample = ims.drivers.checkpointed(
        Problem(steep),
        np.zeros(40),
        tmp_path / "legs.npz",
        every=1,
        method="newton-krylov",
        stop=NonlinearStop(rtol=1e-14, max_evaluations=1000),
    )
    assert ample.success


def test_a_system_whose_largest_residual_falls_late_is_not_given_up():
    """The cosh of a mean on a line: only ||F||_2 falls in the first three steps, of 363 evaluations."""
    problem = lines.cosh_with_mean(1000)
    stop = NonlinearStop(atol=problem.tolerance(), rtol=0.0)
    assert ims.root(problem.residual, problem.x0, stop=stop).success


@pytest.mark.rounding
def test_a_system_without_a_root_is_given_up_at_its_best_point():
    """It took up to 8,577 evaluations: idle steps of up to 400 Krylov iterations each, in up to five attempts."""
    ends = (Status.STAGNATED, Status.LINE_SEARCH_FAILED, Status.SINGULAR)
    for n in (10, 50, 300, 3000):
        problems = {
            "x^2 + 1": (lambda x: x**2 + 1, np.linspace(0.5, 2, n)),
            "beyond the fold": (lambda u: chain(u, 6.0), np.zeros(n)),
            "with a mean": (lambda x: x**2 + x.mean() ** 2 + 0.1, np.linspace(0.1, 2, n)),
        }
        for name, (F, x0) in problems.items():
            with np.errstate(over="ignore"):
                result = ims.root(F, x0)
            assert result.status in ends, name
            assert result.counts.evaluations <= 500 + 20 * len(result.steps), name  # the allowance, and what steps earn
            assert result.residual_norm <= result.initial_norm, name


def laplace(u):
    p = np.pad(u, 1)
    return p[2:] - 2 * u + p[:-2]


ROOTLESS = {
    "squares": lambda x: x**2 + 1,
    "coupled": lambda x: x**2 + 1 + 0.1 * np.roll(x, 1) + 0.1 * np.roll(x, -1),
    "beyond a fold": lambda u: laplace(u) + 10 * np.exp(u) / (u.size + 1) ** 2,
    "steps": lambda x: np.floor(x) + 0.5,  # J was assembled five times in the last method's first step
    "mean": lambda x: x**2 + np.mean(x**2) + 1 - 0.2 * np.roll(x, 1),  # 320 Krylov iterations with 10 left
    "units": lambda x: np.exp(-x) + 1e-3,  # unlimited in the last trust region
}


@pytest.mark.parametrize("name", ROOTLESS)
@pytest.mark.parametrize("n", [10, 60, 100, 300, 2000])
def test_systems_without_roots_are_given_up(name, n):
    with np.errstate(all="ignore"):
        result = ims.root(ROOTLESS[name], np.linspace(0.1, 0.9, n))
    assert not result.success
    dense = 10 * n if n <= 100 else 0  # two methods assemble a dense J before what it takes is charged
    assert result.counts.residuals <= 500 + 20 * int(result.iterations) + dense


def test_each_system_of_a_batch_has_an_allowance():
    shift = np.asarray([[1.0], [-0.5], [2.0]])
    problem = ims.Problem(lambda x: x**2 + shift, batch_ndim=1)
    with np.errstate(all="ignore"):
        result = ims.root(problem, np.tile(np.linspace(0.1, 0.9, 30), (3, 1)))
    assert result.success.tolist() == [False, True, False]
    assert result.counts.residuals <= 2 * 500 + 20 * int(result.iterations.sum())


def test_what_fixed_point_methods_take_is_not_left_to_later_ones():
    """A map without a fixed point took up to 2,058 evaluations: Anderson's steps and a homotopy's had limits alone."""
    rng = np.random.default_rng(0)
    for n in (2, 10, 100):
        W, c = rng.standard_normal((n, n)) / n**0.5, rng.standard_normal(n)
        problem = ims.Problem(lambda x, W=W, c=c: -(W @ np.tanh(x)) - 4 - c**2 - 0.1 * x**2, fixed_point=True)
        with np.errstate(all="ignore"):
            result = ims.root(problem, np.zeros(n))
        assert not result.success
        assert [retry.method.split()[0] for retry in result.retries] == ["Homotopy", "NewtonKrylov"]
        assert result.counts.evaluations <= 1000


@pytest.mark.parametrize("seed", range(4))
def test_a_homotopy_leaves_evaluations_to_newtons_method(seed):
    """An affine map of spectral radius 4, whose path goes to infinity: only Newton's method solves it."""
    rng = np.random.default_rng(seed)
    W, c = 4 * rng.standard_normal((20, 20)) / 20**0.5, rng.standard_normal(20)
    result = ims.root(ims.Problem(lambda x: x - (W @ x + c), fixed_point=True), np.zeros(20))
    assert result.success
    assert result.retries[-1].method.startswith("NewtonKrylov")
    assert result.counts.evaluations <= 1500
