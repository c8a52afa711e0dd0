"""What the build of the documentation, which runs the tutorials, would not notice."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tutorials"


def test_the_kernel_of_a_tutorial_does_not_stay(monkeypatch):
    pytest.importorskip("numba")
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    from implicitsolve.kernels import block_lu

    monkeypatch.setattr(plt, "show", plt.close)
    before = dict(block_lu.implementations)
    after = runpy.run_path(str(FOLDER / "plot_8_write_a_kernel.py"))["block_lu"].implementations
    assert "thomas" not in after
    assert all(after[name] is implementation for name, implementation in before.items())
