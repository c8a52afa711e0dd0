"""A model of another program, and what its solves by several ways take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import implicitsolve as ims

Array = Any
Row = dict[str, Any]


@dataclass
class Model:
    """F(x) = 0 with the start, the derivatives and the solver that the program has."""

    F: Callable[[Array], Array]
    x0: Array
    jac: Callable[[Array], Any] | None = None
    own: Callable[[], dict[str, Any]] | None = None  # the program's solver; Newton's method by hand where it is that
    settings: dict[str, Any] = field(default_factory=dict)  # of `root`
    details: dict[str, Any] = field(default_factory=dict)  # of `Problem`
    full: bool = True  # whether the pattern is tried

    def pattern(self) -> Any:
        """Entries of J near x0."""
        assert self.jac is not None
        rng = np.random.default_rng(0)
        near = [self.x0, 1.01 * self.x0 + 1e-3 * rng.random(self.x0.shape)]
        return sum(abs(sp.csr_array(self.jac(x))) > 0 for x in near) > 0

    def row(self) -> Row:
        """All ways in turn."""
        ways: dict[str, Callable[[], dict[str, Any]]] = {"plain": lambda: self.solve()}
        if self.jac is not None:
            pattern = self.pattern() if self.full else None
            if pattern is not None:
                ways["pattern"] = lambda: self.solve(structure=ims.Sparse(pattern))
            ways["jac"] = lambda: self.solve(jac=self.jac)
        own = self.own or (lambda: newton(self)) if self.jac is not None or self.own else None
        if own is not None:
            ways["own"] = own
        return {"unknowns": int(self.x0.size)} | {way: timed(run) for way, run in ways.items()}

    def solve(self, method: Any = None, **derivatives: Any) -> dict[str, Any]:
        """One solve by `root`."""
        settings = self.settings | ({"method": method} if method is not None else {})
        result = ims.root(ims.Problem(self.F, **(self.details | derivatives)), self.x0.copy(), **settings)
        return outcome(result)


def outcome(result: Any) -> dict[str, Any]:
    """Status and counts of a result."""
    counts = result.counts
    return {
        "status": "" if result.success else result.status.name,
        "F": counts.residuals,
        "J": counts.linearizations,
        "products": counts.jvps + counts.vjps,
    }


def newton(model: Model, most: int = 30) -> dict[str, Any]:
    """Whole steps of Newton's method with a sparse LU, as most of these programs take them."""
    assert model.jac is not None
    x, tol = model.x0.copy(), model.settings.get("tol", 1e-8)
    F = model.F(x)
    for step in range(most):
        if np.max(abs(F)) < tol:
            return {"status": "", "F": step + 1, "J": step}
        x = x - sla.spsolve(sp.csc_array(model.jac(x)), F)
        F = model.F(x)
        if not np.isfinite(F).all():
            break
    return {"status": "not solved", "F": step + 2, "J": step + 1}


def timed(run: Callable[[], dict[str, Any]], seconds: float = 1.0) -> dict[str, Any]:
    """What it returns, with the least processor time of up to three runs; an exception is an outcome."""
    least, begin = float("inf"), time.process_time()
    for _ in range(3):
        start = time.process_time()
        try:
            found = run()
        except Exception as error:  # noqa: BLE001 - of any program
            return {"status": f"{type(error).__name__}: {str(error).strip()[:80]}"}
        least = min(least, time.process_time() - start)
        if time.process_time() - begin > seconds:
            break
    return found | {"seconds": least}
