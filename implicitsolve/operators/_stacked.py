"""Operators of several batches as the operator of all their systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from implicitsolve._namespace import array_namespace
from implicitsolve._typing import Array, Indices
from implicitsolve.operators._base import LinearOperator


def stacked(operators: Sequence[LinearOperator]) -> LinearOperator:
    """Return the operator of the systems of all `operators`, one batch behind the other, on arrays (B, N)."""
    parts = [operator.flat() for operator in operators]
    ends = np.cumsum([part.batch_shape[0] for part in parts])

    def by_part(products: list[Callable[[Array], Array]]) -> Callable[[Array], Array]:
        def product(v: Array) -> Array:
            pieces = [apply(v[end - size : end, :]) for apply, size, end in zip(products, sizes, ends.tolist())]
            return array_namespace(v).concat(pieces, axis=0)

        return product

    def take(indices: Indices) -> LinearOperator:
        owners = np.searchsorted(ends, indices, side="right")
        runs = np.split(np.arange(len(indices)), np.flatnonzero(np.diff(owners)) + 1)
        chosen = [(int(owners[run[0]]), np.asarray(indices)[run]) for run in runs]
        taken = [parts[owner].take(systems - (ends[owner] - sizes[owner])) for owner, systems in chosen]
        return taken[0] if len(taken) == 1 else stacked(taken)

    sizes = [part.batch_shape[0] for part in parts]

    def all_have(name: str) -> bool:
        return all(getattr(part, name) is not None for part in parts)

    return LinearOperator(
        by_part([part.matvec for part in parts]),
        by_part([part.rmatvec for part in parts]) if all_have("_rmatvec") else None,
        in_shape=parts[0].in_shape,
        batch_shape=(int(ends[-1]),),
        dtype=parts[0].dtype,
        take=take,
        inverse=(lambda: stacked([part._inverse() for part in parts])) if all_have("_inverse") else None,  # type: ignore[misc]
        cast=(lambda dtype: stacked([part.astype(dtype) for part in parts])) if all_have("_cast") else None,
    )
