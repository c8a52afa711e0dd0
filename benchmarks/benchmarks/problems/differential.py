"""Discretized differential and integral equations, and one stacked economic model, as test problems.

Every equation is multiplied by the square of its mesh width (by 1 where there is none), so that the main
diagonal of the Jacobian is of order one and the task is fair to an unpreconditioned Krylov method. The notes of the
entries mention it. Proposed tolerances are relative to the residual at the start. All have a hand-written jvp.
"""

from __future__ import annotations

import math

import numpy as np
from array_api_compat import array_namespace

from .problem import (
    Array,
    GalleryProblem,
    HostArray,
    central_difference,
    framed,
    like,
    minus_laplacian,
    second_difference,
    shifted,
    with_ends,
)

RTOL = 1e-8  # of max|F|, to which the problems are to be solved
H_SQUARED = "rows multiplied by h^2"


def _grid(points: int) -> tuple[float, HostArray]:
    """Mesh width and inner points of a uniform grid on [0, 1]."""
    h = 1.0 / (points + 1)
    return h, h * np.arange(1, points + 1)


def bratu(dimension: int, points: int, lam: float) -> GalleryProblem:
    """-laplace u = lam exp(u) on the unit cube of 1, 2 or 3 dimensions, u = 0 on the boundary.

    Solutions end in a fold at lam = 3.51, 6.81 and 9.90; from u = 0 Newton's method finds the lower of two.
    """
    c = lam / (points + 1) ** 2
    return GalleryProblem(
        name=f"bratu-{dimension}d",
        title=f"Bratu {dimension}-D, lambda = {lam:g}",
        residual=lambda u: minus_laplacian(framed(u)) - c * array_namespace(u).exp(u),
        jvp=lambda u, v: minus_laplacian(framed(v)) - c * array_namespace(u).exp(u) * v,
        x0=np.zeros((points,) * dimension),
        rtol=RTOL,
        source="Bratu-Gelfand; e.g. Averick et al., The MINPACK-2 Test Problem Collection (1992), SFI",
        note=H_SQUARED,
    )


def convection_diffusion(points: int, strength: float) -> GalleryProblem:
    """-laplace u + C u (u_x + u_y) = f on the unit square, u = 0 on the boundary, centred differences.

    f is the discrete operator at 10 x y (1 - x) (1 - y) exp(x^4.5), which is therefore the exact root.
    """
    h, x = _grid(points)
    c = 0.5 * strength * h
    a, b = x[:, None], x[None, :]
    root = 10.0 * a * b * (1.0 - a) * (1.0 - b) * np.exp(a**4.5)

    def slope(p: Array) -> Array:
        return shifted(p, 0, 1) - shifted(p, 0, -1) + shifted(p, 1, 1) - shifted(p, 1, -1)

    def operator(u: Array) -> Array:
        p = framed(u)
        return minus_laplacian(p) + c * u * slope(p)

    f = operator(root)

    def jvp(u: Array, v: Array) -> Array:
        q = framed(v)
        return minus_laplacian(q) + c * (u * slope(q) + v * slope(framed(u)))

    return GalleryProblem(
        name="convection-diffusion-2d",
        title=f"Convection-diffusion 2-D, C = {strength:g}",
        residual=lambda u: operator(u) - like(u, f),
        jvp=jvp,
        x0=np.zeros((points, points)),
        root=root,
        rtol=RTOL,
        source="Kelley, Solving Nonlinear Equations with Newton's Method (2003), chapter 3",
        note=H_SQUARED,
    )


