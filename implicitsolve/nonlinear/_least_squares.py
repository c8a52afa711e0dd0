"""The small least-squares problem of Anderson's method, from inner products, for each system of a batch on the host."""

from __future__ import annotations

import numpy as np

from implicitsolve._typing import HostArray


def newest_first(gram: HostArray, right: HostArray, held: HostArray, least: float) -> HostArray:
    """Minimizers (b, m) of ``||f - sum_i c_i y_i||_2``, by Cholesky's factorization.

    Vectors whose part outside the span of those before them is negligible do not take part.

    Parameters
    ----------
    gram : ndarray (b, m, m)
        Inner products <y_i, y_j>, in the order in which vectors are to be preferred.
    right : ndarray (b, m)
        Inner products <y_i, f>.
    held : ndarray (b, m) of bool
        Which vectors there are.
    least : float
        Smallest pivot, which is the squared length of that part over that of the whole vector.

    Returns
    -------
    ndarray (b, m)
        Zero for vectors that do not take part.
    """
    squares = np.real(np.diagonal(gram, axis1=1, axis2=2))
    held = held & (squares > 0) & np.isfinite(squares)
    scale = np.where(held, np.sqrt(np.where(held, squares, 1.0)), 1.0)
    both, products = held[:, :, None] & held[:, None, :], scale[:, :, None] * scale[:, None, :]
    A, b = np.where(both, gram / products, np.eye(held.shape[1])), np.where(held, right, 0.0) / scale
    try:
        pivots = np.real(np.diagonal(np.linalg.cholesky(A), axis1=1, axis2=2)) ** 2
    except np.linalg.LinAlgError:
        pivots = np.zeros(1)
    if pivots.min(initial=np.inf) > least:
        return np.linalg.solve(A, b[:, :, None])[:, :, 0] / scale
    return _one_by_one(A, b, held, least) / scale


def _one_by_one(A: HostArray, z: HostArray, held: HostArray, least: float) -> HostArray:
    """The same for scaled vectors, of which some are left out."""
    size, m = held.shape
    L = np.zeros_like(A)
    pivots = np.ones((size, m))
    for j in range(m):
        pivot = np.real(A[:, j, j])
        held[:, j] &= pivot > least
        pivots[:, j] = np.where(held[:, j], pivot, 1.0)
        column = np.where(held[:, j, None], A[:, j + 1 :, j], 0.0)
        L[:, j + 1 :, j] = column / pivots[:, j, None]
        z[:, j] *= held[:, j]
        z[:, j + 1 :] -= L[:, j + 1 :, j] * z[:, j, None]
        A[:, j + 1 :, j + 1 :] -= L[:, j + 1 :, j, None] * np.conj(column)[:, None, :]
    z /= pivots
    for j in range(m - 1, 0, -1):
        z[:, :j] -= np.conj(L[:, j, :j]) * z[:, j, None]
    return z
