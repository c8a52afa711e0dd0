"""What the tests of the adapters share."""

from __future__ import annotations

import pytest

from implicitsolve.adapters import _rows


@pytest.fixture
def parts(monkeypatch):
    """Split even small layers into several parts."""
    monkeypatch.setattr(_rows, "PART_ROWS", 3)
