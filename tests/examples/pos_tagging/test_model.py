"""The tagger's features, model and gradient."""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("form", "flags"),
    [
        ("Paris", "10000000"),
        ("NATO", "11010000"),
        ("cat", "00100000"),
        ("iPhone", "00010000"),
        ("3.50", "00001110"),
        ("B-52", "11001011"),
        ("...", "00000010"),
        ("-", "00000011"),
    ],
)
def test_binary_features(parts: dict[str, ModuleType], form: str, flags: str) -> None:
    assert "".join(str(int(flag)) for flag in parts["features"]._flags(form)) == flags


def test_tables_keep_the_most_common_and_number_zero_is_the_rest(parts: dict[str, ModuleType]) -> None:
    conllu, features = parts["conllu"], parts["features"]
    corpus = [conllu.Sentence((), (), ("Running", "running", "runs", "a"), ("V", "V", "V", "D"))]
    encoder = features.Encoder.from_sentences(corpus, affixes=1)
    encoded = encoder.encode(["RUNNING", "ran", "a"], ["V", "unheard", "D"])
    assert encoder.tables["word"].entries == ("running", "a", "runs")
    assert encoder.tables["suffix3"].entries == ("ing",)
    columns = list(features.TABLES)
    assert encoded.numbers[:, columns.index("word")].tolist() == [1, 0, 2]
    assert encoded.numbers[:, columns.index("prefix2")].tolist() == [1, 0, 0]
    assert encoded.numbers[:, columns.index("suffix3")].tolist() == [1, 0, 0]
    assert encoded.tags.tolist() == [1, -1, 0]


def encoded(tagger: object, sentences: Sequence[str]) -> list[object]:
    tags = {"the": "D", "cat": "N", "sleeps": "V"}
    return [tagger.encoder.encode(s.split(), [tags.get(w, "?") for w in s.split()]) for s in sentences]  # type: ignore[attr-defined]


def test_gradient_is_that_of_the_loss(parts: dict[str, ModuleType], tagger: object) -> None:
    solver = parts["model"].SolverOptions(forward=1e-6, adjoint=1e-6)
    corpus = encoded(tagger, ["the cat sleeps", "sleeps", "cat the cat the cat"])
    batch = parts["batches"].collate(corpus, np.arange(3))
    gradients, _ = tagger.gradient(tagger.forward(batch, solver), solver)  # type: ignore[attr-defined]
    for name, gradient in gradients.items():
        value = tagger.parameters[name]  # type: ignore[attr-defined]
        is_sparse = isinstance(gradient, parts["model"].SparseRows)
        gradient = gradient.dense(value.shape) if is_sparse else gradient
        norm = float(np.linalg.norm(gradient))
        assert norm > 0
        losses = []
        start = value.copy()
        for step in (0.02, -0.02):
            value[...] = start + step * gradient / norm
            losses.append(tagger.forward(batch, solver).loss / batch.words)  # type: ignore[attr-defined]
        value[...] = start
        assert (losses[0] - losses[1]) / 0.04 == pytest.approx(norm, rel=0.02, abs=1e-4), name


def test_neighbours_in_the_batch_change_no_probability(parts: dict[str, ModuleType], tagger: object) -> None:
    solver = parts["model"].SolverOptions(forward=1e-6)
    corpus = encoded(tagger, ["cat", "the cat sleeps the cat sleeps", "sleeps the"])
    together = tagger.forward(parts["batches"].collate(corpus, np.arange(3)), solver)  # type: ignore[attr-defined]
    alone = [tagger.forward(parts["batches"].collate(corpus, np.array([i])), solver) for i in range(3)]  # type: ignore[attr-defined]
    expected = np.concatenate([forward.log_probabilities for forward in alone])
    np.testing.assert_allclose(together.log_probabilities, expected, atol=2e-5)


def test_unsolved_sentences_are_counted_and_left_out(
    parts: dict[str, ModuleType], tagger: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parts["model"]
    nothing = model.ims.NonlinearStop(atol=0.0, rtol=0.0, max_iterations=0)
    monkeypatch.setattr(model.SolverOptions, "nonlinear", nothing)
    solver = model.SolverOptions()
    batch = parts["batches"].collate(encoded(tagger, ["the cat", "sleeps the cat"]), np.arange(2))
    forward = tagger.forward(batch, solver)  # type: ignore[attr-defined]
    assert forward.work.unsolved == 2
    gradients, _ = tagger.gradient(forward, solver)  # type: ignore[attr-defined]
    assert not gradients["out_W"].any()
    assert not gradients["U"].any()


def test_cached_start_returns_what_was_written(parts: dict[str, ModuleType], tagger: object) -> None:
    training = parts["training"]
    corpus = encoded(tagger, ["the", "cat sleeps the", "sleeps the"])
    cache = training._StateCache(corpus, 2)
    states = np.arange(10, dtype=np.float32).reshape(5, 2)
    cache.write(parts["batches"].collate(corpus, np.array([1, 2])), states)
    read = cache.read(parts["batches"].collate(corpus, np.array([2, 0])))
    np.testing.assert_array_equal(read, [[[6, 7], [8, 9]], [[0, 0], [0, 0]]])
