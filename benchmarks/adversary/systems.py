"""Random systems at the limits: J zero, singular, an arrow or badly scaled, numbers at the ends of their range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse

import implicitsolve as ims
from benchmarks.accuracy.systems import KINDS, System

Array = np.ndarray[Any, Any]
Residual = Callable[[Array], Array]

METHODS = (
    "auto", "auto", "auto", "newton-krylov", "anderson", "broyden", "homotopy", "picard", "pseudo-transient",
    "sparse-newton",
)  # fmt: skip
KRYLOV = (ims.GMRES(), ims.LGMRES(), ims.BiCGSTAB(), None)
SEARCHES = (ims.Backtracking(), ims.Dogleg(), ims.FullStep(), ims.Wolfe())


@dataclass
class Watched:
    """F, which counts its calls, and is called at finite points between bounds alone."""

    function: Residual
    lower: Array | float = -np.inf
    upper: Array | float = np.inf
    calls: int = 0
    wrong: list[str] = field(default_factory=list)

    def __call__(self, x: Array) -> Array:
        """F(x)."""
        self.calls += 1
        x = np.asarray(x)
        if not np.isfinite(x).all():
            self.wrong.append(f"call {self.calls} at {x.reshape(-1)[~np.isfinite(x.reshape(-1))][0]}")
        elif x.dtype.kind != "c" and not ((x >= self.lower) & (x <= self.upper)).all():
            self.wrong.append(f"call {self.calls} outside the bounds")
        with np.errstate(all="ignore"):
            return self.function(x)


def method(rng: np.random.Generator) -> Any:
    """A method with random settings."""
    name = str(rng.choice(METHODS))
    if name != "newton-krylov" or rng.random() < 0.3:
        return name
    return ims.NewtonKrylov(krylov=KRYLOV[rng.integers(len(KRYLOV))], line_search=SEARCHES[rng.integers(len(SEARCHES))])


def known(rng: np.random.Generator) -> System:
    """A system whose only root is known, or that has none."""
    return KINDS[rng.integers(len(KINDS))](rng)


def pattern(rng: np.random.Generator, n: int) -> Array:
    """Where J has entries: a band, an arrow, a random graph or a grid, permuted or not."""
    kind = rng.integers(4)
    P = np.eye(n, dtype=bool)
    if kind < 2:
        for k in range(1, int(rng.integers(2, 4))):
            P |= np.eye(n, k=k, dtype=bool) | np.eye(n, k=-k, dtype=bool)
        if kind == 1:
            P[rng.integers(n), :] = True
            P[:, rng.integers(n)] |= rng.random() < 0.5
    else:
        P |= rng.random((n, n)) < rng.uniform(0.5, 4) / n
    order = rng.permutation(n) if rng.random() < 0.3 else np.arange(n)
    return P[order][:, order]


def damaged(rng: np.random.Generator, A: Array) -> Array:
    """A matrix that is zero, singular, badly scaled, or has empty rows or columns."""
    n, A = len(A), A.copy()
    match int(rng.integers(8)):
        case 0:
            A[:] = 0
        case 1:
            A[rng.integers(n)] = 0
        case 2:
            A[:, rng.integers(n)] = 0
        case 3:
            A[rng.random((n, n)) < rng.random()] = 0
        case 4:
            A[rng.integers(n)] = A[rng.integers(n)]
        case 5:
            A *= 10.0 ** rng.uniform(-rng.uniform(0, 150), rng.uniform(0, 150), (n, 1))
        case 6:
            A *= 10.0 ** rng.uniform(-rng.uniform(0, 150), rng.uniform(0, 150), (1, n))
    return A


@dataclass(frozen=True)
class Hostile:
    """F(x) = A x + c sin(x) - b and its start; `declared` is what a problem may say about J."""

    A: Array
    c: float
    b: Array
    x0: Array

    def residual(self, x: Array) -> Array:
        """F(x)."""
        return self.A @ x + self.c * np.sin(x) - self.b

    def declared(self, rng: np.random.Generator) -> dict[str, Any]:
        """Nothing, the pattern, or matrices."""
        match int(rng.integers(5)):
            case 0:
                return {"structure": ims.Sparse((self.A != 0) | np.eye(len(self.A), dtype=bool))}
            case 1:
                return {"jac": lambda x: scipy.sparse.csr_array(self.A + np.diag(self.c * np.cos(x)))}
            case 2:
                return {"structure": "none"}
        return {}


def hostile(rng: np.random.Generator, largest: int = 250) -> Hostile:
    """A hostile system of up to so many unknowns."""
    n = int(rng.integers(2, largest)) if rng.random() < 0.7 else int(rng.integers(2, 20))
    A = damaged(rng, np.where(pattern(rng, n), rng.standard_normal((n, n)) + 2 * np.eye(n), 0.0))
    c = float(rng.choice([0.0, 0.3, 3.0]))
    b = np.ones(n) if rng.random() < 0.5 else rng.standard_normal(n)
    x0 = np.zeros(n) if rng.random() < 0.5 else 10.0 ** rng.uniform(-300, 3) * rng.standard_normal(n)
    return Hostile(A, c, b, x0)
