"""Lifted nets in every form of A and B, and what the tests of them compare."""

from typing import Any

import numpy as np
import scipy.sparse

import implicitsolve as ims
from tests.helpers.compare import host
from tests.operators.block_banded import cut

BATCH, T, K, P = 3, 4, 3, 5
N = T * K
TIGHT = ims.LinearStop(rtol=1e-13)
ACTIVATIONS = ("tanh", "logistic", "relu", "identity")

PHI = {
    "tanh": np.tanh,
    "logistic": lambda a: 1 / (1 + np.exp(-a)),
    "relu": lambda a: np.where(a.real > 0, a, 0),
    "identity": lambda a: a,
}


def banded(A: Any) -> Any:
    return cut(A, ims.BlockBanded(1, 1, K))


FORMS = {
    "dense": np.asarray,
    "csr": scipy.sparse.csr_array,
    "csc": scipy.sparse.csc_matrix,
    "coo": scipy.sparse.coo_array,
    "lil": scipy.sparse.lil_array,
    "dia": scipy.sparse.dia_array,
    "bsr": lambda A: scipy.sparse.bsr_array(A, blocksize=(K, K)),
    "oblong": lambda A: scipy.sparse.bsr_array(A, blocksize=(2, 6)),
    "large": lambda A: scipy.sparse.bsr_array(A, blocksize=(N, N)),
    "banded": banded,
}


def dense(matrix: Any) -> np.ndarray:
    return host(matrix.todense() if hasattr(matrix, "todense") else matrix)


def stored(matrix: Any) -> np.ndarray:
    """Where a matrix stores entries, zero or not."""
    if isinstance(matrix, ims.BlockBandedMatrix):
        return banded(np.ones(matrix.shape)).todense() != 0
    if not scipy.sparse.issparse(matrix):
        return np.ones(matrix.shape, dtype=bool)
    ones = matrix.copy()
    ones.data[...] = 1.0
    return ones.todense() != 0


def G(parts, x, phi):
    return phi(x @ parts["A"].T + parts["inputs"] @ parts["B"].T)


def close(actual, expected, tolerance=1e-13):
    np.testing.assert_allclose(dense(actual), expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


def make(rng, scale=0.4):
    """A block tridiagonal A, so that every form can hold it, a B with zeros, inputs and a state."""
    A = banded(rng.uniform(-scale, scale, (N, N))).todense()
    B = rng.standard_normal((N, P)) * (rng.random((N, P)) < 0.6)
    return {"A": A, "B": B, "inputs": rng.standard_normal((BATCH, P))}, rng.standard_normal((BATCH, N))
