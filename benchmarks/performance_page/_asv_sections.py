"""The sections on the library itself: solves, Krylov methods, the gallery, direct solvers, layers, start."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.performance_page._asv import Results
from benchmarks.performance_page._names import name as workload
from benchmarks.performance_page._names import place
from benchmarks.performance_page._table import count, number, table

MILLISECONDS, MEGABYTES = 1e3, 1e-6


def sections(results: Results) -> Iterator[str]:
    """Those for which there are results."""
    for title, about, body in (
        ("Solves", FORWARD, forward(results)),
        ("Gradients", GRADIENT, gradient(results)),
        ("Krylov methods", KRYLOV, krylov(results)),
        ("Newton's method on the gallery", NEWTON, newton(results)),
        ("Block-banded matrices", BLOCKS, blocks(results)),
        ("Layers", LAYERS, layers(results)),
        ("Start", START, start(results)),
    ):
        if body:
            yield f"## {title}\n\n{about}\n\n{body}"


FORWARD = """`root` by its defaults, one thread. A call of the residual serves all systems that still run; "of each"
is the mean over the systems of residuals and products with J, where those that have ended take none. Bytes are what
Python and NumPy held at a time, beyond what was there before. The last column is max|F| by a residual that shares no
code with the library, over the tolerance."""


def forward(results: Results) -> str:
    """One row for each workload."""
    name = "solves.Forward.track_"
    keys = sorted(results.first(f"{name}residuals", "solves.ForwardTime.time_solve"), key=place)
    header = ("workload", "residuals", "J v", "of each", "Krylov iterations", "peak MB", "ms", "max\\|F\\| / target")
    rows = [
        (
            workload(key),
            count(results[f"{name}residuals"].get((key,))),
            count(results[f"{name}jvps"].get((key,))),
            number(results[f"{name}products_of_each"].get((key,))),
            count(results[f"{name}krylov_iterations"].get((key,))),
            number(results[f"{name}peak_bytes"].get((key,)), scale=MEGABYTES),
            number(results["solves.ForwardTime.time_solve"].get((key,)), scale=MILLISECONDS),
            number(results[f"{name}residual"].get((key,)), 2),
        )
        for key in keys
    ]
    return table(header, rows) if rows else ""


GRADIENT = """`pull_back` by its defaults at those solutions, for one cotangent of standard normal numbers: the
adjoint solve, to 1e-6 of the cotangent's norm, and the gradients of all parameters. "failed" counts systems that
missed that tolerance."""


def gradient(results: Results) -> str:
    """One row for each workload."""
    name = "solves.Gradient.track_"
    keys = sorted(results.first(f"{name}vjps", "solves.GradientTime.time_pull_back"), key=place)
    header = ("workload", "Jᵀ w", "products of the adjoint solve", "residuals", "failed", "peak MB", "ms")
    rows = [
        (
            workload(key),
            *(count(results[name + what].get((key,))) for what in ("vjps", "linear_products", "residuals", "failures")),
            number(results[f"{name}peak_bytes"].get((key,)), scale=MEGABYTES),
            number(results["solves.GradientTime.time_pull_back"].get((key,)), scale=MILLISECONDS),
        )
        for key in keys
    ]
    return table(header, rows) if rows else ""


KRYLOV = """Linear systems, to 1e-8: one of 961 unknowns (convection and diffusion), 20 of 2000 (a layer's I - dF/dH),
64 diagonal ones of 200 with increasingly wide spectra. SciPy's methods solve them one at a time. Transfers are reads of
arrays by the host, which synchronize a GPU, per iteration of the slowest of 8 systems, start and check included."""


def krylov(results: Results) -> str:
    """One row for each system and method."""
    counts = ("products", "iterations", "failures")
    header = ("system", "method", "products", "iterations", "failed", "ms", "transfers")
    rows = [
        (
            *case,
            *(count(results[f"krylov.Krylov.track_{what}"].get(case)) for what in counts),
            number(results["krylov.KrylovTime.time_solve"].get(case), scale=MILLISECONDS),
            number(results["krylov.Transfers.track_transfers"].get(case[1:])),
        )
        for case in results["krylov.Krylov.track_products"]
    ]
    return table(header, rows, texts=2) if rows else ""


NEWTON = """`root` with its defaults and exact products, where the problem has them; to 1e-8 relative to the initial
residual for differential equations, to an absolute 1e-8 for the classic sets."""


def newton(results: Results) -> str:
    """One row for each differential equation, one for the classic sets."""
    name = "newton.Newton.track_"
    solved, times = results[f"{name}solved"], results["newton.NewtonTime.time_solve"]
    counts = [results[name + what] for what in ("residuals", "jvps", "krylov_iterations")]
    header = ("problem", "solved", "residuals", "J v", "Krylov iterations", "ms")
    rows = [
        (
            key,
            "yes" if solved[key,] else "no",
            *(count(values.get((key,))) for values in counts),
            number(times.get((key,)), scale=MILLISECONDS),
        )
        for (key,) in solved
        if (key,) in times
    ]
    classic = [case for case in solved if case not in times]
    if classic:
        sums = (count(sum(values.get(case, 0) for case in classic)) for values in counts)
        share = f"{sum(solved[case] for case in classic):.0f} of {len(classic)}"
        rows.append((f"{len(classic)} classic problems", share, *sums, ""))
    failed = ", ".join(key for (key,) in solved if not solved[key,])
    return table(header, rows) + (f"\n\nNot solved: {failed}." if failed else "") if rows else ""


BLOCKS = """Block tridiagonal matrices with T k = 16384 rows: T blocks of k. Milliseconds of a factorization and of a
solve with the factors, and their ratios to LAPACK's gbtrf and gbtrs (gttrf and gttrs for k = 1), whose conversion to
band storage is not timed. Errors are backward errors in units of the unit roundoff, without refinement."""


def blocks(results: Results) -> str:
    """One row for each method and k."""
    header = ("method", "k", "factor, ms", "over LAPACK", "solve, ms", "over LAPACK", "memory", "error")
    rows = []
    for case in results["block_banded.FactorizationTime.time_factor"]:
        cells = [case[0], str(case[1])]
        for what in ("time_factor", "time_solve"):
            ours = results[f"block_banded.FactorizationTime.{what}"].get(case)
            lapack = results[f"block_banded.LapackTime.{what}"].get(case[1:])
            cells += [number(ours, scale=MILLISECONDS), number(ours / lapack, 2) if ours and lapack else ""]
        cells += [
            number(results[f"block_banded.Factorization.track_{what}"].get(case), 2)
            for what in ("memory", "backward_error")
        ]
        rows.append(cells)
    return table(header, rows) if rows else ""


LAYERS = """CPU time of one function of a layer over that of its matrix products alone, one GEMM for the weights of one
vector (of the adjoint, for Jᵀ w): measurements alternate, and the minimum of each is used. 20 sequences of T = 40
positions (25 for k = 448), one thread."""


def layers(results: Results) -> str:
    """One row for each layer, k and dtype."""
    functions = ("residual", "linearize", "jvp", "vjp")
    header = ("layer", "k", "dtype", "residual", "linearize", "J v", "Jᵀ w")
    rows = [
        (
            case[0],
            str(case[1]),
            case[2],
            *(number(results[f"adapters.Layers.track_{what}"].get(case)) for what in functions),
        )
        for case in results["adapters.Layers.track_residual"]
    ]
    return table(header, rows, texts=3) if rows else ""


START = """Elapsed milliseconds of the first lines in a fresh interpreter, excluding the start of the interpreter."""
STARTS = {
    "timeraw_import_numpy_scipy": "import of NumPy and of SciPy's linear algebra alone",
    "timeraw_import": "import implicitsolve",
    "timeraw_first_solve": "import and one equation",
    "timeraw_first_structured_solve": "import and a tridiagonal system",
    "timeraw_first_layer": "import and a small layer",
}


def start(results: Results) -> str:
    """One row for each script."""
    rows = [
        (text, number(results[f"start.Start.{name}"].get(()), scale=MILLISECONDS))
        for name, text in STARTS.items()
        if results[f"start.Start.{name}"]
    ]
    return table(("script", "ms"), rows) if rows else ""
