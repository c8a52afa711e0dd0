import gc
import tracemalloc
import weakref

import numpy as np
import pytest

from implicitsolve import BlockBandedMatrix, BlockLU, CyclicReduction, Status
from implicitsolve._arrays.host import to_host

METHODS = [BlockLU(), BlockLU(pivoting="block"), BlockLU(pivoting="band"), CyclicReduction()]


def dominant(rng, *shape, lower=1, dtype=np.float64):
    blocks = rng.normal(size=shape).astype(dtype)
    blocks[..., lower, :, :] += 4 * shape[-1] ** 0.5 * np.eye(shape[-1], dtype=dtype)
    return blocks


def tridiagonal(rng, *shape, dtype=np.float64, **options):
    return BlockBandedMatrix(dominant(rng, *shape, dtype=dtype), lower=1, upper=1, **options)


@pytest.fixture(params=METHODS, ids=repr)
def method(request):
    return request.param


class TestFactorization:
    def test_one_system_has_one_status(self, method, rng):
        A = tridiagonal(rng, 5, 3, 2, 2)
        inverse = method.factor(A)
        assert inverse.status is Status.CONVERGED
        assert inverse.singular_block == -1
        assert isinstance(inverse.growth, float)
        assert inverse.A is A
        x = rng.normal(size=(5, 2))
        np.testing.assert_allclose(inverse.solve(A @ x), x, atol=1e-13)
        np.testing.assert_allclose(inverse.solve_adjoint(A.H @ x), x, atol=1e-13)

    def test_a_batch_has_a_status_for_each(self, method, rng):
        A = tridiagonal(rng, 2, 3, 5, 3, 2, 2)
        inverse = method.factor(A)
        assert inverse.status.shape == inverse.singular_block.shape == inverse.growth.shape == (2, 3)
        x = rng.normal(size=(2, 3, 5, 2))
        np.testing.assert_allclose(inverse @ (A @ x), x, atol=1e-13)
        some = inverse.take(np.asarray([4, 0]))
        assert some.batch_shape == (2,)
        b = (A @ x).reshape(6, 5, 2)[[4, 0]]
        np.testing.assert_allclose(some.solve(b), x.reshape(6, 5, 2)[[4, 0]], atol=1e-13)

    def test_the_matrix_is_left_alone(self, method, rng):
        A = tridiagonal(rng, 5, 3, 2, 2)
        before = A.blocks.copy()
        method.factor(A).solve(rng.normal(size=(5, 2)))
        np.testing.assert_array_equal(A.blocks, before)

    def test_many_columns_at_once(self, method, rng):
        A = tridiagonal(rng, 3, 5, 3, 2, 2)
        X = rng.normal(size=(3, 10, 4))
        inverse = method.factor(A)
        np.testing.assert_allclose(inverse.matmat(A.matmat(X)), X, atol=1e-13)
        np.testing.assert_allclose(inverse.rmatmat(A.rmatmat(X)), X, atol=1e-13)
        assert inverse.matmat(X[..., :0]).shape == (3, 10, 0)
        with pytest.raises(ValueError, match="columns"):
            inverse.matmat(X[0])

    def test_complex_right_hand_sides_of_a_real_matrix(self, method, rng):
        A = tridiagonal(rng, 5, 3, 2, 2)
        x = rng.normal(size=(5, 2)) + 1j * rng.normal(size=(5, 2))
        np.testing.assert_allclose(method.factor(A).solve(A @ x), x, atol=1e-13)
        np.testing.assert_allclose(method.factor(A).solve_adjoint(A.H @ x), x, atol=1e-13)

    def test_precisions(self, method, rng):
        low, high = (tridiagonal(rng, 5, 3, 2, 2, dtype=dtype) for dtype in (np.float32, np.float64))
        assert method.factor(low).solve(np.ones(10, np.float32)).dtype == np.float32
        assert method.factor(low).solve(np.ones(10, np.float64)).dtype == np.float64
        assert method.factor(high).solve(np.ones(10, np.float32)).dtype == np.float64
        assert method.factor(low).solve(np.ones(10, np.complex64)).dtype == np.complex64

    def test_holds_no_circle_of_references(self, method, rng):
        gc.disable()
        try:
            inverse = method.factor(tridiagonal(rng, 5, 3, 2, 2))
            gone = weakref.ref(inverse)
            del inverse
            assert gone() is None
        finally:
            gc.enable()

    def test_works_on_any_array_library(self, method, xp, rng):
        if method.pivoting == "band" and "numpy" not in xp.__name__:
            method = BlockLU(pivoting="band", backend="reference")
        blocks = dominant(rng, 2, 6, 4, 2, 2)
        for periodic in (False, True):
            A = BlockBandedMatrix(xp.asarray(blocks), lower=1, upper=2, periodic=periodic)
            inverse = method.factor(A)
            b = rng.normal(size=(2, 6, 2))
            x = to_host(inverse.solve(xp.asarray(b)))
            expected = np.linalg.solve(to_host(A.todense()), b.reshape(2, 12, 1)).reshape(b.shape)
            np.testing.assert_allclose(x, expected, atol=1e-13)

    def test_empty(self, method):
        for batch, T in (((0,), 3), ((), 0), ((2,), 0)):
            A = BlockBandedMatrix(np.ones((*batch, T, 3, 2, 2)), lower=1, upper=1)
            assert method.factor(A).solve(np.ones((*batch, T, 2))).shape == (*batch, T, 2)


