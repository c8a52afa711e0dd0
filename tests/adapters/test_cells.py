"""The cells, row by row, against the functions written out in complex arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from implicitsolve._arrays.host import to_host
from implicitsolve.adapters._diagonal import DiagonalGRUCell, DiagonalLSTMCell
from implicitsolve.adapters._lstm import LSTMCell
from implicitsolve.adapters._stencil_cells import ElmanCell, RNNCell, StencilGRUCell
from tests.adapters.layers import ADAPTERS
from tests.helpers.compare import jacobian

ROWS, INPUTS, SIZE = 5, 2, 3
NAMES = [name for name in ADAPTERS if name != "implicit_gru"]


def cell_of(name: str, P: dict[str, Any]) -> Any:
    kind, options = name.split("-")[0], ADAPTERS[name].options
    match kind:
        case "implicit_rnn":
            return RNNCell.of(P, options["activation"])
        case "elman":
            return ElmanCell.of(P, options["activation"])
        case "stencil_gru":
            return StencilGRUCell.of(P, options["offsets"])
        case "diagonal_gru":
            return DiagonalGRUCell.of(P, (-1,))
        case "diagonal_lstm":
            return DiagonalLSTMCell.of(P, (-1,))
        case _:
            return LSTMCell.of(P)


class Case:
    """A cell at random rows."""

    def __init__(self, name: str, scale: float = 1.0, dtype: Any = np.float64, xp: Any = np) -> None:
        rng = np.random.default_rng(0)
        self.adapter = ADAPTERS[name]
        size = self.adapter.width * SIZE
        self.P = self.adapter.parameters(INPUTS, SIZE, scale=scale, rng=rng)
        self.inputs = rng.standard_normal((ROWS, INPUTS))
        self.neighbours = [rng.uniform(-1, 1, (ROWS, size)) for _ in self.adapter.offsets]
        self.w = rng.standard_normal((ROWS, size))
        self.dneighbours = [rng.standard_normal((ROWS, size)) for _ in self.adapter.offsets]
        self.dinputs = rng.standard_normal((ROWS, INPUTS))
        self.change = {name: rng.standard_normal(value.shape) for name, value in self.P.items()}
        cast = lambda value: xp.asarray(value, dtype=dtype)  # noqa: E731
        self.cell = cell_of(name, {name: cast(value) for name, value in self.P.items()})
        self.x = self.cell.project(cast(self.inputs))
        self.near = tuple(cast(p) for p in self.neighbours)
        shape = (self.cell.factor_count, ROWS, self.cell.factor_size)
        self.factors = xp.full(shape, xp.nan, dtype=dtype)
        self.h = self.cell.linearize(self.x, self.near, self.factors)
        self.cast = cast

    def pulled(self, w: Any) -> tuple[dict[str, Any], Any, tuple[Any, ...]]:
        """What a cotangent sends to the parameters, the inputs and the neighbours."""
        sums = self.cell.pull_sums(self.factors, w)
        gradients = self.cell.to_weights(self.cast(self.inputs), self.near, self.factors, sums)
        return gradients, self.cell.to_inputs(sums), self.cell.to_neighbours(self.factors, sums)

    def value(self, inputs=None, neighbours=None, **changed: Any) -> Any:
        """All rows of the function written out."""
        inputs = self.inputs if inputs is None else inputs
        neighbours = self.neighbours if neighbours is None else neighbours
        P = self.P | changed
        return np.stack([self.adapter.value(P, inputs[i], [p[i] for p in neighbours]) for i in range(ROWS)])

    def dense(self, j: int) -> Any:
        """Derivative with respect to neighbour j, (rows, size, size)."""

        def moved(h):
            return self.value(neighbours=[h if i == j else p for i, p in enumerate(self.neighbours)])

        size = self.w.shape[1]
        J = jacobian(moved, self.neighbours[j]).reshape(ROWS, size, ROWS, size)
        return np.stack([J[i, :, i, :] for i in range(ROWS)])

    def total(self, P, inputs, neighbours) -> Any:
        """Directional derivative for changes of everything, by one complex step."""
        step = 1e-30j
        moved = {name: value + step * P[name] for name, value in self.P.items()}
        near = [p + step * dp for p, dp in zip(self.neighbours, neighbours)]
        return self.value(self.inputs + step * inputs, near, **moved).imag / 1e-30


@pytest.fixture(params=NAMES)
def case(request) -> Case:
    return Case(request.param)


def close(actual, expected, tolerance=1e-13):
    expected = np.asarray(expected)
    actual = actual if np.isscalar(actual) else to_host(actual)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max(initial=0)))


def test_value(case):
    close(case.cell.value(case.x, case.near), case.value())
    np.testing.assert_array_equal(case.h, case.cell.value(case.x, case.near))
    assert case.cell.size == case.w.shape[1]
    assert case.cell.offsets == case.adapter.offsets


def test_step_is_the_value_with_one_state_for_all_neighbours(case):
    previous = case.near[0]
    close(case.cell.step(case.x, previous), case.cell.value(case.x, (previous,) * len(case.near)))


def test_push_pull_and_blocks(case):
    blocks = [case.dense(j) for j in range(len(case.near))]
    close(case.cell.blocks(case.factors), blocks)
    dh = sum((block @ dp[:, :, None])[:, :, 0] for block, dp in zip(blocks, case.dneighbours))
    close(case.cell.push(case.factors, tuple(case.dneighbours)), dh)
    for block, cotangent in zip(blocks, case.cell.pull(case.factors, case.w)):
        close(cotangent, (np.swapaxes(block, 1, 2) @ case.w[:, :, None])[:, :, 0])


def test_parameter_push_and_pull(case):
    zeros = {name: np.zeros_like(value) for name, value in case.P.items()}
    none, still = np.zeros_like(case.inputs), [np.zeros_like(p) for p in case.neighbours]
    moved = case.total(case.change, case.dinputs, case.dneighbours)
    arguments = (case.inputs, case.x, case.near)
    close(case.cell.parameter_push(*arguments, case.change, case.dinputs, tuple(case.dneighbours)), moved)
    gradients, dinputs, cotangents = case.pulled(case.w)
    assert gradients.keys() == case.P.keys()
    for name, value in case.P.items():
        assert gradients[name].shape == value.shape
        one = case.total(zeros | {name: case.change[name]}, none, still)
        close((gradients[name] * case.change[name]).sum(), (case.w * one).sum(), 1e-12)
    close((dinputs * case.dinputs).sum(1), (case.w * case.total(zeros, case.dinputs, still)).sum(1), 1e-12)
    for cotangent, expected in zip(cotangents, case.cell.pull(case.factors, case.w)):
        close(cotangent, expected)


def test_diagonals_are_exact_for_diagonal_weights(case):
    """The diagonal of a product is the product of the diagonals then."""
    P = {name: np.zeros_like(value) for name, value in case.P.items()}
    rng = np.random.default_rng(1)
    for name, value in P.items():
        if value.shape[-2:] == (SIZE, SIZE):
            value[...] = rng.uniform(-1, 1, (*value.shape[:-1], 1)) * np.eye(SIZE)
        else:
            value[...] = case.P[name]
    cell = cell_of(next(name for name in NAMES if ADAPTERS[name] is case.adapter), P)
    factors = np.empty_like(case.factors)
    cell.linearize(cell.project(case.inputs), case.near, factors)
    for diagonal, block in zip(cell.diagonals(factors), cell.blocks(factors)):
        close(diagonal, np.diagonal(block, axis1=1, axis2=2))


@pytest.mark.parametrize("name", NAMES)
def test_every_library_and_precision(name, xp, dtype):
    expected, tolerance = Case(name), 64 * float(xp.finfo(dtype).eps)
    ours = Case(name, dtype=dtype, xp=xp)
    cast = ours.cast
    w, dnear = cast(ours.w), tuple(cast(p) for p in ours.dneighbours)
    change = {name: cast(value) for name, value in ours.change.items()}

    def everything(case, inputs, dinputs, w, dnear, change):
        cell, at = case.cell, (inputs, case.x, case.near)
        gradients, dx, sent = case.pulled(w)
        return [
            *(case.h, cell.push(case.factors, dnear), *cell.pull(case.factors, w), cell.step(case.x, case.near[0])),
            *(*cell.diagonals(case.factors), cell.blocks(case.factors)),
            *(cell.parameter_push(*at, change, dinputs, dnear), *gradients.values(), dx, *sent),
        ]

    results = everything(ours, cast(ours.inputs), cast(ours.dinputs), w, dnear, change)
    reference = everything(
        expected, expected.inputs, expected.dinputs, expected.w, tuple(expected.dneighbours), expected.change
    )
    for actual, value in zip(results, reference, strict=True):
        assert type(actual) is type(w)
        assert actual.dtype == dtype
        close(actual, value, 8 * tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_astype(name):
    case, single = Case(name), Case(name, dtype=np.float32)
    cell = case.cell.astype(np.float32)
    close(
        cell.push(single.factors, tuple(single.cast(p) for p in case.dneighbours)),
        case.cell.push(case.factors, tuple(case.dneighbours)),
        1e-5,
    )
    (x,) = cell.project(single.cast(case.inputs))
    assert x.dtype == np.float32
    assert cell.offsets == case.cell.offsets


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e8])
@pytest.mark.parametrize("name", [name for name in NAMES if ADAPTERS[name].options.get("activation") != "relu"])
def test_saturated_cells_give_numbers(name, scale, dtype, xp):
    with np.errstate(over="ignore", invalid="ignore"):
        case = Case(name, scale, dtype, xp)
        cell, w = case.cell, case.cast(case.w)
        gradients, dx, sent = case.pulled(w)
        results = [
            *(
                case.h,
                cell.push(case.factors, tuple(case.cast(p) for p in case.dneighbours)),
                *cell.pull(case.factors, w),
            ),
            *(*cell.diagonals(case.factors), cell.blocks(case.factors), *gradients.values(), dx, *sent),
        ]
    for value in results:
        assert bool(xp.all(xp.isfinite(value)))
