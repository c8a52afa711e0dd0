from __future__ import annotations

import threading
import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from implicitsolve.distributed import Counted, Serial, layout, threads
from implicitsolve.distributed._communicator import RankFailed
from tests.distributed.systems import same_on_all

SIZES = [1, 2, 3, 4]
SECONDS = 5.0


class TestAllreduce:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64"])
    def test_sum_runs_in_the_order_of_ranks(self, rng, size, dtype):
        parts = (100 * rng.normal(size=(size, 3, 2))).astype(dtype)
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        found = same_on_all(threads(size, lambda comm: comm.allreduce(parts[comm.rank], "sum")))
        np.testing.assert_array_equal(found, total)
        assert found.dtype == dtype

    @pytest.mark.parametrize("size", SIZES)
    def test_max_keeps_nan_and_infinity(self, size):
        parts = np.array([[1.0, -5.0, 0.0, -np.inf], [3.0, np.nan, 0.0, -np.inf], [2.0, 0.0, np.inf, -np.inf]])
        parts = np.concatenate([parts, parts])[:size]
        found = same_on_all(threads(size, lambda comm: comm.allreduce(parts[comm.rank], "max")))
        np.testing.assert_array_equal(found, np.max(parts, axis=0))

    @pytest.mark.parametrize("size", SIZES)
    def test_sums_and_maxima_together(self, rng, size):
        parts = rng.normal(size=(size, 4, 2))
        found = same_on_all(threads(size, lambda comm: comm.allreduce(parts[comm.rank], "sum-max")))
        np.testing.assert_allclose(found[:, 0], parts[..., 0].sum(axis=0), rtol=1e-14)
        np.testing.assert_array_equal(found[:, 1], parts[..., 1].max(axis=0))

    @pytest.mark.parametrize("size", SIZES)
    def test_what_was_given_and_what_came_are_the_ranks_own(self, size):
        def program(comm):
            own = np.full(2, float(comm.rank))
            total = comm.allreduce(own, "sum")
            total[:] = -1.0
            return own, comm.allreduce(own, "sum")

        for rank, (own, total) in enumerate(threads(size, program)):
            assert (own == rank).all()
            assert (total == sum(range(size))).all()

    def test_overflow_raises_no_warning(self):
        assert threads(2, lambda comm: float(comm.allreduce(np.asarray(1.5e308), "sum"))) == [np.inf, np.inf]

    @pytest.mark.parametrize("comm", [Serial(), Counted(Serial())])
    def test_mistakes(self, comm):
        with pytest.raises(ValueError, match=r"`operation` must be one of .*, got 'mean'"):
            comm.allreduce(np.ones(2), "mean")
        with pytest.raises(ValueError, match=r"needs a last axis of length 2, got shape \(3,\)"):
            comm.allreduce(np.ones(3), "sum-max")


class TestAllgather:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("knows", [True, False])
    def test_arrays_of_any_shapes(self, size, knows):
        shapes = [(rank, 2) for rank in range(size)]

        def program(comm):
            parts = comm.allgather(np.full(shapes[comm.rank], comm.rank), shapes if knows else None)
            parts[-1][...] = -1  # nobody else's
            return [part.shape for part in parts], comm.allgather(np.asarray(comm.rank))

        for found, ranks in threads(size, program):
            assert found == shapes
            assert [int(rank) for rank in ranks] == list(range(size))

    def test_wrong_shapes(self):
        with pytest.raises(ValueError, match=r"`shapes` says \(2,\) for rank 0, got \(3,\)"):
            threads(2, lambda comm: comm.allgather(np.ones(3), [(2,), (2,)]))


class TestExchange:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("periodic", [True, False])
    def test_neighbours(self, size, periodic):
        def program(comm):
            to_previous, to_next = np.array([comm.rank, 0]), np.full((1, comm.rank + 1), 10 + comm.rank)
            return comm.exchange(to_previous, to_next, periodic=periodic)

        for rank, (before, after) in enumerate(threads(size, program)):
            if periodic or rank > 0:
                assert (before == 10 + (rank - 1) % size).all()
                assert before.shape == (1, (rank - 1) % size + 1)
            else:
                assert before is None
            if periodic or rank + 1 < size:
                assert after.tolist() == [(rank + 1) % size, 0]
            else:
                assert after is None

    @pytest.mark.parametrize("size", SIZES)
    def test_one_direction(self, size):
        results = threads(size, lambda comm: comm.exchange(None, np.array(comm.rank)))
        assert all(after is None for _, after in results)
        assert [before if before is None else int(before) for before, _ in results] == [None, *range(size - 1)]


