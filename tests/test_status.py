"""Statuses: codes that are integers, messages, hints."""

import copy
import pickle

import numpy as np
import pytest

from implicitsolve import Status

every_status = pytest.mark.parametrize("status", list(Status), ids=lambda status: status.name)


def test_codes_never_change():
    """They stand in checkpoints and in other people's tables; the first two are SciPy's."""
    names = (
        "RUNNING CONVERGED ITERATION_LIMIT STAGNATED DIVERGED LINE_SEARCH_FAILED LINEAR_SOLVE_FAILED NONFINITE "
        "BREAKDOWN SINGULAR STOPPED FORWARD_NOT_CONVERGED LOST CANCELLED STOPPED_BY_MONITOR EVALUATION_LIMIT "
        "TIME_LIMIT STATIONARY_ON_BOUND AT_INFINITY INACCURATE"
    )
    assert [status.name for status in sorted(Status)] == names.split()


def test_codes_are_different_and_without_gaps():
    assert sorted(int(status) for status in Status) == list(range(len(Status)))
    assert len({status.message for status in Status}) == len(Status)


@every_status
def test_a_status_is_an_integer_with_a_message_and_a_hint(status):
    assert isinstance(status, int)
    assert Status(int(status)) is status
    assert status.message
    assert not status.message.endswith(".")
    needs_hint = status not in (Status.RUNNING, Status.CONVERGED, Status.STOPPED, Status.STOPPED_BY_MONITOR)
    assert bool(status.hint) == needs_hint
    assert not status.hint or status.hint.endswith(".")


@every_status
def test_a_status_survives_a_copy_and_a_pickle(status):
    for other in (copy.copy(status), copy.deepcopy(status), pickle.loads(pickle.dumps(status))):
        assert other is status


def test_a_batch_keeps_statuses_in_an_integer_array():
    codes = np.full(3, int(Status.CONVERGED))
    codes[1] = Status.STAGNATED
    assert codes.dtype.kind == "i"
    np.testing.assert_array_equal(codes == Status.CONVERGED, [True, False, True])
    assert Status(codes[1]) is Status.STAGNATED


def test_an_unknown_code_is_an_error():
    with pytest.raises(ValueError, match="99"):
        Status(99)
