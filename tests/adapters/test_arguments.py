"""Mistakes in the arguments of the layers are named, and the parameters drawn for them are uniform."""

from typing import Any

import array_api_strict
import numpy as np
import pytest

from implicitsolve import adapters
from implicitsolve.adapters import gru_switch, implicit_gru
from tests.adapters.test_gru import WEIGHTS

LAYERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # parameters, their options, the layer's options
    "implicit_gru": ("gru_parameters", {}, {}),
    "stencil_gru": ("stencil_gru_parameters", {"offsets": (-2, 1)}, {"offsets": (-2, 1)}),
    "implicit_rnn": ("rnn_parameters", {"lower": 2, "upper": 1}, {}),
    "implicit_lstm": ("lstm_parameters", {}, {}),
    "elman": ("elman_parameters", {}, {}),
    "diagonal_gru": ("diagonal_gru_parameters", {}, {}),
    "diagonal_lstm": ("diagonal_lstm_parameters", {}, {}),
}


def drawn(layer: str, d: Any = 2, k: Any = 3, **options: Any) -> dict[str, Any]:
    name, known, _ = LAYERS[layer]
    return getattr(adapters, name)(d, k, **({"rng": np.random.default_rng(0)} | known | options))


def call(layer: str, **changes: Any) -> Any:
    """The layer with something changed: a parameter (None: it is missing), or another argument."""
    params, rng = drawn(layer), np.random.default_rng(0)
    arguments: dict[str, Any] = {"params": params, "inputs": rng.standard_normal((4, 5, 2)), **LAYERS[layer][2]}
    for name, value in changes.items():
        (params if name in params or name == "Wx" else arguments)[name] = value
        if name in params and value is None:
            del params[name]
    return getattr(adapters, layer)(**arguments)


EVERY_LAYER = [
    ({"Wx": np.zeros((3, 2))}, ValueError, "`params` has unknown Wx"),
    ({"params": [1, 2]}, TypeError, "`params` must be a mapping of names to arrays, got list"),
    ({"inputs": [[1.0]]}, TypeError, "`inputs` must be an array, got list"),
    ({"inputs": np.zeros(3)}, ValueError, r"`inputs` must have shape \(B, T, d\) or \(T, d\)"),
    ({"inputs": np.zeros((4, 0, 2))}, ValueError, r"none of them 0, got \(4, 0, 2\)"),
    ({"inputs": np.zeros((4, 5, 2), int)}, TypeError, "`inputs` must have dtype float32 or float64, got int64"),
    ({"inputs": np.zeros((4, 5, 2), complex)}, TypeError, "float32 or float64, got complex128"),
    ({"lengths": [1, 2, 3]}, ValueError, r"`lengths` must have shape \(4,\), one for each sequence, got \(3,\)"),
    ({"lengths": [[1], [2, 3]]}, ValueError, "`lengths` must be integers, one for each sequence"),
    ({"lengths": [1, 0, 3, 4]}, ValueError, "`lengths` must be from 1 to T = 5, got 0 for sequence 1"),
    ({"lengths": [1, 2, 3, 6]}, ValueError, "from 1 to T = 5, got 6 for sequence 3"),
    ({"lengths": [1, 2, 3, -1]}, ValueError, "from 1 to T = 5, got -1 for sequence 3"),
    ({"lengths": [1.0, 2.0, 3.0, np.nan]}, TypeError, "`lengths` must be integers, got dtype float64"),
    ({"lengths": [True] * 4}, TypeError, "`lengths` must be integers, got dtype bool"),
    ({"inputs": np.zeros((5, 2)), "lengths": [5]}, ValueError, r"`lengths` must have shape \(\)"),
]


