"""Block bands as the structure of a Jacobian."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from implicitsolve._summary import Representation
from implicitsolve._typing import Indices
from implicitsolve.stopping import check_flag, check_limit


@dataclass(frozen=True)
class BlockBanded(Representation):
    """A block-banded matrix: T blocks of k unknowns, each coupled to a few blocks before and after it.

    Parameters
    ----------
    lower : int
        Number of blocks before a block on which its equations depend.
    upper : int
        Number of blocks after it on which they depend.
    block_size : int, optional
        Unknowns of one block, k. Default 1: an ordinary band.
    periodic : bool, optional
        Whether the structure is periodic, so that the first block depends on the last ones. Default False.

    Raises
    ------
    TypeError, ValueError
        If `lower`, `upper` or `block_size` is not an integer, or is too small.

    Examples
    --------
    >>> from implicitsolve.structure import BlockBanded
    >>> tridiagonal = BlockBanded(1, 1)
    >>> tridiagonal.width
    3
    >>> tridiagonal.colors(5)
    array([0, 1, 2, 0, 1])
    """

    lower: int
    upper: int
    block_size: int = 1
    periodic: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_limit("BlockBanded", "lower", self.lower)
        check_limit("BlockBanded", "upper", self.upper)
        check_limit("BlockBanded", "block_size", self.block_size, least=1)
        check_flag("BlockBanded", "periodic", self.periodic)

    @property
    def width(self) -> int:
        """Blocks in a block row: lower + upper + 1."""
        return self.lower + self.upper + 1

    def length(self, unknowns: int) -> int:
        """Return the number of blocks T of a system with so many unknowns.

        Raises
        ------
        ValueError
            If `unknowns` is not a multiple of `block_size`, or a periodic structure is too short for its band.
        """
        length, rest = divmod(unknowns, self.block_size)
        if rest:
            raise ValueError(
                f"BlockBanded: the number of unknowns must be a multiple of `block_size` = {self.block_size}, "
                f"got {unknowns}"
            )
        self.check_circle(length)
        return length

    def check_circle(self, length: int) -> None:
        """Raise a ValueError if a periodic structure of `length` blocks is shorter than its band is wide."""
        if self.periodic and length < self.width:
            raise ValueError(
                f"BlockBanded: a periodic structure must have at least lower + upper + 1 = {self.width} blocks, "
                f"got {length}"
            )

    def colors(self, length: int) -> Indices:
        """Return a color for each of `length` blocks, such that no block row depends on two blocks of one color.

        One Jacobian product for each color and each unknown of a block then gives the whole matrix.

        Returns
        -------
        ndarray of shape (T,)
            Colors 0, 1, ...; `width` of them, fewer where there are fewer blocks. A periodic structure needs
            ``ceil(T / (T // width))``, which is `width` if that divides T. No coloring has fewer.
        """
        self.check_circle(length)
        blocks = np.arange(length)
        if not self.periodic:
            return blocks % self.width
        # Arcs of nearly equal lengths, each at least `width`, counted from its own beginning.
        arcs = length // self.width
        starts = -(-np.arange(arcs) * length // arcs)
        return blocks - starts[np.searchsorted(starts, blocks, side="right") - 1]


def coloring(structure: BlockBanded, length: int) -> tuple[slice | Indices, ...]:
    """The blocks of each color of a matrix of `length` block rows."""
    if structure.periodic:
        colors = structure.colors(length)
        return tuple(np.flatnonzero(colors == color) for color in range(int(colors.max()) + 1))
    return tuple(slice(color, length, structure.width) for color in range(min(structure.width, length)))