def driven_cavity(points: int, reynolds: float) -> GalleryProblem:
    """Steady flow in a square cavity whose lid (last index of the last axis) moves with speed one.

    Unknowns: streamfunction and h^2 times vorticity at the inner points, shape (2, points, points);
    -laplace psi = omega, -laplace omega + Re (psi_y omega_x - psi_x omega_y) = 0, centred differences, vorticity on the
    walls by Thom's formula -2 (psi at the next point + h times the wall's speed) / h^2.
    """
    h = 1.0 / (points + 1)
    quarter = 0.25 * reynolds

    def vorticity(psi: Array, w: Array, lid: float) -> Array:
        q = framed(w)
        q[0, 1:-1] = -2.0 * psi[0, :]
        q[-1, 1:-1] = -2.0 * psi[-1, :]
        q[1:-1, 0] = -2.0 * psi[:, 0]
        q[1:-1, -1] = -2.0 * (psi[:, -1] + h * lid)
        return q

    def difference(p: Array, axis: int) -> Array:
        return shifted(p, axis, 1) - shifted(p, axis, -1)

    def transport(p: Array, q: Array) -> Array:
        return quarter * (difference(p, 1) * difference(q, 0) - difference(p, 0) * difference(q, 1))

    def residual(x: Array) -> Array:
        psi, w = x[0, ...], x[1, ...]
        p, q = framed(psi), vorticity(psi, w, 1.0)
        return array_namespace(x).stack([minus_laplacian(p) - w, minus_laplacian(q) + transport(p, q)])

    def jvp(x: Array, v: Array) -> Array:
        p, q = framed(x[0, ...]), vorticity(x[0, ...], x[1, ...], 1.0)
        dp, dq = framed(v[0, ...]), vorticity(v[0, ...], v[1, ...], 0.0)
        lower = minus_laplacian(dq) + transport(dp, q) + transport(p, dq)
        return array_namespace(x).stack([minus_laplacian(dp) - v[1, ...], lower])

    return GalleryProblem(
        name="driven-cavity",
        title=f"Driven cavity, Re = {reynolds:g}",
        residual=residual,
        jvp=jvp,
        x0=np.zeros((2, points, points)),
        rtol=RTOL,
        source="streamfunction-vorticity form; reference flow: Ghia, Ghia & Shin, J. Comput. Phys. 48 (1982) 387-411",
        note="unknowns psi and h^2 omega; " + H_SQUARED,
    )


def h_equation(points: int, c: float) -> GalleryProblem:
    """Chandrasekhar's H-equation by the midpoint rule: H_i = 1 / (1 - c/(2N) sum_j mu_i H_j / (mu_i + mu_j)).

    The mean of a root is 2 (1 - sqrt(1 - c)) / c also in the discrete form; at c = 1 the Jacobian is singular there.
    """
    mu = (np.arange(points) + 0.5) / points
    kernel = 0.5 * c / points * mu[:, None] / (mu[:, None] + mu)

    def residual(x: Array) -> Array:
        return x - 1.0 / (1.0 - like(x, kernel) @ x)

    def jvp(x: Array, v: Array) -> Array:
        k = like(x, kernel)
        return v - (k @ v) / (1.0 - k @ x) ** 2

    return GalleryProblem(
        name=f"h-equation-{c:g}",
        title=f"Chandrasekhar H-equation, c = {c:g}",
        residual=residual,
        jvp=jvp,
        x0=np.ones(points),
        rtol=RTOL,
        source="Kelley, Iterative Methods for Linear and Nonlinear Equations (1995), chapter 5",
        note="as written; J singular at the root" if c == 1.0 else "as written",
    )


def burgers(points: int, viscosity: float) -> GalleryProblem:
    """nu u'' = u u' on [-1, 1], u(-1) = 1, u(1) = -1, conservative centred differences; an inner layer at 0.

    Between its neighbours the exact solution is -a tanh(a x / (2 nu)) with a tanh(a / (2 nu)) = 1.
    """
    h = 2.0 / (points + 1)
    c = 0.25 * h / viscosity

    def residual(u: Array) -> Array:
        p = with_ends(u, 1.0, -1.0)
        return second_difference(p) + c * central_difference(p * p)

    def jvp(u: Array, v: Array) -> Array:
        p, q = with_ends(u, 1.0, -1.0), with_ends(v, 0.0, 0.0)
        return second_difference(q) + 2.0 * c * central_difference(p * q)

    return GalleryProblem(
        name="burgers",
        title=f"Steady Burgers, nu = {viscosity:g}",
        residual=residual,
        jvp=jvp,
        x0=-(h * np.arange(1, points + 1) - 1.0),
        rtol=RTOL,
        source="Burgers, Adv. Appl. Mech. 1 (1948) 171-199",
        note="rows multiplied by h^2 / nu",
    )


