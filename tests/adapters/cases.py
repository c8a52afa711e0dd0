"""Small cases of every layer, and the comparison with what is written out."""

from typing import Any

from tests.adapters.layers import ADAPTERS, Case, make

NAMES = list(ADAPTERS)
NEAREST = [name for name, adapter in ADAPTERS.items() if adapter.offsets == (-1, 1)]
CAUSAL = [name for name, adapter in ADAPTERS.items() if min(adapter.offsets) > 0 or max(adapter.offsets) < 0]
SMOOTH = [name for name, adapter in ADAPTERS.items() if adapter.smooth]
LENGTHS = {"ragged": (5, 1, 4, 2), "full": None}


def case_of(name: str, **kwargs: Any) -> Case:
    return make(name, **({"B": 4, "T": 5, "lengths": LENGTHS["ragged"], "scale": 0.7} | kwargs))
