"""Problem: what is needed, what is checked, what it is."""

import dataclasses

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import BlockBanded, Problem
from implicitsolve.structure import Grid, Sparse

FUNCTIONS = ["jvp", "vjp", "jac", "linearize", "blocks", "parameter_jvp", "parameter_vjp", "take", "initial_guess"]


def residual(x):
    return x**2 - 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_other_function_must_be_callable_or_none(name):
    structure = BlockBanded(0, 0)  # which `blocks` needs
    Problem(residual, **{name: None})
    Problem(residual, structure=structure, **{name: residual})
    with pytest.raises(TypeError, match=rf"Problem: `{name}` must be callable or None, got ndarray"):
        Problem(residual, structure=structure, **{name: np.eye(2)})


def test_a_structure_as_a_string_is_detect_or_none():
    with pytest.raises(ValueError, match='must be "detect" or "none", got \'banded\''):
        Problem(residual, structure="banded")  # type: ignore[arg-type]
    assert Problem(residual, structure="none").structure == "none"


@pytest.mark.parametrize("structure", [Sparse(np.eye(4)), Grid(shape=(2, 2)), "detect", "none", None], ids=repr)
def test_only_a_band_is_a_block_structure(structure):
    problem = Problem(residual, structure=structure)
    assert problem.block_structure is None
    assert problem.sparse_structure is (structure if isinstance(structure, Sparse | Grid) else None)
    with pytest.raises(ValueError, match="`structure` as BlockBanded, got"):
        ims.root(problem, np.ones(4), method="block-newton")
    with pytest.raises(ValueError, match="`blocks` needs `structure`, a BlockBanded"):
        Problem(residual, blocks=residual, structure=structure)


@pytest.mark.parametrize("structure", [Sparse(np.eye(4)), Grid(shape=4)], ids=repr)
def test_a_sparse_structure_must_fit_the_start(structure):
    with pytest.raises(ValueError, match="4 unknowns, but a system has 5"):
        ims.root(Problem(residual, structure=structure), np.ones(5), method="newton-krylov")


def test_blocks_need_a_structure():
    with pytest.raises(ValueError, match="Problem: `blocks` needs `structure`"):
        Problem(residual, blocks=residual)
    assert Problem(residual, blocks=residual, structure=BlockBanded(0, 0)).blocks is residual


def test_a_structure_must_fit_the_start():
    problem = Problem(residual, structure=BlockBanded(1, 1, 2))
    for method in ("auto", "block-newton", "newton-krylov"):
        with pytest.raises(ValueError, match="multiple of `block_size` = 2, got 3"):
            ims.root(problem, np.ones(3), method=method)
    circle = Problem(residual, structure=BlockBanded(1, 1, periodic=True))
    with pytest.raises(ValueError, match=r"at least lower \+ upper \+ 1 = 3 blocks, got 2"):
        ims.root(circle, np.ones(2))


def test_a_structure_alone_changes_no_root():
    plain = ims.root(Problem(residual), np.ones(4), stop=ims.NonlinearStop(rtol=1e-12)).x
    for structure in (BlockBanded(0, 0), BlockBanded(1, 2, 2), BlockBanded(0, 0, 4), BlockBanded(1, 1, periodic=True)):
        x = ims.root(Problem(residual, structure=structure), np.ones(4), stop=ims.NonlinearStop(rtol=1e-12)).x
        np.testing.assert_allclose(x, plain, rtol=1e-10)


def test_repr_does_not_print_the_parameters():
    problem = Problem(residual, parameters={"W": np.ones((100, 100))}, name="squares")
    assert "squares" in repr(problem)
    assert len(repr(problem)) < 1000


def test_the_start_of_the_problem_is_the_default():
    asked = []
    problem = Problem(residual, initial_guess=lambda kind, rng: (asked.append((kind, rng)), np.ones(2))[1])
    assert ims.root(problem).x == pytest.approx([2**0.5] * 2)
    assert asked == [("default", None)]


def test_blocks_are_exact_and_cost_one_product_unless_declared_otherwise():
    problem = Problem(residual, blocks=lambda x: x, structure=BlockBanded(0, 0))
    assert (problem.has_exact_blocks, problem.blocks_cost) == (True, 1)
    assert not dataclasses.replace(problem, blocks_exact=False).has_exact_blocks
    assert not Problem(residual).has_exact_blocks
