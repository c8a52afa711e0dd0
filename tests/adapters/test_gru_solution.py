"""Solutions of the implicit GRU, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve.adapters import initial_guess
from tests.adapters.gru import Case, make, residual
from tests.helpers.compare import close, jacobian

TIGHT = ims.LinearStop(rtol=1e-13)


def solve(case: Case, **changed: Any) -> tuple[ims.Problem, Any]:
    layer = case.layer(**changed)
    result = ims.root(layer, stop=ims.NonlinearStop(atol=1e-14, rtol=0.0))
    return layer, result


def solvable(**kwargs) -> Case:
    return make(scale=0.8, **kwargs)


@pytest.mark.parametrize("lengths", [(4, 1, 3), None])
def test_solution_and_gradients(lengths, rng):
    case = solvable(lengths=lengths)
    layer, result = solve(case)
    assert result.success.all()
    assert (result.x[~case.valid[:, :, 0]] == 0).all()
    assert np.abs(residual(case.P, result.x, case.lengths)).max() < 1e-13

    cotangent = rng.standard_normal(result.x.shape)
    adjoint = ims.pull_back(layer, result, cotangent, stop=TIGHT)
    J = jacobian(lambda H: residual(case.P, H, case.lengths), result.x)
    dense = np.linalg.solve(J.T, cotangent.ravel())
    for name, value in case.P.items():
        dR = jacobian(lambda x, name=name: residual(case.P | {name: x}, result.x, case.lengths), value)
        close(adjoint.gradients[name].ravel(), -dR.T @ dense, 1e-10)

    tangents = {name: rng.standard_normal(value.shape) for name, value in case.P.items()}
    moved = ims.push_forward(layer, result, tangents, stop=TIGHT).tangent
    forward = (cotangent * moved).sum()
    assert forward == pytest.approx(sum((tangents[n] * adjoint.gradients[n]).sum() for n in tangents), rel=1e-10)

    def loss(step: float) -> float:
        changed = {name: value + step * tangents[name] for name, value in case.P.items()}
        return (cotangent * solve(case, **changed)[1].x).sum()

    h = 1e-3  # sixth order: the error is about h^6
    differences = [loss(i * h) - loss(-i * h) for i in (1, 2, 3)]
    slope = (45 * differences[0] - 9 * differences[1] + differences[2]) / (60 * h)
    assert forward == pytest.approx(slope, rel=1e-8)


@pytest.mark.parametrize("garbage", [1e30, np.nan])
def test_padding_changes_neither_solution_nor_gradient(garbage, rng):
    case = solvable()
    dirty = {"inputs": np.where(case.valid, case.P["inputs"], garbage)}
    (clean, one), (padded, other) = solve(case), solve(case, **dirty)
    np.testing.assert_array_equal(one.x, other.x)
    cotangent = rng.standard_normal(one.x.shape)
    ours = ims.pull_back(padded, other, cotangent, stop=TIGHT).gradients
    for name, gradient in ims.pull_back(clean, one, cotangent, stop=TIGHT).gradients.items():
        np.testing.assert_array_equal(gradient, ours[name])


@pytest.mark.parametrize("kind", ["zeros", "one-step", "random"])
def test_every_start_leads_to_the_solution(kind, xp, dtype, rng):
    case = solvable()
    layer = case.layer(xp, dtype)
    result = ims.root(layer, initial_guess(layer, kind, rng))
    assert np.asarray(result.success).all()
    assert result.x.dtype == dtype
    close(result.x, solve(case)[1].x, 1e-3 if dtype == xp.float32 else 1e-6)
