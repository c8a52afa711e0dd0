"""Starts of samples that are visited again, against solves without them."""

from importlib import import_module

import numpy as np
import pytest

import implicitsolve as ims

torch = pytest.importorskip("torch", exc_type=ImportError)
imt = import_module("implicitsolve.torch")

B, T, D, K = 3, 5, 2, 3
LENGTHS = [5, 2, 4]
OPTIONS = imt.SolveOptions(stop=ims.NonlinearStop(atol=1e-9, rtol=0.0), adjoint_stop=ims.LinearStop(rtol=1e-9))
MODULES = {
    "gru": lambda **o: imt.ImplicitGRU(D, K, **o),
    "rnn": lambda **o: imt.ImplicitRNN(D, K, lower=2, **o),
    "lstm": lambda **o: imt.ImplicitLSTM(D, K, **o),
    "elman": lambda **o: imt.Elman(D, K, **o),
}


def made(name: str = "gru", **others):
    generator = torch.Generator().manual_seed(1)
    options = {"solve_options": OPTIONS, "scale": 0.6, "generator": generator, "dtype": torch.float64}
    return MODULES[name](**(options | others))


@pytest.fixture
def inputs():
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def adjoints(monkeypatch) -> list:
    """What each adjoint solve returns."""
    module, found = import_module("implicitsolve.torch._layer"), []
    solve = module.pull_back
    monkeypatch.setattr(module, "pull_back", lambda *a, **o: found.append(solve(*a, **o)) or found[-1])
    return found


def step(layer, inputs, x0, lengths=LENGTHS):
    """States, result, and gradients of a loss."""
    layer.zero_grad()
    states, result = layer(inputs, lengths, x0=x0, return_result=True)
    torch.sin(3 * states).sum().backward()
    return states.detach(), result, {name: p.grad.clone() for name, p in layer.named_parameters()}


@pytest.mark.parametrize("name", MODULES)
def test_the_second_visit_begins_where_the_first_ended(monkeypatch, name, inputs):
    layer, starts, found = made(name), imt.WarmStarts(), adjoints(monkeypatch)
    expected = step(layer, inputs, None)
    first = step(layer, inputs, starts[["a", "b", "c"]])
    second = step(layer, inputs, starts[["a", "b", "c"]])
    for states, _, gradients in (first, second):
        torch.testing.assert_close(states, expected[0], rtol=0, atol=1e-7)
        torch.testing.assert_close(gradients, expected[2], rtol=0, atol=1e-6)
    assert second[1].counts.residuals <= min(2, first[1].counts.residuals)
    if name != "elman":  # whose solves are exact
        assert (found[2].linear.iterations <= found[1].linear.iterations).all()
        assert found[2].linear.iterations.max() == 0
    assert len(starts) == B


def test_after_a_small_step_they_save_work_and_change_no_result(monkeypatch, inputs):
    layer, starts, found = made(), imt.WarmStarts(), adjoints(monkeypatch)
    step(layer, inputs, starts[range(B)])
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(1e-4 * torch.sign(p.grad))
    cold, warm = step(layer, inputs, None), step(layer, inputs, starts[range(B)])
    torch.testing.assert_close(warm[0], cold[0], rtol=0, atol=1e-7)
    torch.testing.assert_close(warm[2], cold[2], rtol=0, atol=1e-6)
    assert warm[1].counts.residuals <= cold[1].counts.residuals
    assert warm[1].iterations.sum() < cold[1].iterations.sum()
    assert found[2].linear.iterations.max() < found[1].linear.iterations.max()


def test_samples_are_known_by_their_keys(inputs):
    layer, starts = made(), imt.WarmStarts()
    states, *_ = step(layer, inputs, starts[np.asarray([7, 8, 9])])
    order = torch.tensor([9, 7])  # in another batch, another order
    again, result, _ = step(layer, inputs[[2, 0]], starts[order], [LENGTHS[2], LENGTHS[0]])
    torch.testing.assert_close(again, states[[2, 0]], rtol=0, atol=1e-8)
    assert np.max(result.iterations) == 0


def test_new_samples_begin_as_they_would_alone(inputs):
    layer, starts = made(), imt.WarmStarts()
    step(layer, inputs[:1], starts[[0]], LENGTHS[:1])
    states, result, _ = step(layer, inputs, starts[[0, 1, 2]])
    alone, cold, _ = step(layer, inputs, None)
    torch.testing.assert_close(states, alone, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(result.initial_norm[1:], cold.initial_norm[1:])
    assert result.initial_norm[0] <= 1e-9
    assert len(starts) == B


@pytest.mark.parametrize("padded", [4, 9])
def test_other_padding(inputs, padded):
    """The known positions of a sequence are those that both paddings have."""
    layer, starts = made(), imt.WarmStarts()
    lengths = [4, 2, 4]
    expected, *_ = step(layer, inputs, starts[range(B)], lengths)
    other = torch.zeros(B, padded, D, dtype=torch.float64)
    other[:, :4] = inputs[:, :4]
    states, result, _ = step(layer, other, starts[range(B)], lengths)
    torch.testing.assert_close(states[:, :4], expected[:, :4], rtol=0, atol=1e-8)
    assert result.initial_norm.max() <= 1e-9


def test_only_what_was_solved_is_kept(inputs):
    options = imt.SolveOptions(
        stop=ims.NonlinearStop(atol=1e-15, rtol=0.0, max_iterations=1),
        adjoint_stop=ims.LinearStop(rtol=1e-15, max_iterations=1),
        on_failure="ignore",
    )
    starts = imt.WarmStarts()
    step(made(solve_options=options), inputs, starts[range(B)])
    assert len(starts) == 0
    assert not starts.adjoints


def test_a_list_of_keys_for_one_sequence_is_named(inputs):
    with pytest.raises(ValueError, match="`x0` must have one key, not a list, for inputs"):
        made()(inputs[0], x0=imt.WarmStarts()[[1]])
