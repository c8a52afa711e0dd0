"""The workloads W1 to W5: defined once, for the suite, for the comparison with other packages, and for the tests.

Each has a name, a start `x0`, its raw data, a residual in plain NumPy by which every solver's answer is measured, a
`target` for max|residual|, and `problem()`, which is what implicitsolve solves. `WORKLOADS` makes them by their keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ._base import Banded, Workload
from ._layers import Elman, ImplicitGRU
from ._lines import Bratu, Brusselator, Brusselators, Burgers

WORKLOADS: dict[str, Callable[[], Workload]] = {
    "W1-k200-s1": partial(ImplicitGRU.draw, 20, 40, 200, 1.0),
    "W1-k200-s2": partial(ImplicitGRU.draw, 20, 40, 200, 2.0),
    "W1-k200-s3": partial(ImplicitGRU.draw, 20, 40, 200, 3.0),
    "W1-k448-s1": partial(ImplicitGRU.draw, 20, 25, 448, 1.0),
    "W1-k200-s1-float32": partial(ImplicitGRU.draw, 20, 40, 200, 1.0, np.float32),
    "W1-k448-s1-float32": partial(ImplicitGRU.draw, 20, 25, 448, 1.0, np.float32),
    "W2-bratu-1e4": partial(Bratu.draw, 10_000),
    "W2-bratu-1e5": partial(Bratu.draw, 100_000),
    "W2-burgers-1e4": partial(Burgers.draw, 10_000),
    "W2-burgers-1e5": partial(Burgers.draw, 100_000),
    "W3-k2": partial(Brusselator.draw, 20_000, 1),
    "W3-k8": partial(Brusselator.draw, 20_000, 4),
    "W4": partial(Brusselators.draw, 10_000, 8),
    "W5": partial(Elman.draw, 20, 1000, 100),
}

__all__ = [
    "WORKLOADS",
    "Banded",
    "Bratu",
    "Brusselator",
    "Brusselators",
    "Burgers",
    "Elman",
    "ImplicitGRU",
    "Workload",
]
