"""BlockNewton on batches: systems know nothing of each other."""

import numpy as np
import pytest

from implicitsolve import BlockBanded, BlockLU, BlockNewton, NonlinearStop, Problem, root
from tests.helpers.lines import bratu
from tests.nonlinear.chains import TRIDIAGONAL, every_mode


def mixed(x):
    """Systems of every kind, by the first of their unknowns, which never changes: x0 = kind."""
    kind, y = np.round(x[..., :1]), x[..., 1:]
    with np.errstate(all="ignore"):
        values = np.select(
            [kind == 0, kind == 1, kind == 2, kind == 3, kind == 4, kind == 5],
            [
                y**3 + 2 * y - 3 - 0.1 * np.roll(y, 1, axis=-1),  # easy
                np.exp(y) - 20 + 0.3 * np.roll(y, 1, axis=-1),  # slower
                y**2 + 1,  # no root
                0 * y + 1,  # singular
                np.where(y == 1, y, np.nan),  # not finite
                np.arctan(9 * (y - 0.95)),  # needs the line search
            ],
            default=np.cbrt(y),  # Newton diverges
        )
    return np.concatenate([x[..., :1] - kind, values], axis=-1)


def taking(kinds):
    def take(indices):
        return taking(kinds[indices])

    return Problem(mixed, structure=BlockBanded(1, 1, 5), batch_ndim=1, take=take)


KINDS = np.asarray([0, 5, 3, 1, 4, 6, 2, 1, 0], dtype=float)


def start(kinds):
    x0 = np.ones((kinds.size, 5))
    x0[:, 0] = kinds
    return x0


def bitwise(reuse):
    """The kernel is named, since "auto" chooses it by the size of the batch."""
    return BlockNewton(reuse=reuse, factor=BlockLU(backend="reference"))


def solve_mixed(kinds, reuse, has_take, x0=None):
    problem = taking(kinds) if has_take else Problem(mixed, structure=BlockBanded(1, 1, 5), batch_ndim=1)
    x0 = start(kinds) if x0 is None else x0
    return root(problem, x0, method=bitwise(reuse), stop=NonlinearStop(max_iterations=40))


@every_mode
@pytest.mark.parametrize("has_take", [False, True])
def test_systems_do_not_know_of_each_other(reuse, has_take):
    whole = solve_mixed(KINDS, reuse, has_take)
    for i in range(KINDS.size):
        alone = solve_mixed(KINDS[[i]], reuse, has_take)
        np.testing.assert_array_equal(alone.x[0], whole.x[i], err_msg=f"system {i} of kind {KINDS[i]}")
        assert alone.status[0] == whole.status[i]
        assert alone.iterations[0] == whole.iterations[i]
        np.testing.assert_array_equal(alone.residual_norm[0], whole.residual_norm[i])
    assert whole.success[[0, 1, 3, 7, 8]].all()
    assert not whole.success[[2, 4, 6]].any()


@every_mode
def test_kernels_chosen_by_size_change_rounding_errors_alone(reuse):
    lam = np.asarray([0.5, 3.0, 2.0, 1.0])[:, None]
    stop, method = NonlinearStop(rtol=1e-13), BlockNewton(reuse=reuse)
    whole = root(
        Problem(lambda u: bratu(u, lam), structure=TRIDIAGONAL, batch_ndim=1),
        np.zeros((4, 30)),
        method=method,
        stop=stop,
    )
    for i in range(4):
        alone = root(
            Problem(lambda u, i=i: bratu(u, lam[i]), structure=TRIDIAGONAL), np.zeros(30), method=method, stop=stop
        )
        np.testing.assert_allclose(alone.x, whole.x[i], rtol=1e-9)
        assert alone.status == whole.status[i]


def test_a_batch_costs_no_more_calls_than_its_slowest_system():
    lam = np.asarray([1.0, 1.0, 1.0, 1.0])[:, None]
    together = root(
        Problem(lambda u: bratu(u, lam), structure=TRIDIAGONAL, batch_ndim=1), np.zeros((4, 20)), method="block-newton"
    )
    alone = root(Problem(lambda u: bratu(u, 1.0), structure=TRIDIAGONAL), np.zeros(20), method="block-newton")
    assert together.counts == alone.counts
