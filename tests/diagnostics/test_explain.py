"""`explain`: each way to fail is told with its cause, its place, and advice that names what the library has."""

import dataclasses
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import Counts, NonlinearStop, Status
from implicitsolve.derivatives import AdjointResult, TangentResult
from implicitsolve.diagnostics._history import read_histories
from implicitsolve.result import LinearResult, NonlinearResult

pytestmark = pytest.mark.rounding

METHODS = ["newton-krylov", "block-newton", "anderson", "picard", "broyden", "auto", "homotopy"]


def only(explanation: ims.diagnostics.Explanation) -> ims.diagnostics.Finding:
    (finding,) = explanation.findings
    assert finding.what in str(explanation).replace("\n  ", " ")
    return finding


def cubes(c=8.0, factor=1.0, **functions) -> ims.Problem:
    return ims.Problem(lambda x: x**3 - c, jvp=lambda x, v: factor * 3 * x**2 * v, **functions)


def cubes_of(c, factor=None) -> ims.Problem:
    if factor is None:
        return ims.Problem(lambda x: x**3 - c, batch_ndim=1, take=lambda rows: cubes_of(c[rows]))
    return cubes(c, factor, batch_ndim=1, take=lambda rows: cubes_of(c[rows], factor[rows]))


def slow(rate: float, **functions) -> ims.Problem:
    """A fixed-point problem whose error falls by `rate` in each of Picard's steps."""
    return ims.Problem(lambda x: (1 - rate) * x - 1, fixed_point=True, **functions)


def test_what_has_converged_is_said_to_have():
    explanation = ims.diagnostics.explain(ims.root(cubes(), np.ones(3)))
    assert str(explanation) == repr(explanation) == "The solve converged."
    assert explanation.findings == ()
    assert str(ims.diagnostics.explain(ims.root(cubes(batch_ndim=1), np.ones((4, 3))))) == "All 4 systems converged."
    assert str(ims.diagnostics.explain(ims.root(cubes(batch_ndim=1), np.ones((0, 3))))) == "The batch is empty."


def test_a_wrong_jacobian_is_suspicious_though_it_converged():
    result = ims.root(cubes(factor=5 / 3), np.full(3, 3.0), method="newton-krylov")
    assert result.success
    assert "J is not the derivative of F" in only(ims.diagnostics.explain(result)).what
    wrong = only(ims.diagnostics.explain(result, cubes(factor=5 / 3)))
    assert "`jvp` is wrong: it is off by the factor 1.667" in wrong.what


def test_loose_linear_solves_make_newton_linear():
    A = np.diag(np.linspace(1, 50, 40))
    problem = ims.Problem(lambda x: A @ x + 1e-3 * x**2 - 1, jvp=lambda x, v: A @ v + 2e-3 * x * v)
    method = ims.NewtonKrylov(forcing=ims.ConstantForcing(eta=0.5), recycle=0)
    result = ims.root(problem, np.zeros(40), method=method, stop=NonlinearStop(rtol=1e-10))
    assert result.success
    assert all("derivative" not in finding.what for finding in ims.diagnostics.explain(result).findings)


def test_a_quadratic_solve_with_a_right_jacobian_raises_no_suspicion(rng):
    for method in ("newton-krylov", "block-newton"):
        problem = cubes(structure=ims.BlockBanded(0, 0), batch_ndim=1)
        assert not ims.diagnostics.explain(ims.root(problem, rng.uniform(1, 9, (20, 3)), method=method)).findings


def test_last_steps_that_were_shortened_are_suspicious():
    A = 4 * np.eye(50) + np.eye(50, k=1) + np.eye(50, k=-1) + np.eye(50, k=2)
    result = ims.root(ims.Problem(lambda u: A @ u + 0.1 * u**3 - 1, structure=ims.BlockBanded(1, 1)), np.zeros(50))
    assert result.success
    assert "of the last four steps" in only(ims.diagnostics.explain(result)).what


