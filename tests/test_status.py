"""Statuses: codes that are integers, messages, hints."""

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


@every_status
def test_a_status_is_an_integer_with_a_message_and_a_hint(status):
    assert isinstance(status, int)
    assert Status(int(status)) is status
    assert status.message
    assert not status.message.endswith(".")
    needs_hint = status not in (Status.RUNNING, Status.CONVERGED, Status.STOPPED, Status.STOPPED_BY_MONITOR)
    assert bool(status.hint) == needs_hint
    assert not status.hint or status.hint.endswith(".")
