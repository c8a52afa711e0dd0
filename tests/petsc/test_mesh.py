"""Problems on a grid whose points PETSc partitions, on one rank."""

import itertools

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.petsc import Mesh, PETScLU, PETScPreconditioner, PETScSNES
from tests.petsc.systems import line

pytest.importorskip("petsc4py.PETSc", reason="petsc4py is not installed")
pytestmark = pytest.mark.petsc
CASES = [
    {"shape": (9,), "fields": 2, "width": 2},
    {"shape": (9,), "periodic": True},
    {"shape": (5, 7), "fields": 2},
    {"shape": (5, 7), "fields": 2, "box": True, "periodic": (True, False)},
    {"shape": (7, 6), "width": 2, "periodic": True},
    {"shape": (4, 3, 5), "fields": 2, "periodic": (False, True, False)},
]


def offsets_of(mesh):
    box = itertools.product(range(-mesh.width, mesh.width + 1), repeat=len(mesh.patch.shape))
    return ims.Grid(
        shape=mesh.patch.seen_shape, stencil=list(box) if mesh.box else mesh.width, fields=mesh.fields
    ).offsets


def coupled(mesh):
    """A residual that takes everything its stencil allows, with weights that tell the places apart."""
    offsets = offsets_of(mesh)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((len(offsets), mesh.fields, mesh.fields))

    def linear(patch, x):
        reach = mesh.width
        pads = [(reach - b, reach - a) for b, a in zip(patch.before, patch.after)]
        x = np.pad(x, [*pads, (0, 0)])
        total = 0.0
        for weight, offset in zip(weights, offsets):
            part = x[tuple(slice(reach + d, reach + d + n) for d, n in zip(offset, patch.own_shape))]
            total = total + part @ weight
        return total + 8 * len(offsets) * x[tuple(slice(reach, reach + n) for n in patch.own_shape)]

    def residual(patch, x):
        return linear(patch, x) + np.sin(x[patch.own]) - 1.0

    def jvp(patch, x, v):
        return linear(patch, v) + np.cos(x[patch.own]) * v[patch.own]

    return residual, jvp


def times(J, v, transposed=False):
    """Product of a PETSc matrix with a state."""
    x, y = J.createVecs()
    x.setArray(v.reshape(-1))
    (J.multTranspose if transposed else J.mult)(x, y)
    return y.getArray().copy().reshape(v.shape)


