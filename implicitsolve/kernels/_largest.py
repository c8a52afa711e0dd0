"""Largest magnitudes without a second array of the same size: by pieces that stay in the cache."""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas

from implicitsolve._typing import HostArray

CHUNK = 1 << 15  # numbers of a piece
IAMAX = {"f": blas.isamax, "d": blas.idamax, "F": blas.icamax, "D": blas.izamax}


def largest_flat(x: HostArray) -> float:
    """Largest magnitude in an array (n,), by one pass of BLAS; of complex numbers up to a factor sqrt(2) less."""
    return float(abs(x[IAMAX[x.dtype.char](x)]))


def largest(x: HostArray) -> float:
    """Largest magnitude in an array, taken along its first axis."""
    step = max(CHUNK * len(x) // max(x.size, 1), 1)
    pieces = [np.abs(x[i : i + step]).max(initial=0.0) for i in range(0, len(x), step)]
    return float(np.max(pieces, initial=0.0))  # NaN if there is one