@pytest.mark.parametrize(
    ("F", "slope", "start", "word"),
    [(np.exp, np.exp, 35.0, "exponentially"), (lambda x: x**3, lambda x: 3 * x**2, 1e6, "power 3")],
    ids=["exponential", "power"],
)
def test_steady_steps_far_from_the_solution_are_not_laid_to_the_jacobian_alone(F, slope, start, word):
    problem = ims.Problem(lambda x: F(x) - 1e6, jvp=lambda x, v: slope(x) * v)
    result = ims.root(problem, np.asarray([start]), method="newton-krylov", stop=NonlinearStop(rtol=1.5e-8))
    assert result.success
    finding = only(ims.diagnostics.explain(result))
    assert f"or x is still far from {'it' if 'power' in word else 'the solution'}" in finding.what
    assert word in finding.what


def test_what_was_stopped_on_purpose_has_not_failed():
    _, result = ims.newton_krylov(lambda x: x**2 - 2, np.ones(3), iter=2, full_output=True)
    assert ims.diagnostics.explain(result).summary == "The solve was stopped as requested."
    whole = ims.root(cubes(batch_ndim=1), np.ones((3, 2)))
    some = dataclasses.replace(whole, status=np.asarray([1, 10, 10]))
    assert ims.diagnostics.explain(some).summary == "Of 3 systems 1 converged, 2 stopped as requested."
    one = dataclasses.replace(whole, status=np.asarray([1, 10, 2]))
    assert ims.diagnostics.explain(one).summary == "1 of 3 systems did not converge, 1 stopped as requested."


def test_no_unknowns_are_no_problem():
    problem = ims.Problem(lambda x: x**2 - 1)
    assert ims.diagnostics.explain(ims.root(problem, np.zeros(0)), problem).summary == "The solve converged."
    batch = ims.Problem(lambda x: x**2 - 1, batch_ndim=1)
    assert ims.diagnostics.explain(ims.root(batch, np.zeros((4, 0))), batch).summary == "All 4 systems converged."


def test_a_badly_scaled_jacobian_is_not_called_singular():
    scales = np.asarray([1e-12, 1e-6, 1.0, 1e6, 1e12])
    problem = ims.Problem(lambda x: scales * (x**3 - 2), jvp=lambda x, v: scales * 3 * x**2 * v)
    finding = only(ims.diagnostics.explain(ims.root(problem, np.ones(5)), problem))
    assert finding.what == "J is badly scaled at x: with rows and columns of size 1 its condition number is 1."


def test_a_singular_jacobian_at_a_solution_has_no_distance_to_it():
    A = np.ones((2, 2))
    problem = ims.Problem(lambda x: A @ x - 2, jvp=lambda x, v: A @ v)
    explanation = ims.diagnostics.explain(ims.root(problem, np.zeros(2), method="newton-krylov"), problem)
    assert "not the only solution" in only(explanation).advice
    assert not any("solution lies" in note for note in explanation.notes)


def test_slow_contraction_is_suspicious():
    result = ims.root(slow(0.95), np.zeros(2), method="picard", stop=NonlinearStop(rtol=1.5e-8))
    assert "by a factor of only 0.95 per step" in only(ims.diagnostics.explain(result)).what


def test_a_steady_rate_says_how_many_steps_are_missing():
    problem, steps = slow(0.9), 40
    stop = NonlinearStop(rtol=1.5e-8)
    result = ims.root(problem, np.zeros(2), method="picard", stop=dataclasses.replace(stop, max_iterations=steps))
    finding = only(ims.diagnostics.explain(result))
    more = int(finding.what.split("At that rate ")[1].split()[0])
    needed = ims.root(problem, np.zeros(2), method="picard", stop=stop).iterations
    assert abs(steps + more - needed) <= 1
    assert f"factor of {0.9:.4g} per step" in finding.what
    limit = int(finding.advice.split("max_iterations=")[1].split(")")[0])
    assert needed <= limit <= 1.2 * needed
    assert "Anderson" in finding.advice


def test_a_solve_that_gathers_speed_needs_a_few_steps_and_no_other_start(tmp_path):
    problem, stop = ims.Problem(lambda x: x**3 - 2), NonlinearStop(rtol=1.49e-8, max_iterations=2)
    results = [
        ims.root(problem, np.ones(3), method="newton-krylov", stop=stop),
        ims.drivers.checkpointed(problem, np.ones(3), tmp_path / "x", stop=stop),
    ]
    for result in results:
        finding = only(ims.diagnostics.explain(result))
        assert "converging fast" in finding.what
        assert "target 1.49e-08" in finding.what
        limit = int(finding.advice.split("max_iterations=")[1].split(")")[0])
        assert ims.root(problem, np.ones(3), method="newton-krylov", stop=NonlinearStop(max_iterations=limit)).success


