"""One system of a nonlinear solve as it was recorded, and a cause as it is told."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.diagnostics._history import History
from implicitsolve.status import Status


@dataclass(frozen=True)
class Case:
    """One system, on the host."""

    status: Status
    history: History
    x: HostArray
    F: HostArray
    norm: float
    first: float
    target: float
    precision: float
    has_products: bool  # whether exact products were counted

    @property
    def reduction(self) -> float:
        """The norm over the first one."""
        return self.norm / self.first if self.first > 0 else math.nan

    @property
    def aim(self) -> str:
        """The target in words, where it is known."""
        return "" if math.isnan(self.target) else f", target {self.target:.3g}"


@dataclass(frozen=True)
class Cause:
    """What happened, and what to try; causes with the same key are told together."""

    key: str
    what: str
    advice: str


def place(values: HostArray, where: HostArray) -> str:
    """The first entry of an array where something holds, with its value."""
    index = tuple(int(i) for i in np.argwhere(where)[0])
    name = f"[{', '.join(map(str, index))}] = " if index else ""
    return f"{name}{values[index]:.4g}"


def largest(values: HostArray) -> str:
    """The largest entry of an array, or the first that is not finite."""
    if not values.size:
        return ""
    finite = np.isfinite(values)
    magnitudes = np.where(finite, np.abs(values), -1.0)
    return place(values, ~finite if not finite.all() else magnitudes == magnitudes.max())
