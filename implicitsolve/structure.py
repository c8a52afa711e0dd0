"""Structures of a Jacobian, declared or detected: block bands, sparse patterns, halves for the elimination."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import numpy as np

from implicitsolve._grid import Grid
from implicitsolve._sparse_structure import Sparse
from implicitsolve._summary import Representation
from implicitsolve._typing import Array, DType, HostArray, Indices
from implicitsolve.stopping import check_limit

__all__ = ["BlockBanded", "Coupling", "Detection", "Grid", "Half", "Halves", "Outcome", "Sparse"]


@dataclass(frozen=True)
class BlockBanded(Representation):
    """A block-banded matrix: T blocks of k unknowns, each coupled to a few blocks before and after it.

    Parameters
    ----------
    lower : int
        Blocks before a block that its equations depend on.
    upper : int
        Blocks after it.
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
        if not isinstance(self.periodic, bool | np.bool_):
            raise TypeError(f"BlockBanded: `periodic` must be a bool, got {type(self.periodic).__name__}")

    @property
    def width(self) -> int:
        """Blocks in a block row: lower + upper + 1."""
        return self.lower + self.upper + 1

    def length(self, unknowns: int) -> int:
        """Return the number of blocks T of a system with so many unknowns.

        Raises
        ------
        ValueError
            If `unknowns` is no multiple of `block_size`, or a circle is too short for its band.
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
        """Raise a ValueError if a circle of `length` blocks is shorter than its band is wide."""
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
            Colors 0, 1, ...; `width` of them, fewer where there are fewer blocks. A circle needs
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


class Coupling(Protocol):
    """Derivative of one half of the blocks with respect to the other half."""

    def matvec(self, v: Array) -> Array:
        """Product with a direction of the other half."""
        ...

    def rmatvec(self, w: Array) -> Array:
        """Adjoint product."""
        ...

    def take(self, indices: Indices) -> Coupling:
        """The halves of some systems of the batch."""
        ...

    def diagonals(self) -> tuple[Array, Array]:
        """Diagonals, perhaps approximate, of each block's derivatives with respect to its previous and next block."""
        ...

    def astype(self, dtype: DType) -> Coupling:
        """A copy in another precision."""
        ...


Pull: TypeAlias = Callable[
    [tuple[Any, Any], tuple[Array, Array], Array, Array, Collection[str] | None],
    tuple[Array, Array, Callable[[], Mapping[str, Array]]],
]


@dataclass(frozen=True, kw_only=True)
class Half:
    """One half of the blocks as a function of the other half.

    Attributes
    ----------
    apply : callable
        ``apply(other)`` returns the blocks of this half, shape ``batch_shape + (blocks, k)``.
    linearize : callable
        ``linearize(other)`` returns the same and its `Coupling`.
    """

    apply: Callable[[Array], Array] = field(repr=False)
    linearize: Callable[[Array], tuple[Array, Coupling]] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Halves:
    """The two halves of a system x = G(x) none of whose blocks depends on its own half.

    Attributes
    ----------
    eliminated : Half
        Blocks 0, 2, 4, ... as a function of the kept ones.
    kept : Half
        Blocks 1, 3, 5, ... as a function of the eliminated ones.
    shape : tuple of int, optional
        Shape of a whole state, ``batch_shape + (T, k)``, against which `root` checks its start.
    nearly_diagonal : bool, optional
        Whether the couplings' `diagonals` approximate them, so that J offers an inverse made of these. Default True.
    pull : callable, optional
        ``pull(couplings, states, e, w, wrt)`` does at once what `pull_back` has to do at the solution of the kept
        blocks' adjoint system: for the pairs (of the eliminated half, of the kept one) of couplings and of states at
        which they were taken, and for cotangents e and w of both halves, it returns

        - ``v = e + kept.rmatvec(w)``, the adjoint of the eliminated blocks,
        - ``eliminated.rmatvec(v)``, of which the residual of w is made,
        - and a function that returns the gradients (dG/dtheta)^H (v, w) as a dict, of the parameters that `wrt` names
          (all if it is None).

        It saves the additional products that gradients need.
    """

    eliminated: Half
    kept: Half
    shape: tuple[int, ...] | None = None
    nearly_diagonal: bool = True
    pull: Pull | None = field(default=None, repr=False)


