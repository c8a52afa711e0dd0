"""Why a solve failed, or is slow: explanations, a page for the browser, plots, spectra, condition numbers."""

from collections.abc import Callable

from implicitsolve.diagnostics._explain import Explanation, Finding, explain
from implicitsolve.diagnostics._plots import plot_convergence, plot_jacobian, plot_spectrum, plot_structure
from implicitsolve.diagnostics._report import report
from implicitsolve.diagnostics._spectrum import Contraction, Spectrum, contraction, spectrum
from implicitsolve.diagnostics._system import Condition, condition

__all__ = [
    "Condition",
    "Contraction",
    "Explanation",
    "Finding",
    "Spectrum",
    "condition",
    "contraction",
    "explain",
    "plot_convergence",
    "plot_jacobian",
    "plot_spectrum",
    "plot_structure",
    "report",
    "spectrum",
]
__dir__: Callable[[], list[str]] = __all__.copy
