import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

import implicitsolve as ims
from _lattices.language_model import ElmanLanguageModel
from benchmarks.experiments._layers import LAYERS, of_equal_size, parameters_of
from benchmarks.experiments._orders import accelerated, doubled, iterated
from benchmarks.experiments._run import Checkpoints, write_figure
from benchmarks.experiments._text import END, UNKNOWN, KneserNey, Text
from benchmarks.experiments.language import LanguageModel
from benchmarks.experiments.lattice import around, by_enumeration
from benchmarks.experiments.sentiment import read_documents


@pytest.mark.parametrize("name", LAYERS)
def test_layers_listen_to_inputs_and_neighbours(name, rng):
    """Those of the implicit RNN once began with weights of zero, and never learned anything."""
    k = of_equal_size(name, 6, 1500)
    layer = LAYERS[name](6, k, 0)
    assert abs(parameters_of(layer) / 1500 - 1) < 0.2
    inputs = torch.from_numpy(rng.standard_normal((1, 5, 6))).float()
    changed = inputs.clone()
    changed[0, 2] += 1.0
    with torch.no_grad():
        difference = layer(inputs, np.asarray([5]))[0] - layer(changed, np.asarray([5]))[0]
    heard = difference.abs().amax(dim=(0, 2)) > 1e-3
    assert heard.tolist() == [name not in ("gru", "lstm")] * 2 + [True] * 3


def test_lattices_have_the_best_path_of_all(rng):
    words = ("</s>", "<unk>", *"abcdefg")
    params = ElmanLanguageModel.parameters(len(words), 3, 3, scale=1.0, rng=rng)
    model = ElmanLanguageModel(params, words, begin="</s>", activation="logistic")
    lattice = around("abca", words, 2, rng)
    for rho in (1, 3):
        (found,), expected = model.rescore([lattice], rho)[0].n_best(), by_enumeration(lattice, model, rho)
        assert found.words == expected.words
        assert found.score == pytest.approx(expected.score, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_kneser_ney_is_a_distribution(order, rng):
    lines = [np.append(rng.integers(1, 6, 7), END) for _ in range(20)]
    model = KneserNey(lines, order, 6)
    for history in ((0, 0), (1, 2), (5, 5)):
        assert sum(model.probability(history, word) for word in range(6)) == pytest.approx(1.0, abs=1e-12)


def test_text_is_cut_and_numbered(tmp_path):
    (tmp_path / "text").write_text("a b a\n\na c\nb b\na d\n", encoding="utf-8")
    text = Text.read(tmp_path / "text", parts=(0.6, 0.8))
    assert text.words == ("</s>", "<unk>", "a")
    assert [line.tolist() for line in text.train] == [[2, UNKNOWN, 2, END], [2, UNKNOWN, END]]
    assert [line.tolist() for line in text.choice] == [[UNKNOWN, UNKNOWN, END]]
    assert [line.tolist() for line in text.held] == [[2, UNKNOWN, END]]
    for name, lines in (("train", "a a"), ("valid", "a b"), ("test", "b")):
        (tmp_path / f"wiki.{name}.tokens").write_text(lines, encoding="utf-8")
    assert [line.tolist() for line in Text.read(tmp_path).held] == [[UNKNOWN, END]]


def test_many_iterations_are_backpropagation_through_time(rng):
    lines = [np.append(rng.integers(1, 9, length), END) for length in (3, 5, 6)]
    found = []
    for form, rho in (("bptt", 0), ("full", 7), ("tbptt", 0)):
        model = LanguageModel(9, 4, rho, form, seed=0)
        loss, count = model.loss(lines)
        loss.backward()
        found.append((float(loss.detach()), [parameter.grad.numpy() for parameter in model.parameters()]))
    assert count == 17
    for loss, gradients in found[1:]:
        assert found[0][0] == pytest.approx(loss, rel=1e-6)
        for exact, other in zip(found[0][1], gradients):
            np.testing.assert_allclose(other, exact, rtol=1e-3, atol=1e-5)


class HalfFigure:
    def savefig(self, file, **options):
        file.write(b"half")
        raise ZeroDivisionError


def test_files_are_complete_or_absent(tmp_path):
    with pytest.raises(ZeroDivisionError):
        write_figure(tmp_path / "file", HalfFigure())
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_other_settings_are_refused(tmp_path):
    Checkpoints(tmp_path / "run.pt", {"k": 3}).save({"step": 7})
    assert Checkpoints(tmp_path / "run.pt", {"k": 3}).load()["step"] == 7
    with pytest.raises(SystemExit, match="other settings \\(k\\)"):
        Checkpoints(tmp_path / "run.pt", {"k": 4}).load()


def test_documents_of_a_treebank(tmp_path):
    rows = (
        "# newdoc id = reviews-1",
        "1\tFine\t_",
        "2-3\tisn't\t_",
        "2\tis\t_",
        "3\tn't\t_",
        "",
        "# newdoc id = email-2",
    )
    (tmp_path / "dev").write_text("\n".join((*rows, "1\tHello\t_", "1.1\tempty\t_")), encoding="utf-8")
    assert read_documents(tmp_path / "dev") == [(["fine", "is", "n't"], 1), (["hello"], 0)]


@pytest.mark.parametrize("rho", [1, 2, 4, 8])
@pytest.mark.parametrize("form", [iterated, doubled, accelerated])
def test_orders_are_causal_and_end(form, rho, rng):
    inputs, W = rng.standard_normal((2, 12, 3)), 0.5 * rng.standard_normal((3, 3))
    states = form(inputs, W, rho)
    weights = torch.from_numpy(W).requires_grad_()
    np.testing.assert_allclose(form(torch.from_numpy(inputs), weights, rho).detach(), states, atol=1e-14)
    for changed, first, last in ((5, 5, 5 + rho), (11, 11, 12)):
        other = inputs.copy()
        other[:, changed] += 1.0
        differs = np.abs(form(other, W, rho) - states).max(axis=(0, 2)) > 0
        assert not differs[:first].any()
        assert not differs[last:].any()
    problem = ims.adapters.elman({"W": W, "V": np.eye(3)}, inputs, activation="logistic")
    exact = problem.substitute()
    plain = ims.adapters.approximate_fixed_point(problem, rho).x
    np.testing.assert_allclose(iterated(inputs, W, rho), plain, atol=1e-14)
    assert np.abs(doubled(inputs, W, rho) - exact).max() <= 1.5 * np.abs(plain - exact).max()
    np.testing.assert_allclose(doubled(inputs, W, 16), exact, atol=1e-9)
