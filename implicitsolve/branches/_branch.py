"""Branch: the points that a continuation has found, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from implicitsolve._arrays import files
from implicitsolve._record import Counts
from implicitsolve._summary import MOST_LINES, Representation, format_table
from implicitsolve._typing import HostArray
from implicitsolve.status import Status

FORMAT = "a branch of format 3"  # of files
MARKS = {"fold": "o", "branch point": "s", "hopf": "D"}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SpecialPoint:
    """A point of a branch at which something happens.

    Attributes
    ----------
    kind : str
        "fold", "branch point", "hopf", or the name of an event.
    lam : float
        The parameter.
    x : ndarray
        The solution, in the shape of x0.
    residual_norm : float
        max|F(x, lam)|, measured.
    index : int
        It lies between the points ``index`` and ``index + 1`` of the branch.
    direction : (ndarray, float) or None
        At a branch point: the direction (dx, dlam) in which the other branch leaves, for `continuation`.
    frequency : float or None
        At a Hopf point: the modulus of the pair of eigenvalues on the imaginary axis.
    """

    kind: str
    lam: float
    x: HostArray
    residual_norm: float
    index: int
    direction: tuple[HostArray, float] | None = None
    frequency: float | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} at {self.lam:.10g}>"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Branch(Representation):
    """Solutions of F(x, lam) = 0 along a curve, in its order.

    Attributes
    ----------
    lam : ndarray (n,)
        The parameter at each point.
    x : ndarray (n, ...)
        The solutions.
    residual_norm, target : ndarray (n,)
        max|F(x, lam)|, measured at each point, and its target there.
    special : tuple of SpecialPoint
        Folds, branch points, Hopf points and events, in the order of the branch.
    eigenvalues : ndarray (n, k) or None
        Leading eigenvalues of J, by falling real part.
    status : Status
        CONVERGED: the parameter has reached an end of its interval, an event has ended the branch, or this is closed.
        ITERATION_LIMIT: it has `max_points` points. EVALUATION_LIMIT, STOPPED_BY_MONITOR: as the caller requested.
        STAGNATED: no step succeeds, however short. NONFINITE, SINGULAR, and others: no first point was found.
    message : str
        The status in words, and what to try.
    counts : Counts
        Calls of the user's functions.
    parameter : str
        Name of the parameter.
    state : mapping of str to ndarray
        What `continuation` needs to resume the branch; empty where that is impossible.
    """

    lam: HostArray
    x: HostArray
    residual_norm: HostArray
    target: HostArray
    special: tuple[SpecialPoint, ...]
    eigenvalues: HostArray | None
    status: Status
    message: str
    counts: Counts
    parameter: str = "lam"
    state: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lam)

    @property
    def success(self) -> bool:
        """Whether the branch ended as requested."""
        return self.status == Status.CONVERGED

    @property
    def stable(self) -> HostArray | None:
        """Where all `eigenvalues` have negative real parts: x is then a stable steady state of x' = F(x, lam)."""
        return None if self.eigenvalues is None else np.asarray((np.real(self.eigenvalues) < 0).all(axis=1))

    def of_kind(self, kind: str) -> list[SpecialPoint]:
        """The special points of one kind, such as "fold"."""
        return [point for point in self.special if point.kind == kind]

    def _entries(self) -> dict[str, str]:
        entries = {"status": self.status.name, "points": str(len(self))}
        if len(self):
            entries[self.parameter] = f"{self.lam[0]:.6g} to {self.lam[-1]:.6g}"
            entries["max|F|"] = f"{self.residual_norm.max():.2g}"
        for kind in dict.fromkeys(point.kind for point in self.special):
            entries[kind] = ", ".join(f"{point.lam:.8g}" for point in self.of_kind(kind))
        entries["calls"] = f"{self.counts.residuals} residuals, {self.counts.jvps} jvps"
        return entries

    def __repr__(self) -> str:
        return f"<Branch: {', '.join(f'{name} {value}' for name, value in self._entries().items())}>"

    def summary(self) -> str:
        """Return a table of the branch: how it ended, special points, and some of its points."""
        entries = [[name, value] for name, value in self._entries().items() if name != "status"]
        parts = [f"Branch: {self.message}", "", format_table([], entries), ""]
        places = np.unique(np.linspace(0, max(0, len(self) - 1), min(MOST_LINES // 2, len(self))).astype(int))
        flat = self.x.reshape(len(self), int(np.prod(self.x.shape[1:])))
        rows = [
            [str(i), f"{self.lam[i]:.6g}", f"{np.abs(flat[i]).max(initial=0.0):.6g}", f"{self.residual_norm[i]:.2g}"]
            for i in places
        ]
        return "\n".join([*parts, format_table(["point", self.parameter, "max|x|", "max|F|"], rows)])

    def plot(self, measure: Callable[[HostArray], float] | None = None, *, ax: Any = None) -> Any:
        """Plot the bifurcation diagram.

        Parameters
        ----------
        measure : callable, optional
            ``measure(x)`` returns the number that is plotted over the parameter. Default: the entry of x that
            changes most along the branch.
        ax : matplotlib.axes.Axes, optional
            Where to plot. Default: a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            With `eigenvalues`, unstable parts are dashed. Special points have markers.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        from implicitsolve.diagnostics._plots import COLORS, _axes

        ax = _axes("Branch.plot", ax)
        flat = self.x.reshape(len(self), -1)
        place = int(np.ptp(flat, axis=0).argmax()) if flat.size else 0
        value = measure or (lambda x: float(x.reshape(-1)[place]))
        lam, x = [*self.lam, *(point.lam for point in self.special)], [*self.x, *(point.x for point in self.special)]
        index = np.array([*range(len(self)), *(point.index for point in self.special)], dtype=int)
        order = np.argsort(index, kind="stable")  # special points behind those before them
        heights = np.array([value(at) for at in x])
        unstable = np.zeros(index.size, dtype=bool) if self.stable is None else ~self.stable[index][order]
        ax.plot(np.array(lam)[order], np.where(unstable, np.nan, heights[order]), "-", color=COLORS[0])
        unstable[:-1] |= unstable[1:]  # from the last point of the other kind
        ax.plot(np.array(lam)[order], np.where(unstable, heights[order], np.nan), "--", color=COLORS[0])
        for i, kind in enumerate(dict.fromkeys(point.kind for point in self.special)):
            points, color = self.of_kind(kind), COLORS[1 + i % (len(COLORS) - 1)]
            at = [point.lam for point in points], [value(point.x) for point in points]
            ax.plot(*at, MARKS.get(kind, "x"), color=color, label=kind)
        ax.set_xlabel(self.parameter)
        ax.set_ylabel("x" if measure is None else getattr(measure, "__name__", "measure"))
        if self.special:
            ax.legend(loc="best", fontsize="small")
        return ax

    def save(self, path: str | Path) -> None:
        """Write the branch to a file (npz), whole or not at all, which `load` reads."""
        files.save(path, FORMAT, vars(self))

    @staticmethod
    def load(path: str | Path) -> Branch:
        """Read a branch from a file that `save` has written.

        Raises
        ------
        ValueError
            If the file was not written by `save`, is damaged, or is of another version.
        """
        return files.load(path, FORMAT, _branch)


def _branch(parts: dict[str, Any]) -> Branch:
    special = parts.pop("special", {}).values()
    for point in special:
        if "direction" in point:
            point["direction"] = tuple(point["direction"].values())
    known: dict[str, Any] = {"eigenvalues": None, **parts}
    known |= {"status": Status(parts["status"]), "counts": Counts(**parts["counts"])}
    return Branch(special=tuple(SpecialPoint(**point) for point in special), **known)
