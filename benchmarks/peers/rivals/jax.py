"""JAX by hand: Newton–GMRES on W1, Newton with tridiagonal_solve on W2, vmap on W4, scan on W5; all jitted."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.benchmarks.workloads import Bratu, Brusselators, Burgers, Elman, ImplicitGRU, Workload
from benchmarks.peers._jax import named
from benchmarks.peers._layers import jax_gru
from benchmarks.peers._lines import jax_diagonals, jax_residual
from benchmarks.peers._measure import Solver

STEPS, RESTART, CYCLES, HALVINGS = 60, 40, 3, 8


def gmres_cycle(A: Any, r: Any, goal: Any) -> tuple[Any, Any, Any]:
    """GMRES from zero until the residual is at most `goal` or the space is full: dx, products, residual's norm."""
    beta = jnp.linalg.norm(r)
    V = jnp.zeros((RESTART + 1, r.size), r.dtype).at[0].set(r / beta)
    R = jnp.eye(RESTART, dtype=r.dtype)
    g = jnp.zeros(RESTART + 1, r.dtype).at[0].set(beta)
    c, s = jnp.ones(RESTART, r.dtype), jnp.zeros(RESTART, r.dtype)

    def rotate(i: Any, state: Any) -> Any:
        h, c, s = state
        return h.at[i].set(c[i] * h[i] + s[i] * h[i + 1]).at[i + 1].set(c[i] * h[i + 1] - s[i] * h[i]), c, s

    def step(state: Any) -> Any:
        j, V, R, g, c, s = state
        w = A(V[j])
        h = V @ w  # rows behind j are zero
        w = w - h @ V
        again = V @ w
        w, h = w - again @ V, h + again
        length = jnp.linalg.norm(w)
        V = V.at[j + 1].set(w / jnp.where(length > 0, length, 1))
        h = h.at[j + 1].set(length)
        h, _, _ = lax.fori_loop(0, j, rotate, (h, c, s))
        radius = jnp.hypot(h[j], h[j + 1])
        c, s = c.at[j].set(h[j] / radius), s.at[j].set(h[j + 1] / radius)
        R = R.at[:, j].set(jnp.where(jnp.arange(RESTART) < j, h[:-1], 0).at[j].set(radius))
        g = g.at[j + 1].set(-s[j] * g[j]).at[j].set(c[j] * g[j])
        return j + 1, V, R, g, c, s

    keep_on = lambda state: (state[0] < RESTART) & (jnp.abs(state[3][state[0]]) > goal)  # noqa: E731
    j, V, R, g, *_ = lax.while_loop(keep_on, step, (0, V, R, g, c, s))
    used = jnp.where(jnp.arange(RESTART) < j, g[:-1], 0)
    y = jax.scipy.linalg.solve_triangular(R, used)
    return y @ V[:-1], j, jnp.abs(g[j])


def gmres(A: Any, b: Any, eta: Any) -> tuple[Any, Any]:
    """A x = b to a relative tolerance, with restarts."""
    goal = eta * jnp.linalg.norm(b)

    def cycle(state: Any) -> Any:
        i, x, r, products, _ = state
        dx, count, norm = gmres_cycle(A, r, goal)
        return i + 1, x + dx, b - A(x + dx), products + count + 1, norm

    start = (0, jnp.zeros_like(b), b, 0, jnp.linalg.norm(b))
    _, x, _, products, _ = lax.while_loop(lambda state: (state[0] < CYCLES) & (state[4] > goal), cycle, start)
    return x, products


