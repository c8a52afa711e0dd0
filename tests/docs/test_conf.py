"""The settings of the documentation: what is left out of a build without Numba."""

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("math_core")
pytest.importorskip("sphinx")
CONF = Path(__file__).parents[2] / "docs" / "conf.py"


def test_tutorials_that_need_numba_are_skipped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numba" else find_spec(name))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    settings = runpy.run_path(str(CONF))
    tutorial, page = "plot_8_write_a_kernel", ["Write\n=====\n\nText.\n"]
    assert settings["skipped"][tutorial] == "Numba"
    assert tutorial not in settings["sphinx_gallery_conf"]["filename_pattern"]
    settings["note_skipped"](None, f"tutorials/{tutorial}", page)
    assert "=====\n\n\n.. note:: This tutorial was not run" in page[0]
