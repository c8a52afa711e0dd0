"""`pull_back` and `push_forward` with a declared structure, against dense algebra and differences of roots."""

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve import (
    BlockBanded,
    BlockLU,
    CyclicReduction,
    LinearStop,
    NonlinearStop,
    Problem,
    Status,
    precondition,
    pull_back,
    push_forward,
    root,
)
from tests.derivatives.chain import BATCHES, EXACT, LAYOUTS, SOLVED, SOURCES, Chain, check

every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout[0]}-{layout[1]}")


@every_layout
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_every_source_and_batch(layout, source, batch):
    family = Chain(*layout, batch)
    solution = family.solution()
    atol = 1e-8 if source in ("residual", "vjp", "jvp") else 1e-10
    check(family, family.problem(*SOURCES[source]), solution, atol)
    check(family, family.problem(*SOURCES[source]), solution.x, atol)


@pytest.mark.parametrize(
    "method", [BlockLU(), BlockLU(refine=1), CyclicReduction(), ims.GMRES(), ims.LGMRES()], ids=repr
)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_every_method(method, batch):
    family = Chain(*LAYOUTS[0], batch)
    check(family, family.problem(), family.solution(), 1e-5, method=method, stop=LinearStop(rtol=1e-7))


PRECONDITIONERS = [
    BlockLU(),
    CyclicReduction(),
    precondition.BlockJacobi(),
    precondition.BlockGaussSeidel(),
    precondition.BlockILU(),
]


@pytest.mark.parametrize("M", PRECONDITIONERS, ids=repr)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("source", ["residual", "blocks", "both products"])
def test_preconditioners_are_built_and_used_transposed(M, batch, source):
    family = Chain(*LAYOUTS[0], batch)
    problem, solution = family.problem(*SOURCES[source]), family.solution()
    back, forward = check(family, problem, solution, 1e-5, M=M, method=ims.GMRES(), stop=LinearStop(rtol=1e-7))
    if isinstance(M, BlockLU):
        for result in (back, forward):
            assert np.max(result.linear.iterations) <= 3


@pytest.mark.parametrize("names", [(), ("blocks",)], ids=["residual", "blocks"])
@pytest.mark.parametrize("method", ["block-newton", "auto", "newton-krylov"])
def test_gradients_are_those_of_the_solution_map(names, method):
    family = Chain(*LAYOUTS[0], (2,))

    def solve(**shifted):
        moved = Chain(*LAYOUTS[0], (2,), **(family.parameters | shifted))
        return root(moved.problem(*names), family.x0, method=method, stop=SOLVED).raise_for_status()

    solution, h = solve(), 1e-5
    back = pull_back(family.problem(*names), solution, family.cotangent)
    forward = push_forward(family.problem(*names), solution, family.tangents)
    for name, tangent in family.tangents.items():
        beyond, before = (solve(**{name: family.parameters[name] + s * h * tangent}).x for s in (1, -1))
        slope = (beyond - before) / (2 * h)
        assert np.sum(back.gradients[name] * tangent) == pytest.approx(np.sum(family.cotangent * slope), rel=1e-5)
        alone = push_forward(family.problem(*names), solution, {name: tangent})
        np.testing.assert_allclose(alone.tangent, slope, atol=1e-6)
    assert np.sum(family.cotangent * forward.tangent) == pytest.approx(
        sum(np.sum(back.gradients[name] * tangent) for name, tangent in family.tangents.items()), rel=1e-7
    )


def test_counts():
    family = Chain(BlockBanded(1, 1, 2), 6)
    solution = family.solution()
    back = pull_back(family.problem(), solution, family.cotangent)
    assert back.counts.residuals == 16  # 6 central differences, and 2 of another length that check them
    assert (back.counts.jvps, back.counts.vjps) == (0, 0)
    back = pull_back(family.problem(), solution.x, family.cotangent)
    assert back.counts.residuals == 17
    back = pull_back(family.problem("blocks"), solution, family.cotangent)
    assert (back.counts.residuals, back.counts.linearizations) == (2, 1)  # one difference checks the blocks
    back = pull_back(family.problem("jvp"), solution, family.cotangent)
    assert (back.counts.residuals, back.counts.jvps) == (2, 6)


def test_a_preconditioner_and_the_operator_share_one_assembly():
    family = Chain(BlockBanded(1, 1, 2), 6)
    solution = family.solution()
    for call, direction, checks in ((pull_back, family.cotangent, 4), (push_forward, family.tangents, 8)):
        result = call(family.problem(), solution, direction, M=BlockLU(), stop=EXACT)
        assert result.success
        assert result.counts.residuals == 12 + checks


def test_exact_adjoint_products_are_used_where_there_are_any():
    """J from differences is corrected by refinement with vjp, to the tolerance that was asked for."""
    family = Chain(*LAYOUTS[0])
    solution = family.solution()
    for M, method in ((None, None), (BlockLU(), ims.GMRES())):
        back = pull_back(
            family.problem("vjp"), solution, family.cotangent, M=M, method=method, stop=LinearStop(rtol=1e-13)
        )
        assert back.success
        assert back.counts.vjps > 0
        np.testing.assert_allclose(back.adjoint, family.expected(solution.x)[0], atol=1e-12)


