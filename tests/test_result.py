"""Results: success, messages, exceptions on demand, counts."""

import copy
import dataclasses
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import Counts, LinearResult, NewtonStep, NonlinearResult, Status
from implicitsolve.derivatives import AdjointResult, TangentResult


def linear(status, x=None) -> LinearResult:
    return LinearResult(x=np.zeros(2) if x is None else x, status=status, residual_norm=0.5, iterations=3, matvecs=4)


def every_kind(status) -> list:
    inner, x = linear(status), np.zeros(2)
    shared = {"status": status, "linear": inner, "counts": Counts()}
    common = {"status": status, "counts": Counts(), "residual_norm": 0, "initial_norm": 1}
    common |= {"iterations": 2, "krylov_iterations": 5}
    return [
        inner,
        NonlinearResult(x=x, fun=x, **common),
        AdjointResult(gradients={}, adjoint=x, **shared),
        TangentResult(tangent=x, **shared),
    ]


@pytest.mark.parametrize("kind", range(4), ids=["linear", "nonlinear", "adjoint", "tangent"])
def test_success_is_convergence_and_nothing_else(kind):
    for status in Status:
        result = every_kind(status)[kind]
        assert result.success is (status is Status.CONVERGED)
        assert status.name in result.message
        assert status.message in result.message
        assert status.hint in result.message
        if result.success:
            assert result.raise_for_status() is result
        else:
            with pytest.raises(ims.NoConvergence) as caught:
                result.raise_for_status()
            assert caught.value.result is result
            assert str(caught.value) == result.message


@pytest.mark.parametrize("kind", range(4), ids=["linear", "nonlinear", "adjoint", "tangent"])
def test_a_batch_has_a_status_for_each_system(kind):
    status = np.asarray([[1, 1, 2], [1, 7, 2]])
    result = every_kind(status)[kind]
    np.testing.assert_array_equal(result.success, status == 1)
    lines = result.message.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"{n} of 6 systems" for n in (3, 2, 1)]
    for line, code in zip(lines, (1, 2, 7), strict=True):
        assert Status(code).name in line
    with pytest.raises(ims.NoConvergence, match="2 of 6 systems: ITERATION_LIMIT"):
        result.raise_for_status()
    good = every_kind(np.ones((2, 3), dtype=int))[kind]
    assert good.raise_for_status() is good


def test_an_empty_batch_succeeds():
    result = linear(np.zeros(0, dtype=int))
    assert result.success.shape == (0,)
    assert result.message == "the batch is empty"
    assert result.raise_for_status() is result


SOLVED = {
    "a grid": lambda: ims.root(lambda u: 4 * u - np.roll(u, 1, 0) - np.roll(u, 1, 1) + u**3 - 1, np.zeros((12, 12))),
    "a number in float32": lambda: ims.root(lambda x: x**2 - 2, np.float32(1)),
    "a failure with retries": lambda: ims.root(lambda x: x**2 + 1, np.ones(3)),
    "a batch": lambda: ims.root(ims.Problem(lambda x: x**2 - [[2], [-1]], batch_ndim=1), np.ones((2, 3))),
    "products": lambda: ims.root(lambda x: x**3 - 8, np.ones((2, 3)), method="newton-krylov"),
    "no unknowns": lambda: ims.root(lambda x: x, np.zeros(0)),
}


@pytest.mark.parametrize("solve", SOLVED.values(), ids=SOLVED)
def test_results_are_frozen_and_survive_copies_pickles_and_files(solve, tmp_path):
    result = solve()
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.x = 0
    result.save(tmp_path / "result")
    for same in (copy.deepcopy(result), pickle.loads(pickle.dumps(result)), ims.load(tmp_path / "result")):
        assert (str(same), type(same.status), same.x.dtype) == (str(result), type(result.status), result.x.dtype)
        assert str(ims.diagnostics.explain(same)) == str(ims.diagnostics.explain(result))
        for name in ("x", "fun", "error", "counts", "target"):
            np.testing.assert_equal(getattr(same, name), getattr(result, name))
        for old, new in zip(result.steps + result.retries, same.steps + same.retries, strict=True):
            np.testing.assert_equal(vars(new), vars(old))
    after = ims.Problem(lambda x: x - 1, batch_ndim=np.ndim(same.status))
    assert np.all(ims.root(after, previous=same).success)


class ExitsWhenRead:
    def __reduce__(self):
        return sys.exit, ()


def test_another_file_is_refused_and_nothing_in_it_is_executed(tmp_path):
    path, evil = tmp_path / "result", np.array([ExitsWhenRead()])
    ims.root(lambda x: x**2 - 2, [1.0]).save(path)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:-50], pickle.dumps(evil), {"x": evil}, {"what": "a result of format 1"}):
        with path.open("wb") as file:
            file.write(content) if isinstance(content, bytes) else np.savez(file, **content)
        with pytest.raises(ValueError, match="is not a result of format 1, or is damaged"):
            ims.load(path)
    ims.continuation(lambda x, lam: x - lam, [0.0], 0.0, 1.0).save(path)
    with pytest.raises(ValueError, match="is not a result of format 1, but a branch"):
        ims.load(path)