def test_linear_solves_that_hit_their_limit():
    shift = ims.Problem(lambda x: x - np.roll(x, 1) - np.eye(300)[0], jvp=lambda x, v: v - np.roll(v, 1))
    method = ims.NewtonKrylov(max_krylov=10, krylov=ims.GMRES(restart=10))
    result = ims.root(shift, np.zeros(300), method=method, stop=NonlinearStop(max_iterations=12))
    finding = only(ims.diagnostics.explain(result))
    step = result.steps[-1]
    assert f"relative residual {step.linear_residual[0]:.2g} in 10 iterations" in finding.what
    assert "preconditioner=" in finding.advice
    assert "max_krylov" in finding.advice


def bratu(u):
    return np.diff(u, n=2, prepend=0.0, append=0.0) + 3e-4 * np.exp(u)


@pytest.mark.parametrize("method", ["newton-krylov", "block-newton"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tolerance_below_rounding_says_which_would_hold(method, dtype):
    problem, x0 = ims.Problem(bratu, structure=ims.BlockBanded(1, 1)), np.zeros(100, dtype=dtype)
    result = ims.root(problem, x0, method=method, stop=NonlinearStop(rtol=0.0, atol=1e-30))
    assert not result.success
    explanation = ims.diagnostics.explain(result)
    finding = only(explanation)
    assert "below the rounding error of F" in finding.what
    atol = float(finding.advice.split("atol=")[1].split(")")[0])
    assert ims.root(problem, x0, method=method, stop=NonlinearStop(rtol=0.0, atol=atol)).success
    assert atol < 1e-3 * result.initial_norm
    with_problem = ims.diagnostics.explain(result, problem).findings
    assert any("F(x) is rounding error" in finding.what for finding in with_problem)


def test_a_local_minimum_of_a_small_residual_is_no_rounding_error():
    problem = ims.Problem(lambda x: 1e-15 * (x**2 + 1), jvp=lambda x, v: 2e-15 * x * v)
    result = ims.root(problem, np.full(3, 3.0), stop=NonlinearStop(rtol=1e-12))
    assert not result.success
    assert "rounding" not in only(ims.diagnostics.explain(result)).what


def bratu_in_the_plane(u, a=5.0):
    p, h = np.pad(u, 1), 1 / (u.shape[0] + 1)
    neighbors = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]
    with np.errstate(over="ignore"):
        return neighbors - 4 * u + a * h**2 * np.exp(u)


@pytest.mark.parametrize("a", [7.0, 8.0, 20.0])
def test_past_its_fold_bratu_is_a_minimum_and_continuation_is_named(a):
    F = lambda u: bratu_in_the_plane(u, a)  # noqa: E731
    result = ims.root(F, np.zeros((30, 30)))
    assert not result.success
    alone, finding = only(ims.diagnostics.explain(result)), only(ims.diagnostics.explain(result, F))
    assert "J may" not in alone.what  # it comes from differences
    assert "beyond a fold" in alone.what
    assert "J is nearly singular" in finding.what
    assert "`continuation`" in finding.advice


STOPPED_SHORT = {
    "minimum": (lambda x: x**2 + 1, np.full(3, 3.0), "minimum of ||F|| that is not a root"),
    "fold": (lambda x: x**2 + 1, np.array([3.0]), "minimum of ||F|| that is not a root"),
    "circle and line": (lambda x: np.stack([x @ x - 1, x[0] + x[1] - 3]), np.array([3.0, 1.0]), "minimum of ||F||"),
    "parabola": (lambda x: np.stack([x[0] ** 2 - x[1] + 2, x[0] + x[1] - 1]), np.array([3.0, 1.0]), "minimum of ||F||"),
    "kink": (lambda x: np.abs(x) + 1, np.array([1.0, 3.0]), "a kink or a jump"),
    "kink beside x": (lambda x: np.abs(x - 1) + 0.5, np.array([3.0, 2.0]), "a kink or a jump"),
    "singular": (
        lambda x: np.stack([x[0] - x[1] + 1, x[0] - x[1], x[2] - 3]),
        np.array([3.0, 1, 2]),
        "largest entries are those of x[0], x[1]",
    ),
}


@pytest.mark.parametrize("name", STOPPED_SHORT)
def test_one_cause_is_named_and_no_condition_number_beside_it(name):
    F, x0, what = STOPPED_SHORT[name]
    result = ims.root(F, x0)
    assert not result.success
    explanation = ims.diagnostics.explain(result, F)
    assert what in only(explanation).what
    assert not any("condition" in note for note in explanation.notes)
    assert len(str(explanation).splitlines()) < 14
    assert not re.search(r",\.|\.\.|explain\(", str(explanation))
    assert ("continuation" in str(explanation)) == (name.split()[0] not in ("kink", "singular"))


@pytest.mark.parametrize("method", ["newton-krylov", "block-newton", "picard"])
def test_the_edge_of_a_domain(method):
    F = lambda x: np.where(np.all(x == 2.0), x**2 - 1, np.nan)  # noqa: E731
    exact = ims.Problem(F, jvp=lambda x, v: 2 * x * v, structure=ims.BlockBanded(0, 0))
    what = only(ims.diagnostics.explain(ims.root(exact, np.full(3, 2.0), method=method))).what
    assert "edge of its domain" in what or "finite up to x, the last iterate" in what


def test_differences_that_leave_the_domain_are_notes_and_no_crash():
    F = lambda x: np.where(np.all(x == 2.0), x**2 - 1, np.nan)  # noqa: E731
    explanation = ims.diagnostics.explain(ims.root(F, np.full(3, 2.0), method="newton-krylov"), F)
    assert "The condition of J was not estimated: J is not finite at x." in explanation.notes


def test_a_wrong_sign_is_named_with_the_problem():
    problem = cubes(factor=-1.0)
    result = ims.root(problem, np.ones(3), method="newton-krylov")
    assert result.status == Status.LINE_SEARCH_FAILED
    assert "J may not be the derivative of F" in only(ims.diagnostics.explain(result)).what
    wrong = only(ims.diagnostics.explain(result, problem))
    assert wrong.what.startswith("check_derivatives: `jvp` is wrong: the sign is wrong")


def test_a_diverging_iteration_tells_its_growth():
    problem = ims.Problem(lambda x: -2 * x - 1, fixed_point=True)
    result = ims.root(problem, np.zeros(2), method="picard")
    assert result.status == Status.DIVERGED
    assert "by a factor of 3 per step" in only(ims.diagnostics.explain(result)).what


def test_unknowns_that_nothing_depends_on_are_named():
    def residual(x):
        return np.stack([x[..., 0] - 1, x[..., 1] * x[..., 0] - 2, 0 * x[..., 0] - 1], axis=-1)

    def jvp(x, v):
        return np.stack([v[..., 0], v[..., 1] * x[..., 0] + x[..., 1] * v[..., 0], 0 * v[..., 0]], axis=-1)

    problem = ims.Problem(residual, jvp=jvp)
    result = ims.root(problem, np.ones(3))
    assert not result.success
    what = " ".join(finding.what for finding in ims.diagnostics.explain(result, problem).findings)
    assert "F does not depend on x[2]." in what


def test_a_start_outside_the_domain_names_the_entry():
    problem = ims.Problem(lambda x: np.where(x > 0, x - 2, np.nan))
    x0 = np.ones((2, 3))
    x0[1, 2] = -7.0
    finding = only(ims.diagnostics.explain(ims.root(problem, x0), problem))
    assert finding.what == "F is not finite at the start: 1 of 6 entries, the first [1, 2] = nan, where x is -7."
    assert finding.where == "step 0, entry of F [1, 2] = nan"


def test_a_start_that_is_not_finite():
    finding = only(ims.diagnostics.explain(ims.root(cubes(), np.asarray([1.0, np.nan]))))
    assert "x0 itself is not finite: [1] = nan" in finding.what


def test_systems_are_named_by_their_place_and_grouped_by_cause():
    c = np.asarray([[2.0, 3.0, np.nan], [np.nan, 4.0, 5.0]])[..., None]
    explanation = ims.diagnostics.explain(ims.root(ims.Problem(lambda x: x**3 - c, batch_ndim=2), np.ones((2, 3, 1))))
    finding = only(explanation)
    assert explanation.summary == "2 of 6 systems did not converge."
    assert finding.status is Status.NONFINITE
    assert set(finding.systems) == {(0, 2), (1, 0)}
    assert "systems (0, 2), (1, 0):" in str(explanation)


def test_the_worst_system_with_a_residual_is_examined():
    c, factor = np.asarray([[8.0], [np.nan], [8.0], [27.0]]), np.asarray([[1.0], [1.0], [-1.0], [1.0]])
    problem = cubes_of(c, factor)
    explanation = ims.diagnostics.explain(ims.root(problem, np.ones((4, 1)), method="newton-krylov"), problem)
    assert explanation.findings[0].systems == ((2,),)
    assert "jvp" in explanation.findings[0].what


def test_many_failures_are_looked_at_in_part():
    stop = NonlinearStop(max_iterations=9)
    result = ims.root(slow(0.99, batch_ndim=1), np.zeros((500, 1)), method="picard", stop=stop)
    explanation = ims.diagnostics.explain(result)
    assert sum(len(finding.systems) for finding in explanation.findings) == 500
    assert len(str(explanation).splitlines()) < 20


def test_lost_and_cancelled_systems():
    lost = (ims.drivers.LostChunk(systems=np.asarray([1]), error=MemoryError("no memory")),)
    known = dict.fromkeys(["residual_norm", "initial_norm"], np.full(3, np.nan))
    known |= dict.fromkeys(["iterations", "krylov_iterations"], np.zeros(3, int))
    x, F, status = np.ones((3, 1)), np.full((3, 1), np.nan), np.asarray([1, 12, 13])
    result = ims.drivers.BatchResult(x=x, fun=F, status=status, counts=Counts(), lost=lost, **known)
    lost, cancelled = ims.diagnostics.explain(result).findings
    assert (lost.systems, cancelled.systems) == (((1,),), ((2,),))
    assert "MemoryError: no memory" in lost.what
    assert "chunks" in lost.advice


def test_the_results_of_batches_and_races(rng):
    c = rng.uniform(1, 9, (8, 1))
    c[5] = np.nan
    with ThreadPoolExecutor(2) as executor:
        options = {"executor": executor, "chunks": 3, "cancel": threading.Event()}
        batch = ims.drivers.solve_batch(cubes_of(c), np.ones((8, 1)), **options)
    for result in (batch, ims.drivers.race(cubes_of(c), [np.ones((8, 1)), np.full((8, 1), 2.0)])):
        assert only(ims.diagnostics.explain(result)).systems == ((5,),)


def test_the_history_of_a_race_is_that_of_the_winner():
    starts = [np.asarray([[90.0], [2.1]]), np.asarray([[2.1], [90.0]])]
    result = ims.drivers.race(cubes_of(np.full((2, 1), 8.0)), starts, stop=NonlinearStop(atol=1e-9, rtol=0.0))
    np.testing.assert_array_equal(result.winner, [1, 0])
    for history, norm in zip(read_histories(result, [0, 1]), result.residual_norm):
        assert history.norms[0] == pytest.approx(2.1**3 - 8)
        assert history.norms[-1] == norm


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit", [2, 100])
def test_every_method_is_explained(rng, method, limit):
    params = {name: 15 * value for name, value in ims.adapters.gru_parameters(2, 4, rng=rng).items()}
    layer = ims.adapters.implicit_gru(params, rng.standard_normal((6, 7, 2)))
    result = ims.root(layer, method=method, stop=NonlinearStop(max_iterations=limit, rtol=1e-14))
    explanation = ims.diagnostics.explain(result, layer)
    failed = {int(code) for code in np.unique(result.status)} - {1}
    assert failed <= {finding.status for finding in explanation.findings}
    assert any("check_derivatives" in note for note in explanation.notes)
    assert max(map(len, str(explanation).splitlines())) <= 100


def test_substitution_is_explained(rng):
    layer = ims.adapters.elman(ims.adapters.elman_parameters(2, 4, rng=rng), rng.standard_normal((3, 5, 2)))
    result = ims.root(layer, method="substitution")
    explanation = ims.diagnostics.explain(result, layer)
    assert explanation.summary == "All 3 systems converged."
    assert any("check_derivatives" in note for note in explanation.notes)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.CONVERGED])
