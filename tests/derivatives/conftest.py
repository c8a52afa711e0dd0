"""Layers of every kind that have halves."""

import pytest

from tests.adapters.cases import NEAREST
from tests.adapters.layers import Case, make
from tests.elimination.layers import SIZES


@pytest.fixture(params=NEAREST)
def name(request) -> str:
    return request.param


@pytest.fixture(params=["T1", "T2", "T3", "even", "ragged"])
def case(request, name) -> Case:
    return make(name, **SIZES[request.param], scale=0.8)