@pytest.mark.parametrize("case", CASES)
def test_the_assembled_jacobian_is_that_of_the_residual(case):
    mesh = Mesh(**case)
    residual, jvp = coupled(mesh)
    rng = np.random.default_rng(1)
    x, v, w = rng.standard_normal((3, *mesh.state_shape))
    rough, by_jvp = mesh.problem(residual), mesh.problem(residual, jvp=jvp)
    shared = mesh.problem(residual, linearize=lambda patch, x: (residual(patch, x), lambda v: jvp(patch, x, v)))
    h = 1e-6
    expected = (rough.residual(x + h * v) - rough.residual(x - h * v)) / (2 * h)
    J = by_jvp.jacobian(x)
    np.testing.assert_allclose(times(J, v), expected, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(times(shared.jacobian(x), v), times(J, v), rtol=1e-13)
    np.testing.assert_allclose(times(rough.jacobian(x), v), expected, rtol=1e-2, atol=1e-2)
    assert np.vdot(times(J, w, transposed=True), v) == pytest.approx(np.vdot(w, times(J, v)))
    assert mesh.colors == len(offsets_of(mesh)) * mesh.fields or case["width"] == 2


def test_states_go_in_and_out():
    mesh = Mesh((3, 4), fields=2)
    whole = np.arange(24.0).reshape(3, 4, 2)
    state = mesh.split(whole)
    np.testing.assert_array_equal(mesh.gathered(state), whole)
    np.testing.assert_array_equal(mesh.with_halo(state), whole)
    np.testing.assert_array_equal(mesh.total(state), whole)
    assert not np.shares_memory(state, whole)
    assert mesh.zeros().shape == mesh.state_shape == (3, 4, 2)


def test_halos_of_a_torus():
    mesh = Mesh((3, 4), periodic=True, box=True)
    whole = np.arange(12.0).reshape(3, 4, 1)
    np.testing.assert_array_equal(mesh.with_halo(whole)[..., 0], np.pad(whole[..., 0], 1, mode="wrap"))


@pytest.mark.parametrize("norm", ["max", "2"])
@pytest.mark.parametrize("options", [{}, {"snes_linesearch_type": "basic", "ksp_rtol": 1e-10}])
def test_the_root_is_that_of_one_process(options, norm):
    def residual(u):
        p = np.pad(u, 1)
        return p[2:] - 2 * u + p[:-2] + 3 * np.exp(u) / 201**2

    stop = ims.NonlinearStop(rtol=1e-11, norm=norm)
    expected = ims.root(ims.Problem(residual, structure=ims.BlockBanded(1, 1)), np.zeros(200), stop=stop).x
    mesh, problem = line()
    result = problem.root(mesh.zeros(), method=PETScSNES(options), stop=stop).raise_for_status()
    np.testing.assert_allclose(result.x[:, 0], expected, rtol=1e-8)
    np.testing.assert_array_equal(result.fun, problem.residual(result.x))
    measured = np.max(np.abs(result.fun)) if norm == "max" else np.linalg.norm(result.fun)
    assert result.residual_norm == pytest.approx(measured)
    assert result.residual_norm <= result.target == 1e-11 * result.initial_norm
    assert [step.iteration for step in result.steps] == list(range(result.iterations + 1))
    assert sum(int(step.krylov_iterations.sum()) for step in result.steps) == result.krylov_iterations > 0
    assert result.counts.linearizations == result.iterations
    assert "CONVERGED" in result.summary()


def test_the_error_of_x_decides_by_default():
    mesh, problem = line()
    exact = problem.root(mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-13)).x
    result = problem.root(mesh.zeros()).raise_for_status()
    assert np.abs(result.x - exact).max() <= 10 * result.error * np.abs(exact).max() + 1e-11
    assert result.error <= 2e-8
    assert result.residual_norm <= result.target
    assert problem.root(result.x).raise_for_status().iterations <= 2


def test_a_start_at_the_root_needs_no_jacobian():
    mesh, problem = line()
    first = problem.root(mesh.zeros())
    stop = ims.NonlinearStop(atol=2 * first.residual_norm)
    again = problem.root(first.x, method=PETScSNES({"pc_factor_shift_type": "nonzero"}), stop=stop)
    assert again.success
    assert again.counts.linearizations == again.iterations == 0
    np.testing.assert_array_equal(again.x, first.x)


@pytest.mark.parametrize(
    ("residual", "start", "expected"),
    [
        (lambda patch, x: x[patch.own] ** 2 + 1, 3.0, {"LINE_SEARCH_FAILED", "STAGNATED", "SINGULAR"}),
        (lambda patch, x: x[patch.own] * np.nan, 1.0, {"NONFINITE"}),
        (lambda patch, x: 0 * x[patch.own] + 1, 1.0, {"SINGULAR", "LINEAR_SOLVE_FAILED", "LINE_SEARCH_FAILED"}),
    ],
)
def test_a_failure_is_a_status_and_never_converged(residual, start, expected):
    mesh = Mesh((6,))
    with np.errstate(all="ignore"):
        result = mesh.problem(residual).root(np.full((6, 1), start))
    assert result.status.name in expected
    assert not result.success


def test_the_limit_of_steps():
    mesh, problem = line()
    result = problem.root(mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-12, max_iterations=1))
    assert result.status is ims.Status.ITERATION_LIMIT
    assert result.iterations == 1
    with pytest.raises(ims.NoConvergence):
        result.raise_for_status()


