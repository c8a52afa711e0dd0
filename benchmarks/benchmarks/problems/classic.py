"""The classic small systems: Moré, Garbow and Hillstrom (1981), and Burkardt's TEST_NONLIN.

Definitions, sizes and starts are the standard ones. The fourteen square systems are those of the MINPACK
hybrd tests; among them Wood is the gradient of a function of four squares, and Watson the gradient of a sum of
31 squares. Residuals run on the arrays of any array-API namespace.

References
----------
.. [1] J. J. Moré, B. S. Garbow, K. E. Hillstrom, "Testing unconstrained optimization software", ACM Trans. Math.
   Softw. 7 (1981) 17-41; square systems as in ACM Algorithm 566 and MINPACK's driver for hybrd.
.. [2] J. Burkardt, TEST_NONLIN: 23 nonlinear systems, problem sizes as in its driver (the fixed size, else 10).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from .differential import h_equation
from .problem import Array, GalleryProblem, HostArray, Residual, counting, like, with_ends

MGH = "Moré, Garbow & Hillstrom (1981)"
BURKARDT = "Burkardt, TEST_NONLIN"
ROUNDED_ROOT = 1e-8  # published to about ten digits


def _system(x: Array, *components: Array) -> Array:
    """Components (0-d arrays) as a vector of x's library."""
    return array_namespace(x).stack(list(components))


# -- the fourteen functions ------------------------------------------------------------------------------------


def rosenbrock(x: Array) -> Array:
    """F_1 = 1 - x_1, F_i = 10 (x_i - x_{i-1}^2)."""
    xp = array_namespace(x)
    return xp.concat([1.0 - x[:1], 10.0 * (x[1:] - x[:-1] ** 2)])


def powell_singular(x: Array) -> Array:
    """Four equations whose Jacobian is singular at the root 0 (rank 2)."""
    return _system(
        x,
        x[0] + 10.0 * x[1],
        math.sqrt(5.0) * (x[2] - x[3]),
        (x[1] - 2.0 * x[2]) ** 2,
        math.sqrt(10.0) * (x[0] - x[3]) ** 2,
    )


def powell_badly_scaled(x: Array) -> Array:
    """10^4 x_1 x_2 = 1, exp(-x_1) + exp(-x_2) = 1.0001."""
    xp = array_namespace(x)
    return _system(x, 1e4 * x[0] * x[1] - 1.0, xp.exp(-x[0]) + xp.exp(-x[1]) - 1.0001)


def wood(x: Array) -> Array:
    """The gradient system of Wood's function, up to the factor of each row, as MINPACK has it."""
    a, b = x[1] - x[0] ** 2, x[3] - x[2] ** 2
    return _system(
        x,
        -200.0 * x[0] * a - (1.0 - x[0]),
        200.0 * a + 20.2 * (x[1] - 1.0) + 19.8 * (x[3] - 1.0),
        -180.0 * x[2] * b - (1.0 - x[2]),
        180.0 * b + 20.2 * (x[3] - 1.0) + 19.8 * (x[1] - 1.0),
    )


def helical_valley(x: Array) -> Array:
    """F = (10 (x_3 - 10 theta), 10 (r - 1), x_3), theta in (-1/4, 3/4] turns; it jumps across x_1 = 0 < -x_2."""
    xp = array_namespace(x)
    if x[0] == 0.0:
        theta = xp.where(x[1] < 0.0, -0.25 * xp.ones_like(x[0]), 0.25 * xp.ones_like(x[0]))
    else:
        theta = xp.atan(x[1] / x[0]) / (2.0 * math.pi)
        theta = theta + 0.5 if x[0] < 0.0 else theta
    r = xp.sqrt(x[0] ** 2 + x[1] ** 2)
    return _system(x, 10.0 * (x[2] - 10.0 * theta), 10.0 * (r - 1.0), x[2])


def watson(x: Array) -> Array:
    """sum_i (p'(t_i) - p(t_i)^2 - 1) (d/dx_k)(p'(t_i) - p(t_i)^2), t_i = i/29, p = sum_j x_j t^(j-1), and two terms."""
    n = x.shape[0]
    t = np.arange(1, 30)[:, None] / 29.0
    j = np.arange(n)
    powers = like(x, t**j)
    slopes = like(x, np.where(j == 0, 0.0, j * t ** (j - 1.0)))
    p = powers @ x
    g = slopes @ x - p**2 - 1.0
    f = (slopes - 2.0 * p[:, None] * powers).T @ g
    last = x[1] - x[0] ** 2 - 1.0
    f[0] += x[0] * (1.0 - 2.0 * last)
    f[1] += last
    return f


