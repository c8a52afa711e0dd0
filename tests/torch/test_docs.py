"""The Python on docs/how_to/torch.md runs as written, from top to bottom, but for the number of training steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "torch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_runs():
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block.replace("range(20)", "range(2)"), "torch.md", "exec"), names)
    assert names["loss"].isfinite()
    assert names["result"].success.all()
    assert all(x.grad is not None for x in (names["u"], names["net"].weight, names["net"].bias))
    assert names["layer"].solve_options.on_failure == "raise"