class Outcome(StrEnum):
    """How a search for the sparsity of J ended: each a string, with what it means as `words`."""

    words: str

    def __new__(cls, value: str, words: str = "") -> Outcome:
        """Make the string, and keep the words."""
        outcome = str.__new__(cls, value)
        outcome._value_, outcome.words = value, words
        return outcome

    DECLARED = "declared", "declared"
    JAC = "jac", "those of the problem's matrix"
    PREVIOUS = "previous", "from the previous solve"
    TRACED = "traced", "from the traced program"
    DIAGONALS = "diagonals", "by diagonals"
    BISECTION = "bisection", "by bisection"
    SMALL = "small", "few unknowns"
    DENSE = "dense", "a single unknown changes too many equations"
    IDENTITY = "identity", "a single unknown changes many equations, though its own nearly as in a fixed-point problem"
    FULL = (
        "full",
        "a single unknown changes too many equations, though few of them much, which make a preconditioner",
    )
    NOT_FINITE = "not finite", "the residual is not finite near x0"
    RAISED = "raised", "the residual raised an ArithmeticError near x0, or a limit ended the search"
    BUDGET = "budget", "the evaluations allowed do not suffice"
    IRREGULAR = "irregular", "the entries do not lie on diagonals, and no other pattern was looked for"
    CONTRADICTION = "contradiction", "the residual does not change as the pattern predicts"

    @property
    def is_lasting(self) -> bool:
        """Whether a search at another point would only repeat it."""
        return self in (
            Outcome.DENSE,
            Outcome.IDENTITY,
            Outcome.FULL,
            Outcome.BUDGET,
            Outcome.CONTRADICTION,
            Outcome.IRREGULAR,
        )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Detection(Representation):
    """What a search for sparsity has found.

    Attributes
    ----------
    structure : Sparse or None
        The pattern; None if none was found, or none was accepted.
    how : Outcome
        "diagonals" or "bisection": which search found it; in the result of a solve also "declared", "jac" (the entries
        of the problem's own matrix), "previous" (found by an earlier solve), or "traced" (all branches of a traced F).
        Without a structure the reason: "small", "dense", "identity": dense, but near a multiple of I, "full": dense,
        with few large entries, "not finite", "raised", "budget", "irregular": not on diagonals, or "contradiction":
        J d is not the measured change of F.
    evaluations : int
        Residual evaluations that the search took.
    unknowns : int
        N.
    values : ndarray (B, nnz) or None
        Entries of J at a point near x0, in the order of ``structure.indices``, accurate to about eps^(1/4).
    full_rows : ndarray of int
        Rows that depend on nearly all unknowns and are not in the structure.
    colors : ndarray (N,) of int or None
        Colors of the columns for ``structure``, if any were needed: so many differences, or products, assemble J.
    likely : float
        Evaluations that a search by bisection would likely take, where one was put off.
    large : Sparse or None
        Where a full J has entries above a hundredth of its columns' largest, as a local operator with a mean or an
        integral added has: they make a preconditioner.
    diagonal : float
        Where J is near a multiple of I: the factor.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> ims.detect_structure(lambda x: 3 * x - np.roll(x, 1) ** 2, np.ones(50))
    <Detection: 50 unknowns, 100 entries, at most 2 in a row, 2 colors, by diagonals in 9 evaluations>
    """

    structure: Sparse | None = None
    how: Outcome
    evaluations: int
    unknowns: int
    values: HostArray | None = field(default=None, repr=False)
    full_rows: HostArray = field(default_factory=lambda: np.zeros(0, dtype=np.intp), repr=False)
    colors: HostArray | None = field(default=None, repr=False)
    likely: float = field(default=0.0, repr=False)
    large: Sparse | None = field(default=None, repr=False)
    diagonal: float = field(default=1.0, repr=False)

    def __post_init__(self) -> None:
        """Take plain strings for `how`, such as "small"."""
        object.__setattr__(self, "how", Outcome(self.how))

    @property
    def reason(self) -> str:
        """Why there is no structure, in words; empty if there is one."""
        return "" if self.structure is not None else self.how.words

    def _entries(self) -> dict[str, str]:
        return {"unknowns": f"{self.unknowns}", "J": f"{self}"}

    def __repr__(self) -> str:
        """Size, what was found, how, and what it cost."""
        return f"<Detection: {self.unknowns} unknowns, {self}>"

    def __str__(self) -> str:
        """What was found, how, and what it cost."""
        cost = f"{self.evaluations} evaluation" + "s" * (self.evaluations != 1)
        if self.structure is None:
            return f"no sparsity used ({self.reason}), {cost}"
        full = f", {self.full_rows.size} full rows aside" if self.full_rows.size else ""
        colors = "" if self.colors is None else f", {int(self.colors.max()) + 1} colors"
        most = int(self.structure.row_counts.max(initial=0))
        how = self.how.words + (f" in {cost}" if self.how in (Outcome.DIAGONALS, Outcome.BISECTION) else "")
        return f"{self.structure.nnz} entries, at most {most} in a row{full}{colors}, {how}"
