"""Pictures of a solve and of a spectrum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._summary import WORST, index_of
from implicitsolve._typing import Array, HostArray
from implicitsolve.diagnostics._history import ENDED_WELL, MANY_SYSTEMS, read_histories, tabulate_norms
from implicitsolve.diagnostics._pattern import magnitudes, pattern_of
from implicitsolve.diagnostics._spectrum import Spectrum, spectrum
from implicitsolve.diagnostics._system import System, unwrap
from implicitsolve.errors import require
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.status import Status
from implicitsolve.stopping import check_choice

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")  # Okabe and Ito: safe for the color-blind
MARKERS = "osD^vP"
CELLS = 200  # of the picture of a matrix, along each side


def plot_convergence(
    result: NonlinearResult | Mapping[str, Any], *, ax: Any = None, against: str = "steps", label: str | None = None
) -> Any:
    """Plot the norm of F over the steps, or over what they cost.

    Parameters
    ----------
    result : NonlinearResult or mapping of str to NonlinearResult
        One result, or several with their labels.
    ax : matplotlib.axes.Axes, optional
        Where to plot. Default: a new figure.
    against : {"steps", "products"}, optional
        "products" counts residuals and Jacobian products; one covers the whole batch.
    label : str, optional
        Label of a single result in the legend.

    Returns
    -------
    matplotlib.axes.Axes
        The norm on a logarithmic axis. The target is a dashed line, where it is known and the same for all systems in
        the plot up to a factor of 10, else a band. A batch is drawn as its median, with a band from the smallest norm
        to the largest; up to five systems that failed are drawn singly. A system that has ended keeps its last norm.
        Curves of several calls with the same axes have different colors and markers.

    Raises
    ------
    ImportError, TypeError, ValueError
        If matplotlib is not installed, or an argument not usable.

    Examples
    --------
    >>> result = ims.root(lambda x: x + np.cos(x), np.zeros(3))
    >>> ax = ims.diagnostics.plot_convergence(result)
    >>> ax.get_yscale(), ax.get_xlabel()
    ('log', 'step')
    """
    check_choice("plot_convergence", "against", against, ("steps", "products"))
    given: Any = (
        result
        if isinstance(result, Mapping) and "native" not in result
        else {"" if label is None else str(label): result}
    )
    results: dict[str, Any] = {str(name): unwrap(one) for name, one in given.items()}
    if not results:
        raise ValueError("plot_convergence: `result` must hold at least one result, got none")
    for one in results.values():
        if not isinstance(one, NonlinearResult):
            raise TypeError(f"plot_convergence: `result` must be the result of `root`, got {type(one).__name__}")
    ax = _axes("plot_convergence", ax)
    drawn = sum(line.get_marker() in MARKERS for line in ax.get_lines())  # of earlier calls with the same axes
    for i, (name, one) in enumerate(results.items(), drawn):
        _draw(ax, one, name, against, COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)])
    _draw_target(ax, list(results.values()))
    across = "step" if against == "steps" else "residuals and Jacobian products"
    ax.set(yscale="log", xlabel=across, ylabel="norm of F(x)")
    ax.xaxis.get_major_locator().set_params(integer=True)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best", fontsize="small")
    return ax


def plot_spectrum(
    problem: Problem | Callable[[Array], Array] | Spectrum, x: Array = None, *, ax: Any = None, **options: Any
) -> Any:
    """Plot Ritz values of J in the complex plane; for a fixed-point problem those of I - J, with the unit circle.

    Parameters
    ----------
    problem : Problem, callable or Spectrum
        What `spectrum` takes; or its result, whose values, those of I - J, are drawn unchanged.
    x : array_like or NonlinearResult, optional
        The point; needed unless `problem` is a Spectrum.
    ax : matplotlib.axes.Axes, optional
        Where to plot. Default: a new figure.
    **options
        Those of `spectrum`: `vectors`, `system`, `rng`.

    Returns
    -------
    matplotlib.axes.Axes
        Filled markers are values accurate to a hundredth of the radius, open ones are less accurate.

    Raises
    ------
    ImportError, TypeError, ValueError
        If matplotlib is not installed, or an argument not usable.

    Examples
    --------
    >>> G = np.array([[0.0, 0.5], [-0.5, 0.0]])
    >>> ims.diagnostics.plot_spectrum(lambda x: x - x @ G.T, np.zeros(2)).get_title()
    '2 eigenvalues of J: moduli 1.12 to 1.12'
    >>> problem = ims.Problem(lambda x: x - x @ G.T, fixed_point=True)
    >>> ims.diagnostics.plot_spectrum(problem, np.zeros(2)).get_title()
    'I - J: spectral radius 0.5'
    """
    if isinstance(problem, Spectrum):
        if x is not None or options:
            raise TypeError("plot_spectrum: a Spectrum takes neither `x` nor options of `spectrum`")
        found, is_map = problem, True
    elif x is None:
        raise TypeError("plot_spectrum: `x` is needed, unless `problem` is a Spectrum")
    else:
        found, is_map = spectrum(problem, x, **options), isinstance(problem, Problem) and problem.fixed_point
    values, kind = found.values if is_map else 1 - found.values, "eigenvalues" if found.exact else "Ritz values"
    ax = _axes("plot_spectrum", ax)
    if is_map:
        title = f"I - J: spectral radius {'' if found.exact else 'about '}{found.radius:.3g}"
        angles = np.linspace(0, 2 * np.pi, 361)
        ax.plot(np.cos(angles), np.sin(angles), color="0.5", linewidth=1, label="unit circle")
    else:
        moduli = np.abs(values)
        title = f"{values.size} {kind} of J: moduli {moduli.min():.3g} to {moduli.max():.3g}"
    is_good = found.errors <= 0.01 * np.abs(values).max(initial=0.0)
    for name, chosen, fill in ((kind, is_good, COLORS[0]), ("Ritz values, not yet accurate", ~is_good, "none")):
        if chosen.any():
            x, y = np.real(values[chosen]), np.imag(values[chosen])
            ax.scatter(x, y, s=24, facecolors=fill, edgecolors=COLORS[0], label=name, zorder=3)
    for line in (ax.axhline, ax.axvline):
        line(0, color="0.5", alpha=0.3, linewidth=0.8, zorder=0)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set(xlabel="real part", ylabel="imaginary part", title=title)
    ax.legend(loc="upper right", fontsize="small")
    return ax


def plot_structure(structure: Any, unknowns: int | None = None, *, ax: Any = None) -> Any:
    """Plot where a Jacobian has entries.

    Parameters
    ----------
    structure : BlockBanded, Sparse, Grid, Detection or NonlinearResult
        A structure, what `detect_structure` found, or a result, whose `detection` is drawn.
    unknowns : int, optional
        Number of unknowns N. Needed for a `BlockBanded`, which fits several.
    ax : matplotlib.axes.Axes, optional
        Where to plot. Default: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        One square for each entry; above 200 unknowns one for several rows and columns, which is darker the more
        entries they have.

    Raises
    ------
    ImportError, TypeError, ValueError
        If matplotlib is not installed, an argument is not usable, or no sparsity was found.

    Examples
    --------
    >>> ax = ims.diagnostics.plot_structure(ims.Grid(shape=(8, 8)))
    >>> ax.get_title()
    '64 × 64, 288 entries'
    """
    pattern = pattern_of("plot_structure", structure, unknowns)
    table, n = pattern.shares(CELLS), pattern.unknowns
    dark = 0.4 + 0.6 * np.sqrt(table / (table.max(initial=0.0) or 1.0))  # one entry can still be seen
    title = f"{n} × {n}, {pattern.entries} entries"
    return _draw_matrix("plot_structure", ax, dark, table > 0, n, title, cmap="Blues", clim=(0, 1.2))[0]


def plot_jacobian(problem: Any, x: Array, *, system: int | tuple[int, ...] | None = None, ax: Any = None) -> Any:
    """Plot the moduli of the entries of J(x), on a logarithmic scale of colors.

    Parameters
    ----------
    problem, x, system : optional
        As in `spectrum`. J is assembled as by `jacobian`.
    ax : matplotlib.axes.Axes, optional
        Where to plot. Default: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        One square for each entry, above 200 unknowns for the largest of several; zeros are white.

    Raises
    ------
    ImportError, TypeError, ValueError
        If matplotlib is not installed, or an argument not usable.

    Notes
    -----
    Costs what `jacobian` does: N products where the problem declares no structure.

    Examples
    --------
    >>> ax = ims.diagnostics.plot_jacobian(lambda x: x**2 - np.roll(x, 1), np.ones(6))
    >>> ax.get_title()
    'modulus of the entries of J: 1 to 2'
    """
    one = System("plot_jacobian", problem, x, system)
    table = magnitudes(scipy.sparse.coo_array(one.dense) if one.matrix is None else one.matrix.to_sparse("csc"), CELLS)
    is_shown = (table > 0) & np.isfinite(table)
    known = table[is_shown] if is_shown.any() else np.ones(1)
    low, high = float(known.min()), float(known.max())
    title = f"modulus of the entries of J: {low:.3g} to {high:.3g}"
    options: Any = {"norm": "log", "cmap": "viridis", "clim": (low, max(high, low * (1 + 1e-12)))}
    ax, picture = _draw_matrix("plot_jacobian", ax, table, is_shown, one.size, title, **options)
    ax.figure.colorbar(picture, ax=ax, shrink=0.8)
    return ax


def _draw_matrix(
    caller: str, ax: Any, table: HostArray, is_shown: HostArray, n: int, title: str, **options: Any
) -> tuple[Any, Any]:
    """A picture of an n x n matrix by the numbers of its cells; axes and image."""
    ax = _axes(caller, ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="unknown", ylabel="equation", title=title)
    shown = np.where(is_shown, table, np.nan)
    return ax, ax.imshow(shown, extent=(0, n, n, 0), interpolation="nearest", **options)


def _axes(caller: str, ax: Any) -> Any:
    if hasattr(ax, "get_xaxis"):
        return ax
    if ax is not None:
        raise TypeError(f"{caller}: `ax` must be Axes of matplotlib, got {type(ax).__name__}")
    plt = require("matplotlib.pyplot", f"{caller} needs matplotlib: pip install 'implicitsolve[plot]'")
    return plt.subplots(layout="constrained")[1]


def _draw(ax: Any, result: NonlinearResult, name: str, against: str, color: str, marker: str) -> None:
    status = np.asarray(result.status).reshape(-1)
    chosen = np.unique(np.linspace(0, status.size - 1, min(status.size, MANY_SYSTEMS)).astype(int))
    if not status.size:
        return
    shown = read_histories(result, chosen.tolist())
    longest = max(shown, key=lambda history: history.steps)
    norms = tabulate_norms(shown, len(longest.norms))
    at = np.asarray(longest.spent) if against == "products" else np.arange(norms.shape[0])
    every = max(1, norms.shape[0] // 12)
    options: dict[str, Any] = {"color": color, "marker": marker, "markersize": 4, "markevery": every, "linewidth": 1.5}
    if status.size == 1:
        ax.plot(at, norms[:, 0], label=name or None, **options)
        return
    drawn = ~np.isnan(norms).all(axis=1)
    length, at, norms = norms.shape[0], at[drawn], norms[drawn]
    low, middle, high = np.nanmin(norms, axis=1), np.nanmedian(norms, axis=1), np.nanmax(norms, axis=1)
    own = f"{name}: " if name else ""
    ax.fill_between(at, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(at, middle, label=f"{own}median of {status.size}, min to max", **options)
    failed = np.flatnonzero(~np.isin(status, ENDED_WELL))
    for i, row in enumerate(failed[:WORST].tolist()):
        alone = tabulate_norms(read_histories(result, [row]), length)[drawn, 0]
        index = index_of(row, np.shape(result.status))
        text = f"{own}{index}: {Status(int(status[row])).name}"
        more = failed.size - WORST
        text += f" (and {more} more failed)" if i == WORST - 1 and more > 0 else ""
        ax.plot(at, alone, color="black", linewidth=1, linestyle=(0, (1 + i, 1)), label=text)


def _draw_target(ax: Any, results: list[NonlinearResult]) -> None:
    """The target of all systems: a dashed line, or a band."""
    targets = np.concatenate([np.reshape(np.asarray(result.target, dtype=float), -1) for result in results])
    targets = targets[np.isfinite(targets) & (targets > 0)]
    known = ax.get_legend_handles_labels()[1]
    if not targets.size:
        return
    name = "targets" if targets.max() > 10 * targets.min() else "target"
    label = None if name in known else name
    if name == "targets":
        ax.axhspan(targets.min(), targets.max(), color="0.5", alpha=0.2, zorder=0, label=label)
    else:
        ax.axhline(float(np.median(targets)), color="0.5", linestyle="--", linewidth=1, label=label)