def test_a_step_reads_as_one_line():
    norms, counts = np.asarray([0.5, 2.0]), Counts(residuals=4, jvps=9)
    step = NewtonStep(iteration=3, systems=np.arange(2), residual_norm=norms, running=1, counts=counts)
    assert step.worst == 2.0
    assert str(step) == "step 3: norm(F) 2, 1 running, 4 residuals, 9 jvps"
    assert NewtonStep(iteration=0, systems=np.zeros(0), residual_norm=np.zeros(0)).worst == 0.0
    step = NewtonStep(iteration=0, systems=np.arange(2), residual_norm=np.asarray([1.0, np.nan]))
    assert np.isnan(step.worst)
    assert "nan" in str(step)
    assert (step.running, step.counts) == (0, Counts())
    for name in ("step_length", "forcing", "linear_residual", "krylov_iterations", "linear_status", "factorized"):
        assert getattr(step, name).shape == (0,)


def test_counts_add_and_subtract_by_name():
    one, other = Counts(residuals=5, jvps=7, vjps=11, linearizations=13), Counts(residuals=1, jvps=2, linearizations=4)
    assert one - other == Counts(residuals=4, jvps=5, vjps=11, linearizations=9)
    assert (one - other) + other == one


def lines_of(result) -> list[str]:
    text = result.summary()
    lines = text.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    assert text == "\n".join(line.rstrip() for line in lines)
    return lines


def columns_of(lines: list[str], first: str) -> list[list[str]]:
    """The cells below the header that begins with `first`."""
    start = next(i for i, line in enumerate(lines) if line.split("  ")[0] == first)
    stop = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return [line.split() for line in lines[start + 1 : stop]]


def squares(targets, batch_ndim: int, **settings) -> NonlinearResult:
    targets = np.asarray(targets)[..., None]
    problem = ims.Problem(lambda x: x**2 - targets, jvp=lambda x, v: 2 * x * v, batch_ndim=batch_ndim)
    return ims.root(problem, np.ones_like(targets), method="newton-krylov", **settings)


def test_the_summary_of_one_system_has_a_line_for_each_step():
    result = squares(2.0, 0)
    rows = columns_of(lines_of(result), "step")
    assert [int(row[0]) for row in rows] == [step.iteration for step in result.steps]
    assert [float(row[1]) for row in rows] == [float(f"{step.worst:.3g}") for step in result.steps]
    certified = result.x.size  # products for a dense J at the end, which belong to no step
    assert sum(int(row[-1]) for row in rows) == result.counts.residuals + result.counts.jvps - certified
    known = {line.split()[0]: line.split()[1] for line in lines_of(result) if line and line[0] != " "}
    assert float(known["norm(F)"]) == float(f"{result.residual_norm:.3g}") <= float(known["target"])


@pytest.mark.parametrize("status", list(Status))
def test_no_line_of_a_summary_is_longer_than_100_columns(status):
    result = dataclasses.replace(ims.root(lambda x: x**2 - 2, np.ones(2)), status=status)
    assert max(map(len, result.summary().splitlines())) <= 100


def test_columns_end_where_their_headers_end():
    lines = lines_of(squares(2.0, 0))
    start = next(i for i, line in enumerate(lines) if line.startswith("step "))
    assert {len(line) for line in lines[start:]} == {len(lines[start])}


def test_the_summary_of_a_batch_names_the_worst_systems_by_their_place():
    result = squares([[2.0, 3.0, -1.0], [np.nan, 4.0, 5.0]], 2)
    lines = lines_of(result)
    assert dict(columns_of(lines, "status")) == {"CONVERGED": "4", "NONFINITE": "1", "SINGULAR": "1"}
    worst = columns_of(lines, "worst systems")
    assert ["".join(row[:2]) for row in worst[:2]] == ["(1,0)", "(0,2)"]
    assert [row[2] for row in worst[:2]] == ["NONFINITE", "SINGULAR"]
    steps = columns_of(lines, "step")
    assert [int(row[1]) for row in steps] == [step.running for step in result.steps]
    assert steps[0][2:4] == ["nan", "2"]  # of the systems whose norm is known 1, 2, 2, 3, 4 the middle one


def test_quantiles_leave_out_what_is_not_known():
    lines = lines_of(squares([4.0, np.nan, 9.0, 16.0], 1))
    header = next(i for i, line in enumerate(lines) if line.split()[:2] == ["min", "quarter"])
    assert lines[header + 3].split() == ["at", "x0", "3", "3", "8", "15", "15"]


