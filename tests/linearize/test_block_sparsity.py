"""Zeros inside the blocks of a Jacobian: fewer differences, and the same J."""

import numpy as np
import pytest

from implicitsolve import BlockBanded, Problem
from implicitsolve._arrays.namespace import array_namespace
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._block_groups import Groups
from implicitsolve.linearize._evaluator import Evaluator

K, T = 4, 120
STRUCTURE = BlockBanded(1, 1, K)


def exchange(x, scale=1.0):
    """Diffusion of every unknown, and a reaction of each with the next one in its block."""
    xp = array_namespace(x)
    end = xp.zeros_like(x[..., :1, :])
    p = xp.concat([end, x, end], axis=-2)
    return p[..., 2:, :] - 2 * x + p[..., :-2, :] + scale * x * xp.roll(x, 1, axis=-1)


def assembled(F, x, batch_ndim=0, seeks=True):
    evaluator = Evaluator(Problem(F, structure=STRUCTURE, batch_ndim=batch_ndim), x)
    assembler = Assembler(evaluator, certifies=False)
    assembler.seeks_zeros &= seeks
    flat = evaluator.flatten(x)
    value = evaluator.flatten(F(x))
    return assembler.assemble(evaluator, flat, value).blocks, evaluator.tally.residuals, assembler


@pytest.fixture
def x(rng):
    return rng.uniform(0.5, 1.5, (T, K))


def test_fewer_differences_give_the_same_matrix(x):
    blocks, count, assembler = assembled(exchange, x)
    expected, whole, _ = assembled(exchange, x, seeks=False)
    assert whole == 12
    assert count <= 8
    assert assembler.seeks_zeros
    np.testing.assert_array_equal(blocks, expected)


def test_a_batch_changes_no_system(x, rng):
    other = rng.uniform(0.5, 1.5, (T, K))
    together, _, _ = assembled(exchange, np.stack([x, other]), batch_ndim=1)
    np.testing.assert_array_equal(together[:1], assembled(exchange, x)[0])


@pytest.mark.parametrize("site", [0, 1, 57, T - 1])
@pytest.mark.parametrize("size", [1.0, 0.05])
def test_a_coupling_in_one_place_is_not_overlooked(x, site, size):
    """The probe does not displace every unknown; the check does."""

    def F(x):
        y = exchange(x)
        y[..., site, 0] += size * x[..., site, 2] + size * x[..., max(site - 1, 0), 3]
        return y

    blocks, _, _ = assembled(F, x)
    np.testing.assert_array_equal(blocks, assembled(F, x, seeks=False)[0])


def test_an_equation_that_appears_later(x):
    """A product with a factor that is zero at first."""

    def F(x):
        return exchange(x) + x[..., :, [2, 3, 0, 1]] * (x[..., :, :1] - 1) ** 2

    x[:, 0] = 1.0
    evaluator = Evaluator(Problem(F, structure=STRUCTURE), x)
    assembler = Assembler(evaluator, certifies=False)
    for shift in (0.0, 0.3):
        y = x + shift
        blocks = assembler.assemble(evaluator, evaluator.flatten(y), evaluator.flatten(F(y))).blocks
        np.testing.assert_array_equal(blocks, assembled(F, y, seeks=False)[0])


@pytest.mark.parametrize(
    "F",
    [
        pytest.param(lambda x: exchange(x.sum(axis=-1, keepdims=True) ** 2 + x), id="full-blocks"),
        pytest.param(lambda x: exchange(x) + 1e-8 * x.sum(), id="every-unknown-everywhere"),
        pytest.param(lambda x: np.where(x > 1.4999, np.nan, exchange(x)), id="not-finite"),
    ],
)
def test_where_nothing_is_to_be_gained(F, x):
    x[3, 1] = 1.49989
    blocks, _, assembler = assembled(F, x)
    assert not assembler.seeks_zeros
    np.testing.assert_array_equal(blocks, assembled(F, x, seeks=False)[0])


@pytest.mark.parametrize(("lower", "upper"), [(1, 1), (0, 2), (2, 1)])
def test_no_equation_sees_two_unknowns_of_a_group(lower, upper, rng):
    k, m, length = 3, lower + upper + 1, 17
    pattern = rng.random((m, k, k)) < 0.4
    groups = Groups(pattern, lower)
    assert sorted(member for group in groups.members for member in group) == [
        (i, c) for i in range(m) for c in range(k)
    ]
    for group in groups.members:
        for t in range(length):
            seen = sum(
                pattern[j, :, c].astype(int) for j in range(m) for color, c in group if (t + j - lower) % m == color
            )
            assert np.max(seen) <= 1