def newton_gmres(F: Any, shape: tuple[int, ...]) -> Any:
    """Newton–GMRES: exact JVPs, Eisenstat–Walker's second choice with a floor from the target, halved steps."""

    def flat(x: Any) -> Any:
        return F(x.reshape(shape)).ravel()

    def halve(x: Any, dx: Any, size: Any) -> Any:
        def shorter(state: Any) -> Any:
            n, t, *_ = state
            t = t / 2
            return n + 1, t, x - t * dx, flat(x - t * dx)

        too_long = lambda state: (  # noqa: E731
            (state[0] < HALVINGS) & ~(jnp.linalg.norm(state[3]) <= (1 - 1e-4 * state[1]) * size)
        )
        return lax.while_loop(too_long, shorter, (1, 1.0, x - dx, flat(x - dx)))

    def solve(x0: Any, tol: Any) -> tuple[Any, Any]:
        def step(state: Any) -> Any:
            i, x, f, eta, products = state
            size = jnp.linalg.norm(f)
            _, A = jax.linearize(flat, x)
            dx, count = gmres(A, f, eta)
            n, _, x, f_new = halve(x, dx, size)
            ratio = jnp.linalg.norm(f_new) / size
            wish = jnp.maximum(0.9 * ratio**2, jnp.where(0.9 * eta**2 > 0.1, 0.9 * eta**2, 0))
            floor = 0.5 * tol / jnp.max(jnp.abs(f_new))
            eta = jnp.clip(jnp.maximum(wish, floor), 1e-6, 0.3).astype(x.dtype)
            return i + 1, x, f_new, eta, products + count + n + 1  # and the linearization

        x = x0.ravel()
        start = (0, x, flat(x), jnp.asarray(0.3, x.dtype), 1)
        going = lambda state: (state[0] < STEPS) & (jnp.max(jnp.abs(state[2])) > tol)  # noqa: E731
        _, x, _, _, products = lax.while_loop(going, step, start)
        return x.reshape(shape), products

    return solve


def newton_tridiagonal(workload: Bratu | Burgers) -> Any:
    """Newton's method on lax.linalg.tridiagonal_solve, with the exact diagonals."""
    F, diagonals = jax_residual(workload), jax_diagonals(workload)

    def solve(x0: Any, tol: Any) -> tuple[Any, Any]:
        def step(state: Any) -> Any:
            i, x, f = state
            x = x - lax.linalg.tridiagonal_solve(*diagonals(x), f[:, None])[:, 0]
            return i + 1, x, F(x)

        going = lambda state: (state[0] < STEPS) & (jnp.max(jnp.abs(state[2])) > tol)  # noqa: E731
        i, x, _ = lax.while_loop(going, step, (0, x0, F(x0)))
        return x, i + 1

    return solve


def newton_vmap(workload: Brusselators) -> Any:
    """Newton's method on dense LU, under vmap."""
    F, B = jax_residual(workload), jnp.asarray(workload.B)

    def one(x0: Any, b: Any, tol: Any) -> tuple[Any, Any]:
        flat = lambda y: F(y.reshape(x0.shape), b).ravel()  # noqa: E731

        def step(state: Any) -> Any:
            i, x, f = state
            x = x - jnp.linalg.solve(jax.jacfwd(flat)(x), f)
            return i + 1, x, flat(x)

        going = lambda state: (state[0] < STEPS) & (jnp.max(jnp.abs(state[2])) > tol)  # noqa: E731
        i, x, _ = lax.while_loop(going, step, (0, x0.ravel(), flat(x0.ravel())))
        return x.reshape(x0.shape), i + 1

    def solve(x0: Any, tol: Any) -> tuple[Any, Any]:
        x, calls = jax.vmap(partial(one, tol=tol))(x0, B)
        return x, calls.mean()

    return solve


def scan(workload: Elman) -> Any:
    """The recurrence, position by position."""
    W = jnp.asarray(workload.params["W"]).T
    projected = jnp.asarray(np.swapaxes(workload.inputs @ workload.params["V"].T + workload.params["b"], 0, 1))

    def solve(x0: Any, tol: Any) -> tuple[Any, Any]:
        def step(h: Any, x: Any) -> tuple[Any, Any]:
            h = jnp.tanh(h @ W + x)
            return h, h

        _, H = lax.scan(step, x0[:, 0], projected)
        return jnp.swapaxes(H, 0, 1), None

    return solve


def solvers(workload: Workload) -> list[Solver]:
    """What one writes by hand for a workload."""
    if isinstance(workload, ImplicitGRU):

        def layer() -> Any:
            G = jax_gru(workload.params, workload.inputs)
            return newton_gmres(lambda x: x - G(x), workload.x0.shape)

        return [named("Newton–GMRES by hand", layer, workload.x0)]
    if isinstance(workload, Bratu | Burgers):
        return [named("Newton by hand, tridiagonal_solve", partial(newton_tridiagonal, workload), workload.x0)]
    if isinstance(workload, Brusselators):
        return [named("vmap of Newton by hand", partial(newton_vmap, workload), workload.x0)]
    return [named("scan", partial(scan, workload), workload.x0)] if isinstance(workload, Elman) else []