def brusselator(points: int, diffusion: float = 0.02, a: float = 2.0, b: float = 3.0) -> GalleryProblem:
    """Steady 1-D Brusselator: d u'' + a - (b + 1) u + u^2 v = 0, d v'' + b u - u^2 v = 0, state (points, 2).

    The ends are held at (1, 3), away from the uniform equilibrium (a, b/a) that is the start, so the solution has two
    boundary layers.
    """
    h, _ = _grid(points)
    c = h * h / diffusion

    def framed_state(x: Array, left: float, right: float) -> Array:
        return array_namespace(x).stack([with_ends(x[:, 0], left, left), with_ends(x[:, 1], right, right)], axis=1)

    def residual(x: Array) -> Array:
        u, v = x[:, 0], x[:, 1]
        uuv = u * u * v
        sources = array_namespace(x).stack([a - (b + 1.0) * u + uuv, b * u - uuv], axis=1)
        return second_difference(framed_state(x, 1.0, 3.0)) - c * sources

    def jvp(x: Array, t: Array) -> Array:
        u, v, du, dv = x[:, 0], x[:, 1], t[:, 0], t[:, 1]
        duuv = 2.0 * u * v * du + u * u * dv
        sources = array_namespace(x).stack([duuv - (b + 1.0) * du, b * du - duuv], axis=1)
        return second_difference(framed_state(t, 0.0, 0.0)) - c * sources

    return GalleryProblem(
        name="brusselator",
        title="Brusselator steady state",
        residual=residual,
        jvp=jvp,
        x0=np.ones((points, 2)) * np.array([a, b / a]),
        rtol=RTOL,
        source="Prigogine & Lefever, J. Chem. Phys. 48 (1968) 1695-1700",
        note="rows multiplied by h^2 / d",
    )


def real_business_cycle(periods: int, shock: float = 0.1) -> GalleryProblem:
    """Perfect-foresight path of the growth model, all periods at once; state (periods, 2) = (c_t, k_t) / steady state.

    Rows: resources c_t + k_t = A_t k_{t-1}^alpha + (1 - delta) k_{t-1}, with k_t at the end of t, divided by output;
    and the Euler equation beta (c_{t+1}/c_t)^-sigma (alpha A_{t+1} k_t^(alpha-1) + 1 - delta) = 1. The first capital
    stock is (1 - shock) times the steady state, productivity A_t = exp(shock rho^t), consumption after the last
    period the steady state's. The start is the steady state in every period.
    """
    alpha, beta, delta, sigma, rho = 0.36, 0.99, 0.025, 2.0, 0.95
    gross = 1.0 / beta - 1.0 + delta  # rental rate = alpha output / capital
    c_share, k_ratio = 1.0 - delta * alpha / gross, alpha / gross  # consumption and capital per unit of output
    productivity = np.exp(shock * rho ** np.arange(periods + 1))

    def neighbours(x: Array) -> tuple[Array, Array, Array, Array]:
        before, after = with_ends(x[:, 1], 1.0 - shock, 1.0)[:-2], with_ends(x[:, 0], 1.0, 1.0)[2:]
        return before, after, like(x, productivity[:-1]), like(x, productivity[1:])

    def residual(x: Array) -> Array:
        c, k = x[:, 0], x[:, 1]
        before, after, now, later = neighbours(x)
        resources = c_share * c + k_ratio * (k - (1.0 - delta) * before) - now * before**alpha
        euler = beta * (after / c) ** -sigma * (gross * later * k ** (alpha - 1.0) + 1.0 - delta) - 1.0
        return array_namespace(x).stack([resources, euler], axis=1)

    def jvp(x: Array, v: Array) -> Array:
        c, k, dc, dk = x[:, 0], x[:, 1], v[:, 0], v[:, 1]
        before, after, now, later = neighbours(x)
        dbefore, dafter = with_ends(dk, 0.0, 0.0)[:-2], with_ends(dc, 0.0, 0.0)[2:]
        growth, rate = (after / c) ** -sigma, gross * later * k ** (alpha - 1.0)
        dgrowth = -sigma * growth * (dafter / after - dc / c)
        resources = c_share * dc + k_ratio * (dk - (1.0 - delta) * dbefore)
        resources = resources - alpha * now * before ** (alpha - 1.0) * dbefore
        euler = beta * (dgrowth * (rate + 1.0 - delta) + growth * (alpha - 1.0) * rate * dk / k)
        return array_namespace(x).stack([resources, euler], axis=1)

    return GalleryProblem(
        name="real-business-cycle",
        title=f"Real business cycle, {periods} periods",
        residual=residual,
        jvp=jvp,
        x0=np.ones((periods, 2)),
        rtol=RTOL,
        source="stacked-time form as in Juillard, Dynare (1996); Hansen-type calibration",
        note="unknowns relative to the steady state; resources divided by output and paired with consumption: with the "
        "rows in the other order restarted GMRES stagnates",
    )