@pytest.mark.parametrize("inverse", [PETScPreconditioner(), PETScLU()])
def test_derivatives(inverse):
    mesh = Mesh((12, 10))
    base, jvp = coupled(mesh)
    a = np.asarray([0.5])
    problem = mesh.problem(
        lambda patch, x: base(patch, x) - a[0] * x[patch.own] ** 2,
        jvp=lambda patch, x, v: jvp(patch, x, v) - 2 * a[0] * x[patch.own] * v[patch.own],
        inverse=inverse,
        parameters={"a": a},
        parameter_vjp=lambda patch, x, w: {"a": -np.sum(w * x[patch.own] ** 2).reshape(1)},
        parameter_jvp=lambda patch, x, t: -t["a"][0] * x[patch.own] ** 2,
    )
    result = problem.root(mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-13)).raise_for_status()
    stop = ims.LinearStop(rtol=1e-12)
    adjoint = problem.pull_back(result, np.ones((12, 10, 1)), stop=stop).raise_for_status()
    tangent = problem.push_forward(result, {"a": np.ones(1)}, stop=stop).raise_for_status()
    assert adjoint.gradients["a"][0] == pytest.approx(tangent.tangent.sum(), rel=1e-9)
    a[0] += 1e-6
    moved = problem.root(mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-13)).x
    a[0] -= 1e-6
    assert adjoint.gradients["a"][0] == pytest.approx((moved - result.x).sum() / 1e-6, rel=1e-4)


def test_derivatives_at_what_is_no_root_say_so():
    mesh, problem = line()
    unsolved = problem.root(mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-12, max_iterations=0))
    adjoint = problem.pull_back(unsolved, mesh.zeros() + 1)
    assert adjoint.status is ims.Status.FORWARD_NOT_CONVERGED
    assert problem.pull_back(unsolved.x, mesh.zeros() + 1).success
    few = ims.LinearStop(rtol=1e-12, max_iterations=1)
    loose = line(inverse=PETScPreconditioner(type="jacobi"))[1]
    assert loose.pull_back(unsolved.x, mesh.zeros() + 1, stop=few).status is ims.Status.ITERATION_LIMIT


def test_an_exception_of_the_residual_passes_unchanged():
    def residual(patch, x):
        raise LookupError("no data here")

    with pytest.raises(LookupError, match="no data here"):
        Mesh((4,)).problem(residual).root(np.zeros((4, 1)))


def test_mistakes_raise():
    mesh = Mesh((4, 4))
    with pytest.raises(ValueError, match="one, two or three axes"):
        Mesh((2, 2, 2, 2))
    with pytest.raises(ValueError, match="`periodic` must be one for each axis"):
        Mesh((4, 4), periodic=(True,))
    with pytest.raises(TypeError, match="`residual` must be callable"):
        mesh.problem(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`inverse` must be"):
        mesh.problem(lambda patch, x: x, inverse=ims.BlockLU())
    with pytest.raises(ValueError, match=r"needs a state of shape \(4, 4, 1\)"):
        mesh.problem(lambda patch, x: x).root(np.zeros((4, 4)))
    with pytest.raises(ValueError, match=r"`residual` must return an array of shape \(4, 4, 1\)"):
        mesh.problem(lambda patch, x: x[..., 0]).residual(mesh.zeros())
    problem = mesh.problem(lambda patch, x: x[patch.own] - 1, parameters={"a": 1.0})
    for limit in ({"max_evaluations": 3}, {"max_seconds": 1.0}, {"norm": np.linalg.norm}):
        with pytest.raises(ValueError, match="`stop` may have atol, rtol"):
            problem.root(mesh.zeros(), stop=ims.NonlinearStop(**limit))
    with pytest.raises(ValueError, match="PETSc does not use here: ksp_kind"):
        problem.root(mesh.zeros(), method=PETScSNES({"ksp_kind": "cg"}))
    with pytest.raises(TypeError, match="no `parameter_vjp`"):
        problem.pull_back(mesh.zeros(), mesh.zeros())
    with pytest.raises(TypeError, match="no `parameter_jvp`"):
        problem.push_forward(mesh.zeros(), {})
