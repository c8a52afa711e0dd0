"""Problems on a grid whose points PETSc partitions, on one rank."""

from __future__ import annotations

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.distributed import Serial
from implicitsolve.petsc import Mesh, PETScLU, PETScPreconditioner

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


def coupled(mesh):
    """A residual that takes everything its stencil allows, with weights that tell the places apart."""
    offsets = mesh._grid().offsets
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


@pytest.mark.parametrize("case", CASES)
def test_the_assembled_jacobian_is_that_of_the_residual(case):
    mesh = Mesh(Serial(), **case)
    residual, jvp = coupled(mesh)
    rng = np.random.default_rng(1)
    shape = (*mesh.patch.shape, mesh.fields)
    x, v, w = (mesh.split(rng.standard_normal(shape)) for _ in range(3))
    exact, rough = mesh.problem(residual, jvp=jvp).jac(x), mesh.problem(residual).jac(x)
    h = 1e-6
    F = mesh.problem(residual).residual
    expected = (F(x + h * v).local - F(x - h * v).local) / (2 * h)
    np.testing.assert_allclose(exact.matvec(v).local, expected, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(rough.matvec(v).local, expected, rtol=1e-2, atol=1e-2)
    assert exact.rmatvec(w).local @ v.local == pytest.approx(w.local @ exact.matvec(v).local)
    assert mesh.colors == len(mesh._grid().offsets) * mesh.fields or case["width"] == 2


def test_states_go_in_and_out():
    mesh = Mesh(Serial(), (3, 4), fields=2)
    whole = np.arange(24.0).reshape(3, 4, 2)
    np.testing.assert_array_equal(mesh.gathered(mesh.split(whole)), whole)
    np.testing.assert_array_equal(mesh.local(mesh.split(whole)), whole)


@pytest.mark.parametrize("inverse", [PETScPreconditioner(), PETScLU()])
def test_derivatives(inverse):
    mesh = Mesh(Serial(), (12, 10))
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
    result = ims.root(problem, mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-13)).raise_for_status()
    stop = ims.LinearStop(rtol=1e-12)
    adjoint = ims.pull_back(problem, result, mesh.split(np.ones((12, 10, 1))), stop=stop)
    tangent = ims.push_forward(problem, result, {"a": np.ones(1)}, stop=stop)
    assert adjoint.success
    assert tangent.success
    assert adjoint.gradients["a"][0] == pytest.approx(tangent.tangent.local.sum(), rel=1e-9)
    a[0] += 1e-6
    moved = ims.root(problem, mesh.zeros(), stop=ims.NonlinearStop(rtol=1e-13)).x
    a[0] -= 1e-6
    assert adjoint.gradients["a"][0] == pytest.approx((moved - result.x).local.sum() / 1e-6, rel=1e-4)


def test_mistakes_raise():
    mesh = Mesh(Serial(), (4, 4))
    with pytest.raises(ValueError, match="one, two or three axes"):
        Mesh(Serial(), (2, 2, 2, 2))
    with pytest.raises(ValueError, match="`periodic` must be one for each axis"):
        Mesh(Serial(), (4, 4), periodic=(True,))
    with pytest.raises(TypeError, match="`residual` must be callable"):
        mesh.problem(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`inverse` must be"):
        mesh.problem(lambda patch, x: x, inverse=ims.BlockLU())
    with pytest.raises(ValueError, match=r"`local` must have shape \(4, 4, 1\)"):
        mesh.array(np.zeros((4, 4)))
    with pytest.raises(ValueError, match=r"`residual` must return an array of shape \(4, 4, 1\)"):
        mesh.problem(lambda patch, x: x[..., 0]).residual(mesh.zeros())
    with pytest.raises(ValueError, match=r"needs states of `Mesh\.array`"):
        mesh.problem(lambda patch, x: x).residual(np.zeros(16))
