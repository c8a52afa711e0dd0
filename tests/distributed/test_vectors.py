"""The work on split vectors that goes by fewer messages."""

from __future__ import annotations

import numpy as np
import pytest

from implicitsolve.distributed import Counted, replicated, split, threads
from implicitsolve.distributed._kernels import DistributedVectors
from implicitsolve.kernels import vectors
from implicitsolve.kernels._vectors import Vectors
from implicitsolve.krylov._bicgstab import Steps
from tests.distributed.arrays import SIZES, on_ranks


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
class TestVectors:
    """The work on vectors that goes by fewer messages, against the reference."""

    def arrays(self, rng, dtype, *shapes):
        for shape in shapes:
            array = rng.normal(size=shape)
            yield (array + 1j * rng.normal(size=shape) if dtype[0] == "c" else array).astype(dtype)

    def counted(self, size, function, *arrays):
        """What both give, and the messages that it took."""

        def program(comm):
            comm = Counted(comm)
            parts = [split(comm, array) for array in arrays]
            result = function(DistributedVectors, *parts)
            return comm.calls.total(), *(part.gathered() for part in result)

        results = threads(size, program)
        for result in results[1:]:
            for one, other in zip(result, results[0]):
                np.testing.assert_array_equal(one, other)
        calls, *found = results[0]
        expected = function(Vectors, *(array.copy() for array in arrays))
        tolerance = 1e-5 if arrays[0].dtype == np.float32 else 1e-12
        for one, other in zip(found, expected):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        return calls

    def test_is_selected(self, rng, size, dtype):
        (x,) = self.arrays(rng, dtype, (2, 8))
        chosen = threads(size, lambda comm: vectors.select(split(comm, x), size=8))
        assert chosen == [DistributedVectors] * size
        assert vectors.select(replicated(x), size=8) is Vectors

    def test_orthonormalize_takes_two_messages(self, rng, size, dtype):
        V, w = self.arrays(rng, dtype, (2, 4, 9), (2, 9))
        V[:, :3] = np.linalg.qr(V[:, :3].swapaxes(1, 2))[0].swapaxes(1, 2)

        def function(work, V, w):
            h = work.orthonormalize(V, w)
            return h, V

        assert self.counted(size, function, V, w) == 2

    def test_orthonormalize_a_vector_inside_the_span(self, rng, size, dtype):
        V, _ = self.arrays(rng, dtype, (1, 3, 9), (1, 9))
        V[:, :2] = np.linalg.qr(V[:, :2].swapaxes(1, 2))[0].swapaxes(1, 2)
        w = V[:, 0] + 2 * V[:, 1]
        numbers = on_ranks(size, DistributedVectors.orthonormalize, V, w)
        precision = np.finfo(dtype).eps
        assert abs(numbers[0, -1]) < (100 * precision) ** 2
        np.testing.assert_allclose(numbers[0, :2], [1.0, 2.0], rtol=20 * precision)

    def test_measure_takes_one(self, rng, size, dtype):
        arrays = self.arrays(rng, dtype, (3, 8), (3, 8), (3, 8))
        assert self.counted(size, lambda work, *x: [work.measure(x)], *arrays) == 1

    def test_anderson_takes_one(self, rng, size, dtype):
        dF, dg, *others = self.arrays(rng, dtype, (2, 3, 8), (2, 3, 8), *[(2, 8)] * 6)
        function = lambda work, dF, dg, *others: [work.advance(dF, dg, 1, 3, *others), dF, dg]  # noqa: E731
        assert self.counted(size, function, dF, dg, *others) == 1
        function = lambda work, dF, dg, *others: [work.remember(dF, dg, 2, 3, *others), dF, dg]  # noqa: E731
        assert self.counted(size, function, dF, dg, *others[:3]) == 1

    def test_nearby_takes_one(self, rng, size, dtype):
        x, v = self.arrays(rng, dtype, (2, 8), (2, 8))
        v[1] = 0.0
        reach = np.array([1e-2, 2e-2], dtype=np.finfo(dtype).dtype)

        def function(work, x, v):
            return work.nearby(x, v, reach if isinstance(x, np.ndarray) else replicated(reach))

        assert self.counted(size, function, x, v) == 1

    def test_nearby_of_numbers_whose_squares_are_none(self, rng, size, dtype):
        x, v = self.arrays(rng, dtype, (1, 8), (1, 8))
        v *= np.finfo(dtype).tiny ** 0.75
        there, scale = threads(
            size,
            lambda comm: tuple(
                part.gathered()
                for part in DistributedVectors.nearby(
                    split(comm, x), split(comm, v), replicated(np.ones(1, np.finfo(dtype).dtype))
                )
            ),
        )[0]
        np.testing.assert_allclose(np.linalg.norm(there - x), 1.0, rtol=1e-5)
        np.testing.assert_allclose(scale[0, 0], np.linalg.norm(v / v.max()) * abs(v.max()), rtol=1e-5)

    def test_bicgstab_takes_two(self, rng, size, dtype):
        shadow, s, t, alpha, rho = self.arrays(rng, dtype, (2, 8), (2, 8), (2, 8), (2, 1), (2, 1))

        def function(work, shadow, s, t):
            if isinstance(s, np.ndarray):
                return Steps(s).second_half(shadow, s, t, alpha, rho)
            return Steps(s).second_half(shadow, s, t, replicated(alpha), replicated(rho))

        with np.errstate(all="ignore"):
            assert self.counted(size, function, shadow, s, t) == 2
            t[1] = 0.0
            self.counted(size, function, shadow, s, t)
