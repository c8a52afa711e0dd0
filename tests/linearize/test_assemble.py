"""Assembly of J in a declared structure: the right matrix from every source, and what it costs."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import BlockBanded, BlockBandedMatrix, Problem
from implicitsolve.linearize._assemble import Assembler
from implicitsolve.linearize._evaluator import Evaluator
from implicitsolve.problem import LARGEST_BLOCK
from implicitsolve.structure._block_banded import coloring
from tests.linearize.coupled import SOURCES, Coupled, assembled, assembler, layouts


@pytest.mark.parametrize("source", SOURCES)
@given(layout=layouts(), batch=st.sampled_from([(), (1,), (3,), (2, 2)]))
def test_every_source_gives_the_dense_jacobian(source, layout, batch):
    family = Coupled(*layout, batch=batch)
    problem = family.problem(**SOURCES[source](family))
    J, _ = assembled(problem, family.x)
    expected = family.expected().reshape(J.shape)
    np.testing.assert_allclose(J, expected, atol=5e-4 if source == "differences" else 1e-13)
    if source == "differences":
        np.testing.assert_allclose(assembled(problem, family.x, central=True)[0], expected, atol=1e-8)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("periodic", "dtype"), [(True, "float32"), (False, "complex64"), (True, "complex128")])
def test_every_library_and_dtype(source, periodic, xp, dtype):
    family = Coupled(BlockBanded(1, 2, 2, periodic=periodic), 5, (2,), xp=xp, dtype=dtype)
    J, _ = assembled(family.problem(**SOURCES[source](family)), family.x)
    assert str(J.dtype) == dtype
    single = dtype in ("float32", "complex64")
    atol = (0.1 if single else 1e-3) if source == "differences" else (1e-5 if single else 1e-13)
    np.testing.assert_allclose(J, family.expected(), atol=atol)


@pytest.mark.parametrize("kind", ["csr_array", "csc_array", "bsr_array", "coo_array", "csr_matrix"])
@pytest.mark.parametrize("periodic", [False, True])
def test_sparse_matrices_of_one_system(kind, periodic):
    family = Coupled(BlockBanded(1, 1, 2, periodic=periodic), 5)
    problem = family.problem(jac=lambda x: getattr(scipy.sparse, kind)(family.dense(x)))
    J, used = assembled(problem, family.x)
    np.testing.assert_allclose(J[0], family.expected(), atol=1e-14)
    assert (used.residuals, used.jvps, used.linearizations) == (0, 0, 1)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("periodic", [False, True])
def test_some_systems_of_a_batch_are_those_of_the_whole(source, periodic):
    family = Coupled(BlockBanded(1, 1, 2, periodic=periodic), 5, (4,))
    problem = family.problem(**SOURCES[source](family))
    whole, _ = assembled(problem, family.x)
    rows = np.asarray([3, 1])
    part, _ = assembled(problem, family.x, rows=rows)
    np.testing.assert_array_equal(part, whole[rows])


@given(layout=layouts(periodic=False), central=st.booleans())
def test_differences_cost_k_times_the_colors(layout, central):
    structure, length = layout
    family = Coupled(structure, length)
    _, used = assembled(family.problem(), family.x, central=central)
    products = structure.block_size * min(structure.width, length)
    assert used.residuals == products * (2 if central else 1)
    assert (used.jvps, used.linearizations) == (0, 1)
    _, used = assembled(family.problem(jvp=family.jvp), family.x)
    assert (used.residuals, used.jvps) == (0, products)


def test_a_matrix_costs_one_linearization():
    family = Coupled(BlockBanded(1, 1, 2), 5)
    for source in ("blocks", "dense", "matrix"):
        _, used = assembled(family.problem(**SOURCES[source](family)), family.x)
        assert (used.residuals, used.jvps, used.linearizations) == (0, 0, 1)


def test_blocks_are_preferred_and_then_the_matrix_and_then_products():
    family = Coupled(BlockBanded(1, 1, 2), 5)

    def unused(*_):
        raise AssertionError("must not be called")

    for source, others in (("blocks", ("linearize", "jac", "jvp")), ("dense", ("jvp",)), ("linearize dense", ("jac",))):
        problem = family.problem(**SOURCES[source](family), **dict.fromkeys(others, unused))
        np.testing.assert_allclose(assembled(problem, family.x)[0][0], family.expected(), atol=1e-14)


@given(layout=layouts())
def test_a_color_meets_every_row_at_most_once(layout):
    structure, length = layout
    colors = coloring(structure, length)
    covered = []
    for color in colors:
        columns = np.arange(length)[color]
        covered.extend(columns.tolist())
        rows = columns[:, None] - np.arange(structure.width) + structure.lower
        rows = (rows % length if structure.periodic else rows[(rows >= 0) & (rows < length)]).ravel()
        assert rows.size == np.unique(rows).size
    assert sorted(covered) == list(range(length))


def test_entries_outside_the_matrix_are_ignored():
    family = Coupled(BlockBanded(2, 3, 2), 3)

    def blocks(x):
        inside = family.matrix(x).blocks.copy()
        for t in range(3):
            for j in range(6):
                if not 0 <= t + j - 2 < 3:
                    inside[t, j] = np.nan
        return inside

    np.testing.assert_allclose(assembled(family.problem(blocks=blocks), family.x)[0][0], family.expected())


def test_unknowns_of_different_size_have_their_own_step():
    units = np.asarray([1e-8, 1.0, 1e8])

    def F(x):
        y = x / units
        return (np.sin(y) + 0.1 * y[..., ::-1] ** 2) * units

    x = np.tile(units, (4, 1)) * np.linspace(0.5, 1.5, 4)[:, None]
    J, used = assembled(Problem(F, structure=BlockBanded(0, 0, 3)), x)
    assert used.residuals == 3
    exact, _ = assembled(Problem(F, structure=BlockBanded(0, 0, 3)), x, central=True)
    scaled = J[0] * np.tile(units, 4)[None, :] / np.tile(units, 4)[:, None]
    y = x / units
    expected = np.zeros((12, 12))
    for t in range(4):
        expected[3 * t : 3 * t + 3, 3 * t : 3 * t + 3] = np.diag(np.cos(y[t])) + 0.2 * np.fliplr(np.diag(y[t][::-1]))
    np.testing.assert_allclose(scaled, expected, atol=1e-3)
    scaled = exact[0] * np.tile(units, 4)[None, :] / np.tile(units, 4)[:, None]
    np.testing.assert_allclose(scaled, expected, atol=1e-7)


def test_an_unknown_that_f_does_not_feel_has_a_zero_column():
    def F(x):
        return np.stack([x[..., 0] ** 2 - 2, x[..., 0]], axis=-1)

    structure = BlockBanded(1, 1, 2)
    x = np.full((6, 2), 1.5)
    J, used = assembled(Problem(F, structure=structure), x)
    np.testing.assert_array_equal(J[0][:, 1::2], 0.0)
    np.testing.assert_allclose(np.diag(J[0])[::2], 3.0, rtol=1e-3)
    assert used.residuals < 40


def test_a_first_step_that_overflows_is_shortened():
    """exp(1e4 x) at x = 0: a step of 1.2e-4 times 1 would be far too long for exp(1e9 x)."""

    def F(x):
        with np.errstate(over="ignore"):
            return np.exp(1e9 * x) - 2

    evaluator = Evaluator(Problem(F, structure=BlockBanded(0, 0)), np.zeros(3))
    assembler, flat = Assembler(evaluator), np.zeros((1, 3))
    for _ in range(3):
        J = assembler.assemble(evaluator, flat, evaluator.residual(flat))
        assert np.isfinite(J.blocks).all()
        if not assembler.check(evaluator.rows, ims.BlockLU().factor(J).matvec(F(flat))).any():
            break  # else the steps are still longer than x is: the Newton step tells
    np.testing.assert_allclose(np.diag(J.todense()[0]), 1e9, rtol=1e-2)


def test_a_residual_that_is_not_finite_everywhere_beyond_x():
    """A forward difference leaves the domain of the root; J is wanted all the same."""

    def F(x):
        with np.errstate(invalid="ignore"):
            return np.sqrt(1 - x)

    evaluator = Evaluator(Problem(F, structure=BlockBanded(0, 0)), np.full(3, 0.5))
    assembler = Assembler(evaluator)
    for x in (0.5, 1 - 1e-6):
        flat = np.full((1, 3), x)
        J = assembler.assemble(evaluator, flat, evaluator.residual(flat))
        assert np.isfinite(J.blocks).all()
        assert (np.diag(J.todense()[0]) < 0).all()


class Hostile:
    """Returns one buffer for every call, and ruins its argument."""

    def __init__(self, function, shape):
        self.function, self.out = function, np.empty(shape)

    def __call__(self, *arguments):
        self.out[...] = self.function(*arguments)
        for argument in arguments:
            argument[...] = np.nan
        return self.out


@pytest.mark.parametrize("source", ["differences", "central", "jvp", "blocks", "dense"])
@pytest.mark.parametrize("rows", [None, [1, 2]])
def test_functions_that_keep_a_buffer_and_ruin_their_argument(source, rows):
    family = Coupled(BlockBanded(1, 1, 2), 5, (3,))
    shape = family.x.shape
    functions = {
        "jvp": {"jvp": Hostile(family.jvp, shape)},
        "blocks": {"blocks": Hostile(lambda x: family.matrix(x).blocks, family.host_blocks.shape)},
        "dense": {"jac": Hostile(family.dense, family.host_A.shape)},
    }.get(source, {})
    problem = Problem(Hostile(family.residual, shape), structure=family.structure, batch_ndim=1, **functions)
    x = family.x.copy()
    x.setflags(write=False)
    rows = None if rows is None else np.asarray(rows)
    J, _ = assembled(problem, x, rows=rows, central=source == "central")
    expected = family.expected() if rows is None else family.expected()[rows]
    np.testing.assert_allclose(J, expected, atol=1e-3)
    np.testing.assert_array_equal(x, family.host_x)


def test_the_user_s_matrix_is_not_overwritten():
    """One matrix, returned again and again: factorizing it must leave it as it is."""
    rng = np.random.default_rng(0)
    blocks = rng.normal(size=(6, 3, 2, 2)) + 8 * np.eye(2)
    kept = BlockBandedMatrix(blocks, lower=1, upper=1)
    saved, b = blocks.copy(), rng.normal(size=(6, 2))

    def F(x):
        return kept @ x - b + 0.1 * x**3

    for functions in ({"jac": lambda x: kept}, {"blocks": lambda x: blocks}, {"linearize": lambda x: (F(x), kept)}):
        for pivoting in ("block", "auto"):
            method = ims.BlockNewton(factor=ims.BlockLU(pivoting=pivoting))
            problem = Problem(F, structure=BlockBanded(1, 1, 2), **functions)
            assert ims.root(problem, np.ones((6, 2)), method=method).success
            np.testing.assert_array_equal(blocks, saved)


B = 3
EYE = np.stack([np.eye(4)] * B)
WRONG = {
    "no batch": (np.eye(4), ValueError),
    "another batch": (np.stack([np.eye(4)] * 2), ValueError),
    "another size": (np.stack([np.eye(3)] * B), ValueError),
    "twice the batch": (np.stack([np.eye(4)] * 6), ValueError),
    "complex": (1j * EYE, TypeError),
    "outside the structure": (np.ones((B, 4, 4)), ValueError),
    "None": (None, TypeError),
    "matrix of another length": (BlockBandedMatrix(np.ones((B, 3, 1, 1, 1)), lower=0, upper=0), ValueError),
    "matrix of another batch": (BlockBandedMatrix(np.ones((2, 4, 1, 1, 1)), lower=0, upper=0), ValueError),
    "matrix of another structure": (BlockBandedMatrix(np.ones((B, 4, 3, 1, 1)), lower=1, upper=1), ValueError),
    "complex matrix": (BlockBandedMatrix(1j * np.ones((B, 4, 1, 1, 1)), lower=0, upper=0), TypeError),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_jacobian_that_does_not_fit(kind):
    J, error = WRONG[kind]
    problem = Problem(lambda x: x**2 - 2, jac=lambda x: J, structure=BlockBanded(0, 0), batch_ndim=1)
    with pytest.raises(error) as caught:
        ims.root(problem, np.ones((B, 4)), method="block-newton")
    assert "matvec" not in str(caught.value)


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        (None, TypeError),
        (np.ones((4, 1, 1, 1)), ValueError),
        (np.ones((B, 4, 1, 1)), ValueError),
        (1j * np.ones((B, 4, 1, 1, 1)), TypeError),
        (np.full((B, 4, 1, 1, 1), "x"), TypeError),
    ],
    ids=["None", "no batch", "too few axes", "complex", "words"],
)
def test_blocks_that_do_not_fit(blocks, error):
    problem = Problem(lambda x: x**2 - 2, blocks=lambda x: blocks, structure=BlockBanded(0, 0), batch_ndim=1)
    with pytest.raises(error, match="`blocks`"):
        ims.root(problem, np.ones((B, 4)), method="block-newton")


def test_cost_and_preference():
    assert assembler(BlockBanded(1, 1, 2), 10).cost == 6
    assert assembler(BlockBanded(1, 1, 2), 2).cost == 4
    assert assembler(BlockBanded(1, 1, 2, periodic=True), 5).cost == 10
    assert assembler(BlockBanded(1, 1, 2), 10, blocks=lambda x: x).cost == 1
    k = LARGEST_BLOCK // 3
    assert assembler(BlockBanded(1, 1, k), 10).favors_direct
    assert not assembler(BlockBanded(1, 1, k + 1), 10).favors_direct
    assert assembler(BlockBanded(1, 1, 64), 10, blocks=lambda x: x).favors_direct
    assert not assembler(BlockBanded(1, 1, 65), 10, blocks=lambda x: x).favors_direct


def test_estimated_blocks_serve_direct_solves_and_products_are_differences():
    calls = []
    problem = Problem(
        lambda x: x**2 - 2,
        blocks=lambda x: calls.append(1) or 2 * x[:, None, None, None],
        blocks_exact=False,
        structure=BlockBanded(0, 0),
    )
    assert not problem.has_exact_blocks
    assert ims.root(problem, np.ones(4), method="block-newton").success
    assert calls
    calls.clear()
    result = ims.root(problem, np.ones(4), method="newton-krylov")
    assert (result.success, len(calls), result.counts.jvps) == (True, 0, 0)
    adjoint = ims.pull_back(problem, result, np.ones(4))
    np.testing.assert_allclose(adjoint.adjoint, 0.5 / 2**0.5, rtol=1e-6)
    assert len(calls) == 1
