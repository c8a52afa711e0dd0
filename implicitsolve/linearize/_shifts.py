"""A full Jacobian whose columns repeat by shifts, as of convolutions in time: few columns make all of it."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import numpy as np
import scipy.linalg

from implicitsolve._typing import HostArray
from implicitsolve.linearize._bisection import SEED, Probe

MOST_FIELDS = 4  # each number that is wrong takes as many evaluations
LEAST_SHIFTED, MOST_SHIFTED = 100, 4096  # of a matrix whose columns cost more, and take 128 MiB
INSIDE = 0.42  # part of a vector, which lies inside a field, however many of at most four there are
AGREEMENT = 0.9  # part of the entries that have to agree: others are next to the ends of fields
SHIFTED = 0.1  # part of a column, and of the change from one to the next, that is left one place on
FOUND = 0.5  # relative error of a random d that is found from J d


def shift_kernels(probe: Probe) -> HostArray | None:
    """Entries of J by the shift alone, (k, k, 2 T - 1) for columns and rows of k fields of T; None where they vary.

    Fields lie one after the other. Takes 2 evaluations where a column does not have the entries of its neighbor, one
    place on, at most 11 where no number of fields fits, and else 2 k more: beyond the middle column of a field, the
    kernels are those of its last and its first one.
    """
    n, h = probe.size, probe.h[0]
    if probe.systems > 1 or not LEAST_SHIFTED < n <= MOST_SHIFTED or probe.x.dtype.kind != "f":
        return None

    @cache
    def column(j: int) -> HostArray:
        return (probe.displace(np.array([j])) - probe.F)[0] / h[j]

    def columns(at: int, k: int) -> HostArray:
        return np.stack([column(j) for j in range(at, n, n // k)]).reshape(k, k, n // k)

    one, other = column(int(INSIDE * n)), column(int(INSIDE * n) + 1)
    shifted, size = np.quantile(np.abs([other[1:] - one[:-1], one[1:]]), AGREEMENT, axis=1)
    if not shifted < SHIFTED * min(size, np.abs(other - one).max()):
        return None
    d = probe.inward(probe.x, h[None] * np.random.default_rng(SEED).choice((-1.0, 1.0), n))[0]
    change = (probe.evaluate(probe.x + d) - probe.F)[0]
    for k in (k for k in range(1, MOST_FIELDS + 1) if n % k == 0):
        T, half = n // k, n // k // 2
        kernels = np.pad(columns(half, k), ((0, 0), (0, 0), (T - 1 - half, half)), mode="edge")
        with suppress(np.linalg.LinAlgError):  # singular, or not finite
            found = np.linalg.solve(toeplitz_blocks(kernels), change)
            if np.quantile(np.abs(found - d) / np.abs(d), AGREEMENT) <= FOUND:
                kernels[..., : T - 1 - half] = columns(T - 1, k)[..., : T - 1 - half]
                kernels[..., 2 * T - 1 - half :] = columns(0, k)[..., T - half :]
                return kernels
    return None


def toeplitz_blocks(kernels: HostArray) -> HostArray:
    """The matrix of Toeplitz blocks with these entries (k, k, 2 T - 1)."""
    T = kernels.shape[2] // 2 + 1
    rows = kernels.transpose(1, 0, 2)
    return np.block([[scipy.linalg.toeplitz(own[T - 1 :], own[T - 1 :: -1]) for own in row] for row in rows])
