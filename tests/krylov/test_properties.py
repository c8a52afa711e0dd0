"""Properties of linear solves that hold for every system, method, dtype and library."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import GMRES, LGMRES, BiCGSTAB, LinearOperator, LinearStop, ScipyKrylov, Status

pytestmark = pytest.mark.rounding

NATIVE = [GMRES(), GMRES(restart=4), LGMRES(), LGMRES(restart=3, outer_k=2), BiCGSTAB()]
METHODS = [*NATIVE, ScipyKrylov(function="gmres"), ScipyKrylov(function="tfqmr")]
DTYPES = [np.float32, np.float64, np.complex64, np.complex128]

seeds = st.integers(0, 2**31)
batches = st.sampled_from([(), (1,), (3,), (2, 2)])
sizes = st.integers(1, 9)


def system(seed: int, batch: tuple[int, ...], n: int, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Matrices with eigenvalues well away from 0, and right-hand sides."""
    rng = np.random.default_rng(seed)

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else 0)

    return (random(*batch, n, n) + 3 * (1 + n**0.5) * np.eye(n)).astype(dtype), random(*batch, n).astype(dtype)


def rtol_of(dtype: type) -> float:
    return 3e-5 if np.finfo(dtype).bits == 32 else 1e-10


def residual_norms(A: np.ndarray, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.linalg.norm(b.astype(np.complex128) - (A.astype(np.complex128) @ x[..., None])[..., 0], axis=-1)


@given(
    seed=seeds,
    batch=batches,
    n=sizes,
    dtype=st.sampled_from(DTYPES),
    method=st.sampled_from(METHODS),
    preconditioned=st.booleans(),
    started=st.booleans(),
)
def test_equals_the_dense_solve(seed, batch, n, dtype, method, preconditioned, started):
    A, b = system(seed, batch, n, dtype)
    M = np.linalg.inv(A + 0.1 * system(seed + 1, batch, n, dtype)[0]) if preconditioned else None
    x0 = system(seed + 2, batch, n, dtype)[1] if started else None
    result = ims.linear_solve(A, b, M=M, x0=x0, method=method, stop=LinearStop(rtol=rtol_of(dtype)))
    assert np.all(result.success)
    assert result.x.shape == b.shape
    assert result.x.dtype == dtype
    exact = np.linalg.solve(A.astype(np.complex128), b[..., None].astype(np.complex128))[..., 0]
    scale = np.linalg.norm(b, axis=-1, keepdims=True)  # the smallest singular value is not far below 1
    assert (np.abs(result.x - exact) <= 100 * rtol_of(dtype) * scale).all()


@st.composite
def any_systems(draw: st.DrawFn, condition: float = 1e12) -> tuple[np.ndarray, np.ndarray]:
    """Regular, singular, badly conditioned, zero and non-finite systems, in a batch."""
    n, size, seed = draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(seeds)
    A, b = system(seed, (size,), n)
    rng = np.random.default_rng(seed + 7)
    for i in range(size):
        kind = draw(
            st.sampled_from(["regular", "singular", "consistent", "zero", "zero b", "hard", "shift", "nan", "inf"])
        )
        if kind in ("singular", "consistent"):
            A[i] = rng.standard_normal((n, n // 2)) @ rng.standard_normal((n // 2, n))
            b[i] = A[i] @ b[i] if kind == "consistent" else b[i]
        elif kind == "zero":
            A[i] = 0
        elif kind == "zero b":
            b[i] = 0
        elif kind == "hard":
            A[i] *= np.logspace(0, -np.log10(condition), n)
        elif kind == "shift":
            A[i] = np.roll(np.eye(n), 1, axis=0)
            b[i] = np.eye(n)[0]
        elif kind in ("nan", "inf"):
            target = draw(st.sampled_from([A, b]))
            target[i].flat[rng.integers(target[i].size)] = float(kind)
    return A, b


limits = st.sampled_from([0, 1, 2, 5, 17, 60])
rtols = st.sampled_from([0.0, 1e-14, 1e-6, 0.3, 1.0])


@given(systems=any_systems(), method=st.sampled_from(METHODS), limit=limits, rtol=rtols, started=st.booleans())
def test_a_status_says_the_truth_about_any_system(systems, method, limit, rtol, started):
    A, b = systems
    x0 = np.linspace(-1, 1, b.size).reshape(b.shape) if started else None
    products = []

    def operator(matrices: np.ndarray) -> LinearOperator:
        def matvec(v):
            products.append(len(v))
            with np.errstate(all="ignore"):
                return (matrices @ v[..., None])[..., 0]

        return LinearOperator(
            matvec,
            in_shape=b.shape[1],
            batch_shape=matrices.shape[:1],
            take=lambda indices: operator(matrices[indices]),
        )

    stop = LinearStop(rtol=rtol, atol=1e-140, max_iterations=limit)
    result = ims.linear_solve(operator(A), b, x0=x0, method=method, stop=stop)
    assert result.matvecs == len(products)
    with np.errstate(all="ignore"):
        norms, start = residual_norms(A, result.x, b), residual_norms(A, b * 0 if x0 is None else x0, b)
        scale = np.linalg.norm(A, axis=(1, 2)) * np.linalg.norm(result.x, axis=1) + np.linalg.norm(b, axis=1)
        target = np.maximum(1e-140, rtol * np.linalg.norm(b, axis=1))
    for i, code in enumerate(result.status):
        status, broken = Status(code), not (np.isfinite(A[i]).all() and np.isfinite(b[i]).all())
        assert (status is Status.NONFINITE) <= broken, "a finite system is never called non-finite"
        if status is Status.CONVERGED:
            assert result.residual_norm[i] <= target[i] * (1 + 1e-14)
            if np.isfinite(norms[i]):  # A may hold a NaN that no product has met, where b = 0
                assert norms[i] <= target[i] + 1e-14 * scale[i]
        elif np.isfinite(result.residual_norm[i]):
            assert result.residual_norm[i] > target[i] * (1 - 1e-14)
        if status is Status.ITERATION_LIMIT:
            assert result.iterations[i] >= limit
        if isinstance(method, GMRES | BiCGSTAB):
            assert result.iterations[i] <= limit
            assert np.isfinite(result.x[i]).all()
            if not broken:
                assert norms[i] <= start[i] + 1e-14 * scale[i], "worse than the start"
        if not broken:
            assert abs(result.residual_norm[i] - norms[i]) <= 1e-14 * scale[i] + 1e-150


@given(systems=any_systems(), method=st.sampled_from(METHODS))
def test_zero_b_takes_no_iteration_beside_anything(systems, method):
    A, b = systems
    A[0], b[0] = np.eye(b.shape[1]), 0
    result = ims.linear_solve(A, b, method=method, stop=LinearStop(max_iterations=20))
    assert result.status[0] == Status.CONVERGED
    assert result.iterations[0] == 0
    assert (result.x[0] == 0).all()


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_zero_b_alone_takes_one_product(method):
    result = ims.linear_solve(np.eye(3), np.zeros(3), method=method)
    assert (result.status, result.iterations, result.matvecs) == (Status.CONVERGED, 0, 1)
    np.testing.assert_array_equal(result.x, np.zeros(3))


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize(("b", "rtol"), [(0.0, 1e-6), (1.0, 1.0)])
def test_zero_is_no_solution_of_a_system_with_nan(method, b, rtol):
    A = np.stack([np.diag([1.0, np.nan, 1.0]), np.eye(3)])
    result = ims.linear_solve(A, np.full((2, 3), b), method=method, stop=LinearStop(rtol=rtol))
    np.testing.assert_array_equal(result.status, [Status.NONFINITE, Status.CONVERGED])


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_start_that_is_the_solution_takes_one_product(method):
    A, b = np.diag([1.0, 2.0, 4.0]), np.asarray([1.0, 2.0, 4.0])
    result = ims.linear_solve(A, b, x0=np.ones(3), method=method)
    assert (result.status, result.iterations, result.matvecs, result.residual_norm) == (Status.CONVERGED, 0, 1, 0.0)


@given(systems=any_systems(1e4), method=st.sampled_from(NATIVE), limit=st.sampled_from([3, 17, 60]), data=st.data())
def test_a_system_does_not_see_its_neighbours(systems, method, limit, data):
    A, b = systems
    order = np.asarray(data.draw(st.permutations(range(len(b)))))
    stop = LinearStop(rtol=1e-9, max_iterations=limit)
    together = ims.linear_solve(A, b, method=method, stop=stop)
    permuted = ims.linear_solve(A[order], b[order], method=method, stop=stop)
    for i in range(len(b)):
        alone = ims.linear_solve(A[i], b[i], method=method, stop=stop)
        for other, j in ((together, i), (permuted, int(np.flatnonzero(order == i)[0]))):
            if alone.status is Status.CONVERGED:  # else rounding may decide where it stops, not who stands beside it
                assert other.status[j] == alone.status
                assert abs(other.iterations[j] - alone.iterations) <= (0 if alone.residual_norm > 1e-13 else 1)
            if alone.success or isinstance(method, GMRES):  # BiCGSTAB on a singular system follows its rounding errors
                np.testing.assert_allclose(other.residual_norm[j], alone.residual_norm, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("method", NATIVE, ids=str)
@pytest.mark.parametrize("neighbour", ["singular", "nan", "inf b", "zero", "huge", "tiny"])
def test_a_hopeless_neighbour_changes_nothing(rng, method, neighbour):
    A, b = system(int(rng.integers(2**31)), (3,), 8)
    stop = LinearStop(rtol=1e-8)
    alone = ims.linear_solve(A, b, method=method, stop=stop)
    A, b = np.insert(A, 1, np.eye(8), axis=0), np.insert(b, 1, np.ones(8), axis=0)
    if neighbour == "singular":
        A[1] = np.diag([0.0] * 4 + [1.0] * 4)
    elif neighbour == "nan":
        A[1, 3, 3] = np.nan
    elif neighbour == "inf b":
        b[1, 3] = np.inf
    elif neighbour == "zero":
        A[1] = 0
    else:
        A[1] *= 1e200 if neighbour == "huge" else 1e-200
    beside = ims.linear_solve(A, b, method=method, stop=stop)
    mine = np.asarray([0, 2, 3])
    assert (beside.status[1] == Status.CONVERGED) == (neighbour in ("huge", "tiny"))
    np.testing.assert_array_equal(beside.status[mine], alone.status)
    np.testing.assert_array_equal(beside.iterations[mine], alone.iterations)
    np.testing.assert_allclose(beside.x[mine], alone.x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", NATIVE, ids=str)
@pytest.mark.parametrize("limit", [7, 31, 35, 45])
def test_a_neighbour_that_ends_early_does_not_lift_the_limit(rng, method, limit):
    n = 60
    slow = np.diag(np.linspace(1, 1e4, n)) + np.triu(rng.standard_normal((n, n)), 1)
    early = np.diag(np.eye(n)[0])  # singular: two columns, then nothing is left
    A, b = np.stack([early, slow]), np.stack([1.0 * (np.arange(n) < 2), np.ones(n)])
    stop = LinearStop(rtol=1e-10, max_iterations=limit)
    together, alone = (ims.linear_solve(*pair, method=method, stop=stop) for pair in ((A, b), (A[1], b[1])))
    assert together.iterations[1] == alone.iterations <= limit
    assert together.status[1] == alone.status
    assert (alone.status is Status.CONVERGED) == (alone.iterations < limit)
    assert together.residual_norm[1] == pytest.approx(alone.residual_norm, rel=1e-5)


@given(
    seed=seeds,
    method=st.sampled_from(NATIVE),
    dtype=st.sampled_from([np.float64, np.complex128]),
    power_A=st.sampled_from([-500, -37, 0, 1, 250, 500]),
    power_b=st.sampled_from([-500, -251, 0, 3, 500]),
    preconditioned=st.booleans(),
)
def test_powers_of_two_change_no_decision(seed, method, dtype, power_A, power_b, preconditioned):
    A, b = system(seed, (2,), 6, dtype)
    M = np.linalg.inv(A + 1) if preconditioned else None
    plain = ims.linear_solve(A, b, M=M, method=method)
    scaled = ims.linear_solve(
        A * 2.0**power_A, b * 2.0**power_b, M=M if M is None else M * 2.0**-power_A, method=method
    )
    np.testing.assert_array_equal(scaled.status, plain.status)
    np.testing.assert_array_equal(scaled.iterations, plain.iterations)
    assert scaled.matvecs == plain.matvecs
    np.testing.assert_allclose(scaled.x * 2.0 ** (power_A - power_b), plain.x, rtol=1e-9, atol=1e-11)


def frozen(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_read_only_arrays_are_accepted_and_nothing_is_changed(rng, method):
    seed = int(rng.integers(2**31))
    A, b = (frozen(part) for part in system(seed, (3,), 6))
    M, x0 = frozen(np.linalg.inv(A + 0.5)), frozen(0.1 * b)
    result = ims.linear_solve(A, b, M=M, x0=x0, method=method)
    assert result.success.all()
    for after, before in zip((A, b), system(seed, (3,), 6), strict=True):
        np.testing.assert_array_equal(after, before)
    result.x[...] = 0  # the solution belongs to the caller
    np.testing.assert_array_equal(x0, 0.1 * b)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_solution_shares_no_memory_with_what_was_given(method):
    b, x0 = np.zeros(3), np.ones(3)
    for result in (
        ims.linear_solve(np.eye(3), b, method=method),
        ims.linear_solve(np.eye(3), x0, x0=x0, method=method),
    ):
        assert not np.shares_memory(result.x, b)
        assert not np.shares_memory(result.x, x0)


LAYOUTS = {
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: a[..., ::-1].copy()[..., ::-1],
    "transposed": lambda a: a.swapaxes(0, -1).copy().swapaxes(0, -1),
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("method", [LGMRES(), BiCGSTAB(), ScipyKrylov(function="gmres")], ids=str)
def test_memory_layouts(rng, method, layout):
    A, b = system(int(rng.integers(2**31)), (3,), 6)
    plain = ims.linear_solve(A, b, x0=0.1 * b, method=method)
    other = ims.linear_solve(layout(A), layout(b), x0=layout(0.1 * b), method=method)
    np.testing.assert_array_equal(other.iterations, plain.iterations)
    np.testing.assert_allclose(other.x, plain.x, rtol=1e-12)


@pytest.mark.parametrize("method", NATIVE, ids=str)
def test_an_operator_that_writes_into_its_argument_or_reuses_its_buffer_does_no_harm(rng, method):
    A, b = system(int(rng.integers(2**31)), (2,), 6)
    buffer = np.empty((2, 6))

    def matvec(v):
        np.einsum("bij,bj->bi", A, v, out=buffer)
        v[...] = np.nan
        return buffer

    result = ims.linear_solve(LinearOperator(matvec, in_shape=6, batch_shape=(2,)), b, method=method)
    plain = ims.linear_solve(A, b, method=method)
    assert result.success.all()
    np.testing.assert_allclose(result.x, plain.x, rtol=1e-10)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_an_exception_of_the_operator_passes_unchanged(method):
    error = KeyError("mine")

    def matvec(v):
        raise error

    with pytest.raises(KeyError) as caught:
        ims.linear_solve(LinearOperator(matvec, lambda w: w, in_shape=3), np.ones(3), method=method)
    assert caught.value is error


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_same_solve_twice_is_bitwise_the_same(rng, method):
    A, b = system(int(rng.integers(2**31)), (4,), 9)
    first, second = (ims.linear_solve(A, b, method=method) for _ in range(2))
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.residual_norm, second.residual_norm)
