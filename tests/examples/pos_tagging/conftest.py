"""The parts of the script, a treebank and a tagger."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.examples.pos_tagging.treebanks import sentence

PARTS = ("batches", "conllu", "errors", "features", "files", "model", "model_file", "training")


@pytest.fixture(scope="module")
def parts(main: ModuleType) -> dict[str, ModuleType]:
    """Its parts, by name."""
    return {name: importlib.import_module(f"_tagging.{name}") for name in PARTS}


@pytest.fixture
def data(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Folder of a treebank that can be learnt without error."""
    folder = tmp_path / "data"
    folder.mkdir()
    for part, count in (("train", 60), ("dev", 12)):
        (folder / f"{part}.conllu").write_text("".join(sentence(rng) for _ in range(count)), encoding="utf-8")
    return folder


@pytest.fixture
def tagger(parts: dict[str, ModuleType], rng: np.random.Generator) -> object:
    """A small tagger whose parameters are all away from zero."""
    conllu, features, model = parts["conllu"], parts["features"], parts["model"]
    encoder = features.Encoder.from_sentences([conllu.Sentence((), (), ("The", "cat", "sleeps"), ("D", "N", "V"))])
    made = model.Tagger.initial(encoder, model.Sizes(word=5, affix=2, state=6), rng)
    for value in made.parameters.values():
        value += (0.2 * rng.standard_normal(value.shape)).astype(np.float32)
    return made


@pytest.fixture
def model_file(parts: dict[str, ModuleType], tagger: object, tmp_path: Path) -> Path:
    path = tmp_path / "model.npz"
    parts["model_file"].save_model(path, tagger, "xpos")
    return path
