"""The tagging example: both kinds of layers learn, and are called in one way."""

from importlib import import_module

import numpy as np
import pytest

pytest.importorskip("torch", exc_type=ImportError)

from tests.examples.pos_tagging.treebanks import sentence


def test_explicit_and_implicit_layers_learn_the_tags(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for part, count in (("train", 60), ("dev", 12)):
        text = "".join(sentence(rng) for _ in range(count))
        (tmp_path / f"{part}.conllu").write_text(text, encoding="utf-8")
    main = import_module("torch_tagging")
    monkeypatch.setattr(main, "WORDS", 40)
    arguments = ["--data", str(tmp_path), "--state", "8", "--epochs", "2", "--layers", "GRU", "implicit-GRU"]
    assert main.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [name for name in ("GRU", "implicit-GRU") for _ in range(2)]
    assert all(float(line.split(": ")[1].split()[0]) > 0.8 for line in lines[1::2])
