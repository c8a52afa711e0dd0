"""Count and time the methods for fixed-point problems on implicit GRUs, from easy ones to hard ones.

The workload is a layer on 20 sequences of T positions with k states and 100 inputs: weights and biases uniform in
[-0.1, 0.1], recurrent weights s times as large, inputs standard normal, boundaries zero, float64. All methods start at
zero and stop at max|F| <= 1e-8, which is verified independently with a new residual of the whole layer.

A product is one call of a residual or a Jacobian product, for all active systems: of the whole layer, or of its two
halves in turn, which is the same work. Methods alternate, and medians of CPU seconds are compared; solves of more than
two seconds are timed once.

Usage::

    python benchmarks/fixed_points.py                      # tables on the terminal; minutes
    python benchmarks/fixed_points.py --write docs/performance/fixed_points.md
    python benchmarks/fixed_points.py --parts s3 starts --write docs/performance/fixed_points.md  # replaces two tables
    python benchmarks/fixed_points.py --hard --write docs/performance/fixed_points.md  # s = 3.5 and 4; minutes more
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy.optimize import NoConvergence, newton_krylov

import implicitsolve as ims
from implicitsolve.adapters import gru_parameters, implicit_gru

SYSTEMS, INPUTS = 20, 100
TOLERANCE = 1e-8
STOP = ims.NonlinearStop(atol=TOLERANCE, rtol=0.0)
CASES = {"s1": (40, 200, 1.0), "s2": (40, 200, 2.0), "s3": (40, 200, 3.0), "k448": (25, 448, 1.0)}
QUICK = 2.0  # seconds


@dataclass(frozen=True)
class Outcome:
    """What a solver reports: products of each system are means over the batch."""

    x: Any
    residuals: int
    jvps: int
    each: float | None = None


Solver = Callable[[ims.Problem, Any], Outcome]


def ours(method: Any, *, steps: int | None = None, eliminate: bool = True, per_iteration: int = 1) -> Solver:
    """`root` with a method, perhaps on all blocks, or with a limit of steps."""
    stop = replace(STOP, max_iterations=steps)

    def solve(problem: ims.Problem, x0: Any) -> Outcome:
        result = ims.root(problem if eliminate else replace(problem, halves=None), x0, method=method, stop=stop)
        before, each = ims.Counts(), int(eliminate) * len(x0)  # what was eliminated is computed at the end
        for step in result.steps:
            each += step.systems.size * (step.counts.residuals - before.residuals)
            each += per_iteration * int(step.krylov_iterations.sum())
            before = step.counts
        return Outcome(result.x, result.counts.residuals, result.counts.jvps, each / len(x0))

    return solve


def truncated(order: int) -> Solver:
    """x <- x - P_n F(x) on all blocks."""
    method = ims.NewtonKrylov(krylov=ims.TruncatedInverse(order=order), line_search=ims.FullStep())
    return ours(method, steps=200, eliminate=False)


def scipys(problem: ims.Problem, x0: Any) -> Outcome:
    """SciPy's newton_krylov: all sequences are one system, and products are differences."""
    calls = 0

    def residual(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return problem.residual(x)

    try:
        x = newton_krylov(residual, x0, f_tol=TOLERANCE, method="gmres", maxiter=100)
    except NoConvergence as error:
        x = error.args[0]
    return Outcome(x, calls, 0)


SOLVERS: dict[str, Solver] = {
    "auto": ours("auto"),
    "Anderson": ours("anderson"),
    "Anderson, not preconditioned": ours(ims.Anderson(preconditioned=False)),
    "Anderson, all blocks": ours("anderson", eliminate=False),
    "Broyden": ours("broyden"),
    "Picard": ours("picard"),
    "Picard, all blocks (P_0)": truncated(0),
    "P_1, all blocks": truncated(1),
    "P_3, all blocks": truncated(3),
    "NewtonKrylov": ours("newton-krylov"),
    "NewtonKrylov, float32 products": ours(ims.NewtonKrylov(krylov_dtype="float32")),
    "NewtonKrylov, all blocks": ours("newton-krylov", eliminate=False),
    "Newton-BiCGSTAB, 40/40": ours(ims.NewtonKrylov(krylov=ims.BiCGSTAB(), max_krylov=40), steps=40, per_iteration=2),
    "Homotopy": ours("homotopy"),
    "SciPy's newton_krylov (gmres)": scipys,
}


def workload(T: int, k: int, s: float, *, systems: int = SYSTEMS, seed: int = 0) -> tuple[ims.Problem, Any]:
    """The layer and its start. Fewer systems are the first ones of more."""
    rng = np.random.default_rng(seed)
    params = gru_parameters(INPUTS, k, rng=rng)
    params = {name: s * value if name[0] == "U" else value for name, value in params.items()}
    return implicit_gru(params, rng.standard_normal((systems, T, INPUTS))), np.zeros((systems, T, k))


def timed(name: str, problem: ims.Problem, x0: Any) -> tuple[Outcome, float]:
    """What a solver reports, and its CPU seconds."""
    begin = time.process_time()
    outcome = SOLVERS[name](problem, x0)
    return outcome, time.process_time() - begin


def outside(problem: ims.Problem, x: Any) -> Any:
    """max|F| of each system."""
    return np.abs(problem.residual(x)).max(axis=(1, 2))


def solved(sizes: Any) -> str:
    """How many systems are solved, of how many."""
    return f"{int((sizes <= 1.0001 * TOLERANCE).sum())}/{sizes.size}"


# Parts: each yields the lines of its table


def methods(case: str, repeat: int) -> Iterator[str]:
    """Every method on a workload."""
    yield "| method | solved | residuals | JVPs | products | of each system | CPU / auto | max\\|F\\| |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    problem, x0 = workload(*CASES[case])
    outcomes, seconds = {}, {}
    for name in SOLVERS:
        outcomes[name], first = timed(name, problem, x0)
        seconds[name] = [first]
    quick = [name for name, values in seconds.items() if values[0] < QUICK]
    for name in quick * (repeat - 1):
        seconds[name].append(timed(name, problem, x0)[1])
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, out in outcomes.items():
        sizes = outside(problem, out.x)
        each = "" if out.each is None else f"{out.each:.1f}"
        yield (
            f"| {name} | {solved(sizes)} | {out.residuals} | {out.jvps} | {out.residuals + out.jvps} | {each} | "
            f"{medians[name] / medians['auto']:.2f} | {sizes.max():.1e} |"
        )


def draws() -> Iterator[str]:
    """Recurrent weights three times as large: systems differ much."""
    yield "| draw | method | solved | residuals | JVPs | products | of each system | CPU / auto |"
    yield "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for seed in range(5):
        problem, x0 = workload(40, 200, 3.0, seed=seed)
        base = 0.0
        for name in ("auto", "Anderson", "NewtonKrylov", "Homotopy"):
            out, seconds = timed(name, problem, x0)
            base = seconds if name == "auto" else base
            yield (
                f"| {seed} | {name} | {solved(outside(problem, out.x))} | {out.residuals} | {out.jvps} | "
                f"{out.residuals + out.jvps} | {out.each:.1f} | {seconds / base:.2f} |"
            )


def gradients() -> Iterator[str]:
    """The adjoint solve, by products, and the error of the recurrent weights' gradients."""
    yield "| T, k, s | adjoint | products | converged | error of dL/dU |"
    yield "| --- | --- | ---: | --- | ---: |"
    for T, k, s in CASES.values():
        problem, x0 = workload(T, k, s)
        x = ims.root(problem, x0, stop=ims.NonlinearStop(atol=1e-12, rtol=0.0)).x
        cotangent = np.random.default_rng(1).standard_normal(x.shape)
        whole = replace(problem, halves=None)
        exact = ims.pull_back(problem, x, cotangent, stop=ims.LinearStop(rtol=1e-12)).gradients["U"]
        ways: dict[str, tuple[ims.Problem, Any]] = {
            "every second block": (problem, None),
            "every second block, GMRES(400)": (problem, ims.GMRES(restart=400)),
            "every second block, BiCGSTAB": (problem, ims.BiCGSTAB()),
            "all blocks": (whole, None),
            "all blocks, BiCGSTAB": (whole, ims.BiCGSTAB()),
        } | {f"P_{n}": (problem, ims.TruncatedInverse(order=n)) for n in (0, 1, 3)}
        for name, (at, method) in ways.items():
            result = ims.pull_back(at, x, cotangent, method=method)
            error = np.linalg.norm(result.gradients["U"] - exact) / np.linalg.norm(exact)
            products = int(name[2:]) if name.startswith("P_") else result.linear.matvecs  # one more measures it
            yield (f"| {T}, {k}, {s:g} | {name} | {products} | {int(np.sum(result.success))}/{SYSTEMS} | {error:.1e} |")


def starts() -> Iterator[str]:
    """Weights so large that plain methods lose their way."""
    count, names = 48, ("auto", "Homotopy", "NewtonKrylov", "Anderson")
    yield "| T, k | draw | method | from zero | random starts solved | products of each | CPU / auto | solutions |"
    yield "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: |"
    for T, k in ((8, 6), (10, 8)):
        for seed in range(3):
            rng = np.random.default_rng(seed)
            params, inputs = gru_parameters(k, k, scale=3.0, rng=rng), rng.standard_normal((T, k))
            problem = implicit_gru(params, np.tile(inputs, (count + 1, 1, 1)))
            x0 = rng.uniform(-1.0, 1.0, (count + 1, T, k))
            x0[0] = 0.0
            base = 0.0
            for name in names:
                out, seconds = timed(name, problem, x0)
                base = seconds if name == "auto" else base
                sizes = outside(problem, out.x)
                found = np.unique(out.x[sizes <= 1.0001 * TOLERANCE].round(4), axis=0)
                yield (
                    f"| {T}, {k} | {seed} | {name} | {'yes' if sizes[0] <= 1.0001 * TOLERANCE else 'no'} | "
                    f"{solved(sizes[1:])} | {out.each:.0f} | {seconds / base:.1f} | {len(found)} |"
                )


def hard() -> Iterator[str]:
    """Recurrent weights at which no other method converges."""
    yield "| s | method | solved | residuals | JVPs | of each system | CPU s | max\\|F\\| |"
    yield "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for s, systems, names in ((3.5, 6, ("auto", "NewtonKrylov")), (4.0, 2, ("Homotopy",))):
        problem, x0 = workload(40, 200, s, systems=systems)
        for name in names:
            out, seconds = timed(name, problem, x0)
            sizes = outside(problem, out.x)
            yield (
                f"| {s:g} | {name} | {solved(sizes)} | {out.residuals} | {out.jvps} | {out.each:.0f} | {seconds:.0f} | "
                f"{sizes.max():.1e} |"
            )


PARTS: dict[str, tuple[str, Callable[[int], Iterator[str]]]] = {  # titles on the page, and tables
    case: (f"{k} states, {T} positions, recurrent weights × {s:g}", partial(methods, case))
    for case, (T, k, s) in CASES.items()
} | {
    "draws": ("Five draws with recurrent weights × 3", lambda repeat: draws()),
    "gradients": ("Gradients", lambda repeat: gradients()),
    "starts": ("Weights in ±3, from 48 random starts", lambda repeat: starts()),
    "hard": ("Recurrent weights beyond × 3", lambda repeat: hard()),
}
HEAD = """# Methods for fixed points

Written by `python benchmarks/fixed_points.py --write docs/performance/fixed_points.md` ({versions}, one thread, two
cores of an AMD EPYC). The machine was busy with other work: times are ratios from one run, and counts do not depend on
it.

{about}
"""


def page(old: str, new: dict[str, list[str]]) -> str:
    """The page with the tables that were measured now, and the others, and the text below all, as they were."""
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}"
    about = (__doc__ or "").split("\n\nUsage")[0].split("\n\n", 1)[1]
    sections = dict(part.split("\n", 1) for part in old.split("\n## ")[1:])
    text = HEAD.format(versions=versions, about=about)
    for part, (title, _) in PARTS.items():
        body = sections.get(title, "").strip()
        if part in new:
            below = "\n".join(line for line in body.split("\n") if not line.startswith("|")).strip()
            body = "\n".join(new[part]) + (f"\n\n{below}" if below else "")
        text += f"\n## {title}\n\n{body}\n" if body else ""
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=[part for part in PARTS if part != "hard"], help="default: all")
    parser.add_argument("--hard", action="store_true", help="s = 3.5 and 4 instead")
    parser.add_argument("--repeat", type=int, default=3, help="timed calls of each quick solver")
    parser.add_argument("--write", type=Path, help="Markdown file, in which the measured tables are replaced")
    arguments = parser.parse_args(argv)
    for name in ("auto", "Homotopy", "NewtonKrylov, float32 products"):  # compiles kernels
        timed(name, *workload(8, 100, 1.0))
    everything = [part for part in PARTS if part != "hard"]
    for part in ["hard"] if arguments.hard else arguments.parts or everything:
        title, measured = PARTS[part]
        print(f"\n## {title}\n")
        lines: list[str] = []
        for line in measured(arguments.repeat):
            print(line, flush=True)
            lines.append(line)
        if arguments.write:
            old = arguments.write.read_text(encoding="utf-8") if arguments.write.exists() else ""
            arguments.write.write_text(page(old, {part: lines}), encoding="utf-8")


if __name__ == "__main__":
    main()