def test_every_status_has_a_finding_in_every_kind_of_result(status):
    x = np.ones(2)
    linear = LinearResult(x=x, status=status, residual_norm=0.5, iterations=3, matvecs=4, target=1e-6)
    shared = {"status": status, "linear": linear, "counts": Counts()}
    norms = {"residual_norm": 1.0, "initial_norm": 2.0, "iterations": 0, "krylov_iterations": 0}
    nonlinear = NonlinearResult(x=x, fun=x, status=status, counts=Counts(), **norms)
    results = [linear, nonlinear, AdjointResult(gradients={}, adjoint=x, **shared), TangentResult(tangent=x, **shared)]
    for result in results:
        finding = only(ims.diagnostics.explain(result))
        assert finding.status is status
        assert finding.systems == ((),)
        assert finding.what


def test_a_linear_solve_reports_its_residual_and_its_target():
    A, b = np.roll(np.eye(60), 1, axis=0), np.eye(60)[0]
    result = ims.linear_solve(A, b, method=ims.GMRES(restart=10), stop=ims.LinearStop(max_iterations=30))
    finding = only(ims.diagnostics.explain(result))
    assert "||b - A x|| is 1 after" in finding.what
    assert "target 1e-06" in finding.what
    assert "restart" in finding.advice


def test_a_breakdown_of_another_method_than_gmres_is_not_laid_to_the_matrix():
    A = np.asarray([[0.0, 1.0], [-1.0, 0.0]])
    result = ims.linear_solve(A, np.asarray([1.0, 0.0]), method=ims.BiCGSTAB())
    assert result.status == Status.BREAKDOWN
    finding = only(ims.diagnostics.explain(result))
    assert "or the method does not suit it" in finding.what
    assert "GMRES" in finding.advice
    assert ims.linear_solve(A, np.asarray([1.0, 0.0]), method=ims.GMRES()).success


