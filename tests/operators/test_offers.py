"""What an operator offers besides products, an approximate inverse and another precision, through all that wraps it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from implicitsolve import LinearOperator, linear_solve
from implicitsolve.krylov import GMRES, LGMRES, BiCGSTAB, TruncatedInverse
from implicitsolve.operators._wrappers import guard, stack_systems
from implicitsolve.stopping import LinearStop
from tests.helpers.compare import host

SHAPES = [((), (4,)), ((), (2, 3)), ((3,), (4,)), ((3,), (2, 2)), ((2, 2), (3,))]
IDS = [f"{batch}-{event}" for batch, event in SHAPES]


class Matrices:
    """Matrices (B, N, N) as an operator that offers their inverses and another precision, and keeps books."""

    def __init__(self, A: Any, inverses: Any, batch: tuple[int, ...], event: tuple[int, ...], xp: Any = np) -> None:
        self.A, self.inverses, self.batch, self.event, self.xp = A, inverses, batch, event, xp
        self.seen: list[Any] = []  # dtypes of the vectors that were multiplied

    @classmethod
    def random(cls, rng, batch=(), event=(4,), xp=np, dtype=np.float64) -> Matrices:
        size, n = int(np.prod(batch, dtype=int)), int(np.prod(event))
        A = np.eye(n) + 0.3 * rng.standard_normal((size, n, n))
        inverses = np.linalg.inv(A)
        return cls(*(xp.asarray(part, dtype=dtype) for part in (A, inverses)), batch, event, xp)

    def operator(self) -> LinearOperator:
        return self._of(self.A, self._inverse, self._cast)

    def _of(self, A: Any, inverse: Any, cast: Any) -> LinearOperator:
        xp, shape = self.xp, self.batch + self.event

        def product(matrix: Any) -> Any:
            def apply(v: Any) -> Any:
                self.seen.append(v.dtype)
                rows = xp.reshape(v, (A.shape[0], A.shape[1], 1))
                return xp.reshape(xp.matmul(xp.astype(matrix, v.dtype), rows), shape)

            return apply

        def take(indices: Any) -> LinearOperator:
            parts = (xp.take(part, xp.asarray(indices), axis=0) for part in (self.A, self.inverses))
            part = Matrices(*parts, (len(indices),), self.event, xp)
            part.seen = self.seen
            return part.operator() if A is self.A else part.operator().approximate_inverse()  # type: ignore[return-value]

        return LinearOperator(
            product(A),
            product(xp.matrix_transpose(A)),
            in_shape=self.event,
            batch_shape=self.batch,
            dtype=A.dtype,
            take=take if self.batch else None,
            inverse=inverse,
            cast=cast,
        )

    def _inverse(self) -> LinearOperator:
        return self._of(self.inverses, None, None)

    def _cast(self, dtype: Any) -> LinearOperator:
        xp = self.xp
        parts = (xp.astype(part, dtype) for part in (self.A, self.inverses))
        other = Matrices(*parts, self.batch, self.event, xp)
        other.seen = self.seen
        return other.operator()


def dense(A: LinearOperator, xp: Any = np) -> np.ndarray:
    """The matrices (B, M, N) of an operator."""
    flat = A.flat()
    eye = np.eye(flat.shape[1])
    B = flat.batch_shape[0]
    columns = [flat.matvec(xp.asarray(np.broadcast_to(e, (B, e.size)), dtype=A.dtype, copy=True)) for e in eye]
    return np.stack([host(column) for column in columns], axis=-1)


def close(actual, expected, tolerance):
    np.testing.assert_allclose(host(actual), expected, rtol=0, atol=tolerance)


def wrapped(A: LinearOperator) -> dict[str, LinearOperator]:
    """The same operator in every wrapping, the last ones transposed."""
    ways = {"flat": A.flat(), "flat twice": A.flat().flat(), "guarded": guard(A, "A")}
    ways |= {"H H": A.H.H, "guarded H H": guard(A.H, "A").H, "stacked": stack_systems([A])}
    return ways


@pytest.mark.parametrize(("batch", "event"), SHAPES, ids=IDS)
def test_the_inverse_passes_through_every_wrapping(batch, event, xp, dtype, rng):
    made = Matrices.random(rng, batch, event, xp, dtype)
    inverses, tolerance = host(made.inverses), 256 * float(xp.finfo(dtype).eps)
    for A in wrapped(made.operator()).values():
        M = A.approximate_inverse()
        assert (M.shape, M.batch_shape, M.dtype) == (A.shape, A.batch_shape, A.dtype)
        close(dense(M, xp), inverses, tolerance)
        close(dense(A.H.approximate_inverse(), xp), np.swapaxes(inverses, -1, -2), tolerance)
        close(dense(A.approximate_inverse().H, xp), np.swapaxes(inverses, -1, -2), tolerance)


@pytest.mark.parametrize("event", [(4,), (2, 2)], ids=str)
@pytest.mark.parametrize("indices", [[2, 0], [1], [0, 1, 2], [1, 1]], ids=str)
def test_the_inverse_of_some_systems(event, indices, xp, rng):
    made = Matrices.random(rng, (3,), event, xp, xp.float64)
    inverses, picked = host(made.inverses), np.asarray(indices, dtype=int)
    for A in wrapped(made.operator()).values():
        for M in (A.take(picked).approximate_inverse(), A.approximate_inverse().take(picked)):
            assert M.batch_shape == (len(indices),)
            close(dense(M, xp), inverses[picked], 1e-12)
        close(dense(A.take(picked).H.approximate_inverse(), xp), np.swapaxes(inverses[picked], -1, -2), 1e-12)


def test_an_operator_without_offers_has_none():
    A = LinearOperator(lambda v: 2 * v, lambda w: 2 * w, in_shape=(2, 2), batch_shape=(3,))
    for same in wrapped(A).values():
        assert same.approximate_inverse() is None
        assert same.take(np.asarray([1])).approximate_inverse() is None
        assert same.astype(np.float32) is same
        assert same.H.approximate_inverse() is None


def test_sums_products_and_transposes_do_not_offer_a_wrong_inverse(rng):
    A = Matrices.random(rng).operator()
    for changed in (A + A, 2 * A, -A, A @ A, A / 3, A - 0.5 * A, A.T):
        assert changed.approximate_inverse() is None
        assert changed.astype(np.float32).dtype == np.float64


@pytest.mark.parametrize("name", ["inverse", "cast"])
def test_offers_must_be_callable(name):
    with pytest.raises(TypeError, match=f"`{name}` must be callable"):
        LinearOperator(lambda v: v, in_shape=2, **{name: 3})  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "event"), SHAPES, ids=IDS)
def test_another_precision_passes_through_every_wrapping(batch, event, xp, rng):
    made = Matrices.random(rng, batch, event, xp, xp.float64)
    matrices, inverses = host(made.A), host(made.inverses)
    for A in wrapped(made.operator()).values():
        single = A.astype(xp.float32)
        assert (single.shape, single.batch_shape, single.dtype) == (A.shape, A.batch_shape, xp.float32)
        made.seen.clear()
        close(dense(single, xp), matrices, 1e-5)
        assert all(seen == xp.float32 for seen in made.seen)
        close(dense(single.H, xp), np.swapaxes(matrices, -1, -2), 1e-5)
        close(dense(A.H.astype(xp.float32), xp), np.swapaxes(matrices, -1, -2), 1e-5)
        close(dense(single.approximate_inverse(), xp), inverses, 1e-4)
        if batch:
            picked = np.asarray([1])
            for some in (A.take(picked).astype(xp.float32), single.take(picked)):
                assert some.dtype == xp.float32
                close(dense(some, xp), matrices[picked], 1e-5)
        again = single.astype(xp.float64)
        assert again.dtype == xp.float64


def test_products_in_another_precision_are_counted(rng):
    made, counted = Matrices.random(rng, (3,), (2, 2)), []
    A = guard(made.operator(), "A", counted.append)
    single = A.astype(np.float32)
    single.matvec(np.ones((3, 4), np.float32))
    single.rmatvec(np.ones((3, 4), np.float32))
    single.take(np.asarray([2])).matvec(np.ones((1, 4), np.float32))
    single.H.matvec(np.ones((3, 4), np.float32))
    assert counted == ["jvps", "vjps", "jvps", "vjps"]
    A.approximate_inverse().matvec(np.ones((3, 4)))
    assert len(counted) == 4  # the inverse costs no product


@pytest.mark.parametrize("hands_out", ["its argument", "one buffer"])
def test_an_inverse_on_offer_may_work_in_place(hands_out):
    buffer = np.zeros((1, 2))

    def greedy(v):
        v *= 2
        if hands_out == "one buffer":
            buffer[...] = v
            return buffer
        return v

    A = LinearOperator(lambda v: 0.5 * v, in_shape=2, inverse=lambda: LinearOperator(greedy, in_shape=2))
    M = guard(A, "A").approximate_inverse()
    v = np.ones((1, 2))
    first = M.matvec(v)
    M.matvec(3 * v)
    np.testing.assert_array_equal(v, 1.0)
    np.testing.assert_array_equal(first, 2.0)


@pytest.mark.parametrize(
    "method", [None, GMRES(), LGMRES(), BiCGSTAB()], ids=["default", "gmres", "lgmres", "bicgstab"]
)
@pytest.mark.parametrize(("batch", "event"), SHAPES, ids=IDS)
def test_a_linear_solve_takes_the_inverse_on_offer(method, batch, event, rng):
    A = Matrices.random(rng, batch, event).operator()
    b = rng.standard_normal(batch + event)
    for one, side in ((A, b), (A.H, b)):
        result = linear_solve(one, side, method=method, stop=LinearStop(rtol=1e-10))
        assert np.all(result.success)
        assert np.max(result.iterations) == 1
        np.testing.assert_allclose(one.matvec(result.x), side, atol=1e-9)


def test_a_preconditioner_that_is_given_comes_first(rng):
    made = Matrices.random(rng)
    used = []
    M = LinearOperator(lambda v: used.append(1) or v, in_shape=4)
    A = LinearOperator(made.operator().matvec, in_shape=4, inverse=lambda: pytest.fail("not asked for"))
    assert linear_solve(A, np.ones(4), M=M, stop=LinearStop(rtol=1e-10)).success
    assert used


def test_a_method_that_may_not_transform_the_system_leaves_it(rng):
    made = Matrices.random(rng)
    A = LinearOperator(made.operator().matvec, in_shape=4, inverse=lambda: pytest.fail("not to be used"))
    assert linear_solve(A, np.ones(4), method=TruncatedInverse()).iterations == 1