ONE_LAYER = [
    ("implicit_gru", {"Uz": None}, ValueError, "`params` lacks Uz; expected Wp, Up, bp"),
    ("implicit_gru", {"Wz": np.zeros((2, 3))}, ValueError, r"`Wz` must have shape \(3, 2\), got \(2, 3\)"),
    ("implicit_gru", {"U": np.zeros(3)}, ValueError, r"`U` must have shape \(3, 3\), got \(3,\)"),
    ("implicit_gru", {"b": np.zeros(())}, ValueError, r"`b` must have shape \(k,\) with k at least 1, got \(\)"),
    ("implicit_gru", {"b": np.zeros(0)}, ValueError, r"`b` must have shape \(k,\) with k at least 1, got \(0,\)"),
    ("implicit_gru", {"b": np.zeros((1, 3))}, ValueError, r"`b` must have shape \(3,\), got \(1, 3\)"),
    ("implicit_gru", {"Un": np.zeros((3, 3), np.float32)}, TypeError, "`Un` must have the dtype of the inputs"),
    ("implicit_gru", {"br": [0.0, 0.0, 0.0]}, TypeError, "`br` must be an array, got list"),
    ("implicit_gru", {"br": array_api_strict.zeros(3)}, TypeError, "`br` must be an array of the library of the"),
    ("implicit_gru", {"hs": np.zeros(4)}, ValueError, r"`hs` must have shape \(3,\), got \(4,\)"),
    ("implicit_gru", {"he": np.zeros((3, 3))}, ValueError, r"`he` must have shape \(4, 3\), got \(3, 3\)"),
    ("implicit_gru", {"inputs": np.zeros((5, 2)), "he": np.zeros((1, 3))}, ValueError, r"\(3,\), got \(1, 3\)"),
    ("implicit_gru", {"hs": 0.0}, TypeError, "`hs` must be an array, got float"),
    ("implicit_gru", {"hs": np.zeros(3, np.float32)}, TypeError, "`hs` must have the dtype of the inputs, float64"),
    ("stencil_gru", {"Us": None}, ValueError, "`params` lacks Us; expected Ws, Us, bs"),
    ("stencil_gru", {"Ws": np.zeros((3, 3, 2))}, ValueError, r"`Ws` must have shape \(2, 3, 2\), got \(3, 3, 2\)"),
    ("stencil_gru", {"bs": np.zeros(3)}, ValueError, r"`bs` must have shape \(2, 3\), got \(3,\)"),
    ("stencil_gru", {"offsets": (-1, 0)}, ValueError, r"`offsets` must be distinct and not 0, .*, got \(-1, 0\)"),
    ("stencil_gru", {"offsets": (1, 1)}, ValueError, "`offsets` must be distinct"),
    ("stencil_gru", {"offsets": ()}, ValueError, "at least one"),
    ("stencil_gru", {"offsets": (1.0, -1.0)}, TypeError, r"`offsets` must be a sequence of .*, got \(1.0, -1.0\)"),
    ("stencil_gru", {"offsets": 1}, TypeError, "`offsets` must be a sequence of integers, got 1"),
    ("stencil_gru", {"offsets": (-2, -1, 1)}, ValueError, r"`Ws` must have shape \(3, 3, 2\), got \(2, 3, 2\)"),
    ("stencil_gru", {"hs": np.zeros(3)}, ValueError, r"`hs` must have shape \(2, 3\), got \(3,\)"),
    ("stencil_gru", {"he": np.zeros((2, 3))}, ValueError, r"`he` must have shape .*, got \(2, 3\)"),
    ("implicit_rnn", {"N": None}, ValueError, "`params` lacks N; expected P, N, V, b"),
    ("implicit_rnn", {"P": np.zeros((3, 3))}, ValueError, r"`P` must have shape \(n, k, k\), got \(3, 3\)"),
    ("implicit_rnn", {"N": np.zeros((2, 3, 4))}, ValueError, r"`N` must have shape \(2, 3, 3\), got \(2, 3, 4\)"),
    ("implicit_rnn", dict.fromkeys("PN", np.zeros((0, 3, 3))), ValueError, "`lower` or `upper` must be at least 1"),
    ("implicit_rnn", {"P": [[[1.0]]]}, TypeError, "`P` must be an array, got list"),
    ("implicit_rnn", {"hs": np.zeros((1, 3))}, ValueError, r"`hs` must have shape \(2, 3\), got \(1, 3\)"),
    ("implicit_rnn", {"hs": np.zeros((3, 2, 3))}, ValueError, r"`hs` must have shape \(4, 2, 3\), got \(3, 2, 3\)"),
    ("implicit_rnn", {"activation": "sine"}, ValueError, "one of 'tanh', 'logistic', 'relu', 'identity', got 'sine'"),
    ("implicit_rnn", {"activation": ["tanh"]}, ValueError, "`activation` must be one of 'tanh', 'logistic', 'relu'"),
    ("implicit_lstm", {"Uf": None}, ValueError, "`params` lacks Uf; expected Wi, Ui, bi, Wf"),
    ("implicit_lstm", {"Ug": np.zeros((3, 6))}, ValueError, r"`Ug` must have shape \(3, 3\), got \(3, 6\)"),
    ("implicit_lstm", {"cs": np.zeros(6)}, ValueError, r"`cs` must have shape \(3,\), got \(6,\)"),
    ("implicit_lstm", {"ce": np.zeros((3, 3))}, ValueError, r"`ce` must have shape \(4, 3\), got \(3, 3\)"),
    ("elman", {"V": None}, ValueError, "`params` lacks V; expected W, V, b"),
    ("elman", {"W": np.zeros(())}, ValueError, r"`W` must have shape \(k, k\) with k at least 1, got \(\)"),
    ("elman", {"W": np.zeros((3, 0))}, ValueError, r"`W` must have shape \(k, k\) with k at least 1, got \(3, 0\)"),
    ("elman", {"W": np.zeros((2, 3))}, ValueError, r"`W` must have shape \(3, 3\), got \(2, 3\)"),
    ("elman", {"h0": np.zeros((3, 3))}, ValueError, r"`h0` must have shape \(4, 3\), got \(3, 3\)"),
    ("elman", {"activation": "softmax"}, ValueError, "`activation` must be one of 'tanh', 'logistic', 'relu'"),
]


