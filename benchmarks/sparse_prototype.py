"""Newton's method on the parts for sparse systems, without the solver's loop: what they cost, in evaluations and time.

Nothing is declared by the caller: the sparsity is detected, its columns are colored, the Jacobian is assembled and
factored, and the factors are kept with Broyden corrections until a new Jacobian costs less than going on.

Usage::

    python -m benchmarks.sparse_prototype                    # the table of problems
    python -m benchmarks.sparse_prototype --brusselator      # N x N cells, beside colored Newton with splu at each step
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from benchmarks.sparse_problems import SparseProblem, sparse_gallery
from benchmarks.sparse_problems.planes import brusselator
from implicitsolve._typing import HostArray
from implicitsolve.direct._sparse_lu import SparseLU, SparsePlan
from implicitsolve.linearize._detect import Detection, detect
from implicitsolve.linearize._sparse_assemble import SparseAssembler
from implicitsolve.operators._sparse import SparseMatrix

POOR = 0.5  # reduction of the residual by a step, above which the Jacobian is renewed if that is worth while
MOST_CORRECTIONS = 20


@dataclass
class Run:
    """What a solve took."""

    x: HostArray
    residual: float
    evaluations: int = 0
    assemblies: int = 0
    factorizations: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    detection: Detection | None = None


class Clock:
    """Seconds of process time by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable, *arguments: object) -> object:
        """Call and count the time."""
        begin = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin


def solve(residual: Callable, x0: HostArray, f_tol: float, budget: int = 1000) -> Run:
    """Solve by detection, coloring, and LU factors that are kept with Broyden corrections."""
    clock, shape = Clock(), x0.shape
    run = Run(x0, math.inf, seconds=clock.seconds)

    def flat(x: HostArray) -> HostArray:
        run.evaluations += 1
        return clock.timed("residual", lambda: residual(x.reshape(shape)).reshape(1, -1))

    x = x0.reshape(1, -1)
    F = flat(x)
    found: Detection = clock.timed("detect", lambda: detect(flat, x, shape=shape, budget=budget))
    run.detection = found
    if found.structure is None:
        return run
    assembler: SparseAssembler = clock.timed("plan", lambda: SparseAssembler(found.structure, found.full_rows))
    plan: SparsePlan = clock.timed("plan", lambda: SparsePlan(assembler.structure))
    J = None if found.full_rows.size else SparseMatrix(found.values, assembler.structure)
    fresh = False
    norm = float(np.max(np.abs(F)))
    while norm > f_tol and run.evaluations < budget and run.assemblies < 60:
        if J is None:
            J, fresh = clock.timed("assemble", lambda x=x, F=F: assembler.differences(flat, x, F)), True
            run.assemblies += 1
        factors = clock.timed("factor", lambda J=J: SparseLU().factor(J, plan))
        run.factorizations += 1
        x, F, norm, moved = _steps(flat, x, F, norm, f_tol, factors, assembler.cost, clock)
        if not moved and fresh:
            break
        J = None
    run.x, run.residual = x.reshape(shape), norm
    return run


def _steps(flat, x, F, norm, f_tol, factors, cost, clock):
    """Take steps with one factorization until a new one pays; returns whether any was taken."""
    corrections: list[tuple[HostArray, HostArray]] = []
    moved = False

    def direction(F: HostArray) -> HostArray:
        d = clock.timed("solve", lambda: factors.negative(F))
        for s, u in corrections:  # good Broyden: H+ = (I + (s - H y) s^T / (s^T H y)) H
            d = d + u * float(np.vdot(s, d))
        return d

    while norm > f_tol:
        d = direction(F)
        if not np.isfinite(d).all():
            return x, F, norm, moved
        length, accepted = 1.0, False
        for _ in range(8 if not moved else 1):
            trial = x + length * d
            with np.errstate(all="ignore"):
                F_trial = flat(trial)
            size = float(np.max(np.abs(F_trial)))
            if size < (1 - 1e-4 * length) * norm:
                accepted = True
                break
            ratio = np.linalg.norm(F_trial) / np.linalg.norm(F)
            length *= 0.5 if not np.isfinite(ratio) else min(0.5, max(0.1, 0.5 / ratio))
        if not accepted:
            return x, F, norm, moved
        reduction = size / norm
        s, y = length * d, F_trial - F
        x, F, norm, moved = trial, F_trial, size, True
        if norm <= f_tol:
            break
        # Steps to go at this rate, against an assembly and two steps with a new Jacobian.
        to_go = math.log(norm / f_tol) / -math.log(reduction) if reduction < 1 else math.inf
        if reduction > POOR or to_go > cost + 2 or len(corrections) >= MOST_CORRECTIONS:
            return x, F, norm, moved
        Hy = s + direction(F) * -1.0 if length == 1.0 else -direction(y)
        denominator = float(np.vdot(s, Hy))
        if abs(denominator) > 1e-12 * float(np.vdot(s, s)):
            corrections.append((s, (s - Hy) / denominator))
    return x, F, norm, moved