def test_a_long_history_is_cut_in_the_middle():
    slow = ims.Problem(lambda x: 0.01 * x, fixed_point=True)
    result = ims.root(slow, np.ones(3), method="picard", stop=ims.NonlinearStop(max_iterations=300))
    rows = columns_of(lines_of(result), "step")
    assert len(rows) < 35
    assert rows[0][0] == "0"
    assert rows[-1][0] == "300"
    gap = [row[0] for row in rows].index("...")
    assert [int(row[0]) for row in rows[:gap]] == list(range(gap))


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_the_summary_of_an_empty_batch(shape):
    result = ims.root(ims.Problem(lambda x: x, batch_ndim=len(shape)), np.ones((*shape, 3)))
    assert lines_of(result)[-1] == "the batch is empty"


@pytest.mark.parametrize("kind", range(4), ids=["linear", "nonlinear", "adjoint", "tangent"])
@pytest.mark.parametrize("status", [Status.LINEAR_SOLVE_FAILED, np.asarray([[1, 1, 2], [1, 7, 2]])])
def test_every_result_has_a_summary(kind, status):
    result = every_kind(status)[kind]
    assert lines_of(result)[0].startswith(type(result).__name__)
    assert "ITERATION_LIMIT" in result.summary() or np.ndim(status) == 0


def test_the_summary_of_a_gradient_lists_the_parameters(rng):
    layer = ims.adapters.elman(ims.adapters.elman_parameters(2, 4, rng=rng), rng.standard_normal((3, 5, 2)))
    result = ims.root(layer)
    adjoint = ims.pull_back(layer, result, result.x)
    rows = {row[0]: row[-1] for row in columns_of(lines_of(adjoint), "gradient")}
    assert rows.keys() == adjoint.gradients.keys()
    assert rows["W"] == f"{np.abs(adjoint.gradients['W']).max():.3g}"


@pytest.mark.parametrize("method", ["newton-krylov", "block-newton", "anderson", "picard", "broyden", "homotopy"])
def test_the_target_is_the_one_of_the_stopping_rule(method):
    problem = ims.Problem(
        lambda x: x - 0.3 * np.cos(x), fixed_point=True, batch_ndim=1, structure=ims.BlockBanded(0, 0)
    )
    x0 = np.asarray([[1.0, 2.0], [300.0, 0.5]])
    result = ims.root(problem, x0, method=method, stop=ims.NonlinearStop(rtol=1e-6, atol=1e-5))
    np.testing.assert_array_equal(result.target, np.maximum(1e-5, 1e-6 * result.initial_norm))
    assert result.success.all()
    assert (result.residual_norm <= result.target).all()


def test_the_target_of_a_linear_solve():
    result = ims.linear_solve(np.eye(3), np.ones(3), stop=ims.LinearStop(rtol=1e-3), method=ims.GMRES())
    assert result.target == 1e-3 * np.sqrt(3.0)


def test_the_targets_of_a_race_and_of_a_batch_in_chunks():
    def cubes(c) -> ims.Problem:
        return ims.Problem(lambda x: x**3 - c, batch_ndim=1, take=lambda rows: cubes(c[rows]))

    problem, x0 = cubes(np.arange(1.0, 7.0)[:, None]), np.full((6, 1), 2.5)
    stop = ims.NonlinearStop(rtol=1e-8)
    expected = ims.root(problem, x0, stop=stop).target
    assert expected.shape == (6,)
    with ThreadPoolExecutor(1) as executor:
        np.testing.assert_array_equal(
            ims.drivers.solve_batch(problem, x0, stop=stop, executor=executor, chunks=2).target, expected
        )
    np.testing.assert_array_equal(ims.drivers.race(problem, [x0, 2 * x0], stop=stop).target, expected)


def test_problems_and_results_are_compared_by_identity():
    """A comparison of their arrays is none, and neither had a hash."""
    problem = ims.Problem(lambda x: x**2 - 2, bounds=(np.zeros(2), np.ones(2) * 3), x_scale=np.ones(2))
    result = ims.root(problem, np.ones(2))
    linear = ims.linear_solve(np.eye(2), np.ones(2))
    for one in (problem, result, linear, result.steps[0]):
        assert one == one
        assert one != dataclasses.replace(one)
        assert len({one, one, dataclasses.replace(one)}) == 2


def test_printing_a_result_shows_few_unknowns_and_never_many():
    F = lambda x: x**2 - 2  # noqa: E731
    few, many = ims.root(F, np.ones(10)), ims.root(F, np.ones(11))
    lines = str(few).splitlines()
    assert lines[0] == repr(few)
    assert [line.split(" = ")[0] for line in lines if " = " in line] == ["x", "F"]
    assert "1.41421356" in str(few)
    assert str(many) == repr(many)
    assert str(ims.root(F, 1.0)).splitlines()[1].startswith("x = 1.414213")
    assert "x = [0.5 0.5]" in str(ims.linear_solve(2 * np.eye(2), np.ones(2)))


def test_a_summary_counts_accepted_steps_beside_the_tried_ones_of_its_table():
    result = ims.root(lambda x: np.abs(x) + 1, np.array([1.0, 3.0]))
    assert result.steps[-1].iteration > result.iterations
    assert f"accepted steps  {result.iterations}" in result.summary()
