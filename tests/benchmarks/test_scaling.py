from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.scaling import METHODS, Layer, Messages, Mirror, Network, affine
from implicitsolve.distributed import Counted, threads


@pytest.mark.parametrize("name", METHODS)
def test_a_mirror_does_what_every_rank_of_a_uniform_circle_does(name):
    layer, ranks = Layer(2, 6), 4

    def program(comm):
        counted = Counted(comm)
        result = layer.solve(counted, 6 * ranks, METHODS[name], periodic=True)
        return result.x.local, dict(counted.calls)

    mirror = Mirror(ranks)
    own = layer.solve(mirror, 6 * ranks, METHODS[name], periodic=True)
    for x, calls in threads(ranks, program):
        np.testing.assert_allclose(x, own.x.local, rtol=1e-10)
        assert calls == mirror.messages.calls


def test_messages_cost_what_the_model_says():
    messages = Messages(
        {"exchange": 3, "allreduce": 2, "allgather": 1}, {"exchange": 10, "allreduce": 20, "allgather": 40}
    )
    network = Network(latency=1.0, bandwidth=10.0)
    assert messages.seconds(1, network) == 0
    assert messages.seconds(8, network) == pytest.approx(3 + 1 + 3 * (2 + 2) + 3 * 1 + 4)
    assert messages.plus(messages.times(2)).seconds(8, network) == pytest.approx(3 * messages.seconds(8, network))


def test_a_line_is_fitted_to_relative_errors():
    a, b = affine([1, 10, 1000], [3.0, 12.0, 1002.0])
    assert math.isclose(a, 2.0, rel_tol=1e-9)
    assert math.isclose(b, 1.0, rel_tol=1e-9)
