"""Any Krylov method of SciPy, by name or as a callable, for NumPy arrays: one system after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse.linalg as spla

from implicitsolve._arrays.namespace import library
from implicitsolve._typing import Array, HostArray
from implicitsolve.kernels._norms import norm2
from implicitsolve.krylov._base import IDLE_FALL, KrylovMethod, KrylovOutcome, classify, start
from implicitsolve.operators import LinearOperator
from implicitsolve.stopping import check_choice

SCIPY_METHODS = ("bicg", "bicgstab", "cg", "cgs", "gcrotmk", "gmres", "lgmres", "minres", "qmr", "tfqmr")


@dataclass(frozen=True, kw_only=True)
class ScipyKrylov(KrylovMethod):
    """A method of `scipy.sparse.linalg`, such as TFQMR, CGS, MINRES or GCROT(m,k).

    Parameters
    ----------
    function : str or callable
        Name of a method of `scipy.sparse.linalg`, or a function with the same interface.
    options : mapping, optional
        Further keyword arguments of the function.

    Raises
    ------
    ValueError
        If the name is not one of SciPy's.

    Notes
    -----
    NumPy arrays only. Systems of a batch are solved one at a time; use the native methods for batches.
    A product after each call measures the residual that was reached, and calls repeat while they reduce it. MINRES
    needs a symmetric operator.

    Examples
    --------
    >>> A, b = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 4.0])
    >>> ims.linear_solve(A, b, method=ims.ScipyKrylov(function="minres")).x.round(9)
    array([1., 1.])
    """

    function: str | Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping):
            raise TypeError(f"ScipyKrylov: `options` must be a mapping, got {type(self.options).__name__}")
        if not callable(self.function):
            check_choice("ScipyKrylov", "function", self.function, (*SCIPY_METHODS, "any callable"))

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
        polish: bool = False,
    ) -> KrylovOutcome:
        if not isinstance(b, np.ndarray):
            raise TypeError(f"ScipyKrylov works on NumPy arrays, got some of {library(b)}; use GMRES or BiCGSTAB")
        x, r, norms = start(A, b, x0)
        iterations = np.zeros(b.shape[0], dtype=int)
        nonfinite, stagnated = ~np.isfinite(norms), np.zeros(b.shape[0], dtype=bool)
        r = np.array(r)
        for row in np.flatnonzero((norms > target) & ~nonfinite):
            at = np.asarray([row])
            part, inverse = A.take(at), None if M is None else M.take(at)
            # some of SciPy's methods test a preconditioned residual, so that one call need not be enough
            goes_on = True
            while goes_on and norms[row] > target[row] and iterations[row] < max_iterations:
                system = _System(
                    part, inverse, r[row], float(norms[row]), needs_adjoint=self.function in ("bicg", "qmr")
                )
                dx = self._solve_one(system, target[row] / norms[row], max_iterations - int(iterations[row]))
                iterations[row] += max(system.products, 1)
                with np.errstate(all="ignore"):
                    new_r = b[at] - part.matvec(x[at] + dx)
                norm = norm2(new_r)[0]
                nonfinite[row] = not np.isfinite(norm)
                goes_on = bool(norm < (1 - IDLE_FALL) * norms[row])
                stagnated[row] = not goes_on and iterations[row] < max_iterations
                if norm < norms[row]:
                    x[row] += dx
                    r[row], norms[row] = new_r[0], norm
        broken = np.zeros(b.shape[0], dtype=bool)
        status = classify(norms, target, broken=broken, nonfinite=nonfinite, stagnated=stagnated)
        return KrylovOutcome(x, norms, status, iterations)

    def _solve_one(self, system: _System, rtol: float, max_iterations: int) -> Array:
        function = getattr(spla, self.function) if isinstance(self.function, str) else self.function
        keywords: dict[str, Any] = {**self._limit(max_iterations, system.size), **self.options}
        if system.M is not None:
            keywords["M"] = system.M
        accepted = inspect.signature(function).parameters
        if "rtol" in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            keywords.setdefault("rtol", rtol)
        if "atol" in accepted:
            keywords.setdefault("atol", 0.0)
        with np.errstate(all="ignore"):
            solution = function(system.A, system.right, **keywords)[0]
            return np.asarray(solution).reshape(-1) * (system.norm / (system.scale or 1.0))

    def _limit(self, max_iterations: int, size: int) -> dict[str, int]:
        """SciPy's keywords for at most so many products: three of its methods count restarts instead."""
        inner = {"gmres": ("restart", 30), "lgmres": ("inner_m", 30), "gcrotmk": ("m", 20)}
        if self.function not in inner:
            return {"maxiter": max_iterations}
        name, usual = inner[str(self.function)]
        columns = max(1, min(usual, max_iterations, size))
        if self.function == "gcrotmk":  # it keeps k vectors and takes up to m + k products a cycle
            columns = max(1, columns // 2)
            return {"m": columns, "k": columns, "maxiter": max(1, max_iterations // (2 * columns))}
        return {name: columns, "maxiter": max(1, max_iterations // columns)}


class _System:
    """One system of a batch for SciPy: unit right-hand side, and an operator rescaled if its norm is far from 1."""

    def __init__(self, A: LinearOperator, M: Any, r: Array, norm: float, *, needs_adjoint: bool) -> None:
        for operator, name in ((A, "operator"), (M, "preconditioner")):
            if needs_adjoint and operator is not None and operator._rmatvec is None:
                raise TypeError(f"SciPy's method multiplies with the adjoint, which this {name} does not offer")
        self.norm, self.right, self.size = norm, r / norm, r.shape[0]
        self.scale, self.products, self._product = 0.0, 0, A.matvec

        def with_scale(product: Callable[[Array], Array], power: int) -> Callable[[HostArray], HostArray]:
            return lambda v: product(v.reshape(1, -1))[0] * (self.scale or 1.0) ** power

        shape, dtype = (self.size, self.size), r.dtype
        self.A = spla.LinearOperator(shape, self.matvec, with_scale(A.rmatvec, -1), dtype=dtype)
        self.M = M and spla.LinearOperator(
            shape, with_scale(M.matvec, 1), with_scale(lambda w: M.rmatvec(w), 1), dtype=dtype
        )

    def matvec(self, v: HostArray) -> HostArray:
        """A v / scale; the first product decides the scale."""
        self.products += 1
        w = self._product(v.reshape(1, -1))[0]
        if not self.scale:
            size = np.abs(w).max(initial=0.0)
            if not 0 < size < np.inf:
                return w
            self.scale = 1.0 if 1e-50 < size < 1e50 else float(2.0 ** np.round(np.log2(size)))
        return w / self.scale
