"""The README's Python runs as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_example_runs(block):
    exec(compile(block, "README.md", "exec"), {})  # the reader's own clean session


def test_readme_says_the_right_answers():
    import numpy as np

    names: dict = {}
    exec(compile(BLOCKS[1], "README.md", "exec"), names)
    np.testing.assert_allclose(names["result"].x, [[0.0], [1.0], [2.0]], atol=1e-9)
    assert names["result"].success.all()
    slopes = [[1.0], [1 / 4], [1 / 13]]
    np.testing.assert_allclose(names["reverse"].gradients["a"], slopes, rtol=1e-5)
    np.testing.assert_allclose(names["forward"].tangent, slopes, rtol=1e-5)
