"""The part-of-speech tagging example, on treebanks of a few dozen sentences."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTS = ("batches", "conllu", "errors", "features", "files", "model", "model_file", "training")

NOUNS, VERBS = ("cat", "dog", "Paris", "runner"), ("sleeps", "runs", "jumped")
TINY = ["--epochs", "8", "--state", "12", "--batch-words", "40", "--rate", "0.02", "--dropout", "0"]


@pytest.fixture(scope="module")
def main() -> Iterator[ModuleType]:
    """The script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module("pos_tagging")


@pytest.fixture(scope="module")
def parts(main: ModuleType) -> dict[str, ModuleType]:
    """Its parts, by name."""
    return {name: importlib.import_module(f"_tagging.{name}") for name in PARTS}


def row(number: object, form: str, tag: str) -> str:
    return f"{number}\t{form}\t{form.lower()}\tX\t{tag}\t_\t0\troot\t_\tSpaceAfter=No"


def sentence(rng: np.random.Generator) -> str:
    words = [("The", "DT"), (str(rng.choice(NOUNS)), "NN"), (str(rng.choice(VERBS)), "VB")]
    words += [("and", "CC"), (str(rng.choice(VERBS)), "VB")] * int(rng.integers(3)) + [(".", ".")]
    rows = [row(i, *word) for i, word in enumerate(words, start=1)]
    return "\n".join(["# text = of no interest", *rows]) + "\n\n"


