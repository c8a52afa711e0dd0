"""What every direct method offers."""

from __future__ import annotations

from typing import Protocol

from implicitsolve.direct._factorization import Factorization
from implicitsolve.operators import BlockBandedMatrix


class DirectMethod(Protocol):
    """Frozen settings that factorize a block-banded matrix."""

    def factor(self, A: BlockBandedMatrix, *, overwrite: bool = False) -> Factorization:
        """Factorize A."""
        ...