def troesch(points: int, stiffness: float) -> GalleryProblem:
    """u'' = n sinh(n u), u(0) = 0, u(1) = 1, from the straight line."""
    h, x = _grid(points)
    c, n = h * h * stiffness, stiffness
    return GalleryProblem(
        name="troesch",
        title=f"Troesch, n = {stiffness:g}",
        residual=lambda u: second_difference(with_ends(u, 0.0, 1.0)) + c * array_namespace(u).sinh(n * u),
        jvp=lambda u, v: second_difference(with_ends(v, 0.0, 0.0)) + c * n * array_namespace(u).cosh(n * u) * v,
        x0=x,
        rtol=RTOL,
        source="Troesch, J. Comput. Phys. 21 (1976) 279-290",
        note=H_SQUARED,
    )


def pendulum(points: int) -> GalleryProblem:
    """theta'' = -sin theta on [0, 2 pi], theta = 0.7 at both ends, from 0.7 cos t + 0.5 sin t; J is indefinite."""
    h = 2.0 * math.pi / (points + 1)
    t = h * np.arange(1, points + 1)
    return GalleryProblem(
        name="pendulum",
        title="Pendulum, two-point boundary values",
        residual=lambda u: second_difference(with_ends(u, 0.7, 0.7)) - h * h * array_namespace(u).sin(u),
        jvp=lambda u, v: second_difference(with_ends(v, 0.0, 0.0)) - h * h * array_namespace(u).cos(u) * v,
        x0=0.7 * np.cos(t) + 0.5 * np.sin(t),
        rtol=RTOL,
        source="LeVeque, Finite Difference Methods for Ordinary and Partial Differential Equations (2007), ch. 2",
        note=H_SQUARED,
    )


_SIZES = {  # points per axis: bratu 1, 2, 3; convection-diffusion; cavity; H; Burgers; Brusselator; periods; two BVPs
    "small": (63, 15, 7, 15, 11, 50, 63, 31, 40, 63, 63),
    "medium": (127, 31, 13, 31, 31, 200, 127, 100, 100, 127, 127),
}


def pde_gallery(size: str = "small") -> list[GalleryProblem]:
    """Bratu, convection-diffusion, driven cavity, H-equation, Burgers, Brusselator, business cycle and two BVPs.

    All have exact products, and known roots where there are any. The size is "small", 50 to 343 unknowns, for tests, or
    "medium", 127 to 2197, for benchmarks.
    """
    if size not in _SIZES:
        raise ValueError(f'pde_gallery: `size` must be "small" or "medium", got {size!r}')
    b1, b2, b3, cd, cavity, h, bu, br, rbc, tr, pe = _SIZES[size]
    return [
        bratu(1, b1, 3.0),
        bratu(2, b2, 6.0),
        bratu(3, b3, 8.0),
        convection_diffusion(cd, 20.0),
        driven_cavity(cavity, 100.0),
        *(h_equation(h, c) for c in (0.5, 0.9, 0.99, 0.9999, 1.0)),
        burgers(bu, 0.2),
        brusselator(br),
        real_business_cycle(rbc),
        troesch(tr, 3.0),
        pendulum(pe),
    ]
