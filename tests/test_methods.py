"""`root` by the names of methods."""

from dataclasses import replace

import numpy as np
import pytest

import implicitsolve as ims
from implicitsolve._root import METHODS
from implicitsolve.nonlinear import Auto

NAMES = {
    "anderson": ims.Anderson(),
    "auto": Auto(),
    "block-newton": ims.BlockNewton(),
    "broyden": ims.Broyden(),
    "homotopy": ims.Homotopy(),
    "newton-krylov": ims.NewtonKrylov(),
    "picard": ims.Picard(),
    "pseudo-transient": ims.PseudoTransient(),
    "sparse-newton": ims.SparseNewton(),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_method_with_its_defaults(name):
    problem = ims.Problem(lambda x: x - np.cos(x), fixed_point=True, structure=ims.BlockBanded(0, 0))
    by_name = ims.root(problem, np.zeros(3), method=name)
    by_settings = ims.root(problem, np.zeros(3), method=NAMES[name])
    assert by_name.success
    assert (by_name.iterations, by_name.counts) == (by_settings.iterations, by_settings.counts)
    np.testing.assert_array_equal(by_name.x, by_settings.x)


def test_there_is_no_other_name():
    assert set(METHODS) == {*NAMES, "substitution", "causal-newton"}
    with pytest.raises(ValueError, match="newton"):
        ims.root(ims.Problem(abs), np.zeros(3), method="newton")


@pytest.mark.parametrize("name", ["anderson", "auto", "broyden", "homotopy", "newton-krylov", "picard"])
def test_every_second_block_is_eliminated_whatever_the_method(name):
    rng = np.random.default_rng(0)
    params = ims.adapters.gru_parameters(2, 3, rng=rng)
    layer = ims.adapters.implicit_gru(params, rng.standard_normal((4, 6, 2)))
    result, half = ims.root(layer, method=name), ims.root(ims.elimination.even_odd(layer), method=name)
    assert ims.elimination.even_odd(layer).structure == ims.BlockBanded(1, 1, 3)
    np.testing.assert_array_equal(result.iterations, half.iterations)
    np.testing.assert_array_equal(result.x[:, 1::2], half.x)
    whole = ims.root(replace(layer, halves=None), method=name)
    assert (whole.x != result.x).any()