def _chebyshev_means(t: Array) -> Array:
    """Mean over j of T_i(t_j), less the mean of T_i over [-1, 1], i = 1..n."""
    xp = array_namespace(t)
    before, current, rows = xp.ones_like(t), t, []
    for i in range(1, t.shape[0] + 1):
        exact = 0.0 if i % 2 else -1.0 / (i * i - 1.0)
        rows.append(xp.mean(current) - exact)
        before, current = current, 2.0 * t * current - before
    return xp.stack(rows)


def chebyquad(x: Array) -> Array:
    """Chebyshev's quadrature with equal weights on [0, 1] (as in [1]_)."""
    return _chebyshev_means(2.0 * x - 1.0)


def chebyquad_symmetric(x: Array) -> Array:
    """Chebyshev's quadrature with equal weights on [-1, 1] (as in [2]_)."""
    return _chebyshev_means(x)


def brown_almost_linear(x: Array) -> Array:
    """F_k = x_k + sum x - (n + 1) for k < n, F_n = prod x - 1."""
    xp, n = array_namespace(x), x.shape[0]
    return xp.concat([x[:-1] + xp.sum(x) - (n + 1.0), xp.reshape(xp.prod(x), (1,)) - 1.0])


def discrete_boundary_value(x: Array) -> Array:
    """2 x_k - x_{k-1} - x_{k+1} + h^2 (x_k + t_k + 1)^3 / 2, zero ends."""
    h = 1.0 / (x.shape[0] + 1)
    p = with_ends(x, 0.0, 0.0)
    return 2.0 * x - p[:-2] - p[2:] + 0.5 * h * h * (x + h * counting(x) + 1.0) ** 3


def discrete_integral_equation(x: Array) -> Array:
    """x_k + (h/2) [(1 - t_k) sum_{j<=k} t_j c_j + t_k sum_{j>k} (1 - t_j) c_j], c_j = (x_j + t_j + 1)^3."""
    xp, h = array_namespace(x), 1.0 / (x.shape[0] + 1)
    t = h * counting(x)
    c = (x + t + 1.0) ** 3
    below = xp.cumulative_sum(t * c)
    above = (1.0 - t) * c
    above = xp.sum(above) - xp.cumulative_sum(above)
    return x + 0.5 * h * ((1.0 - t) * below + t * above)


def trigonometric(x: Array) -> Array:
    """n - sum_j cos x_j + k (1 - cos x_k) - sin x_k."""
    xp, n = array_namespace(x), x.shape[0]
    return float(n) - xp.sum(xp.cos(x)) + counting(x) * (1.0 - xp.cos(x)) - xp.sin(x)


def variably_dimensioned(x: Array) -> Array:
    """x_k - 1 + k s (1 + 2 s^2), s = sum_j j (x_j - 1)."""
    k = counting(x)
    s = array_namespace(x).sum(k * (x - 1.0))
    return x - 1.0 + k * (s * (1.0 + 2.0 * s * s))


def broyden_tridiagonal(x: Array) -> Array:
    """(3 - 2 x_k) x_k - x_{k-1} - 2 x_{k+1} + 1, zero ends."""
    p = with_ends(x, 0.0, 0.0)
    return (3.0 - 2.0 * x) * x - p[:-2] - 2.0 * p[2:] + 1.0


def broyden_banded(x: Array) -> Array:
    """x_k (2 + 5 x_k^2) + 1 - sum of x_j (1 + x_j) over j = k-5..k+1 without k."""
    xp, n = array_namespace(x), x.shape[0]
    q = x * (1.0 + x)
    padded = xp.concat([xp.zeros_like(x[:1])] * 5 + [q, xp.zeros_like(x[:1])])
    f = x * (2.0 + 5.0 * x * x) + 1.0
    for offset in (-5, -4, -3, -2, -1, 1):
        f = f - padded[5 + offset : 5 + offset + n]
    return f


# -- the others of TEST_NONLIN ---------------------------------------------------------------------------------


