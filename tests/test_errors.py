"""NoConvergence: caught as SciPy's, carries everything."""

import copy
import pickle

import numpy as np
import pytest
import scipy.optimize

import implicitsolve as ims
from implicitsolve import NoConvergence


def failed() -> ims.LinearResult:
    return ims.linear_solve(np.zeros((2, 2)), np.ones(2))


def test_code_that_catches_scipy_s_catches_ours():
    with pytest.raises(scipy.optimize.NoConvergence) as caught:
        failed().raise_for_status()
    assert type(caught.value) is NoConvergence
    np.testing.assert_array_equal(caught.value.args[0], np.zeros(2))  # SciPy's convention


def test_it_carries_the_iterate_the_message_and_the_result():
    result = failed()
    with pytest.raises(NoConvergence) as caught:
        result.raise_for_status()
    error = caught.value
    assert error.result is result
    assert error.x is result.x
    assert str(error) == error.message == result.message
    assert "BREAKDOWN" in str(error)
    assert ims.Status.BREAKDOWN.hint in str(error)


def test_without_a_message_it_is_still_an_exception():
    error = NoConvergence(np.ones(2))
    assert str(error) == ""
    assert error.result is None


@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))], ids=range(3))
def test_copies_and_pickles_keep_everything(through):
    error = NoConvergence(np.arange(3.0), "it did not", failed())
    other = through(error)
    assert type(other) is NoConvergence
    np.testing.assert_array_equal(other.x, error.x)
    assert other.message == "it did not"
    assert other.result.status == error.result.status
