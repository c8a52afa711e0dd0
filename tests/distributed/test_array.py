from __future__ import annotations

import numpy as np
import pytest

from implicitsolve._arrays.host import empty_vectors, to_host, zero_vectors
from implicitsolve._arrays.namespace import is_array
from implicitsolve.distributed import Counted, Serial, from_local, replicated, split, threads
from implicitsolve.kernels._norms import norm2, norm_max
from tests.distributed.arrays import SIZES, namespace, on_ranks


class TestWhatItIs:
    def test_global_shape_and_local_part(self, rng):
        array = rng.normal(size=(2, 7, 3))

        def program(comm):
            x = split(comm, array, axis=1)
            assert (x.shape, x.ndim, x.size, x.dtype, x.device) == ((2, 7, 3), 3, 42, np.float64, "cpu")
            assert (x.axis, x.counts, x.start) == (1, (3, 2, 2), (0, 3, 5)[comm.rank])
            assert is_array(x)
            return x.local

        np.testing.assert_array_equal(np.concatenate(threads(3, program), axis=1), array)

    def test_blocks_stay_together(self):
        counts = threads(2, lambda comm: split(comm, np.arange(12), block_size=4).counts)
        assert counts == [(8, 4)] * 2
        with pytest.raises(ValueError, match=r"axis 0 must be a multiple of `block_size` = 5, got \(12,\)"):
            split(Serial(), np.arange(12), block_size=5)
        with pytest.raises(ValueError, match="split: `block_size` must be at least 1, got 0"):
            split(Serial(), np.arange(12), block_size=0)

    def test_from_local(self):
        def program(comm):
            comm = Counted(comm)
            own = np.full((1, comm.rank + 1), comm.rank)
            x, y = from_local(comm, own), from_local(comm, own, counts=(1, 2, 3))
            return comm.calls["allgather"], x.gathered(), y.gathered()

        for calls, x, y in threads(3, program):
            assert calls == 1
            assert x.tolist() == y.tolist() == [[0, 1, 1, 2, 2, 2]]
        with pytest.raises(ValueError, match=r"`counts` says 2 for rank 0, which has 3"):
            from_local(Serial(), np.ones(3), counts=(2,))
        with pytest.raises(ValueError, match=r"`counts` must have a number for each of 1 ranks, got \(1, 2\)"):
            from_local(Serial(), np.ones(3), counts=(1, 2))
        with pytest.raises(ValueError, match=r"`axis` must be an axis of the array, of shape \(3,\), got 1"):
            from_local(Serial(), np.ones(3), axis=1)

    @pytest.mark.parametrize("other", [np.ones((1, 2)), np.ones((2, 3), dtype=np.float32), np.ones((2, 3, 1))])
    def test_local_parts_that_do_not_belong_together(self, other):
        with pytest.raises(ValueError, match=r"must have one dtype on all ranks, .* axis 0; rank"):
            threads(3, lambda comm: from_local(comm, other if comm.rank == 1 else np.ones((2, 3)), axis=0))

    def test_splitting_copies(self):
        array = np.zeros(4)
        split(Serial(), array)[...] = 1.0
        assert not array.any()

    def test_text_says_how_it_is_split(self):
        assert (
            repr(split(Serial(), np.ones((2, 3)))) == "<DistributedArray (2, 3), dtype=float64, axis 1 split by (3,)>"
        )
        assert repr(replicated([1.0])) == "<DistributedArray (1,), dtype=float64, replicated>"


