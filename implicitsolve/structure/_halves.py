"""Halves of a system for the elimination of every second block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from implicitsolve._typing import Array, DType, Indices


class Coupling(Protocol):
    """Derivative of one half of the blocks with respect to the other half."""

    def matvec(self, v: Array) -> Array:
        """Product with a direction of the other half."""
        ...

    def rmatvec(self, w: Array) -> Array:
        """Adjoint product."""
        ...

    def take(self, indices: Indices) -> Coupling:
        """The coupling of some systems of the batch."""
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
        ``linearize(other)`` returns these blocks and their `Coupling`.
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
        - ``eliminated.rmatvec(v)``, which gives the residual of w,
        - and a function that returns the gradients (dG/dtheta)^H (v, w) as a dict, of the parameters that `wrt` names
          (all if it is None).

        It saves the additional products that gradients need.
    """

    eliminated: Half
    kept: Half
    shape: tuple[int, ...] | None = None
    nearly_diagonal: bool = True
    pull: Pull | None = field(default=None, repr=False)