def hammarling(x: Array) -> Array:
    """X X = A for a square X stored by rows, A = 10^-4 I with a one at (1, 2)."""
    xp, m = array_namespace(x), math.isqrt(x.shape[0])
    a = 1e-4 * np.eye(m)
    a[0, 1] = 1.0
    matrix = xp.reshape(x, (m, m))
    return xp.reshape(matrix @ matrix - like(x, a), (-1,))


def dennis_schnabel(x: Array) -> Array:
    """x_1 + x_2 = 3, x_1^2 + x_2^2 = 9."""
    return _system(x, x[0] + x[1] - 3.0, x[0] ** 2 + x[1] ** 2 - 9.0)


def _gauss_quotient(s: Array) -> Array:
    """(1 - exp(-s^2)) / s, and 0 at s = 0."""
    return s if s == 0.0 else (1.0 - array_namespace(s).exp(-(s**2))) / s


def sample_18(x: Array) -> Array:
    """x_2^2 g(x_1), x_1 g(x_2), g(s) = (1 - exp(-s^2)) / s: every (x_1, 0) is a root, and every (0, x_2)."""
    return _system(x, x[1] ** 2 * _gauss_quotient(x[0]), x[0] * _gauss_quotient(x[1]))


def sample_19(x: Array) -> Array:
    """x (x_1^2 + x_2^2): a root of order three."""
    return x * array_namespace(x).sum(x * x)


def scalar_20(x: Array) -> Array:
    """x (x - 5)^2."""
    return x * (x - 5.0) ** 2


def freudenstein_roth(x: Array) -> Array:
    """Root (5, 4); a local minimum of ||F|| away from it attracts descent methods."""
    s = x[1]
    return _system(x, x[0] - s**3 + 5.0 * s**2 - 2.0 * s - 13.0, x[0] + s**3 + s**2 - 14.0 * s - 29.0)


def boggs(x: Array) -> Array:
    """x_1^2 - x_2 + 1, x_1 - cos(pi x_2 / 2)."""
    return _system(x, x[0] ** 2 - x[1] + 1.0, x[0] - array_namespace(x).cos(0.5 * math.pi * x[1]))


# -- the two sets ----------------------------------------------------------------------------------------------


def _first(n: int, value: float) -> HostArray:
    x0 = np.ones(n)
    x0[0] = value
    return x0


def _parabola(n: int) -> HostArray:
    t = np.arange(1, n + 1) / (n + 1)
    return t * (t - 1.0)


def _hammarling_root(m: int) -> HostArray:
    root = 0.01 * np.eye(m)
    root[0, 1] = 50.0
    return root.ravel()


_POWELL_ROOT = np.array([1.098159e-05, 9.106146])  # as printed; max|F| about 4e-7 there
_CHEBYSHEV_NODES = {  # the left half on [-1, 1]; the rest by symmetry
    5: [-0.832497487, -0.3745414096, 0.0],
    6: [-0.8662468181, -0.4225186538, -0.2666354015],
    7: [-0.8838617008, -0.5296567753, -0.3239118105, 0.0],
    9: [-0.9115893077, -0.6010186554, -0.5287617831, -0.1679061842, 0.0],
}


