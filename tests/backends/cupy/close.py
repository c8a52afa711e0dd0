"""How arrays of a device compare to NumPy's."""

from typing import Any

import numpy as np


def flat(found: Any) -> list[Any]:
    """All arrays of a result, on the host."""
    if isinstance(found, (list, tuple)):
        return [array for part in found for array in flat(part)]
    return [found if isinstance(found, (np.ndarray, np.generic)) else found.get()]


def close(found: Any, expected: Any, units: float = 64.0) -> None:
    """To some units in the last place of the largest of each array's numbers; NaN where there is NaN."""
    found, expected = flat(found), flat(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        largest = max(1.0, float(np.abs(np.nan_to_num(other)).max(initial=0.0)))
        np.testing.assert_allclose(one, other, rtol=0, atol=units * np.finfo(other.dtype).eps * largest)
