"""Results: success, messages, exceptions on demand, counts."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import Counts, LinearResult, NewtonStep, NonlinearResult, Status
from implicitsolve.result import AdjointResult, TangentResult


def linear(status, x=None) -> LinearResult:
    return LinearResult(x=np.zeros(2) if x is None else x, status=status, residual_norm=0.5, iterations=3, matvecs=4)


def every_kind(status) -> list:
    inner, x = linear(status), np.zeros(2)
    shared = {"status": status, "linear": inner, "counts": Counts()}
    return [
        inner,
        NonlinearResult(
            x=x,
            fun=x,
            status=status,
            residual_norm=0,
            initial_norm=1,
            iterations=2,
            krylov_iterations=5,
            counts=Counts(),
        ),
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
def test_a_batch_has_a_verdict_for_each_system(kind):
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


def test_results_are_frozen_and_survive_copies_and_pickles():
    result = ims.root(ims.Problem(lambda x: x**2 - 2), np.ones(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.x = 0
    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        np.testing.assert_array_equal(other.x, result.x)
        assert other.status is result.status
        assert len(other.steps) == len(result.steps)


def test_counts_are_differences():
    before, after = Counts(residuals=2, jvps=3), Counts(residuals=5, jvps=3, vjps=1, linearizations=4)
    assert after - before == Counts(residuals=3, vjps=1, linearizations=4)


def test_a_step_reads_as_one_line():
    step = NewtonStep(
        iteration=3,
        systems=np.arange(2),
        residual_norm=np.asarray([0.5, 2.0]),
        running=1,
        counts=Counts(residuals=4, jvps=9),
    )
    assert step.worst == 2.0
    assert str(step) == "step 3: norm(F) 2, 1 running, 4 residuals, 9 jvps"
    assert NewtonStep(iteration=0, systems=np.zeros(0), residual_norm=np.zeros(0)).worst == 0.0


def test_a_step_whose_norms_are_not_finite_says_so():
    step = NewtonStep(iteration=0, systems=np.arange(2), residual_norm=np.asarray([1.0, np.nan]))
    assert np.isnan(step.worst)
    assert "nan" in str(step)


def test_a_step_that_says_no_more_has_no_numbers_and_nobody_running():
    step = NewtonStep(iteration=0, systems=np.zeros(1, dtype=int), residual_norm=np.ones(1))
    assert step.running == 0
    assert step.counts == Counts()
    for name in ("step_length", "forcing", "linear_residual", "krylov_iterations", "linear_status", "factorized"):
        assert getattr(step, name).shape == (0,)


def test_counts_add_and_subtract_by_name():
    one, other = (
        Counts(residuals=5, jvps=7, vjps=11, linearizations=13),
        Counts(residuals=1, jvps=2, vjps=3, linearizations=4),
    )
    assert one - other == Counts(residuals=4, jvps=5, vjps=8, linearizations=9)
    assert (one - other) + other == one
