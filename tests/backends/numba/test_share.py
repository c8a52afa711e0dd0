"""Work shared out over threads."""

import math
import threading

import pytest

pytest.importorskip("numba")

from implicitsolve.backends.numba import _jit


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(_jit.config, "NUMBA_NUM_THREADS", 2)
    monkeypatch.setattr(_jit, "LEAST_OPERATIONS", 0)


def test_slices_that_share_again_stay_on_their_thread(two_threads):
    found = []
    _jit.share(lambda part: _jit.share(found.append, 8, math.inf), 2, math.inf)
    assert found == [slice(0, 8), slice(0, 8)]


@pytest.mark.parametrize("pieces", [1, 4])
def test_the_error_of_a_later_slice_was_raised(two_threads, pieces):
    later_failed = threading.Event()

    def fail(part):
        if part.start == 0:
            later_failed.wait(1.0)
        else:
            later_failed.set()
        raise ValueError(f"slice {part.start}")

    with pytest.raises(ValueError, match="slice 0"):
        _jit.share(fail, 8, math.inf, pieces)
