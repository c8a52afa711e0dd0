# pyright: basic
"""Arguments of loops that stand in the places of neighbours."""

from __future__ import annotations

from functools import cache

import numpy as np


def near(parts, distances):
    """Matrices as arguments of a `Loop`: those of neighbours, where there are distances."""
    if distances is None:
        return tuple(parts)
    k, char = parts[0].shape[-1], parts[0].dtype.char
    return (*parts, _row_of_zeros(k, char), np.asarray(distances))


def of_neighbours(products, distances, shape):
    """A matrix for results, and the products as arguments.

    One of the products, if the loop leaves each of its rows behind before it writes there.
    """
    for product, distance in zip(products, distances or [0]):
        if distance >= 0 and product.shape == tuple(shape):
            return product, near(products, distances)
    return np.empty(shape, products[0].dtype), near(products, distances)


@cache
def _row_of_zeros(k, char):
    return np.zeros(k, char)