class TestNothingIsMovedSilently:
    @pytest.mark.parametrize("wish", [np.asarray, np.from_dlpack, to_host, float, bool, int, list])
    def test_a_split_array_is_in_no_one_place(self, wish):
        with pytest.raises((TypeError, IndexError), match=r"partitioned across"):
            wish(split(Serial(), np.ones(1)))

    def test_a_replicated_one_is(self):
        x = replicated([1.0, 2.0])
        for wish in (np.asarray, np.from_dlpack, to_host):
            np.testing.assert_array_equal(wish(x), [1.0, 2.0])
        assert (float(replicated(2.0)), int(replicated(2)), bool(replicated(True))) == (2.0, 2, True)
        assert to_host(replicated(np.broadcast_to(1.0, 3))).tolist() == [1.0] * 3  # which NumPy calls read-only

    @pytest.mark.parametrize("key", [0, slice(0, 2), slice(None, None, 2), slice(None, None, -1), (..., 1)])
    def test_an_index_into_the_split_axis(self, key):
        with pytest.raises(IndexError, match="axis 0 is partitioned across 2 ranks, and its only index is `:`"):
            threads(2, lambda comm: split(comm, np.arange(6.0))[key])

    @pytest.mark.parametrize(
        "function",
        [
            lambda xp, x: xp.concat([x, x], axis=-1),
            lambda xp, x: xp.take(x, replicated(np.array([0])), axis=-1),
            lambda xp, x: xp.linalg.solve(x, x),
        ],
        ids=["concat", "take", "solve"],
    )
    def test_functions_that_need_other_ranks_numbers(self, function):
        with pytest.raises(TypeError, match=r"partitioned across ranks|whole matrices"):
            function(namespace(), split(Serial(), np.ones((2, 3))))

    def test_arrays_of_numpy_are_not_taken(self):
        x = split(Serial(), np.ones(3))
        with pytest.raises(TypeError):
            x + np.ones(3)
        with pytest.raises(TypeError):
            np.ones(3) * x
        with pytest.raises(TypeError, match=r"use `distributed\.replicated`"):
            namespace().add(x, np.ones(3))

    @pytest.mark.parametrize("name", ["sort", "cumulative_sum", "prod", "det", "triu", "linspace"])
    def test_what_is_missing_is_named(self, name):
        with pytest.raises(TypeError, match=f"`{name}` is not available for DistributedArrays"):
            getattr(namespace(), name)

    def test_ufuncs_that_are_not_elementwise(self):
        x = split(Serial(), np.ones(3))
        for function, name in ((np.add.reduce, "add.reduce"), (np.add.outer, "add.outer"), (np.modf, "modf")):
            with pytest.raises(TypeError, match=f"`{name}` is not available"):
                function(*(x,) * (2 if name == "add.outer" else 1))

    def test_arrays_split_in_different_ways(self):
        def program(comm):
            return split(comm, np.ones((4, 4)), axis=0) + split(comm, np.ones((4, 4)), axis=1)

        with pytest.raises(ValueError, match="must be partitioned alike"):
            threads(2, program)

    def test_a_split_array_does_not_fit_into_a_replicated_one(self):
        with pytest.raises(ValueError, match="cannot be written into a replicated one"):
            replicated(np.ones(3))[...] = split(Serial(), np.ones(3))
        with pytest.raises(ValueError, match=r"does not fit .* axis -1 must have length 1 or 3"):
            split(Serial(), np.ones(3)) + replicated(np.ones(2))


