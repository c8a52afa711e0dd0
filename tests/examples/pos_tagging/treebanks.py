"""Treebanks of a few dozen sentences, and a run of the script."""

from types import ModuleType

import numpy as np
import pytest

NOUNS, VERBS = ("cat", "dog", "Paris", "runner"), ("sleeps", "runs", "jumped")
TINY = ["--epochs", "8", "--state", "12", "--batch-words", "40", "--rate", "0.02", "--dropout", "0"]


def row(number: object, form: str, tag: str) -> str:
    return f"{number}\t{form}\t{form.lower()}\tX\t{tag}\t_\t0\troot\t_\tSpaceAfter=No"


def sentence(rng: np.random.Generator) -> str:
    words = [("The", "DT"), (str(rng.choice(NOUNS)), "NN"), (str(rng.choice(VERBS)), "VB")]
    words += [("and", "CC"), (str(rng.choice(VERBS)), "VB")] * int(rng.integers(3)) + [(".", ".")]
    rows = [row(i, *word) for i, word in enumerate(words, start=1)]
    return "\n".join(["# text = of no interest", *rows]) + "\n\n"


def run(main: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err
