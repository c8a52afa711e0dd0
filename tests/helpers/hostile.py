"""Values that no argument means: each is refused by a message that names an argument, or has a meaning."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

VALUES = {"None": None, "text": "nonsense", "numbers": [1.0, 2.0, 3.0, 4.0, 5.0], "negative": -1, "nan": float("nan")}
VALUES |= {"array": np.ones((2, 3)), "object": object()}


def refuse_hostile_values(function: Callable[..., Any], /, free: str = "", own: str = "", **good: Any) -> None:
    """Give each argument each value, where the others are good ones or have their defaults.

    Any object is refused but by the arguments in `free`. For those in `own` the error may be that of a caller's
    function to which the value is passed.
    """
    parameters = inspect.signature(function).parameters.values()
    good = {p.name: p.default for p in parameters if isinstance(p.default, str | int | float | None)} | good
    function(**good)
    wrong = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name in good:
            for kind, value in VALUES.items():
                try:
                    function(**{**good, name: value})
                except Exception as error:  # noqa: BLE001
                    is_ours = isinstance(error, TypeError | ValueError | ImportError) and "`" in str(error)
                    if not is_ours and name not in own.split():
                        wrong.append(f"{name}={kind}: {type(error).__name__}: {error}")
                else:
                    if kind == "object" and name not in free.split():
                        wrong.append(f"{name}={kind} is accepted")
    assert not wrong, "\n".join(wrong)
    with pytest.raises(TypeError, match="nonsense"):
        function(**good, nonsense=1)
