"""Newton's method on the gallery of test problems."""

from __future__ import annotations

import numpy as np

import implicitsolve as ims

from .problems import GalleryProblem, burkardt_problems, classic_problems, pde_gallery
from .tools import CPU, transfers, unit

PDES = {entry.name: entry for entry in pde_gallery("medium")}
GALLERY = {entry.name: entry for entry in (*classic_problems(), *burkardt_problems())} | PDES
Counts = dict[str, dict[str, float]]


def solve(entry: GalleryProblem) -> ims.NonlinearResult:
    """`root` with exact products, where the entry has them."""
    problem = ims.Problem(entry.residual, jvp=entry.jvp)
    return ims.root(problem, entry.x0, stop=ims.NonlinearStop(atol=entry.tolerance(), rtol=0.0))


class Newton:
    """Newton-Krylov by its defaults, counted."""

    params = tuple(GALLERY)
    param_names = ("problem",)

    def setup_cache(self) -> Counts:
        """Solve each once."""
        counts = {}
        for name, entry in GALLERY.items():
            with np.errstate(all="ignore"):
                result = solve(entry)
                size = float(np.abs(entry.residual(np.array(result.x))).max())
            counts[name] = {
                "residuals": result.counts.residuals,
                "jvps": result.counts.jvps,
                "krylov": result.krylov_iterations,
                "solved": size <= entry.tolerance(),
            }
        return counts

    @unit("calls")
    def track_residuals(self, counts: Counts, problem: str) -> float:
        """Calls of the residual."""
        return counts[problem]["residuals"]

    @unit("products")
    def track_jvps(self, counts: Counts, problem: str) -> float:
        """Exact products with J."""
        return counts[problem]["jvps"]

    @unit("iterations")
    def track_krylov_iterations(self, counts: Counts, problem: str) -> float:
        """Krylov iterations of all steps."""
        return counts[problem]["krylov"]

    @unit("solved")
    def track_solved(self, counts: Counts, problem: str) -> float:
        """1 where max|F| at what was returned is at most the entry's tolerance."""
        return float(counts[problem]["solved"])


class NewtonTime:
    """Newton-Krylov by its defaults, timed, on the discretized equations."""

    timer = CPU
    params = tuple(PDES)
    param_names = ("problem",)

    def setup(self, problem: str) -> None:
        """Solve once."""
        solve(PDES[problem])

    def time_solve(self, problem: str) -> None:
        """The whole call."""
        solve(PDES[problem])


class NewtonTransfers:
    """Reads by the host, which on a GPU wait for the device; counted on array-api-strict's arrays."""

    params = ("bratu-2d", "convection-diffusion-2d", "h-equation-0.9")
    param_names = ("problem",)

    @unit("reads per Krylov iteration")
    def track_transfers(self, problem: str) -> float:
        """All reads of a solve, those of the line search included, over its Krylov iterations."""
        import array_api_strict as xp

        entry = PDES[problem]
        with transfers() as reads:
            result = ims.root(ims.Problem(entry.residual, jvp=entry.jvp), xp.asarray(entry.x0.copy()))
        return reads.count / result.krylov_iterations
