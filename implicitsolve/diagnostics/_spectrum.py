"""Eigenvalues of I - J by Arnoldi's process: how fast fixed-point iterations converge, and Krylov methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from implicitsolve._arrays.host import from_host, to_host
from implicitsolve._summary import Representation
from implicitsolve._typing import Array, HostArray
from implicitsolve.diagnostics._system import System
from implicitsolve.kernels._norms import norm2
from implicitsolve.problem import Problem
from implicitsolve.stopping import check_limit, own_generator
from implicitsolve.testing._checks import normal

SPECTRUM_PRODUCTS = 50  # products, as documented for `spectrum`


class NotFiniteError(ValueError):
    """A product with J is not finite."""


@dataclass(frozen=True, repr=False)
class Spectrum:
    """Ritz values of I - J, the largest first; the text has their number and the radius.

    Attributes
    ----------
    values : ndarray (m,) of complex
        Ritz values.
    errors : ndarray (m,)
        Norms of the residuals ``(I - J) y - value y`` for unit vectors y: where I - J is normal, an eigenvalue lies
        within that distance.
    exact : bool
        Whether these are all eigenvalues, up to rounding: m = N.
    """

    values: HostArray
    errors: HostArray
    exact: bool

    @property
    def radius(self) -> float:
        """Largest modulus."""
        return float(np.abs(self.values).max(initial=0.0))

    def __repr__(self) -> str:
        kind = "eigenvalues" if self.exact else "Ritz values"
        return f"<Spectrum of I - J: {self.values.size} {kind}, radius {self.radius:.3g}>"


@dataclass(frozen=True, repr=False)
class Contraction(Representation):
    """How fast ``x <- x - F(x)`` converges near a solution; its text has three digits.

    Attributes
    ----------
    radius : float
        Estimate of the spectral radius of I - J, from below: the factor by which a step reduces the error in the end.
    norm : float or None
        2-norm of I - J: the largest factor of one step. None if the problem has no adjoint products.
    steps_per_digit : float
        Steps in which the error falls tenfold; infinite for a radius of 1 or more.
    """

    radius: float
    norm: float | None
    steps_per_digit: float


def spectrum(
    problem: Problem | Callable[[Array], Array],
    x: Array,
    *,
    vectors: int | None = None,
    system: int | tuple[int, ...] | None = None,
    rng: np.random.Generator | None = None,
) -> Spectrum:
    """Ritz values of I - J(x), by Arnoldi's process from a random vector [1]_.

    For a residual x - G(x) these approximate the eigenvalues of the Jacobian of G, and fixed-point iterations converge
    where they lie inside the unit circle. Krylov methods converge fast where they keep away from 1.

    Parameters
    ----------
    problem : Problem or callable
        Products with J are those of the problem, or differences.
    x : array_like or NonlinearResult
        The point.
    vectors : int, optional
        Number of products and stored vectors. Default: 50, or N if that is less; with N of them the values are exact.
    system : int or tuple of int, optional
        Which system, by its index in the batch. Needed where there is a batch.
    rng : numpy.random.Generator, optional
        Source of the first vector. Default: seed 0.

    Returns
    -------
    Spectrum
        Values, bounds of their residuals, and `radius`.

    See Also
    --------
    plot_spectrum : a picture of it.
    contraction : what it means for fixed-point iterations.

    Notes
    -----
    Values at the edge of the spectrum come first. If the space is exhausted before N vectors, it continues with another
    random one, so that multiple eigenvalues are found as often as they occur.

    `root` solves problems with `halves` for every second block alone, where the values are the squares of these:
    call ``spectrum(even_odd(problem), ...)``.

    References
    ----------
    .. [1] Y. Saad, "Numerical methods for large eigenvalue problems", SIAM (2011), section 6.2.

    Examples
    --------
    >>> G = np.array([[0.5, 1.0], [0.0, -0.25]])
    >>> found = ims.diagnostics.spectrum(lambda x: x - x @ G.T, np.zeros(2))
    >>> found.values.real.round(6), found.exact
    (array([ 0.5 , -0.25]), True)
    """
    return compute_spectrum(System("spectrum", problem, x, system), vectors, rng)


def contraction(
    problem: Problem | Callable[[Array], Array],
    x: Array,
    *,
    vectors: int | None = None,
    system: int | tuple[int, ...] | None = None,
    rng: np.random.Generator | None = None,
) -> Contraction:
    """Estimate how fast Picard's iteration ``x <- x - F(x)`` converges near x.

    Parameters
    ----------
    problem, x, vectors, system, rng : optional
        As in `spectrum`.

    Returns
    -------
    Contraction
        Spectral radius and 2-norm of I - J, and the steps that a decimal digit takes.

    Notes
    -----
    Costs `vectors` products, and as many pairs of products with I - J and its adjoint for the norm. Both are estimates
    from below, exact with `vectors` = N. With a spectrum in a disk of that radius around 0, Anderson's method and
    Krylov methods are never slower than this iteration, and often much faster.

    Examples
    --------
    >>> round(ims.diagnostics.contraction(lambda x: x - 0.1 * x, np.ones(4)).steps_per_digit, 6)
    1.0
    """
    chosen = System("contraction", problem, x, system)
    rng = own_generator("contraction", rng)
    radius = compute_spectrum(chosen, vectors, rng).radius
    adjoint, norm = chosen.adjoint, None
    if adjoint is not None:

        def gram(v: Array) -> Array:
            w = v - chosen.J.matvec(v)
            return w - adjoint.matvec(w)

        H, _ = _arnoldi(gram, chosen, _columns(chosen, vectors), rng)
        norm = math.sqrt(float(np.linalg.eigvalsh(0.5 * (H[:-1] + H[:-1].conj().T)).max(initial=0.0)))
    digit = -math.log10(radius) if radius > 0 else math.inf
    return Contraction(radius, norm, 1 / digit if digit > 0 else math.inf)


def compute_spectrum(system: System, vectors: int | None = None, rng: np.random.Generator | None = None) -> Spectrum:
    rng = own_generator(system.caller, rng)
    H, is_whole = _arnoldi(lambda v: v - system.J.matvec(v), system, _columns(system, vectors), rng)
    values, Y = np.linalg.eig(H[:-1])
    errors = np.zeros(len(values)) if is_whole else np.abs(H[-1, -1] * Y[-1])
    order = np.argsort(-np.abs(values), kind="stable")
    return Spectrum(values[order].astype(complex), errors[order], is_whole)


def _columns(system: System, vectors: int | None) -> int:
    if vectors is not None:
        check_limit(system.caller, "vectors", vectors, least=1)
    if not system.size:
        raise ValueError(f"{system.caller}: `x` must hold at least one unknown, got none")
    return min(SPECTRUM_PRODUCTS if vectors is None else int(vectors), system.size)


def _arnoldi(
    product: Callable[[Array], Array], system: System, columns: int, rng: np.random.Generator
) -> tuple[HostArray, bool]:
    """The Hessenberg matrix (m + 1, m) of a map on (1, N) in an orthonormal basis, and whether m = N.

    The library's own process, in `krylov`, omits what linear solves do not need but eigenvalues do.
    """
    v = to_host(normal(rng, tuple(system.x.shape), system.x))
    V = np.repeat(v / norm2(v), columns + 1, axis=0)
    H = np.zeros((columns + 1, columns), dtype=np.result_type(v.dtype, np.float64))
    for j in range(columns):
        w = to_host(product(from_host(V[j : j + 1], system.x)))
        size = float(norm2(w)[0])
        if not np.isfinite(size):
            raise NotFiniteError(f"{system.caller}: a product with J is not finite; choose another `x`")
        H[: j + 1, j], w = _orthogonalize(V[: j + 1], w)
        length = float(norm2(w)[0])
        if j + 1 == system.size:
            return H, True
        if length > system.size * np.finfo(v.dtype).eps * size:
            H[j + 1, j] = length
        else:  # the space is invariant
            _, w = _orthogonalize(V[: j + 1], to_host(normal(rng, v.shape, system.x)))
        V[j + 1] = w / norm2(w)
    return H, False


def _orthogonalize(V: HostArray, w: HostArray) -> tuple[HostArray, HostArray]:
    """Components of w (1, N) along orthonormal rows, and the remainder, by Gram-Schmidt applied twice."""
    total: HostArray = np.zeros(1)
    for _ in range(2):
        h = w @ V.conj().T
        w, total = w - h @ V, total + h
    return total[0], w