def _chebyshev_root(n: int) -> HostArray:
    left = np.array(_CHEBYSHEV_NODES[n])
    return np.concatenate([left, -left[: n // 2][::-1]])


def classic_problems() -> list[GalleryProblem]:
    """The fourteen square systems of Moré, Garbow & Hillstrom (1981), some in several sizes: 20 entries.

    They are in the order of MINPACK's tests, named ``mgh01-rosenbrock`` to ``mgh14-broyden-banded``.
    """

    def entry(name: str, residual: Residual, x0: Any, **more: Any) -> GalleryProblem:
        return GalleryProblem(name=f"mgh{name}", residual=residual, x0=x0, source=MGH, **more)

    set_ = [
        entry("01-rosenbrock", rosenbrock, [-1.2, 1.0], root=np.ones(2)),
        entry("02-powell-singular", powell_singular, [3.0, -1.0, 0.0, 1.0], root=np.zeros(4), note="J singular at 0"),
        entry("03-powell-badly-scaled", powell_badly_scaled, [0.0, 1.0], root=_POWELL_ROOT, root_residual=1e-6),
        entry("04-wood", wood, [-3.0, -1.0, -3.0, -1.0], root=np.ones(4)),
        entry("05-helical-valley", helical_valley, [-1.0, 0.0, 0.0], root=[1.0, 0.0, 0.0]),
    ]
    set_ += [entry(f"06-watson-{n}", watson, np.zeros(n), note="gradient of a sum of squares") for n in (6, 9)]
    for n in (5, 6, 7, 9):
        root = (_chebyshev_root(n) + 1.0) / 2.0
        x0 = np.arange(1, n + 1) / (n + 1)
        set_.append(entry(f"07-chebyquad-{n}", chebyquad, x0, root=root, root_residual=ROUNDED_ROOT))
    set_ += [
        entry(f"08-brown-almost-linear-{n}", brown_almost_linear, np.full(n, 0.5), root=np.ones(n))
        for n in (10, 30, 40)
    ]
    n = 10
    return [
        *set_,
        entry("09-discrete-boundary-value", discrete_boundary_value, _parabola(n)),
        entry("10-discrete-integral-equation", discrete_integral_equation, _parabola(n)),
        entry("11-trigonometric", trigonometric, np.full(n, 1.0 / n), root=np.zeros(n), note="0 is a second root"),
        entry("12-variably-dimensioned", variably_dimensioned, 1.0 - np.arange(1, n + 1) / n, root=np.ones(n)),
        entry("13-broyden-tridiagonal", broyden_tridiagonal, -np.ones(n)),
        entry("14-broyden-banded", broyden_banded, -np.ones(n)),
    ]


def burkardt_problems() -> list[GalleryProblem]:
    """The 23 problems of Burkardt's TEST_NONLIN with its starts, named ``burkardt-p01`` to ``burkardt-p23``.

    Sizes are those of its driver: the fixed size where a problem has one (9 for Chebyquad), 10 otherwise.
    """
    n, cheb = 10, 9
    table: list[tuple[str, Residual, Any, Any]] = [
        ("Generalized Rosenbrock", rosenbrock, _first(n, -1.2), np.ones(n)),
        ("Powell singular", powell_singular, [3.0, -1.0, 0.0, 1.0], np.zeros(4)),
        ("Powell badly scaled", powell_badly_scaled, [0.0, 1.0], _POWELL_ROOT),
        ("Wood", wood, [-3.0, -1.0, -3.0, -1.0], np.ones(4)),
        ("Helical valley", helical_valley, [-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ("Watson", watson, np.zeros(n), None),
        ("Chebyquad", chebyquad_symmetric, (2 * np.arange(cheb) + 1.0 - cheb) / (cheb + 1), _chebyshev_root(cheb)),
        ("Brown almost linear", brown_almost_linear, np.full(n, 0.5), np.ones(n)),
        ("Discrete boundary value", discrete_boundary_value, _parabola(n), None),
        ("Discrete integral equation", discrete_integral_equation, _parabola(n), None),
        ("Trigonometric", trigonometric, np.full(n, 1.0 / n), np.zeros(n)),
        ("Variably dimensioned", variably_dimensioned, 1.0 - np.arange(1, n + 1) / n, np.ones(n)),
        ("Broyden tridiagonal", broyden_tridiagonal, -np.ones(n), None),
        ("Broyden banded", broyden_banded, -np.ones(n), None),
        ("Hammarling 2 by 2 square root", hammarling, np.eye(2).ravel(), _hammarling_root(2)),
        ("Hammarling 3 by 3 square root", hammarling, np.eye(3).ravel(), _hammarling_root(3)),
        ("Dennis and Schnabel 2 by 2", dennis_schnabel, [1.0, 5.0], [0.0, 3.0]),
        ("Sample problem 18", sample_18, [2.0, 2.0], [0.0, 0.0]),
        ("Sample problem 19", sample_19, [3.0, 3.0], [0.0, 0.0]),
        ("Scalar x (x - 5)^2", scalar_20, [1.0], [5.0]),
        ("Freudenstein-Roth", freudenstein_roth, [0.5, -2.0], [5.0, 4.0]),
        ("Boggs", boggs, [1.0, 0.0], [0.0, 1.0]),
        ("Chandrasekhar", h_equation(n, 0.9).residual, np.ones(n), None),
    ]
    digits = {3: 1e-6, 7: ROUNDED_ROOT}
    return [
        GalleryProblem(
            name=f"burkardt-p{i:02d}",
            title=title,
            residual=residual,
            x0=x0,
            root=root,
            root_residual=digits.get(i, 1e-12),
            source=BURKARDT,
        )
        for i, (title, residual, x0, root) in enumerate(table, start=1)
    ]
