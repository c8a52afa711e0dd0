"""Any Krylov method of SciPy, by name or as a callable, for NumPy arrays: one system after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse.linalg as spla

from implicitsolve._typing import Array, HostArray
from implicitsolve.krylov._base import KrylovOutcome, classify, start
from implicitsolve.operators import LinearOperator

SCIPY_METHODS = ("bicg", "bicgstab", "cg", "cgs", "gcrotmk", "gmres", "lgmres", "minres", "qmr", "tfqmr")


@dataclass(frozen=True, kw_only=True)
class ScipyKrylov:
    """A method of `scipy.sparse.linalg`, such as TFQMR, CGS, MINRES or GCROT(m,k).

    Parameters
    ----------
    function : str or callable
        Name of a method of `scipy.sparse.linalg`, or a function with the same interface.
    options : mapping, optional
        Further keyword arguments of the function.

    Notes
    -----
    NumPy arrays only. Systems of a batch are solved one after the other, each product of one system with the others
    at rest; the native methods are the ones for batches. MINRES needs a symmetric operator.

    Raises
    ------
    ValueError
        If the name is not one of SciPy's.

    Examples
    --------
    >>> import numpy as np
    >>> import implicitsolve as ims
    >>> A, b = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 4.0])
    >>> ims.linear_solve(A, b, method=ims.ScipyKrylov(function="minres")).x.round(9)
    array([1., 1.])
    """

    function: str | Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        """Check the settings."""
        if not callable(self.function) and self.function not in SCIPY_METHODS:
            raise ValueError(f"ScipyKrylov: `function` must be callable or in {SCIPY_METHODS}, got {self.function!r}")

    def solve(
        self,
        A: LinearOperator,
        b: Array,
        *,
        target: HostArray,
        max_iterations: int,
        M: Any = None,
        x0: Array | None = None,
        confirm: bool = True,
    ) -> KrylovOutcome:
        """Solve on arrays (B, N); see `KrylovMethod`."""
        if not isinstance(b, np.ndarray):
            raise TypeError(f"ScipyKrylov works on NumPy arrays, got {type(b).__name__}; use GMRES or BiCGSTAB")
        x, r, norms = start(A, b, x0)
        first = norms.copy()
        iterations = np.zeros(b.shape[0], dtype=int)
        for row in np.flatnonzero(norms > target):
            dx, iterations[row] = self._solve_one(A, r, row, target[row] / norms[row], max_iterations, M)
            x[row] += dx
        if confirm and iterations.any():
            norms = np.linalg.norm(b - A.matvec(x), axis=1)
        elif iterations.any():
            norms = np.where(iterations > 0, target, norms)
        status = classify(norms, target, np.zeros(b.shape[0], dtype=bool), ~np.isfinite(first))
        return KrylovOutcome(x, norms, status, iterations)

    def _solve_one(
        self, A: LinearOperator, r: Array, row: int, rtol: float, max_iterations: int, M: Any
    ) -> tuple[Array, int]:
        products = 0

        def matvec(v: Array) -> Array:
            nonlocal products
            products += 1
            padded = np.zeros_like(r)
            padded[row] = v.reshape(-1)
            return A.matvec(padded)[row]

        def precondition(v: Array) -> Array:
            padded = np.zeros_like(r)
            padded[row] = v.reshape(-1)
            return M.matvec(padded)[row]

        shape = (r.shape[1], r.shape[1])
        function = getattr(spla, self.function) if isinstance(self.function, str) else self.function
        keywords: dict[str, Any] = {"maxiter": max_iterations, **self.options}
        if M is not None:
            keywords["M"] = spla.LinearOperator(shape, matvec=precondition, dtype=r.dtype)
        accepted = inspect.signature(function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        if "rtol" in accepted or takes_all:
            keywords.setdefault("rtol", rtol)
        if "atol" in accepted:
            keywords.setdefault("atol", 0.0)
        scale = np.linalg.norm(r[row])  # SciPy's tolerances then see a right-hand side of norm 1
        operator = spla.LinearOperator(shape, matvec=matvec, dtype=r.dtype)
        with np.errstate(all="ignore"):
            dx = function(operator, r[row] / scale, **keywords)[0]
        return np.asarray(dx).reshape(-1) * scale, products
