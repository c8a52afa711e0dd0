"""Mistakes in the arguments of the implicit GRU, and the parameters drawn for it."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest

from implicitsolve.adapters import gru_parameters, gru_switch, implicit_gru
from tests.adapters.gru import WEIGHTS


def wrong(**changes):
    """Arguments of implicit_gru with something changed: a parameter, or a keyword."""
    rng = np.random.default_rng(0)
    params = gru_parameters(2, 3, rng=rng)
    arguments = {"inputs": rng.standard_normal((4, 5, 2))}
    for name, value in changes.items():
        if name in WEIGHTS or name == "Wx":
            params[name] = value
        else:
            arguments[name] = value
    if "drop" in arguments:
        del params[arguments.pop("drop")]
    return {"params": params} | arguments


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"drop": "Uz"}, ValueError, "`params` lacks Uz; expected Wp, Up, bp"),
        ({"Wx": np.zeros((3, 2))}, ValueError, "`params` has unknown Wx"),
        ({"params": [1, 2]}, TypeError, "`params` must be a mapping of names to arrays, got list"),
        ({"Wz": np.zeros((2, 3))}, ValueError, r"`Wz` must have shape \(3, 2\), got \(2, 3\)"),
        ({"U": np.zeros(3)}, ValueError, r"`U` must have shape \(3, 3\), got \(3,\)"),
        ({"b": np.zeros(())}, ValueError, r"`b` must have shape \(k,\) with k at least 1, got \(\)"),
        ({"b": np.zeros(0)}, ValueError, r"`b` must have shape \(k,\) with k at least 1, got \(0,\)"),
        ({"b": np.zeros((1, 3))}, ValueError, r"`b` must have shape \(3,\), got \(1, 3\)"),
        (
            {"Un": np.zeros((3, 3), np.float32)},
            TypeError,
            "`Un` must have the dtype of the inputs, float64, got float32",
        ),
        ({"br": [0.0, 0.0, 0.0]}, TypeError, "`br` must be an array, got list"),
        ({"br": array_api_strict.zeros(3)}, TypeError, "`br` must be an array of the library of the inputs"),
        ({"inputs": [[1.0]]}, TypeError, "`inputs` must be an array, got list"),
        ({"inputs": np.zeros(3)}, ValueError, r"`inputs` must have shape \(B, T, d\) or \(T, d\)"),
        ({"inputs": np.zeros((4, 0, 2))}, ValueError, r"none of them 0, got \(4, 0, 2\)"),
        ({"inputs": np.zeros((4, 5, 2), int)}, TypeError, "`inputs` must have dtype float32 or float64, got int64"),
        ({"inputs": np.zeros((4, 5, 2), complex)}, TypeError, "float32 or float64, got complex128"),
        ({"lengths": [1, 2, 3]}, ValueError, r"`lengths` must have shape \(4,\), one for each sequence, got \(3,\)"),
        ({"lengths": [1, 0, 3, 4]}, ValueError, "`lengths` must be from 1 to T = 5, got 0 for sequence 1"),
        ({"lengths": [1, 2, 3, 6]}, ValueError, "from 1 to T = 5, got 6 for sequence 3"),
        ({"lengths": [1, 2, 3, -1]}, ValueError, "from 1 to T = 5, got -1 for sequence 3"),
        ({"lengths": [1.0, 2.0, 3.0, np.nan]}, TypeError, "`lengths` must be integers, got dtype float64"),
        ({"lengths": [True] * 4}, TypeError, "`lengths` must be integers, got dtype bool"),
        ({"inputs": np.zeros((5, 2)), "lengths": [5]}, ValueError, r"`lengths` must have shape \(\)"),
        ({"hs": np.zeros(4)}, ValueError, r"`hs` must have shape \(3,\), got \(4,\)"),
        ({"he": np.zeros((3, 3))}, ValueError, r"`he` must have shape \(4, 3\), got \(3, 3\)"),
        (
            {"inputs": np.zeros((5, 2)), "he": np.zeros((1, 3))},
            ValueError,
            r"`he` must have shape \(3,\), got \(1, 3\)",
        ),
        ({"hs": 0.0}, TypeError, "`hs` must be an array, got float"),
        ({"hs": np.zeros(3, np.float32)}, TypeError, "`hs` must have the dtype of the inputs, float64, got float32"),
    ],
)
def test_mistakes_are_named(changes, error, message):
    with pytest.raises(error, match=f"implicit_gru: .*{message}"):
        implicit_gru(**wrong(**changes))


def test_states_and_tangents_are_checked():
    layer = implicit_gru(**wrong())
    H = np.zeros((4, 5, 3))
    with pytest.raises(ValueError, match=r"`x` must have shape \(4, 5, 3\), got \(4, 3\)"):
        layer.residual(H[:, 0])
    with pytest.raises(TypeError, match="`x` must have the dtype of the inputs, float64, got float32"):
        layer.linearize(H.astype(np.float32))
    with pytest.raises(ValueError, match=r"`w` must have shape \(4, 5, 3\), got \(5, 3\)"):
        layer.parameter_vjp(H, H[0])
    with pytest.raises(ValueError, match="`tangents` has unknown Wx; expected Wp"):
        layer.parameter_jvp(H, {"Wx": np.zeros(3)})
    with pytest.raises(ValueError, match=r"`hs` must have shape \(3,\), got \(4, 3\)"):
        layer.parameter_jvp(H, {"hs": np.zeros((4, 3))})
    with pytest.raises(ValueError, match=r"gru_switch: `states` must have shape \(4, 5, 3\)"):
        gru_switch(**wrong(), states=H[0])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"d": 0}, ValueError, "`d` must be at least 1, got 0"),
        ({"k": 2.0}, TypeError, "`k` must be an integer, got float"),
        ({"scale": -1.0}, ValueError, "`scale` must be finite and not negative, got -1.0"),
        ({"scale": np.nan}, ValueError, "`scale` must be finite and not negative, got nan"),
        ({"rng": 0}, TypeError, "`rng` must be a numpy.random.Generator, got int"),
        ({"dtype": "int32"}, TypeError, "`dtype` must be float32 or float64, got int32"),
    ],
)
def test_mistakes_in_parameters_are_named(changes, error, message):
    arguments = {"d": 2, "k": 3, "rng": np.random.default_rng(0)} | changes
    with pytest.raises(error, match=f"gru_parameters: {message}"):
        gru_parameters(**arguments)


def test_parameters_are_uniform_and_the_same_in_both_precisions():
    one, other = (gru_parameters(5, 20, scale=0.3, rng=np.random.default_rng(3), dtype=t) for t in ("f4", "f8"))
    assert set(one) == set(WEIGHTS)
    for name in WEIGHTS:
        assert one[name].dtype == np.float32
        np.testing.assert_array_equal(one[name], other[name].astype(np.float32))
        assert np.abs(other[name]).max() <= 0.3
    assert np.abs(other["U"]).max() > 0.29