@pytest.mark.parametrize("size", SIZES)
class TestElementwise:
    def test_operators(self, rng, size):
        a, b = rng.normal(size=(2, 3, 5)), rng.normal(size=(3, 5))
        found = on_ranks(size, lambda x, y: -(abs(2 * x - y / 3) ** 2) + (x > 0) * (1 - x) % 2, a, b)
        np.testing.assert_array_equal(found, -(abs(2 * a - b / 3) ** 2) + (a > 0) * (1 - a) % 2)

    def test_replicated_operands_are_cut(self, rng, size):
        a, row, column = rng.normal(size=(3, 5)), rng.normal(size=5), rng.normal(size=(3, 1))
        found = on_ranks(size, lambda x, r, c: r * x + c, a, row, column, axes=[-1, None, None])
        np.testing.assert_array_equal(found, row * a + column)

    def test_scalars_of_numpy_keep_to_its_types(self, size):
        single = np.ones(4, dtype=np.float32)
        assert on_ranks(size, lambda x: 2.0 * x, single).dtype == np.float32
        assert on_ranks(size, lambda x: np.float64(2.0) * x, single).dtype == np.float64

    def test_functions(self, rng, size):
        xp, a = namespace(), rng.normal(size=(3, 5))
        found = on_ranks(size, lambda x: xp.where(x > 0, xp.exp(x), np.maximum(xp.tanh(x), -0.5)), a)
        np.testing.assert_array_equal(found, np.where(a > 0, np.exp(a), np.clip(np.tanh(a), -0.5, None)))

    def test_in_place(self, rng, size):
        a, b = rng.normal(size=(3, 5)), rng.normal(size=(3, 1))

        def function(x, y):
            part = x[1:, :]
            part *= y[1:, :]
            x[0, :] -= 1.0
            x[1, None, :] = y[0, :]
            return x

        expected = a.copy()
        expected[1:] *= b[1:]
        expected[0] -= 1.0
        expected[1] = b[0]
        np.testing.assert_array_equal(on_ranks(size, function, a, b, axes=[-1, None]), expected)

    def test_views(self, rng, size):
        a = rng.normal(size=(2, 5, 3))
        for key in [
            np.s_[0],
            np.s_[..., 1],
            np.s_[:, None, :, :2],
            np.s_[:, 0:5],
            np.s_[1, :, None],
            np.s_[::2, ..., -1],
        ]:
            np.testing.assert_array_equal(on_ranks(size, lambda x, key=key: x[key], a, axes=[1]), a[key])


@pytest.mark.parametrize("size", SIZES)
class TestShapes:
    def test_permuting_joining_and_stacking(self, rng, size):
        xp, a, b = namespace(), rng.normal(size=(2, 5)), rng.normal(size=(3, 5))
        cases = [
            (lambda x, y: xp.concat([x, y], axis=0), np.concatenate([a, b])),
            (lambda x, y: xp.stack([x, x + 1], axis=1), np.stack([a, a + 1], axis=1)),
            (lambda x, y: xp.stack([x, x], axis=-1), np.stack([a, a], axis=-1)),
            (lambda x, y: xp.permute_dims(x[None, ...], (2, 0, 1)), a[None].transpose(2, 0, 1)),
            (lambda x, y: xp.broadcast_to(x, (4, 2, 5)), np.broadcast_to(a, (4, 2, 5))),
            (lambda x, y: xp.take(y, replicated(np.array([2, 0])), axis=0), b[[2, 0]]),
            (lambda x, y: xp.matrix_transpose(x), a.T),
        ]
        for function, expected in cases:
            np.testing.assert_array_equal(on_ranks(size, function, a, b), expected)

    def test_a_replicated_array_joins_a_split_one(self, rng, size):
        xp, a, b = namespace(), rng.normal(size=(2, 5)), rng.normal(size=(3, 5))
        found = on_ranks(size, lambda x, y: xp.concat([x, y], axis=0), a, b, axes=[-1, None])
        np.testing.assert_array_equal(found, np.concatenate([a, b]))
        with pytest.raises(TypeError, match=r"partitioned across ranks"):
            on_ranks(size, lambda x, y: xp.concat([x, y], axis=1), a, b[:2], axes=[-1, None])

    def test_new_arrays(self, size):
        xp = namespace()
        for make in (xp.zeros_like, xp.ones_like, xp.empty_like):
            assert (
                threads(
                    size,
                    lambda comm, make=make: (
                        make(split(comm, np.ones((2, 6)))).counts == (split(comm, np.ones((2, 6))).counts)
                    ),
                )
                == [True] * size
            )
        assert xp.eye(3, dtype=xp.float32).axis is None
        made = on_ranks(size, lambda x: empty_vectors(x, 4, 2) * 0 + zero_vectors(x, 4, 2) + x, np.arange(5.0))
        np.testing.assert_array_equal(made, np.broadcast_to(np.arange(5.0), (4, 2, 5)))


