"""The script that is tested."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


@pytest.fixture(scope="module")
def main(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The script that the file of tests, or its folder, is named after, as a module."""
    path = request.path
    name = path.stem.removeprefix("test_") if path.parent == HERE else path.parent.name
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module(name)