class TestStructure:
    def test_periodic(self, method, rng):
        for T, lower, upper, k in ((3, 1, 1, 2), (7, 1, 1, 1), (8, 2, 1, 2), (6, 0, 1, 1), (9, 2, 3, 1), (1, 0, 0, 2)):
            A = BlockBandedMatrix(
                dominant(rng, 2, T, lower + upper + 1, k, k, lower=lower), lower=lower, upper=upper, periodic=True
            )
            x = rng.normal(size=(2, T, k))
            inverse = method.factor(A)
            np.testing.assert_allclose(inverse.solve(A @ x), x, atol=1e-12)
            np.testing.assert_allclose(inverse.solve_adjoint(A.H @ x), x, atol=1e-12)

    @pytest.mark.parametrize("method", [BlockLU(), BlockLU(pivoting="band"), CyclicReduction()], ids=repr)
    def test_a_cyclic_shift_has_corners_alone_to_pivot_on(self, method):
        # every leading block is singular, and so is the matrix without its corner
        shift = BlockBandedMatrix(np.tile([1.0, 0.0], (7, 1))[..., None, None], lower=1, upper=0, periodic=True)
        inverse = method.factor(shift)
        np.testing.assert_array_equal(inverse.solve(np.arange(7.0)), np.roll(np.arange(7.0), -1))
        assert inverse.status is Status.CONVERGED

    @pytest.mark.parametrize("method", [BlockLU(), BlockLU(pivoting="band"), CyclicReduction()], ids=repr)
    @pytest.mark.parametrize("k", [1, 2, 24])
    def test_singular_diagonal_blocks_of_a_regular_matrix(self, method, k, rng):
        blocks = rng.normal(size=(3, 6, 3, k, k))
        blocks[1, :, 1] = 0
        A = BlockBandedMatrix(blocks, lower=1, upper=1)
        inverse = method.factor(A)
        assert (inverse.status == Status.CONVERGED).all()
        x = rng.normal(size=(3, 6, k))
        np.testing.assert_allclose(inverse.solve(A @ x), x, atol=1e-8)
        some = inverse.take(np.asarray([2, 1, 1]))
        np.testing.assert_allclose(some.solve((A @ x)[[2, 1, 1]]), x[[2, 1, 1]], atol=1e-8)
        assert inverse.take(np.asarray([1])).status.tolist() == [Status.CONVERGED]
        assert inverse.nbytes > 0

    def test_factors_of_two_kinds_solve_each_system(self, rng):
        """The second system needs rows of other blocks; its factors are the band's."""
        A = tridiagonal(rng, 3, 6, 3, 2, 2)
        A.blocks[1, :, 1] = np.ones((2, 2))
        factors = BlockLU().factors(A.blocks.copy(), 1, 1)
        b = rng.normal(size=(3, 6, 2, 1))
        expected = np.linalg.solve(A.todense(), b.reshape(3, 12, 1)).reshape(b.shape)
        np.testing.assert_allclose(factors.solve(b), expected, atol=1e-11)
        np.testing.assert_allclose(factors.take(np.asarray([2, 1])).solve(b[[2, 1]]), expected[[2, 1]], atol=1e-11)

    def test_pivoting_inside_blocks_alone_names_the_block(self, rng):
        blocks = dominant(rng, 6, 3, 2, 2)
        blocks[0, 1] = 0
        inverse = BlockLU(pivoting="block").factor(BlockBandedMatrix(blocks, lower=1, upper=1))
        assert inverse.status is Status.SINGULAR
        assert inverse.singular_block == 0
        assert np.isnan(inverse.solve(np.ones(12))).all()

    @pytest.mark.parametrize("t", range(6))
    def test_a_singular_block_of_a_periodic_matrix_is_named_by_its_pair(self, t, rng):
        """Pivoting inside pairs: nothing can be exchanged for the row of zeros."""
        blocks = dominant(rng, 6, 3, 2, 2)
        blocks[t] = 0
        A = BlockBandedMatrix(blocks, lower=1, upper=1, periodic=True)
        assert BlockLU().factor(A).status is Status.SINGULAR
        inverse = BlockLU(pivoting="block").factor(A)
        assert inverse.status is Status.SINGULAR
        assert inverse.singular_block == min(t, 5 - t)

    @pytest.mark.parametrize(("lower", "upper"), [(0, 0), (2, 0), (0, 1)])
    def test_triangular_matrices_do_not_grow(self, method, lower, upper, rng):
        blocks = rng.normal(size=(6, lower + upper + 1, 3, 3))
        blocks[:, lower] *= 1e-3
        inverse = method.factor(BlockBandedMatrix(blocks, lower=lower, upper=upper))
        if isinstance(method, BlockLU):
            assert inverse.growth <= 4