class TestThreads:
    def test_results_in_the_order_of_ranks(self):
        assert threads(4, lambda comm: (comm.rank, comm.size)) == [(rank, 4) for rank in range(4)]

    @pytest.mark.parametrize("failing", [0, 2])
    def test_an_error_of_one_rank_ends_those_that_wait_for_it(self, failing):
        seen = []

        def program(comm):
            comm.allreduce(np.ones(1), "sum")
            if comm.rank == failing:
                raise LookupError("lost")
            try:
                comm.allgather(np.ones(1))
            except RankFailed as error:
                seen.append((comm.rank, type(error.__cause__)))
                raise

        start = time.monotonic()
        with pytest.raises(LookupError, match="lost"):
            threads(3, program)
        assert time.monotonic() - start < SECONDS
        assert sorted(seen) == [(rank, LookupError) for rank in range(3) if rank != failing]
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]

    def test_abort_ends_the_others(self):
        def program(comm):
            if comm.rank == 1:
                comm.abort(ValueError("no way"))
            comm.exchange(None, np.ones(1))

        with pytest.raises(ValueError, match="no way"):
            threads(3, program)

    def test_a_rank_that_computes_ends_at_its_next_communication(self):
        def program(comm):
            if comm.rank == 0:
                raise LookupError("lost")
            time.sleep(0.05)
            comm.allreduce(np.ones(1), "sum")
            return "went on"

        with pytest.raises(LookupError, match="lost"):
            threads(2, program)

    def test_a_rank_that_returns_while_others_wait_is_an_error(self):
        with pytest.raises(RuntimeError, match=r"got rank 0 in allreduce sum .*, rank 1 in return, rank 2 in"):
            threads(3, lambda comm: None if comm.rank == 1 else comm.allreduce(np.ones(1), "sum"))

    def test_different_functions_are_an_error(self):
        def program(comm):
            return comm.allgather(np.ones(1)) if comm.rank else comm.allreduce(np.ones(1), "max")

        with pytest.raises(RuntimeError, match=r"must call the same functions, got rank 0 in allreduce max"):
            threads(2, program)

    def test_the_callers_context_holds(self):
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            threads(2, lambda comm: np.ones(1) / np.zeros(1))

    def test_size(self):
        with pytest.raises(ValueError, match="threads: `size` must be at least 1, got 0"):
            threads(0, lambda comm: None)

    def test_many_rounds(self):
        def program(comm):
            value = np.asarray(float(comm.rank))
            for _ in range(200):
                value = comm.allreduce(value, "sum") / comm.size
            return float(value)

        assert threads(3, program) == [1.0] * 3


class TestCounted:
    def test_messages_and_bytes_by_kind(self):
        def program(comm):
            comm = Counted(comm)
            comm.allreduce(np.ones(3), "sum")
            comm.allgather(np.ones(2, dtype=np.float32), [(2,)] * 3)
            comm.allgather(np.ones(2))
            comm.exchange(np.ones(5), None)
            comm.exchange(np.ones(1), np.ones(2))
            before = dict(comm.calls), dict(comm.messages), dict(comm.bytes)
            comm.reset()
            return (*before, sum(comm.calls.values()))

        results = threads(3, program)
        for calls, *_, left in results:
            assert calls == {"allreduce": 1, "allgather": 2, "exchange": 2}
            assert left == 0
        assert [messages for _, messages, *_ in results] == [
            {"allreduce": 1, "allgather": 3, "exchange": 1},
            {"allreduce": 1, "allgather": 3, "exchange": 3},
            {"allreduce": 1, "allgather": 3, "exchange": 2},
        ]
        assert [size["exchange"] for *_, size, _ in results] == [16, 40 + 8 + 16, 40 + 8]
        assert results[0][2]["allgather"] == 8 + 16

    def test_an_error_passes(self):
        with pytest.raises(KeyError):
            Counted(Serial()).abort(KeyError("x"))


def test_a_layout_needs_a_rank():
    with pytest.raises(ValueError, match="layout: `ranks` must be at least 1, got 0"):
        layout(4, 0)


@given(st.integers(0, 50), st.integers(1, 8))
def test_layout_is_as_even_as_possible(length, ranks):
    counts = layout(length, ranks)
    assert sum(counts) == length
    assert len(counts) == ranks
    assert list(counts) == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1
