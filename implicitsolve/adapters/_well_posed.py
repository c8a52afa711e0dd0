"""Well-posedness of lifted nets: whether x = phi(A x + B u) has exactly one solution, whatever B and u are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from implicitsolve import BlockBandedMatrix
from implicitsolve._arrays.namespace import array_namespace, copy_array, is_array
from implicitsolve._typing import Array
from implicitsolve.adapters._common import Matrix, quiet
from implicitsolve.adapters._lifted_matrices import check_matrix
from implicitsolve.adapters._lifted_matrices import entries as nonzeros


@dataclass(frozen=True, kw_only=True)
class WellPosedness:
    """What is known of a matrix A, for activations with Lipschitz constant `lipschitz`.

    Attributes
    ----------
    inf_norm : float
        ``||A||_inf``, the largest row sum of ``abs(A)``.
    perron : float
        Upper bound for the Perron root of ``abs(A)``, its spectral radius. Exactly 0 where A's graph is acyclic.
    perron_lower : float
        Lower bound; the two agree to about 1e-12, or less closely for a cycle of more than 2000 unknowns.
    is_acyclic : bool
        Whether the graph of A is acyclic, as for a strictly triangular matrix: `lifted_net` then offers substitution.
    lipschitz : float
        As given.
    """

    inf_norm: float
    perron: float
    perron_lower: float
    is_acyclic: bool
    lipschitz: float

    @property
    def is_certain(self) -> bool:
        """Whether x = phi(A x + B u) certainly has exactly one solution for any B and u."""
        return self.is_acyclic or self.lipschitz * min(self.inf_norm, self.perron) < 1.0


def well_posedness(A: Matrix, *, lipschitz: float = 1.0) -> WellPosedness:
    """Test whether x = phi(A x + B u) has exactly one solution for any B and u.

    It does, and fixed-point iteration finds it, if ``L ||A||_inf < 1`` or, a weaker condition, if L times the Perron
    root of ``abs(A)`` is below 1, where L is the Lipschitz constant of phi. Both are sufficient, not necessary.

    Parameters
    ----------
    A : Array, sparse matrix or BlockBandedMatrix, of shape (n, n)
        Real and finite.
    lipschitz : float, optional
        L. Default 1, which holds for "tanh", "relu" and "identity"; "logistic" has 1/4.

    Returns
    -------
    WellPosedness
        With `inf_norm`, `perron`, and the conclusion `is_certain`.

    Raises
    ------
    TypeError, ValueError
        If `A` is not a real, square and finite matrix, or `lipschitz` is not positive and finite.

    Notes
    -----
    The Perron root is the largest one of the strongly connected components of A's graph. Each takes at most 60 products
    of a shifted power iteration; where these do not suffice, one of up to 2000 nodes takes about five linear systems of
    Noda's iteration [2]_, a larger one up to 1000 products. Bounds are those of Collatz and Wielandt,
    ``min (|A| v)_i / v_i <= perron <= max (|A| v)_i / v_i`` for any positive v, widened by the rounding errors.

    References
    ----------
    .. [1] L. El Ghaoui, F. Gu, B. Travacca, A. Askari and A. Tsai, "Implicit deep learning", SIAM J. Math. Data Sci. 3
           (2021) 930-958, section 2.
    .. [2] T. Noda, "Note on the computation of the maximal eigenvalue of a non-negative irreducible matrix", Numer.
           Math. 17 (1971) 382-386.

    Examples
    --------
    >>> from implicitsolve.adapters import well_posedness
    >>> report = well_posedness(np.array([[0.0, 4.0], [0.1, 0.0]]))
    >>> report.inf_norm, round(report.perron, 9), report.is_certain
    (4.0, 0.632455532, True)
    """
    if not (isinstance(lipschitz, int | float | np.floating) and math.isfinite(lipschitz) and lipschitz > 0):
        raise ValueError(f"well_posedness: `lipschitz` must be a positive number, got {lipschitz!r}")
    A = _check("well_posedness", A)
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"well_posedness: `A` must be square, got shape {tuple(A.shape)}")
    magnitudes = abs(nonzeros(A).astype(np.float64))
    lower, upper, is_acyclic = perron_bounds(magnitudes)
    return WellPosedness(
        inf_norm=_largest_row(magnitudes),
        perron=upper,
        perron_lower=lower,
        is_acyclic=is_acyclic,
        lipschitz=float(lipschitz),
    )


def project_well_posed(A: Matrix, kappa: float = 0.95) -> Any:
    """Return the nearest matrix whose infinity norm is at most `kappa`.

    Nearest in the Frobenius norm: every row is projected onto the l1 ball of radius kappa. With kappa < 1 the lifted
    net of the result is well posed for every activation whose slope is at most 1.

    Parameters
    ----------
    A : Array, sparse matrix or BlockBandedMatrix, of shape (m, n)
        Float32 or float64, finite. For tied weights, such as the W_H of a recurrent net, project the weight itself.
    kappa : float, optional
        Between 0 and 1, both excluded. Default 0.95.

    Returns
    -------
    Array, sparse matrix or BlockBandedMatrix
        A copy in the format of A with the same stored entries, of which some may have become zero. Rows whose sum of
        magnitudes is at most kappa are unchanged, and the sums of the others, as computed, do not exceed kappa.

    Raises
    ------
    TypeError, ValueError
        If `A` is not a finite matrix of these types, or `kappa` not between 0 and 1.

    Notes
    -----
    A row a becomes ``sign(a) max(|a| - theta, 0)``, where theta is found by sorting the row, in O(n log n) [1]_. With
    ``D = max |a| - |a|`` that is ``sign(a) max(tau - D, 0)``, where tau = (kappa + sum of D over the support) / size of
    the support: free of cancellation and overflow whatever the size of a.

    References
    ----------
    .. [1] J. Duchi, S. Shalev-Shwartz, Y. Singer and T. Chandra, "Efficient projections onto the l1-ball for learning
           in high dimensions", ICML (2008), figure 1.

    Examples
    --------
    >>> from implicitsolve.adapters import project_well_posed
    >>> project_well_posed(np.array([[3.0, -2.5, 0.1], [0.2, 0.0, 0.3]]), kappa=0.9)
    array([[ 0.7, -0.2,  0. ],
           [ 0.2,  0. ,  0.3]])
    """
    if not (isinstance(kappa, int | float | np.floating) and 0 < kappa < 1):
        raise ValueError(f"project_well_posed: `kappa` must be between 0 and 1, got {kappa!r}")
    checked, kappa = _check("project_well_posed", A), float(kappa)
    if scipy.sparse.issparse(A):
        rows = _project_sparse(checked, kappa)
        return rows.tobsr(A.blocksize) if A.format == "bsr" else rows.asformat(A.format)
    return (_project_banded if isinstance(A, BlockBandedMatrix) else _project_rows)(checked, kappa)


def _check(caller: str, A: Matrix) -> Any:
    """Check a matrix, and bring it to a form that `times` takes."""
    is_sparse = scipy.sparse.issparse(A)
    like = A.blocks if isinstance(A, BlockBandedMatrix) else np.empty(0, A.dtype) if is_sparse else A
    if not is_array(like):
        raise TypeError(f"{caller}: `A` must be an array, a sparse or a block-banded matrix, got {type(A).__name__}")
    xp = array_namespace(like)
    if like.dtype not in (xp.float32, xp.float64):
        raise TypeError(f"{caller}: `A` must have dtype float32 or float64, got {like.dtype}")
    A = check_matrix(caller, "A", A, (None, None), like, copy=False)
    entries = A.data if is_sparse else A.blocks if isinstance(A, BlockBandedMatrix) else A
    if not bool(xp.all(xp.isfinite(entries))):
        raise ValueError(f"{caller}: `A` must be finite, got NaN or infinite entries")
    return A


def _project_sparse(A: Matrix, kappa: float) -> Any:
    """Project rows with equally many stored entries at once; as CSR array."""
    rows = scipy.sparse.csr_array(A, copy=True)
    counts = np.diff(rows.indptr)
    for count in np.unique(counts[counts > 0]):
        places = rows.indptr[:-1][counts == count, None] + np.arange(count)
        rows.data[places] = _project_rows(rows.data[places], kappa)
    return rows


def _project_banded(A: BlockBandedMatrix, kappa: float) -> BlockBandedMatrix:
    xp, (T, width, k, _) = array_namespace(A.blocks), A.blocks.shape
    rows = xp.reshape(xp.permute_dims(A.blocks, (0, 2, 1, 3)), (T * k, width * k))
    blocks = xp.permute_dims(xp.reshape(_project_rows(rows, kappa), (T, k, width, k)), (0, 2, 1, 3))
    return BlockBandedMatrix(copy_array(blocks), lower=A.lower, upper=A.upper, periodic=A.periodic)


@quiet
def _project_rows(a: Array, kappa: float) -> Array:
    """Project each row of a matrix onto the l1 ball of radius kappa, with a margin for the rounding of its sums."""
    xp, n = array_namespace(a), a.shape[1]
    wide = xp.astype(a, xp.float64)
    magnitudes = xp.abs(wide)
    below = xp.max(magnitudes, axis=1, keepdims=True) - magnitudes
    below = xp.minimum(below, xp.full_like(below, kappa))  # entries that far below are not in the support
    ordered = xp.sort(below, axis=1)
    counts = xp.arange(1, n + 1, dtype=ordered.dtype, device=ordered.device)
    is_support = counts * ordered < kappa + xp.cumulative_sum(ordered, axis=1)
    size = xp.sum(xp.astype(is_support, ordered.dtype), axis=1, keepdims=True)
    total = xp.sum(xp.where(is_support, ordered, xp.zeros_like(ordered)), axis=1, keepdims=True)
    shrunk = (kappa + total) / size - below
    shrunk = xp.maximum(shrunk, xp.zeros_like(shrunk))
    margin = float(xp.finfo(a.dtype).eps) + (size + 2.0) * EPS
    shrunk = shrunk * (kappa * (1.0 - margin) / xp.sum(shrunk, axis=1, keepdims=True))
    projected = xp.astype(xp.sign(wide) * shrunk, a.dtype)
    return xp.where(xp.sum(magnitudes, axis=1, keepdims=True) <= kappa, a, projected)


LARGEST_COMPONENT = 2000  # nodes of a component for which linear systems are solved
GAP = 1e-12  # relative distance of the bounds at which the search ends
FEW_PRODUCTS, MOST_PRODUCTS, MOST_SYSTEMS = 60, 1000, 30  # as documented
LEAST_ENTRY = 2.0**-500  # entries of the scaled matrix and of v are no smaller, so that no product underflows
EPS = float(np.finfo(np.float64).eps)


def perron_bounds(M: Matrix) -> tuple[float, float, bool]:
    """Lower and upper bound for the Perron root of a CSR array of positive entries; whether its graph is acyclic."""
    _, labels = connected_components(M, connection="strong")
    sizes = np.bincount(labels)
    diagonal = M.diagonal()
    lower = upper = float(diagonal[sizes[labels] == 1].max(initial=0.0))
    is_acyclic = bool((sizes == 1).all() and not diagonal.any())
    groups = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    parts = [M[nodes][:, nodes] for nodes in groups if nodes.size > 1]
    for part in sorted(parts, key=_largest_row, reverse=True):
        if _largest_row(part) <= lower:
            break  # the roots of this component and of those that follow are smaller
        exponent = math.frexp(part.data.max())[1]
        scaled = np.ldexp(part.data, -exponent)
        part.data = np.maximum(scaled, LEAST_ENTRY)  # which cannot lower the root: the upper bound holds still
        bounds = _bounds(part) if (scaled >= LEAST_ENTRY).all() else (0.0, _bounds(part)[1])
        widening = (2 + int(np.diff(part.indptr).max())) * EPS  # rounding of a row's sum of products
        with np.errstate(over="ignore"):
            lower = max(lower, float(np.ldexp(bounds[0] * (1.0 - widening), exponent)))
            upper = max(upper, float(np.ldexp(bounds[1] * (1.0 + widening), exponent)))
    return lower, upper, is_acyclic


@quiet
def _largest_row(part: Matrix) -> float:
    return float(part.sum(axis=1).max())


@quiet
def _bounds(M: Matrix) -> tuple[float, float]:
    """Bounds for an irreducible CSR array, by a shifted power iteration, which is enough for most, then by Noda's."""
    v, lower, upper = np.ones(M.shape[0]), 0.0, math.inf
    is_small = len(v) <= LARGEST_COMPONENT
    for i in range(FEW_PRODUCTS + MOST_SYSTEMS if is_small else MOST_PRODUCTS):
        product = M @ v
        ratios = product / v
        lower, upper = max(lower, float(ratios.min())), min(upper, float(ratios.max()))
        if upper - lower <= GAP * upper:
            break
        if i < FEW_PRODUCTS or not is_small:
            v = product + 0.5 * upper * v  # shifted: power iteration alone does not converge for a cycle
        else:
            try:
                v = np.linalg.solve(ratios.max() * np.eye(len(v)) - M.toarray(), v)
            except np.linalg.LinAlgError:  # the bound is the root to rounding
                break
        v = v / v.max()
        if not (v >= LEAST_ENTRY).all():
            break
    return lower, upper