def test_a_gradient_at_no_solution():
    problem = cubes(vjp=lambda x, w: 3 * x**2 * w)
    result = ims.root(problem, np.full(2, 30.0), stop=NonlinearStop(max_iterations=1))
    finding = only(ims.diagnostics.explain(ims.pull_back(problem, result, np.ones(2))))
    assert finding.status is Status.FORWARD_NOT_CONVERGED
    assert "solve forward first" in finding.advice


def test_scipy_s_entry_and_its_exception():
    with pytest.raises(ims.NoConvergence) as caught:
        ims.newton_krylov(lambda x: x**2 + 1, [1.0, 2.0])
    assert ims.diagnostics.explain(caught.value).findings == ims.diagnostics.explain(caught.value.result).findings
    _, result = ims.newton_krylov(lambda x: x**2 + 1, [1.0, 2.0], full_output=True)
    assert ims.diagnostics.explain(result, lambda x: x**2 + 1).findings


def test_the_arguments_are_checked():
    with pytest.raises(TypeError, match="`result` must be the result of a solve, got int"):
        ims.diagnostics.explain(3)
    with pytest.raises(TypeError, match="`problem` is for results of `root`, got a LinearResult"):
        ims.diagnostics.explain(ims.linear_solve(np.eye(2), np.ones(2)), cubes())