@pytest.mark.parametrize("size", SIZES)
class TestReductions:
    @pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (1, 2)])
    @pytest.mark.parametrize("keepdims", [True, False])
    def test_all_of_them(self, rng, size, axis, keepdims):
        xp, a = namespace(), rng.integers(-4, 5, size=(2, 5, 3)) / 4
        for name in ("sum", "max"):
            function = getattr(xp, name)
            found = on_ranks(size, lambda x, f=function: f(x, axis=axis, keepdims=keepdims), a, axes=[1])
            np.testing.assert_allclose(found, getattr(np, name)(a, axis=axis, keepdims=keepdims), rtol=1e-14)
        for name in ("any", "all"):
            function = getattr(xp, name)
            found = on_ranks(size, lambda x, f=function: f(x > 0, axis=axis, keepdims=keepdims), a, axes=[1])
            np.testing.assert_array_equal(found, getattr(np, name)(a > 0, axis=axis, keepdims=keepdims))

    def test_one_collective_and_none_where_the_axis_stays(self, size):
        xp = namespace()

        def program(comm):
            comm = Counted(comm)
            x = split(comm, np.ones((2, 5)))
            xp.sum(x, axis=0), xp.exp(x) * 2, xp.max(x, axis=0)
            local = sum(comm.calls.values())
            xp.sum(x), xp.max(x, axis=1)
            return local, dict(comm.calls)

        assert threads(size, program) == [(0, {"allreduce": 2})] * size

    def test_nan_is_the_largest(self, size):
        xp, a = namespace(), np.array([1.0, 2.0, 3.0, 4.0, np.nan])
        assert np.isnan(on_ranks(size, lambda x: xp.max(x), a))
        assert on_ranks(size, lambda x: xp.max(xp.astype(x, np.int32)), np.array([3, -1, 2])) == 3

    def test_ranks_without_numbers(self, size):
        xp = namespace()

        def program(comm):
            x = from_local(comm, np.full(3 if comm.rank == 0 else 0, -2.0))
            return [float(f(x)) for f in (xp.sum, xp.max)] + [bool(xp.all(x < 0))]

        assert threads(size, program) == [[-6.0, -2.0, True]] * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
class TestProducts:
    def test_matmul(self, rng, size, dtype):
        xp = namespace()
        a, b = (
            rng.normal(size=shape).astype(dtype) * (1 + 1j if dtype[0] == "c" else 1)
            for shape in ((2, 4, 6), (2, 6, 5))
        )
        for axes in [(None, None), (2, 1), (2, None), (None, 1), (1, None), (None, 2), (0, 0), (0, None)]:
            found = on_ranks(size, xp.matmul, a, b, axes=axes)
            np.testing.assert_allclose(found, a @ b, rtol=1e-13, atol=1e-13)
        if size > 1:
            with pytest.raises(ValueError, match="matmul"):
                on_ranks(size, xp.matmul, a, b, axes=[1, 2])

    def test_vecdot_and_norms(self, rng, size, dtype):
        xp = namespace()
        a, b = (rng.normal(size=(3, 6)).astype(dtype) * (1 + 1j if dtype[0] == "c" else 1) for _ in range(2))
        for axes in [(1, 1), (1, None), (0, 0)]:
            np.testing.assert_allclose(on_ranks(size, xp.vecdot, a, b, axes=axes), np.vecdot(a, b), rtol=1e-13)
        np.testing.assert_allclose(on_ranks(size, norm2, a), np.linalg.norm(a, axis=1))
        np.testing.assert_allclose(on_ranks(size, norm_max, a), np.abs(a).max(axis=1))

    def test_stacks_of_matrices(self, rng, size, dtype):
        xp, a = namespace(), (rng.normal(size=(5, 3, 3)) + 3 * np.eye(3)).astype(dtype)
        np.testing.assert_allclose(
            on_ranks(size, xp.linalg.solve, a, a[..., :1], axes=[0, 0]), np.linalg.solve(a, a[..., :1])
        )
