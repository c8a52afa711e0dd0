"""Random block-banded systems, and how accurate their solutions are."""

import numpy as np


def normal(rng, shape, dtype):
    """Normal numbers, complex where the dtype is."""
    values = rng.normal(size=shape)
    return (values + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def random_blocks(rng, sizes, dtype="float64", diagonal=4.0):
    """Blocks (B, T, lower + upper + 1, k, k) for sizes (B, T, lower, upper, k); NaN outside the matrix."""
    B, T, lower, upper, k = sizes
    blocks = normal(rng, (B, T, lower + upper + 1, k, k), np.result_type(dtype, np.float64))
    blocks[:, :, lower] += diagonal * k**0.5 * np.eye(k)
    column = np.arange(T)[:, None] + np.arange(lower + upper + 1) - lower
    blocks[:, (column < 0) | (column >= T)] = np.nan
    return blocks.astype(dtype)


def scaled_residuals(A, x, b, dtype=None):
    """max|b - A x| / ((||A||_inf max|x| + max|b|) eps) of each system (B, N, N), for the eps of A or of a dtype."""
    x, b = (np.reshape(y, (*A.shape[:2], -1)) for y in (x, b))
    with np.errstate(all="ignore"):
        bound = np.abs(A).sum(axis=2).max(axis=1) * np.abs(x).max(axis=(1, 2)) + np.abs(b).max(axis=(1, 2))
        return np.abs(b - A @ x).max(axis=(1, 2)) / (bound * np.finfo(dtype or A.dtype).eps)
