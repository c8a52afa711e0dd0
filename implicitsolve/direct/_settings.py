"""The settings that direct methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from implicitsolve.kernels import BACKENDS
from implicitsolve.stopping import check_limit

GROWTH_LIMIT = 16.0  # measured: the scaled residual of a solve is at most twice the growth, mostly a third of it


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Frozen settings, checked."""

    _PIVOTING: ClassVar[tuple[str, ...]] = ("auto", "block", "band")

    pivoting: str = "auto"
    refine: int = 0
    growth_limit: float = GROWTH_LIMIT
    backend: str = "auto"

    def __post_init__(self) -> None:
        """Check the settings."""
        owner = type(self).__name__
        check_limit(owner, "refine", self.refine)
        for name, value, values in (("pivoting", self.pivoting, self._PIVOTING), ("backend", self.backend, BACKENDS)):
            if value not in values:
                raise ValueError(f"{owner}: `{name}` must be one of {values}, got {value!r}")
        if not self.growth_limit >= 1:
            raise ValueError(f"{owner}: `growth_limit` must be at least 1, got {self.growth_limit}")