def test_x_that_has_run_away_is_no_rounding_error_to_be_accepted():
    with np.errstate(all="ignore"):
        F = lambda x: x * np.cos(1e3 * x) / (1e-3 + x**2) ** 0.5 + 1.5  # noqa: E731
        result = ims.root(F, np.full(4, 1e13), method="newton-krylov")
        assert not result.success
        assert "atol" not in str(ims.diagnostics.explain(result, F))


def test_differences_of_a_singular_matrix_are_called_singular():
    A = np.random.default_rng(0).standard_normal((12, 11)) @ np.random.default_rng(1).standard_normal((11, 12))
    F = lambda x: A @ x - np.arange(12.0)  # noqa: E731
    result = ims.root(F, np.ones(12))
    assert not result.success
    assert "minimum of ||F||" in str(found := ims.diagnostics.explain(result, F)) or "J is singular" in str(found)
    assert "badly scaled" not in str(found)


def test_a_right_pattern_is_no_mistake_where_j_vanishes():
    """F curves more than J d along any d: by one-sided differences that looked like missing entries."""
    problem = ims.Problem(lambda u: u**2 + 1, structure=ims.Grid(shape=(6, 6)))
    result = ims.root(problem, np.ones((6, 6)))
    assert "J is singular to working precision" in str(ims.diagnostics.explain(result, problem))
