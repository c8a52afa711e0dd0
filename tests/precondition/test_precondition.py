"""Preconditioners against the dense matrices that define them, and what they save a Krylov method."""

from dataclasses import dataclass
from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implicitsolve import GMRES, LinearStop, linear_solve
from implicitsolve._arrays.host import to_host
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.precondition import BlockGaussSeidel, BlockILU, BlockJacobi, Neumann
from implicitsolve.structure import BlockBanded

SETTINGS = [
    BlockJacobi(),
    Neumann(order=0),
    Neumann(order=2),
    Neumann(order=2, scaled=False),
    BlockGaussSeidel(order="forward"),
    BlockGaussSeidel(order="backward"),
    BlockGaussSeidel(),
    BlockGaussSeidel(sweeps=3, order="forward"),
    BlockGaussSeidel(sweeps=2, order="symmetric"),
    BlockILU(),
]
DTYPES = ["float32", "float64", "complex64", "complex128"]
LIBRARIES = st.sampled_from([np, array_api_strict])
SEEDS = st.integers(0, 2**20)


def split(A: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Block diagonal, what is below it, and what is above it."""
    block = np.arange(A.shape[0]) // k
    i, j = block[:, None], block
    return A * (i == j), A * (j < i), A * (j > i)


def incomplete_factors(A: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """ILU(0) by blocks, row after row."""
    length = A.shape[0] // k
    blocks = A.reshape(length, k, length, k).swapaxes(1, 2).copy()
    pattern = (blocks != 0).any(axis=(2, 3)) | np.eye(length, dtype=bool)
    for t in range(length):
        for s in np.flatnonzero(pattern[t, :t]):
            blocks[t, s] = blocks[t, s] @ np.linalg.inv(blocks[s, s])
            for r in range(s + 1, length):
                if pattern[t, r]:
                    blocks[t, r] -= blocks[t, s] @ blocks[s, r]
    D, L, U = split(blocks.swapaxes(1, 2).reshape(A.shape), k)
    return L + np.eye(A.shape[0]), D + U


def inverse_of(settings: Any, A: np.ndarray, k: int) -> np.ndarray:
    """What ``settings.build`` approximates the inverse of A by."""
    identity, (D, L, U) = np.eye(A.shape[0]), split(A, k)
    if isinstance(settings, BlockILU):
        lower, upper = incomplete_factors(A, k)
        return np.linalg.inv(lower @ upper)
    if isinstance(settings, BlockGaussSeidel):
        once = {
            "forward": lambda: np.linalg.inv(D + L),
            "backward": lambda: np.linalg.inv(D + U),
            "symmetric": lambda: np.linalg.inv(D + U) @ D @ np.linalg.inv(D + L),
        }[settings.order]()
        steps = settings.sweeps
    else:
        once = identity if settings == Neumann(order=2, scaled=False) else np.linalg.inv(D)
        steps = getattr(settings, "order", 0) + 1
    powers = [np.linalg.matrix_power(identity - once @ A, i) for i in range(steps)]
    return sum(powers, start=0 * identity) @ once


@dataclass(frozen=True)
class Case:
    blocks: np.ndarray
    structure: BlockBanded

    def matrix(self, xp: Any = np, scale: float = 1.0) -> BlockBandedMatrix:
        s = self.structure
        return BlockBandedMatrix(xp.asarray(self.blocks * scale), lower=s.lower, upper=s.upper, periodic=s.periodic)

    @property
    def systems(self) -> list[np.ndarray]:
        A = self.matrix().todense()
        return list(A.reshape(-1, *A.shape[-2:]).astype(np.complex128))


@st.composite
def cases(draw: st.DrawFn, batches=((), (1,), (3,), (2, 2)), dtypes=DTYPES, widest: int = 3) -> Case:
    """Well-conditioned matrices; bands with gaps, blocks that are zero, rows that differ in size by powers of two."""
    lower, upper, k = draw(st.integers(0, widest)), draw(st.integers(0, widest)), draw(st.integers(1, 3))
    periodic = draw(st.booleans())
    length = draw(st.integers(lower + upper + 1 if periodic else 1, 9 + (lower + upper if widest > 3 else 0)))
    shape = (*draw(st.sampled_from(batches)), length, lower + upper + 1, k, k)
    rng = np.random.default_rng(draw(SEEDS))
    blocks = rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)
    density = draw(st.sampled_from([0.2, 0.7, 1.0]))
    blocks *= (rng.random(shape[-3]) < density)[:, None, None]  # whole block diagonals
    blocks *= (rng.random(shape[:-2]) < draw(st.sampled_from([0.7, 1.0])))[..., None, None]
    blocks *= 0.8 / (k * (lower + upper + 1))
    blocks[..., lower, :, :] += np.eye(k) * rng.choice([1, -1, 1j])
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    blocks = blocks.astype(dtype) if dtype.kind == "c" else (blocks.real + blocks.imag).astype(dtype)
    structure = BlockBanded(lower, upper, k, periodic=periodic)
    if not periodic:  # what is outside is ignored
        column = np.arange(length)[:, None] + np.arange(lower + upper + 1) - lower
        blocks[..., (column < 0) | (column >= length), :, :] = draw(st.sampled_from([0.0, 5.0, np.nan]))
    return Case(blocks, structure)


def tolerance(*arrays: Any) -> float:
    return 1e-9 if all(np.finfo(to_host(x).dtype).eps < 1e-10 for x in arrays) else 3e-4


def vectors(case: Case, seed: int, is_complex: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = (*case.blocks.shape[:-4], case.blocks.shape[-4] * case.structure.block_size)
    real = "float32" if case.blocks.dtype in (np.float32, np.complex64) else "float64"
    v = rng.standard_normal(shape).astype(real)
    return v + np.complex64(1j) * rng.standard_normal(shape).astype(real) if is_complex else v


def has_no_gaps(case: Case) -> bool:
    """Whether every system has something in each block diagonal between the outermost: then ILU(0) is LU."""
    length, k = case.blocks.shape[-4], case.structure.block_size
    nonzero = [A.reshape(length, k, length, k).any(axis=(1, 3)) for A in case.systems]
    used = [{d for d in range(1 - length, length) if d == 0 or np.diagonal(some, d).any()} for some in nonzero]
    most = set.union(*used)
    return not case.structure.periodic and all(some == set(range(min(most), max(most) + 1)) for some in used)


def applied(case: Case, settings: Any, v: np.ndarray, adjoint: bool = False) -> np.ndarray:
    out = []
    is_complete = isinstance(settings, BlockILU) and has_no_gaps(case)
    for A, row in zip(case.systems, v.reshape(-1, v.shape[-1])):
        M = np.linalg.inv(A) if is_complete else inverse_of(settings, A, case.structure.block_size)
        out.append((M.conj().T if adjoint else M) @ row)
    return np.asarray(out).reshape(v.shape)


def check_against_the_definition(case: Case, settings: Any, xp: Any, seed: int, is_complex: bool) -> None:
    M, v = settings.build(case.matrix(xp)), vectors(case, seed, is_complex)
    assert isinstance(M, LinearOperator)
    assert M.batch_shape == case.blocks.shape[:-4]
    assert M.in_shape == M.out_shape == (case.blocks.shape[-4], case.structure.block_size)
    for product, adjoint in ((M.matvec, False), (M.rmatvec, True)):
        out, expected = product(xp.asarray(v)), applied(case, settings, v, adjoint)
        assert to_host(out).dtype == np.result_type(case.blocks.dtype, v.dtype)
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(to_host(out), expected, rtol=0, atol=tolerance(case.blocks) * scale)
        state = product(xp.asarray(v.reshape(*M.batch_shape, *M.in_shape)))
        np.testing.assert_array_equal(to_host(state).reshape(v.shape), to_host(out))


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@given(case=cases(), xp=LIBRARIES, seed=SEEDS, is_complex=st.booleans())
def test_products_are_those_of_the_definition(settings, case, xp, seed, is_complex):
    check_against_the_definition(case, settings, xp, seed, is_complex)


@pytest.mark.parametrize("settings", [BlockGaussSeidel(), BlockILU()], ids=repr)
@given(case=cases(widest=14), seed=SEEDS, is_complex=st.booleans())
def test_wide_bands_with_gaps(settings, case, seed, is_complex):
    check_against_the_definition(case, settings, np, seed, is_complex)


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@given(case=cases(dtypes=["float64", "complex128"]), seed=SEEDS)
def test_adjoint_identity(settings, case, seed):
    M = settings.build(case.matrix())
    v, w = vectors(case, seed, True), vectors(case, seed + 1, True)
    left, right = np.vecdot(w, M @ v), np.vecdot(M.rmatvec(w), v)
    np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9 * np.linalg.norm(v) * np.linalg.norm(w))


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@given(case=cases(batches=((3,), (2, 3))), xp=LIBRARIES, picks=st.lists(st.integers(0, 2), min_size=1), seed=SEEDS)
def test_take(settings, case, xp, picks, seed):
    M, v = settings.build(case.matrix(xp)), vectors(case, seed)
    flat = v.reshape(-1, v.shape[-1])
    part = M.take(np.asarray(picks))
    assert part.batch_shape == (len(picks),)
    for product, whole in ((part.matvec, M.matvec), (part.rmatvec, M.rmatvec)):
        expected = to_host(whole(xp.asarray(v))).reshape(flat.shape)[picks]
        np.testing.assert_allclose(to_host(product(xp.asarray(flat[picks]))), expected, rtol=1e-5, atol=1e-5)
    again = part.take(np.asarray([0])) @ xp.asarray(flat[picks[:1]])
    np.testing.assert_allclose(to_host(again), to_host(part @ xp.asarray(flat[picks]))[:1], rtol=1e-5, atol=1e-5)


def test_ilu_of_a_band_without_gaps_is_exact(xp, rng):
    blocks = rng.uniform(-1, 1, (2, 12, 5, 3, 3))
    blocks[:, :, 2] += 6 * np.eye(3)
    A = BlockBandedMatrix(xp.asarray(blocks), lower=2, upper=2)
    b = rng.standard_normal((2, 36))
    np.testing.assert_allclose(to_host(A @ (BlockILU().build(A) @ xp.asarray(b))), b, rtol=1e-12, atol=1e-12)


def test_a_sweep_in_the_direction_of_a_recurrence_is_exact(xp, rng):
    for bands, order in (((2, 0), "forward"), ((0, 2), "backward"), ((2, 0), "symmetric")):
        blocks = rng.uniform(-1, 1, (12, 3, 2, 2))
        blocks[:, bands[0]] += 4 * np.eye(2)
        A = BlockBandedMatrix(xp.asarray(blocks), lower=bands[0], upper=bands[1])
        b = rng.standard_normal(24)
        M = BlockGaussSeidel(order=order).build(A)
        np.testing.assert_allclose(to_host(A @ (M @ xp.asarray(b))), b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@pytest.mark.parametrize(
    ("k", "broken"), [(1, "zero"), (2, "zero"), (2, "rank 1"), (1, "row of A"), (2, "all of A"), (2, "nan"), (1, "inf")]
)
def test_products_stay_finite(rng, settings, k, broken):
    blocks = rng.uniform(-1, 1, (2, 6, 3, k, k))
    blocks[:, :, 1] += 4 * np.eye(k)
    if broken == "all of A":
        blocks[1] = 0
    elif broken == "row of A":
        blocks[1, 3] = 0
    else:
        blocks[1, 3, 1] = {"zero": 0.0, "rank 1": 1.0, "nan": np.nan, "inf": np.inf}[broken]
    A = BlockBandedMatrix(blocks, lower=1, upper=1)
    repeats = getattr(settings, "sweeps", 1) > 1 or (isinstance(settings, Neumann) and settings.order)
    if repeats and broken in ("nan", "inf"):
        return  # further terms multiply by A itself
    M = settings.build(A)
    for product in (M.matvec, M.rmatvec):
        assert np.isfinite(product(np.ones((2, 6 * k)))).all()


def test_singular_blocks_have_a_stand_in_and_others_their_inverses(xp):
    blocks = np.zeros((1, 3, 1, 2, 2))
    blocks[0, :, 0] = [[1, 2], [2, 4]], [[2, 0], [0, 4]], [[0, 0], [0, 0]]
    M = BlockJacobi().build(BlockBandedMatrix(xp.asarray(blocks), lower=0, upper=0))
    np.testing.assert_allclose(to_host(M.matvec(xp.ones((1, 6)))), [[1 / 6, 1 / 6, 1 / 2, 1 / 4, 1 / 6, 1 / 6]])


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_a_broken_system_does_not_reach_its_neighbours(rng, settings):
    blocks = rng.uniform(-1, 1, (3, 6, 3, 2, 2))
    blocks[:, :, 1] += 4 * np.eye(2)
    A, v = BlockBandedMatrix(blocks, lower=1, upper=1), rng.standard_normal((3, 12))
    M = settings.build(A)
    broken = v.copy()
    broken[1, 3] = np.nan
    for product in (M.matvec, M.rmatvec):
        out, expected = product(broken), product(v)
        np.testing.assert_array_equal(out[[0, 2]], expected[[0, 2]])
        assert np.isnan(out[1]).any()


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_the_input_is_not_changed(xp, rng, settings):
    blocks = rng.uniform(-1, 1, (2, 6, 3, 2, 2))
    blocks[:, 2, 0] = 0
    blocks[:, :, 1] += 4 * np.eye(2)
    given_blocks, v = xp.asarray(blocks, copy=True), rng.standard_normal((2, 12))
    given_vector = xp.asarray(v, copy=True)
    M = settings.build(BlockBandedMatrix(given_blocks, lower=1, upper=1))
    M.matvec(given_vector), M.rmatvec(given_vector)
    np.testing.assert_array_equal(to_host(given_blocks), blocks)
    np.testing.assert_array_equal(to_host(given_vector), v)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Neumann(order=-1), ValueError, ["Neumann", "order", "-1"]),
        (lambda: Neumann(order=2.0), TypeError, ["Neumann", "order", "float"]),
        (lambda: Neumann(scaled="no"), TypeError, ["Neumann", "scaled", "str"]),
        (lambda: BlockGaussSeidel(sweeps=0), ValueError, ["BlockGaussSeidel", "sweeps", "0"]),
        (lambda: BlockGaussSeidel(order="up"), ValueError, ["BlockGaussSeidel", "order", "up", "forward"]),
        *((lambda s=s: s.build(np.eye(3)), TypeError, [type(s).__name__, "A", "ndarray"]) for s in SETTINGS),
    ],
)
def test_a_wrong_argument_is_named(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def transport(length: int, k: int) -> BlockBandedMatrix:
    """Transport towards larger t, a little diffusion, and reactions between the k unknowns of a point."""
    blocks = np.zeros((length, 3, k, k))
    blocks[:, 0], blocks[:, 2] = -1.9 * np.eye(k), -0.1 * np.eye(k)
    blocks[:, 1] = 2.2 * np.eye(k) + 0.3 * np.random.default_rng(0).standard_normal((length, k, k))
    return BlockBandedMatrix(blocks, lower=1, upper=1)


def plane(n: int) -> BlockBandedMatrix:
    """Diffusion and a slanting wind on n x n points, numbered line by line: a band with five block diagonals in use."""
    blocks = np.zeros((n * n, 2 * n + 1, 1, 1))
    blocks[:, [0, n - 1, n, n + 1, 2 * n], 0, 0] = [-1.3, -1.5, 4.0, -0.5, -0.7]
    blocks[::n, n - 1] = blocks[n - 1 :: n, n + 1] = 0
    return BlockBandedMatrix(blocks, lower=n, upper=n)


# Products of GMRES(30), measured: without M 341 (transport) and 185 (plane), with M 5/6 of the limits.
@pytest.mark.parametrize(
    ("settings", "in_line", "in_plane"),
    [
        (BlockGaussSeidel(order="forward"), 20, 44),
        (BlockGaussSeidel(), 20, 31),
        (BlockGaussSeidel(sweeps=2), 13, 22),
        (Neumann(order=2), 136, 90),
        (BlockILU(), 2, 25),
    ],
    ids=repr,
)
def test_gmres_takes_fewer_products(settings, in_line, in_plane):
    stop = LinearStop(rtol=1e-8)
    for A, limit, least in ((transport(1000, 3), in_line, 300), (plane(32), in_plane, 150)):
        b = np.ones(A.in_shape)
        plain = linear_solve(A, b, method=GMRES(), stop=stop)
        result = linear_solve(A, b, method=GMRES(), M=settings.build(A), stop=stop)
        assert result.success
        assert result.matvecs <= limit
        assert plain.matvecs >= least
        # The adjoint system takes about as many, with the adjoint of the same M.
        turned = linear_solve(A.H, b, method=GMRES(), M=settings.build(A).H, stop=stop)
        assert turned.success
        assert turned.matvecs <= limit