class TestMemory:
    T, k = 150, 32

    def peak(self, method, A, **options):
        method.factor(tridiagonal(np.random.default_rng(0), 3, 3, self.k, self.k), **options)  # loads what it needs
        tracemalloc.start()
        try:
            inverse = method.factor(A, **options)
            return tracemalloc.get_traced_memory()[1], inverse
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("pivoting", ["block", "band", "auto"])
    def test_peak_is_what_the_docstring_says(self, pivoting, rng):
        A = tridiagonal(rng, 2, self.T, 3, self.k, self.k)
        formula = 8 * 6 * 2 * self.T * self.k**2
        peak, inverse = self.peak(BlockLU(pivoting=pivoting, backend="lapack"), A)
        assert 0.9 * formula < inverse.nbytes < 1.1 * formula
        assert peak < 1.1 * formula

    @pytest.mark.parametrize("backend", ["lapack", "reference"])
    def test_where_there_is_no_room_it_is_a_permission(self, backend, rng):
        blocks = rng.normal(size=(20, 3, 3, 3))
        A = BlockBandedMatrix(blocks, lower=1, upper=1)
        x = rng.normal(size=(20, 3))
        b = A @ x
        np.testing.assert_allclose(BlockLU(backend=backend).factor(A, overwrite=True).solve(b), x, atol=1e-8)

    def test_read_only_blocks_are_copied(self, rng):
        blocks = dominant(rng, 20, 3, 3, 3)
        blocks.flags.writeable = False
        before = blocks.copy()
        BlockLU(pivoting="block").factor(BlockBandedMatrix(blocks, lower=1, upper=1), overwrite=True)
        np.testing.assert_array_equal(blocks, before)


class TestSettings:
    @pytest.mark.parametrize("owner", [BlockLU, CyclicReduction])
    def test_unusable_settings(self, owner):
        with pytest.raises(ValueError, match="pivoting"):
            owner(pivoting="total")
        with pytest.raises(ValueError, match="backend"):
            owner(backend="fortran")
        with pytest.raises(ValueError, match="growth_limit"):
            owner(growth_limit=0.5)
        with pytest.raises(ValueError, match="refine"):
            owner(refine=-1)
        with pytest.raises(TypeError, match="BlockBandedMatrix"):
            owner().factor(np.eye(3))

    def test_cyclic_reduction_cannot_pivot_over_the_band(self):
        with pytest.raises(ValueError, match="pivoting"):
            CyclicReduction(pivoting="band")

    def test_refinement_needs_the_matrix(self, rng):
        with pytest.raises(ValueError, match="overwrite"):
            BlockLU(refine=1, pivoting="block").factor(tridiagonal(rng, 3, 3, 2, 2), overwrite=True)