def colored_newton(problem: SparseProblem, structure: Detection, f_tol: float) -> Run:
    """A hand-written Newton: pattern known, differences by colors, `splu` with the better ordering at each step."""
    clock, shape = Clock(), problem.x0.shape
    run = Run(problem.x0, math.inf, seconds=clock.seconds)
    begin = time.perf_counter()
    assembler = SparseAssembler(structure.structure)

    def flat(x: HostArray) -> HostArray:
        run.evaluations += 1
        return problem.residual(x.reshape(shape)).reshape(1, -1)

    x = problem.x0.reshape(1, -1)
    F = flat(x)
    n = x.size
    while (norm := float(np.max(np.abs(F)))) > f_tol and run.factorizations < 50:
        A = assembler.differences(flat, x, F).to_sparse()
        lu = scipy.sparse.linalg.splu(
            scipy.sparse.csc_matrix(A),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.1,
            options={"SymmetricMode": True},
        )
        run.factorizations += 1
        d = -lu.solve(F.reshape(n))[None, :]
        length = 1.0
        for _ in range(10):
            F_trial = flat(x + length * d)
            if float(np.max(np.abs(F_trial))) < norm:
                break
            length *= 0.5
        x, F = x + length * d, F_trial
    clock.seconds["all"] = time.perf_counter() - begin
    run.residual = norm
    return run


def table(problems: list[SparseProblem]) -> None:
    """Counts for each problem."""
    print("problem | unknowns | found in | by | solved in | max|F| | LU | seconds (residual)")
    for p in problems:
        begin = time.perf_counter()
        run = solve(p.residual, p.x0.copy(), p.tolerance())
        seconds = time.perf_counter() - begin
        d = run.detection
        ok = "" if run.residual <= p.tolerance() else " NOT SOLVED"
        print(
            f"{p.name} | {p.x0.size} | {d.evaluations} | {d.how} | {run.evaluations} | {run.residual:.1e} | "
            f"{run.factorizations} | {seconds:.3f} ({run.seconds.get('residual', 0):.3f}){ok}"
        )


def main() -> None:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brusselator", action="store_true")
    parser.add_argument("--sizes", default="32,64,128")
    options = parser.parse_args()
    if not options.brusselator:
        table(sparse_gallery("small"))
        return
    print("N | found in | solved in | LU | seconds | colored Newton: evaluations, LU, seconds | ratio")
    for n in map(int, options.sizes.split(",")):
        p = brusselator(n)
        begin = time.perf_counter()
        run = solve(p.residual, p.x0.copy(), 1e-6)
        seconds = time.perf_counter() - begin
        newton = colored_newton(p, run.detection, 1e-6)
        whole = newton.seconds["all"]
        print(
            f"{n} | {run.detection.evaluations} | {run.evaluations} | {run.factorizations} | {seconds:.3f} | "
            f"{newton.evaluations}, {newton.factorizations}, {whole:.3f} | {seconds / whole:.2f} | "
            + ", ".join(f"{k} {v:.3f}" for k, v in run.seconds.items()),
            run.residual,
        )


if __name__ == "__main__":
    main()