@pytest.mark.parametrize("slope", [1.0, 1e6, 1e-6])
@pytest.mark.parametrize("start", ["result", "array"])
def test_a_solution_at_zero(slope, start):
    """No x tells how long differences may be: sin(slope x) must not be stepped over."""
    problem = Problem(
        lambda x: np.sin(slope * x),
        structure=BlockBanded(0, 0),
        parameters={"a": np.zeros(3)},
        parameter_vjp=lambda x, w: {"a": -w},
    )
    point = root(problem, np.zeros(3)) if start == "result" else np.zeros(3)
    back = pull_back(problem, point, np.ones(3))
    assert back.success
    np.testing.assert_allclose(back.gradients["a"] * slope, 1.0, rtol=1e-6)


def test_unknowns_of_different_size():
    units = np.asarray([1e-8, 1.0, 1e8])

    def F(x):
        y = x / units
        return np.sinh(y) + 0.3 * np.roll(y, 1, axis=-1) - 2

    problem = Problem(F, structure=BlockBanded(0, 0, 3))
    solution = root(problem, np.tile(units, (4, 1)), stop=SOLVED).raise_for_status()
    back = pull_back(problem, solution, np.ones((4, 3)))
    y = solution.x[0] / units
    J = (np.diag(np.cosh(y)) + 0.3 * np.roll(np.eye(3), 1, axis=0)) / units
    np.testing.assert_allclose(back.adjoint[0], np.linalg.solve(J.T, np.ones(3)), rtol=1e-5)


def test_gradients_at_no_solution_are_marked():
    family = Chain(*LAYOUTS[0])
    early = root(family.problem(), family.x0 + 3, stop=NonlinearStop(rtol=1e-13, max_iterations=1))
    assert not early.success
    for M in (None, BlockLU()):
        back = pull_back(family.problem(), early, family.cotangent, M=M)
        forward = push_forward(family.problem(), early, family.tangents, M=M)
        assert back.status is forward.status is Status.FORWARD_NOT_CONVERGED
        assert back.linear.status is Status.CONVERGED
        with pytest.raises(ims.NoConvergence):
            back.raise_for_status()


def test_a_singular_system_is_named_and_its_neighbours_are_right():
    slope = np.asarray([[2.0], [0.0], [3.0]])
    problem = Problem(
        lambda x: slope * x,
        structure=BlockBanded(1, 1),
        batch_ndim=1,
        blocks=lambda x: np.stack([0 * x, slope + 0 * x, 0 * x], -1)[..., None, None],
    )
    back = pull_back(problem, np.ones((3, 4)), np.ones((3, 4)))
    np.testing.assert_array_equal(back.status, [Status.CONVERGED, Status.SINGULAR, Status.CONVERGED])
    np.testing.assert_allclose(back.adjoint[[0, 2]], np.asarray([[0.5] * 4, [1 / 3] * 4]))


def test_arguments_that_do_not_fit():
    family = Chain(*LAYOUTS[0])
    solution, problem = family.solution(), family.problem()
    plain = Problem(family.residual, vjp=family.vjp)
    with pytest.raises(ValueError, match="`structure`"):
        pull_back(plain, solution, family.cotangent, method=BlockLU())
    with pytest.raises(ValueError, match="`structure`"):
        pull_back(plain, solution, family.cotangent, M=BlockLU())
    with pytest.raises(TypeError, match="`vjp`, `jac`, `structure`"):
        pull_back(Problem(family.residual), solution, family.cotangent)
    with pytest.raises(ValueError, match="`cotangent` must have the shape of x"):
        pull_back(problem, solution, family.cotangent[:2])
    with pytest.raises(TypeError, match="`cotangent` must be real"):
        pull_back(problem, solution, 1j * family.cotangent)


def test_a_direct_method_refuses_what_it_would_not_use():
    """As `linear_solve` does: a start or a preconditioner beside a direct method is a mistake."""
    family = Chain(*LAYOUTS[0])
    solution, problem = family.solution(), family.problem()
    with pytest.raises(ValueError, match="`M`"):
        pull_back(problem, solution, family.cotangent, method=BlockLU(), M=BlockLU())
    with pytest.raises(ValueError, match="`x0`"):
        pull_back(problem, solution, family.cotangent, method=BlockLU(), x0=family.cotangent)


@every_layout
@pytest.mark.parametrize("names", [(), ("jvp",), ("blocks",)], ids=["residual", "jvp", "blocks"])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_the_jacobian_on_its_own(layout, names, batch):
    family = Chain(*layout, batch)
    x = family.cotangent
    J = ims.jacobian(family.problem(*names), x)
    assert J.batch_shape == batch
    assert J.structure == layout[0]
    np.testing.assert_allclose(J.todense(), family.dense(x), atol=1e-12 if names else 1e-8)


def test_the_jacobian_without_a_structure_is_dense():
    rng = np.random.default_rng(0)
    dense, x = rng.standard_normal((3, 3)), rng.standard_normal(3)
    exact = dense + np.diag(2 * x)
    problem = Problem(lambda x: dense @ x + x**2, jvp=lambda x, v: dense @ v + 2 * x * v)
    for given in (problem, problem.residual):
        np.testing.assert_allclose(ims.jacobian(given, x).todense(), exact, atol=1e-8)
    with pytest.raises(TypeError, match="must be callable, got int"):
        ims.jacobian(3, x)
