"""Sparse systems beside Newton's method by hand, and the search for patterns without order.

By hand is the exact J, factored by SuperLU in the better of two orderings at every step, to the same max|F|. Seconds
are CPU time of one thread, the shortest of some runs.

Usage::

    python -m benchmarks.sparse_limits
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import implicitsolve as ims
from benchmarks.benchmarks.problems import GalleryProblem
from benchmarks.brusselator import seconds
from benchmarks.sparse_problems import lines, networks, planes

REPEATS = 5
ORDERINGS = ("COLAMD", "MMD_AT_PLUS_A")
Jacobian = Callable[[Any], Any]


def newton(problem: GalleryProblem, jacobian: Jacobian, ordering: str) -> Any:
    """Newton's method with whole steps."""
    x = problem.x0.copy()
    while np.abs(F := problem.residual(x)).max() > problem.tolerance():
        x = x - spla.splu(jacobian(x), permc_spec=ordering).solve(F.ravel()).reshape(x.shape)
    return x


def power_flow(n: int) -> tuple[GalleryProblem, Jacobian]:
    """The generated network, and the derivatives of V conj(Y V) by angles and voltages."""
    Y, _, volts = networks.generated_network(n)
    free = np.ones(2 * n)
    fixed = np.append(0, n + np.flatnonzero(np.isfinite(volts)))
    free[fixed] = 0.0
    keep, conditions = sp.diags_array(free), sp.diags_array(1.0 - free)

    def jacobian(x: Any) -> Any:
        phase = np.exp(1j * x[0])
        V = x[1] * phase
        by_size = sp.diags_array(V) @ (Y @ sp.diags_array(phase)).conj() + sp.diags_array(np.conj(Y @ V) * phase)
        by_angle = 1j * sp.diags_array(V) @ (sp.diags_array(Y @ V) - Y @ sp.diags_array(V)).conj()
        J = sp.block_array([[by_angle.real, by_size.real], [by_angle.imag, by_size.imag]])
        return (keep @ J + conditions).tocsc()

    return networks.power_network(n), jacobian


def orbit(n: int) -> tuple[GalleryProblem, Jacobian]:
    """Van der Pol's orbit, and J with the column of the period."""
    one, ahead = sp.eye_array(n), sp.csr_array(np.roll(np.eye(n), 1, axis=1))
    difference, mean = ahead - one, 0.5 * (ahead + one)

    def jacobian(x: Any) -> Any:
        y, z, h = x[:n], x[n:-1], x[-1] / n
        ym, zm = mean @ y, mean @ z
        a = h * sp.diags_array(2 * ym * zm + 1) @ mean
        b = difference - h * sp.diags_array(1 - ym * ym) @ mean
        period = -np.concatenate([zm, (1 - ym * ym) * zm - ym])[:, None] / n
        phase = sp.csr_array(([1.0], ([0], [n])), (1, 2 * n))
        J = sp.block_array([[difference, -h * mean], [a, b]])
        return sp.block_array([[J, period], [phase, None]], format="csc")

    return lines.periodic_orbit(n), jacobian


def beside_newton(problem: GalleryProblem, jacobian: Jacobian, structure: Any) -> str:
    """Evaluations, and our time over that of Newton's method by hand."""
    stop = ims.NonlinearStop(atol=problem.tolerance(), rtol=0.0)
    declared = ims.Problem(problem.residual, structure=structure)
    result = ims.root(declared, problem.x0, stop=stop)
    ours = seconds(lambda: ims.root(declared, problem.x0, stop=stop), REPEATS)
    hand = min(seconds(partial(newton, problem, jacobian, ordering), REPEATS) for ordering in ORDERINGS)
    ratio = f"{1e3 * ours:.1f} ms, by hand {1e3 * hand:.1f}: {ours / hand:.2f}"
    return f"{result.status.name}, {result.counts.residuals} evaluations, {ratio}"


def count(problem: GalleryProblem) -> str:
    """Evaluations with nothing declared."""
    calls = 0

    def F(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return problem.residual(x)

    result = ims.root(F, problem.x0, stop=ims.NonlinearStop(atol=problem.tolerance(), rtol=0.0))
    return f"{result.status.name}, {calls} evaluations"


def search(problem: GalleryProblem) -> str:
    """Evaluations of the search, and its time beyond these."""
    begin = time.process_time()
    found = ims.detect_structure(problem.residual, problem.x0)
    spent = time.process_time() - begin
    one = seconds(lambda: problem.residual(problem.x0), REPEATS)
    return f"{found.how}, {found.evaluations} evaluations, {spent - found.evaluations * one:.2f} s beyond them"


def main() -> None:
    """Run and print."""
    flow, jacobian = power_flow(2800)
    pattern = ims.Sparse(abs(jacobian(flow.x0 + 0.1)))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print("power flow of 2,800 buses, pattern declared:", beside_newton(flow, jacobian, pattern))
        print("the same, nothing declared:", beside_newton(flow, jacobian, None))
        print("periodic orbit, 801 unknowns:", beside_newton(*orbit(400), None))
        print("Bratu on a permuted line, 2,000:", count(planes.permuted_bratu(2000)))
        print("stacked business cycle, 1,200:", count(lines.business_cycle(400)))
        for n in (10**4, 10**5):
            print(f"search, permuted line of {n:,}:", search(planes.permuted_bratu(n)))
            print(f"search, network of {n:,}:", search(networks.power_network(n // 2)))


if __name__ == "__main__":
    main()