@pytest.mark.parametrize(
    ("layer", "changes", "error", "message"), [(layer, *row) for layer in LAYERS for row in EVERY_LAYER] + ONE_LAYER
)
def test_mistakes_are_named(layer, changes, error, message):
    with pytest.raises(error, match=f"{layer}: .*{message}"):
        call(layer, **changes)


def test_states_and_tangents_are_checked():
    layer, H = call("implicit_gru"), np.zeros((4, 5, 3))
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
        gru_switch(drawn("implicit_gru"), np.zeros((4, 5, 2)), H[0])


def test_lengths_of_any_integer_kind(rng):
    params, x, H = drawn("implicit_gru"), rng.standard_normal((3, 4, 2)), rng.standard_normal((3, 4, 3))
    expected = implicit_gru(params, x, lengths=[4, 1, 3]).residual(H)
    for lengths in ((4, 1, 3), np.asarray([4, 1, 3], np.uint8), array_api_strict.asarray([4, 1, 3])):
        np.testing.assert_array_equal(implicit_gru(params, x, lengths=lengths).residual(H), expected)
    for length in (3, np.int32(3), np.asarray(3)):
        alone = implicit_gru(params, x[2], lengths=length)
        np.testing.assert_allclose(alone.residual(H[2]), expected[2], atol=1e-14)


OF_ALL = [
    ({"d": 0}, ValueError, "`d` must be at least 1, got 0"),
    ({"k": 2.0}, TypeError, "`k` must be an integer, got float"),
    ({"scale": -1.0}, ValueError, "`scale` must be finite and not negative, got -1.0"),
    ({"scale": np.nan}, ValueError, "`scale` must be finite and not negative, got nan"),
    ({"rng": 0}, TypeError, "`rng` must be a numpy.random.Generator, got int"),
    ({"dtype": "int32"}, TypeError, "`dtype` must be float32 or float64, got int32"),
]
OF_ONE = [
    ("stencil_gru", {"offsets": [0]}, ValueError, "`offsets` must be distinct and not 0"),
    ("implicit_rnn", {"lower": -1}, ValueError, "`lower` must be at least"),
    ("implicit_rnn", {"upper": 1.5}, TypeError, "`upper` must be an integer, got float"),
    ("implicit_rnn", {"lower": 0, "upper": 0}, ValueError, "`lower` or `upper` must be at least 1, got 0 for both"),
    ("elman", {"bias": None}, TypeError, "`bias` must be True or False"),
    ("elman", {"bias": 1.0}, TypeError, "`bias` must be True or False"),
]


@pytest.mark.parametrize(
    ("layer", "changes", "error", "message"), [(layer, *row) for layer in LAYERS for row in OF_ALL] + OF_ONE
)
def test_mistakes_in_parameters_are_named(layer, changes, error, message):
    with pytest.raises(error, match=f"{LAYERS[layer][0]}: {message}"):
        drawn(layer, **changes)


@pytest.mark.parametrize("layer", LAYERS)
def test_parameters_are_uniform_and_the_same_in_both_precisions(layer):
    one, other = (drawn(layer, 5, 20, scale=0.3, dtype=t) for t in ("f4", "f8"))
    assert one.keys() == other.keys()
    for name, value in other.items():
        assert one[name].dtype == np.float32
        np.testing.assert_array_equal(one[name], value.astype(np.float32))
        assert np.abs(value).max() <= 0.3
    assert max(np.abs(value).max() for value in other.values()) > 0.29


def test_names_and_shapes_of_parameters():
    assert set(drawn("implicit_gru")) == set(WEIGHTS)
    assert sorted(drawn("implicit_lstm")) == sorted(kind + which for kind in "WUb" for which in "ifogpn")
    assert set(drawn("elman")) == {"W", "V", "b"}
    assert set(drawn("elman", bias=False)) == {"W", "V"}
    shapes = {name: value.shape for name, value in drawn("implicit_rnn", 5, 20, lower=2, upper=0).items()}
    assert shapes == {"P": (2, 20, 20), "N": (0, 20, 20), "V": (20, 5), "b": (20,)}
