"""Every adapter's problem pickles, so that it can go to other processes, and is the same there, bit by bit."""

import pickle

import numpy as np
import pytest
import scipy.sparse

import implicitsolve as ims
from implicitsolve import adapters
from tests.adapters.cases import NEAREST, SMOOTH, case_of
from tests.operators.block_banded import cut


def matrices(rng):
    return np.tril(rng.uniform(-0.3, 0.3, (6, 6)), -1), rng.standard_normal((6, 2)), rng.standard_normal((5, 2))


def lifted(rng):
    A, B, u = matrices(rng)
    return adapters.lifted_net(A + A.T, B, u)


def lifted_sparse(rng):
    A, B, u = matrices(rng)
    return adapters.lifted_net(scipy.sparse.csr_array(A), scipy.sparse.bsr_array(B), u, activation="relu")


def lifted_banded(rng):
    A, B, u = matrices(rng)
    return adapters.lifted_net(cut(A, ims.BlockBanded(1, 1, 2)), B, u)


def single_gru(rng, T=5):
    return adapters.implicit_gru(adapters.gru_parameters(2, 4, rng=rng), rng.standard_normal((T, 2)))


def layer(name):
    return lambda rng: case_of(name).layer()


LAYERS = {name: layer(name) for name in SMOOTH}
ADAPTERS = LAYERS | {build.__name__: build for build in (single_gru, lifted, lifted_sparse, lifted_banded)}


def entries(value):
    """The numbers of an array or matrix."""
    if isinstance(value, ims.BlockBandedMatrix):
        return value.blocks
    return value.data if scipy.sparse.issparse(value) else value


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_pickled_problem_is_the_same_before_and_after_it_was_solved(rng, name):
    problem = ADAPTERS[name](rng)
    before = pickle.loads(pickle.dumps(problem))
    result = ims.root(problem)
    w = rng.standard_normal(result.x.shape)
    gradients = ims.pull_back(problem, result, w).gradients
    for other in (before, pickle.loads(pickle.dumps(problem))):
        again = ims.root(other)
        np.testing.assert_array_equal(again.x, result.x)
        for key, value in ims.pull_back(other, again, w).gradients.items():
            np.testing.assert_array_equal(entries(value), entries(gradients[key]), err_msg=key)


def test_states_that_a_solve_left_behind_are_not_pickled(rng):
    problem = single_gru(rng, 200)
    size = len(pickle.dumps(problem))
    result = ims.root(problem)
    ims.pull_back(problem, result, np.ones_like(result.x))
    assert len(pickle.dumps(problem)) < size + result.x.nbytes / 2


@pytest.mark.parametrize("name", NEAREST)
def test_halves_and_parts_pickle(name):
    problem = case_of(name).layer()
    half = ims.elimination.even_odd(problem)
    for other in (half, problem.take(np.asarray([2, 0]))):
        np.testing.assert_array_equal(ims.root(pickle.loads(pickle.dumps(other))).x, ims.root(other).x)


def test_an_approximate_fixed_point_pickles():
    one = adapters.approximate_fixed_point(case_of("elman").layer(), 3)
    other = pickle.loads(pickle.dumps(one))
    np.testing.assert_array_equal(other.x, one.x)
    w = np.ones_like(one.x)
    for name, value in other.pull_back(w).gradients.items():
        np.testing.assert_array_equal(value, one.pull_back(w).gradients[name])
