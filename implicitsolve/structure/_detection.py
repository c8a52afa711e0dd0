"""What a search for the sparsity of a Jacobian has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from implicitsolve._summary import Representation
from implicitsolve._typing import HostArray
from implicitsolve.structure._sparse import Sparse


class Outcome(StrEnum):
    """How a search for the sparsity of J ended: a string, whose meaning is in `words`."""

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
    FULL = (
        "full",
        "a single unknown changes too many equations, though few of them much, which make a preconditioner",
    )
    SHIFTS = "shifts", "a single unknown changes too many equations, though shifts of few columns precondition"
    NOT_FINITE = "not finite", "the residual is not finite near x0"
    RAISED = "raised", "the residual raised an ArithmeticError near x0, or a limit ended the search"
    BUDGET = "budget", "the evaluations allowed do not suffice"
    IRREGULAR = "irregular", "the entries do not lie on diagonals, and no other pattern was looked for"
    CONTRADICTION = "contradiction", "the residual does not change as the pattern predicts"

    @property
    def is_lasting(self) -> bool:
        """Whether a search at another point would only repeat it."""
        return self not in (Outcome.SMALL, Outcome.NOT_FINITE, Outcome.RAISED)


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
        Without a structure the reason: "small", "dense", "full": dense,
        with few large entries, "shifts": dense, with columns that repeat some places on, "not finite", "raised",
        "budget", "irregular": not on diagonals, or "contradiction": J d is not the measured change of F.
    evaluations : int
        Residual evaluations that the search took.
    unknowns : int
        N.
    values : ndarray (B, nnz) or None
        Entries of J at a point near x0, in the order of ``structure.indices``, accurate to about eps^(1/4).
    full_rows : ndarray of int
        Rows that depend on nearly all unknowns and are not in the structure.
    colors : ndarray (N,) of int or None
        Colors of the columns for ``structure``, if any were needed: one difference or product for each assembles J.
    likely : float
        Estimated evaluations of a search by bisection, where one was postponed.
    large : Sparse or None
        Where entries of a full J exceed a hundredth of their columns' largest, as in a local operator to which a mean
        or an integral is added: they make a preconditioner.
    kernels : ndarray (k, k, 2 T - 1) or None
        Where columns of J repeat by shifts: its entries by the shift, for columns and rows of k fields of T unknowns.

    Examples
    --------
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
    kernels: HostArray | None = field(default=None, repr=False)

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
