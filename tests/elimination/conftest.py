"""Layers of every kind and size that have halves."""

import pytest

from tests.adapters.cases import NEAREST
from tests.adapters.layers import Case
from tests.elimination.layers import SIZES, case_of


@pytest.fixture(params=NEAREST)
def name(request) -> str:
    return request.param


@pytest.fixture(params=SIZES)
def case(request, name) -> Case:
    return case_of(name, request.param)
