"""The command line: training, tagging, model files, and errors of one line."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.examples.pos_tagging.treebanks import TINY, run


def test_train_save_predict_load_and_tag(
    main: ModuleType, capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
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