@pytest.fixture
def data(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Folder of a treebank that can be learnt without error."""
    folder = tmp_path / "data"
    folder.mkdir()
    for part, count in (("train", 60), ("dev", 12)):
        (folder / f"{part}.conllu").write_text("".join(sentence(rng) for _ in range(count)), encoding="utf-8")
    return folder


def run(main: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# ------------------------------------------------------------------------------------------------------------ treebanks

DON_T = [
    "# sent_id = 1",
    row("0.1", "pro", "_"),
    row("1-2", "don't", "_"),
    row(1, "do", "VBP"),
    row(2, "n't", "RB"),
    row("2.1", "go", "_"),
    row("2.2", "there", "_"),
    row(3, "#", "NN"),
]


@pytest.mark.parametrize("end", ["\n", "\n\n", "\n\n\n\n"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_words_are_read_and_other_lines_kept(
    parts: dict[str, ModuleType], tmp_path: Path, end: str, line_end: str, mark: bytes
) -> None:
    path = tmp_path / "a.conllu"
    path.write_bytes(mark + ("\n".join(DON_T) + end).replace("\n", line_end).encode())
    (read,) = parts["conllu"].read_conllu(path)
    assert read.forms == ("do", "n't", "#")
    assert read.tags == ("VBP", "RB", "NN")
    assert read.lines == tuple(DON_T)


def test_writing_changes_the_tags_alone(parts: dict[str, ModuleType], tmp_path: Path) -> None:
    source, target = tmp_path / "a.conllu", tmp_path / "b.conllu"
    source.write_text("\n".join(DON_T) + "\n\n", encoding="utf-8")
    conllu = parts["conllu"]
    read = conllu.read_conllu(source)
    conllu.write_conllu(target, read, [read[0].tags])
    assert target.read_bytes() == source.read_bytes()
    conllu.write_conllu(target, read, [["A", "B", "C"]])
    expected = list(DON_T)
    for line, (number, form, tag) in {3: (1, "do", "A"), 4: (2, "n't", "B"), 7: (3, "#", "C")}.items():
        expected[line] = row(number, form, tag)
    assert target.read_text(encoding="utf-8") == "\n".join(expected) + "\n\n"


MALFORMED = {
    "too few columns": ([row(1, "a", "X"), "2\tb\tc"], 2, "10 columns"),
    "a comment among the words": ([row(1, "a", "X"), "# no", row(2, "b", "X")], 2, "10 columns"),
    "a word left out": ([row(1, "a", "X"), row(3, "b", "X")], 2, "word 2 expected, got 3"),
    "begins at 2": ([row(2, "a", "X")], 1, "word 1 expected, got 2"),
    "an ID that is no number": ([row("x", "a", "X")], 1, "'x'"),
    "a range that begins late": ([row("2-3", "ab", "_"), row(1, "a", "X")], 1, "word 1 expected, got 2-3"),
    "a range that goes back": ([row(1, "a", "X"), row("2-1", "ab", "_")], 2, "got 2-1"),
    "overlapping ranges": ([row("1-3", "ab", "_"), row(1, "a", "X"), row("2-3", "c", "_")], 3, "got 2-3"),
    "a range beyond the end": ([row("1-3", "ab", "_"), row(1, "a", "X"), row(2, "b", "X")], 3, "ends at word 3"),
    "an empty node out of order": ([row(1, "a", "X"), row("1.2", "b", "_")], 2, "1.1 expected, got 1.2"),
    "no form": ([row(1, "", "X")], 1, "form"),
    "no tag": ([row(1, "a", "X"), row(2, "b", "_")], 2, "no tag"),
    "only comments": (["# a", "# b"], 2, "without words"),
    "not UTF-8": ([row(1, "a", "X"), "2\t\udcff"], 2, "not UTF-8"),
    "empty file": ([], 1, "no sentence"),
    "blank lines": (["", "", ""], 1, "no sentence"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_treebank_is_an_error_with_file_and_line(
    main: ModuleType, capsys: pytest.CaptureFixture[str], data: Path, name: str
) -> None:
    lines, number, reason = MALFORMED[name]
    text = "\n".join([row(1, "fine", "X"), "", *lines]) + "\n" if lines and lines[0] else "\n".join(lines)
    line = number + 2 if lines and lines[0] else number
    path = data / "train.conllu"
    path.write_bytes(text.encode(errors="surrogateescape"))
    status, _, err = run(main, capsys, "--data", data, "--epochs", 1)
    assert status == 1
    assert err.startswith(f"pos_tagging: error: {path}:{line}: ")
    assert reason in err
    assert err.count("\n") == 1


def test_interrupted_writing_leaves_the_old_file_and_nothing_else(parts: dict[str, ModuleType], tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o640)

    def write_then_stop() -> None:
        with parts["files"].atomic_write(path) as file:
            file.write(b"new, but not all of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_then_stop()
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    with parts["files"].atomic_write(path) as file:
        file.write(b"new")
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_mode & 0o777 == 0o640


# ---------------------------------------------------------------------------------------------- features and the model


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


@pytest.fixture
def tagger(parts: dict[str, ModuleType], rng: np.random.Generator) -> object:
    """A small tagger whose parameters are all away from zero."""
    conllu, features, model = parts["conllu"], parts["features"], parts["model"]
    encoder = features.Encoder.from_sentences([conllu.Sentence((), (), ("The", "cat", "sleeps"), ("D", "N", "V"))])
    made = model.Tagger.initial(encoder, model.Sizes(word=5, affix=2, state=6), rng)
    for value in made.parameters.values():
        value += (0.2 * rng.standard_normal(value.shape)).astype(np.float32)
    return made


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


# --------------------------------------------------------------------------------------------------------- command line


def test_train_save_predict_load_and_tag(
    main: ModuleType, parts: dict[str, ModuleType], capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    model, predicted, results = tmp_path / "model.npz", tmp_path / "out.conllu", tmp_path / "results.json"
    figure = tmp_path / "curve.png"
    files = ["--save", model, "--predict", predicted, "--json", results, "--figure", figure]
    status, out, _ = run(main, capsys, "--data", data, *TINY, *files)
    assert status == 0
    assert "products" in out
    assert "NOT CONVERGED" not in out
    report = json.loads(results.read_text(encoding="utf-8"))
    assert len(report["epochs"]) == 8
    assert max(epoch["dev_accuracy"] for epoch in report["epochs"]) == 1.0
    assert all(epoch["unsolved"] == 0 and epoch["products_per_batch"] > 0 for epoch in report["epochs"])
    assert predicted.read_text(encoding="utf-8") == (data / "dev.conllu").read_text(encoding="utf-8")
    assert figure.read_bytes().startswith(b"\x89PNG")

    status, out, _ = run(main, capsys, "--load", model, "--tag", "The dog sleeps.")
    assert (status, out) == (0, "The/DT dog/NN sleeps/VB ./.\n")
    status, out, _ = run(main, capsys, "--load", model, "--data", data)
    assert status == 0
    assert out == f"dev accuracy 1.0000, perplexity {out.split()[-1]}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "curve.png",
        "data",
        "model.npz",
        "out.conllu",
        "results.json",
    ]


@pytest.mark.parametrize("start", ["zeros", "cached"])
@pytest.mark.parametrize("optimiser", ["sgd", "adagrad"])
def test_same_seed_same_model(
    main: ModuleType, capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, start: str, optimiser: str
) -> None:
    paths = [tmp_path / name for name in ("a.npz", "b.npz")]
    for path in paths:
        arguments = ["--data", data, "--epochs", 2, "--limit", 20, "--state", 4, "--seed", 3]
        assert run(main, capsys, *arguments, "--start", start, "--optimiser", optimiser, "--save", path)[0] == 0
    first, second = (dict(np.load(path, allow_pickle=False)) for path in paths)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_words_are_divided_as_in_the_treebank(main: ModuleType) -> None:
    text = "I don't think it's 3.50, U.S. al-Ani... (http://a.b/c)"
    words = [
        "I",
        "do",
        "n't",
        "think",
        "it",
        "'s",
        "3.50",
        ",",
        "U.S.",
        "al",
        "-",
        "Ani",
        "...",
        "(",
        "http://a.b/c",
        ")",
    ]
    assert main._TOKEN.findall(text) == words


@pytest.fixture
def model_file(parts: dict[str, ModuleType], tagger: object, tmp_path: Path) -> Path:
    path = tmp_path / "model.npz"
    parts["model_file"].save_model(path, tagger, "xpos")
    return path


def test_a_model_comes_back_as_it_was(parts: dict[str, ModuleType], tagger: object, model_file: Path) -> None:
    loaded, column = parts["model_file"].load_model(model_file)
    assert column == "xpos"
    assert dataclasses.asdict(loaded.sizes) == dataclasses.asdict(tagger.sizes)  # type: ignore[attr-defined]
    assert loaded.encoder == tagger.encoder  # type: ignore[attr-defined]
    for name, value in tagger.parameters.items():  # type: ignore[attr-defined]
        np.testing.assert_array_equal(loaded.parameters[name], value)


BROKEN_MODELS = {
    "lacks an array": ({"parameter_Uz": None}, "parameter_Uz is missing"),
    "lacks the tags": ({"tags": None}, "tags is missing"),
    "another version": ({"format_version": np.asarray(99)}, "version 99"),
    "a wrong shape": ({"parameter_b": np.zeros(3)}, "parameter_b must have shape (6,), got (3,)"),
    "a wrong type": ({"parameter_b": np.asarray(["a"] * 6)}, "parameter_b"),
    "not finite": ({"parameter_b": np.full(6, np.nan)}, "parameter_b holds numbers that are not finite"),
    "pickled objects": ({"tags": np.asarray([None, "D"], dtype=object)}, "not a model file"),
    "negative sizes": ({"sizes": np.asarray([5, -2, 6])}, "sizes"),
    "a foreign column": ({"column": np.asarray("lemma")}, "column"),
}


@pytest.mark.parametrize("name", BROKEN_MODELS)
def test_a_malformed_model_is_an_error_that_says_what_is_wrong(
    main: ModuleType, capsys: pytest.CaptureFixture[str], model_file: Path, name: str
) -> None:
    changes, reason = BROKEN_MODELS[name]
    arrays = {**dict(np.load(model_file, allow_pickle=False)), **changes}
    np.savez(model_file, **{name: value for name, value in arrays.items() if value is not None})  # type: ignore[arg-type]
    status, _, err = run(main, capsys, "--load", model_file, "--tag", "a")
    assert status == 1
    assert err.startswith(f"pos_tagging: error: {model_file}: ")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "single array", "truncated", "damaged", "folder"])
def test_a_file_that_is_no_model_is_an_error(
    main: ModuleType, capsys: pytest.CaptureFixture[str], model_file: Path, kind: str
) -> None:
    raw = model_file.read_bytes()
    model_file.unlink()
    middle = len(raw) // 2
    contents = {"empty": b"", "text": b"not a model\n" * 50, "truncated": raw[:middle]}
    contents["damaged"] = raw[:middle] + bytes(200) + raw[middle + 200 :]
    if kind == "single array":
        with model_file.open("wb") as file:
            np.save(file, np.zeros(3))
    elif kind == "folder":
        model_file.mkdir()
    elif kind != "missing":
        model_file.write_bytes(contents[kind])
    status, _, err = run(main, capsys, "--load", model_file, "--tag", "a")
    assert status == 1
    assert err.startswith(f"pos_tagging: error: {model_file}: ")
    assert err.count("\n") == 1


def test_user_errors_are_one_line(
    main: ModuleType, capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, model_file: Path
) -> None:
    cases = [
        (["--data", tmp_path / "nowhere"], "nowhere (from --data)"),
        (["--data", data, "--save", tmp_path / "no" / "m.npz"], "does not exist"),
        (["--data", data, "--json", data], "is a folder"),
        (["--load", model_file, "--tag", "  "], "at least one word"),
        (["--load", model_file, "--column", "upos"], "predicts xpos"),
    ]
    for arguments, reason in cases:
        status, _, err = run(main, capsys, *arguments)
        assert status == 1
        assert reason in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["--epochs", "-1"], ["--epochs", "0"], ["--rate", "nan"], ["--dropout", "1"], ["--state", "x"], ["--start", "no"]],
)
def test_wrong_options_end_with_status_2(
    main: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main.main(arguments)
    assert ending.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_data_is_found_by_variable_or_downloaded(
    main: ModuleType,
    parts: dict[str, ModuleType],
    capsys: pytest.CaptureFixture[str],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pooch = pytest.importorskip("pooch")
    files = parts["files"]
    monkeypatch.setattr(files, "SHARED_DATA", tmp_path / "absent")
    monkeypatch.setenv("IMPLICITSOLVE_DATA", str(data))
    assert files.find_treebank() == (data / "train.conllu", data / "dev.conllu")
    monkeypatch.delenv("IMPLICITSOLVE_DATA")
    asked = []

    def retrieve(url: str, known_hash: str, fname: str, path: Path) -> str:
        asked.append((url, known_hash))
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    train, dev = files.find_treebank()
    assert (train.name, dev.name) == ("en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu")
    assert all(files.COMMIT in url and digest.startswith("sha256:") for url, digest in asked)

    def fail(url: str, known_hash: str, fname: str, path: Path) -> str:
        raise ValueError("the hash does not match\nmore about it")

    monkeypatch.setattr(pooch, "retrieve", fail)
    status, _, err = run(main, capsys, "--epochs", 1)
    assert status == 1
    assert "the hash does not match; give --data" in err
    assert err.count("\n") == 1


def test_interruption_keeps_what_was_there(
    main: ModuleType, capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "model.npz"
    old.write_bytes(b"old")

    def interrupted(*_: object) -> Iterator[object]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(main, "train", interrupted)
    status, _, err = run(main, capsys, "--data", data, "--save", old, "--predict", tmp_path / "out.conllu")
    assert status == 130
    assert "interrupted" in err
    assert old.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "model.npz"]


def test_divergence_is_an_error(main: ModuleType, capsys: pytest.CaptureFixture[str], data: Path) -> None:
    status, _, err = run(main, capsys, "--data", data, "--optimiser", "sgd", "--rate", "1e38", "--epochs", 3)
    assert status == 1
    assert "diverged" in err
    assert err.count("\n") == 1
