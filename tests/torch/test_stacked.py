"""The modules in the place of `torch.nn.GRU` and `torch.nn.LSTM`."""

from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import implicitsolve as ims

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: E402

B, T, D, H = 3, 5, 2, 4
KINDS = ["GRU", "LSTM"]
EXACT = imt.SolveOptions(stop=ims.NonlinearStop(atol=1e-12, rtol=0.0))


def make(kind, *args, **options):
    torch.manual_seed(0)
    return getattr(imt, kind)(D, H, *args, solve_options=EXACT, dtype=torch.float64, **options)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shapes(found):
    """Of nested tuples of tensors and packed sequences."""
    if isinstance(found, PackedSequence):
        return "packed", found.data.shape, found.batch_sizes.tolist(), found.sorted_indices
    return tuple(map(shapes, found)) if isinstance(found, tuple) else found.shape


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_shapes_are_those_of_torch_s_layers(data):
    draw = data.draw
    kind, layers = draw(st.sampled_from(KINDS)), draw(st.integers(1, 2))
    batch_first, bidirectional, with_hx = (draw(st.booleans()) for _ in range(3))
    form = draw(st.sampled_from(["batch", "one", "packed"]))
    options = {"num_layers": layers, "batch_first": batch_first, "bidirectional": bidirectional}
    reference = getattr(torch.nn, kind)(D, H, **options).double()
    inputs = normal(*((T, D) if form == "one" else (B, T, D) if batch_first else (T, B, D)))
    lengths = draw(st.lists(st.integers(1, T), min_size=B, max_size=B))
    if form == "packed":
        inputs = pack_padded_sequence(inputs, lengths, batch_first, enforce_sorted=False)
    h0 = normal(layers * (1 + bidirectional), *([] if form == "one" else [B]), H)
    hx = None if not with_hx else h0 if kind == "GRU" else (h0, 0.1 * h0)
    expected, found = shapes(reference(inputs, hx)), shapes(make(kind, **options)(inputs, hx))
    if form == "packed":
        torch.testing.assert_close(found[0][3], expected[0][3])
        found, expected = (found[0][:3], found[1]), (expected[0][:3], expected[1])
    assert found == expected


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_is_stable(kind):
    gates = {"GRU": ["", "z", "r", "p", "n"], "LSTM": ["i", "f", "o", "g", "p", "n"]}[kind]
    parts = {"GRU": ["h"], "LSTM": ["h", "c"]}[kind]
    expected = {f"{part}{side}_l{i}": (2 * H,) for i in range(2) for side in "se" for part in parts}
    for i, d in enumerate((D, 2 * H)):
        for gate in gates:
            expected |= {f"layers.{i}.W{gate}": (2 * H, d), f"layers.{i}.U{gate}": (2 * H, 2 * H)}
            expected |= {f"layers.{i}.b{gate}": (2 * H,)}
    module = make(kind, 2, bidirectional=True)
    assert {name: tuple(value.shape) for name, value in module.state_dict().items()} == expected
    other = make(kind, 2, bidirectional=True)
    other.load_state_dict({name: value + 0.01 for name, value in module.state_dict().items()})
    assert torch.equal(other.hs_l1, module.hs_l1 + 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_is_its_layers_in_turn(kind):
    module, inputs = make(kind, 2, batch_first=True), normal(B, T, D)
    with torch.no_grad():
        for name, value in module.named_parameters():
            if "_l" in name:
                value.copy_(normal(H, seed=len(name)))
    edges = [{n: getattr(module, f"{n}_l{i}") for n in module.layers[0].boundaries} for i in range(2)]
    first = module.layers[0](inputs, **edges[0])
    second = module.layers[1](first[..., :H], **edges[1])
    output, last, results = module(inputs, return_result=True)
    torch.testing.assert_close(output, second[..., :H])
    finals = torch.stack([first[:, -1], second[:, -1]])
    torch.testing.assert_close(torch.cat(last, dim=-1) if kind == "LSTM" else last, finals)
    assert all(result.success.all() for result in results)
    output.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_are_sequences_alone(kind):
    module, inputs, lengths = make(kind, 2, bidirectional=True, batch_first=True), normal(B, T, D), [2, 5, 3]
    packed, last = module(pack_padded_sequence(inputs, lengths, True, enforce_sorted=False))
    output, found = pad_packed_sequence(packed, True)
    assert found.tolist() == lengths
    for i, n in enumerate(lengths):
        alone, final = module(inputs[i, :n])
        torch.testing.assert_close(output[i, :n], alone, rtol=0, atol=1e-9)
        for whole, one in zip(last if kind == "LSTM" else [last], final if kind == "LSTM" else [final], strict=True):
            torch.testing.assert_close(whole[:, i], one, rtol=0, atol=1e-9)


def test_initial_states_replace_the_parameters():
    module, inputs = make("GRU", batch_first=True), normal(B, T, D)
    h0 = normal(1, B, H, seed=1)
    torch.testing.assert_close(module(inputs, h0)[0], module.layers[0](inputs, hs=h0[0]))
    both, h0 = make("GRU", bidirectional=True, batch_first=True), normal(2, B, H, seed=1)
    zeros = torch.zeros(B, H, dtype=torch.float64)
    edges = {"hs": torch.cat([h0[0], zeros], -1), "he": torch.cat([zeros, h0[1]], -1)}
    torch.testing.assert_close(both(inputs, h0)[0], both.layers[0](inputs, **edges))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_initial_layers_contract(kind, seed):
    torch.manual_seed(seed)
    layer = getattr(imt, kind)(8, 32, dtype=torch.float64).layers[0]
    parameters = dict(layer.named_parameters())
    size = 32 * (2 if kind == "LSTM" else 1)
    for scale, bound in ((0.0, 0.46 if kind == "GRU" else 0.63), (1.0, 1.0)):
        inputs, x = scale * normal(6, 8, seed=seed), torch.zeros(6, size, dtype=torch.float64)
        if scale:
            x = layer(inputs).detach()
        J = torch.func.jacrev(lambda x, u=inputs: x - layer.equations(x, parameters | {"inputs": u}))(x)
        J = J.reshape(x.numel(), -1)
        if scale == 0.0:
            assert torch.linalg.matrix_norm(J, 2) < bound
        assert torch.linalg.eigvals(J).abs().max() < bound


def test_dropout_is_between_layers_and_in_training_alone():
    module, inputs = make("GRU", 2, dropout=1.0, batch_first=True), normal(B, T, D)
    alone = module.layers[1](torch.zeros(B, T, H, dtype=torch.float64))
    torch.testing.assert_close(module(inputs)[0], alone)
    assert not torch.allclose(module.eval()(inputs)[0], alone)


def test_wrong_arguments_are_named():
    for options, message in (
        ({"num_layers": 0}, "`num_layers` must be at least 1, got 0"),
        ({"bias": False}, "`bias` must be True"),
        ({"dropout": 2.0}, "`dropout` must be from 0 to 1, got 2.0"),
    ):
        with pytest.raises(ValueError, match=f"LSTM: {message}"):
            imt.LSTM(D, H, **options)
    with pytest.raises(ValueError, match=r"GRU: `hx` must have 1 tensor\(s\) of \(1, 3, 4\), got \[\(1, 3, 5\)\]"):
        make("GRU")(normal(T, B, D), normal(1, B, 5))
    with pytest.raises(ValueError, match=r"LSTM: `hx` must have 2 tensor"):
        make("LSTM")(normal(T, B, D), [normal(1, B, H)])
