"""What every direct method declares, and the settings that block-banded ones share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from implicitsolve.direct._factorization import Factorization
from implicitsolve.kernels import BACKENDS
from implicitsolve.krylov import LinearMethod
from implicitsolve.operators import BlockBandedMatrix
from implicitsolve.stopping import check_limit

GROWTH_LIMIT = 16.0  # measured: the scaled residual of a solve is at most twice the growth, mostly a third of it


class DirectMethod(LinearMethod, Protocol):
    """Frozen settings of a method that factors a matrix; the factors solve with it and with its adjoint."""

    def factor(self, A: BlockBandedMatrix, *, overwrite: bool = False) -> Factorization:
        """Factor A, each system of a batch separately; a singular one gets a status and does not raise."""
        ...


@dataclass(frozen=True, kw_only=True)
class BlockSettings:
    """Settings of the block factorizations, checked."""

    kind: ClassVar[str] = "direct"
    may_transform: ClassVar[bool] = False
    partitioned: ClassVar[bool] = True
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
