"""Every adapter's problem pickles, so that it can go to other processes, and is the same there, bit by bit."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from implicitsolve import adapters
from tests.operators.block_banded import cut


def gru(rng, inputs):
    return adapters.implicit_gru(adapters.gru_parameters(2, 4, rng=rng), inputs, lengths=[5, 1, 3], hs=np.ones(4))


def single_gru(rng, inputs):
    return adapters.implicit_gru(adapters.gru_parameters(2, 4, rng=rng), inputs[0])


def stencil(rng, inputs):
    offsets = (-2, -1, 1)
    return adapters.stencil_gru(
        adapters.stencil_gru_parameters(2, 4, offsets=offsets, rng=rng), inputs, offsets=offsets
    )


def lstm(rng, inputs):
    return adapters.implicit_lstm(adapters.lstm_parameters(2, 4, rng=rng), inputs, ce=np.ones((3, 4)))


def rnn(rng, inputs):
    return adapters.implicit_rnn(adapters.rnn_parameters(2, 4, rng=rng), inputs, activation="logistic")


def elman(rng, inputs):
    return adapters.elman(adapters.elman_parameters(2, 3, rng=rng), inputs, lengths=[2, 5, 4])


def matrices(rng):
    return np.tril(rng.uniform(-0.3, 0.3, (6, 6)), -1), rng.standard_normal((6, 2)), rng.standard_normal((5, 2))


def lifted(rng, inputs):
    A, B, u = matrices(rng)
    return adapters.lifted_net(A + A.T, B, u)


def lifted_sparse(rng, inputs):
    A, B, u = matrices(rng)
    return adapters.lifted_net(scipy.sparse.csr_array(A), scipy.sparse.bsr_array(B), u, activation="relu")


def lifted_banded(rng, inputs):
    A, B, u = matrices(rng)
    banded = cut(A, ims.BlockBanded(1, 1, 2))
    return adapters.lifted_net(banded, B, u)


ADAPTERS = [gru, single_gru, stencil, lstm, rnn, elman, lifted, lifted_sparse, lifted_banded]


def entries(value):
    """The numbers of an array or matrix."""
    if isinstance(value, ims.BlockBandedMatrix):
        return value.blocks
    return value.data if scipy.sparse.issparse(value) else value


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
def test_a_pickled_problem_is_the_same_before_and_after_it_was_solved(rng, adapter):
    problem = adapter(rng, rng.standard_normal((3, 5, 2)))
    before = pickle.loads(pickle.dumps(problem))
    result = ims.root(problem)
    w = rng.standard_normal(result.x.shape)
    gradients = ims.pull_back(problem, result, w).gradients
    for other in (before, pickle.loads(pickle.dumps(problem))):
        again = ims.root(other)
        np.testing.assert_array_equal(again.x, result.x)
        for name, value in ims.pull_back(other, again, w).gradients.items():
            np.testing.assert_array_equal(entries(value), entries(gradients[name]), err_msg=name)


def test_states_that_a_solve_left_behind_are_not_pickled(rng):
    problem = single_gru(rng, rng.standard_normal((1, 200, 2)))
    size = len(pickle.dumps(problem))
    result = ims.root(problem)
    ims.pull_back(problem, result, np.ones_like(result.x))
    assert len(pickle.dumps(problem)) < size + result.x.nbytes / 2


@pytest.mark.parametrize("adapter", [gru, lstm, rnn], ids=lambda adapter: adapter.__name__)
def test_halves_parts_and_casts_pickle(rng, adapter):
    problem = adapter(rng, rng.standard_normal((3, 5, 2)))
    half = ims.elimination.even_odd(problem)
    for other in (half, problem.take(np.asarray([2, 0])), problem.astype(np.float32)):
        np.testing.assert_array_equal(ims.root(pickle.loads(pickle.dumps(other))).x, ims.root(other).x)


def test_an_approximate_fixed_point_pickles(rng):
    one = adapters.approximate_fixed_point(elman(rng, rng.standard_normal((3, 5, 2))), 3)
    other = pickle.loads(pickle.dumps(one))
    np.testing.assert_array_equal(other.x, one.x)
    w = np.ones_like(one.x)
    for name, value in other.pull_back(w).gradients.items():
        np.testing.assert_array_equal(value, one.pull_back(w).gradients[name])
