"""Approximate inverses of the form (I + U)^-1 D^-1 (I + L)^-1, and what repeating one adds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._namespace import array_namespace, gather
from implicitsolve._typing import Array, Indices
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.precondition._triangle import Triangle


class Split:
    """(I + U)^-1 D^-1 (I + L)^-1 on arrays (B, T, k), with L strictly lower and U strictly upper block triangular.

    Parameters
    ----------
    D_inverse : array or None
        Inverses of the diagonal blocks, (B, T, k, k); None is I.
    lower, upper : Triangle or None
        I + L and I + U; None is I.
    """

    def __init__(self, D_inverse: Array | None, lower: Triangle | None = None, upper: Triangle | None = None) -> None:
        self.D_inverse = D_inverse
        self.lower = lower
        self.upper = upper
        self._D = None if D_inverse is None else BlockBandedMatrix(D_inverse[:, :, None, :, :], lower=0, upper=0)

    def solve(self, b: Array) -> Array:
        """Apply it."""
        x = b if self.lower is None else self.lower.solve(b)
        x = _copy(x) if self._D is None else self._D.matvec(x)
        return x if self.upper is None else self.upper.solve(x)

    def solve_adjoint(self, b: Array) -> Array:
        """Apply its adjoint."""
        x = b if self.upper is None else self.upper.solve(b, adjoint=True)
        x = _copy(x) if self._D is None else self._D.rmatvec(x)
        return x if self.lower is None else self.lower.solve(x, adjoint=True)

    def take(self, indices: Indices) -> Split:
        """Return those of some systems."""
        lower, upper = (None if part is None else part.take(indices) for part in (self.lower, self.upper))
        return Split(None if self.D_inverse is None else gather(self.D_inverse, indices), lower, upper)


def _copy(x: Array) -> Array:
    return array_namespace(x).asarray(x, copy=True)


def repeated(A: BlockBandedMatrix, split: Split, sweeps: int = 1) -> LinearOperator:
    """Return the operator of so many steps x <- x + M^-1 (b - A x) from x = 0, with `split` as M^-1."""
    return _Repeated(split, A if sweeps > 1 else None, sweeps, A.in_shape, A.dtype).operator(A.batch_shape)


@dataclass(frozen=True)
class _Repeated:
    split: Split
    A: BlockBandedMatrix | None  # kept only where it is multiplied by
    sweeps: int
    event_shape: tuple[int, ...]
    dtype: Any

    def operator(self, batch_shape: tuple[int, ...]) -> LinearOperator:
        return LinearOperator(
            self._matvec,
            self._rmatvec,
            in_shape=self.event_shape,
            batch_shape=batch_shape,
            dtype=self.dtype,
            take=self._take if batch_shape else None,
        )

    def _matvec(self, b: Array) -> Array:
        return self._steps(b, self.split.solve, None if self.A is None else self.A.matvec)

    def _rmatvec(self, b: Array) -> Array:
        return self._steps(b, self.split.solve_adjoint, None if self.A is None else self.A.rmatvec)

    def _steps(self, b: Array, once: Callable[[Array], Array], times: Callable[[Array], Array] | None) -> Array:
        xp = array_namespace(b)
        flat = (math.prod(b.shape[:-2]), *self.event_shape)
        with np.errstate(all="ignore"):  # what is not finite is the solver's to report
            x = xp.reshape(once(xp.reshape(b, flat)), b.shape)
            if times is not None:
                for _ in range(self.sweeps - 1):
                    x = x + xp.reshape(once(xp.reshape(b - times(x), flat)), b.shape)
        return x

    def _take(self, indices: Indices) -> LinearOperator:
        A = None if self.A is None else self.A.take(indices)
        some = _Repeated(self.split.take(indices), A, self.sweeps, self.event_shape, self.dtype)
        return some.operator((len(indices),))
