"""Flow and concentration in a network of points, in units of very different sizes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def flow_with_concentration(points: int, unit: float, seed: int) -> tuple[Callable[[Array], Array], Array]:
    """F of pressures p, of the size `unit`, and concentrations s, in random order; and the sizes of the unknowns."""
    rng = np.random.default_rng(seed)
    to = np.arange(1, points)
    ends = np.concatenate([[rng.integers(max(0, i - 30), i) for i in to], rng.integers(0, points, points)])
    starts = np.concatenate([to, rng.integers(0, points, points)])
    order, sources = rng.permutation(2 * points), rng.uniform(0.1, 1.0, (2, points))

    def outflow(q: Array) -> Array:
        return np.bincount(starts, q, points) - np.bincount(ends, q, points)

    def F(x: Array) -> Array:
        p, s = np.split(x[np.argsort(order)], 2)
        flow = outflow((1 + s[starts] ** 2) * (p[starts] - p[ends]) / unit)
        mass = flow + 0.1 * p / unit - sources[0] + 0.05 * np.sin(s)
        transport = outflow(s[starts] - s[ends]) + s**3 + s - sources[1] + 0.3 * np.tanh(p / unit)
        return np.concatenate([mass, transport])[order]

    return F, np.repeat([unit, 1.0], points)[order]
