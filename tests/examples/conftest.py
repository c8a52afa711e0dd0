"""The script that is tested."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def main(request: pytest.FixtureRequest) -> ModuleType:
    """The script that the file of tests, or its folder, is named after, as a module."""
    path = request.path
    return importlib.import_module(path.stem.removeprefix("test_") if path.parent == HERE else path.parent.name)
