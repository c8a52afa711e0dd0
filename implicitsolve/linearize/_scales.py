"""Units of the unknowns and the equations: the problem G(y) = F(x_scale y) / f_scale, which the methods solve."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from implicitsolve._namespace import array_namespace, from_host, is_array
from implicitsolve._typing import Array, HostArray, Indices
from implicitsolve.linearize._checks import checked_jacobian
from implicitsolve.linearize._jacobian import assembled
from implicitsolve.monitor import Monitor, mapped
from implicitsolve.operators import LinearOperator
from implicitsolve.operators._sparse import SparseMatrix
from implicitsolve.problem import Problem, chosen, host, spread
from implicitsolve.result import NonlinearResult
from implicitsolve.stopping import Tally

ROUNDS = 2  # assemblies for "auto": the first differences are no better than the units


@dataclass(frozen=True, eq=False)
class Scales:
    """Sizes of the unknowns and of the equations of a problem, arrays of the shape of its states."""

    whole: Problem
    x: Array
    F: Array

    @classmethod
    def of(cls, problem: Problem, x0: Array, tally: Tally) -> Scales:
        """The scales that a problem declares; "auto" ones come from J at x0."""
        plain = replace(problem, x_scale=None, f_scale=None)
        declared = {"x_scale": problem.x_scale, "f_scale": problem.f_scale}
        seeks_x, seeks_F = (isinstance(scale, str) for scale in declared.values())
        known = {name: 1.0 if scale is None or isinstance(scale, str) else scale for name, scale in declared.items()}
        x, F = (spread(name, scale, tuple(x0.shape)) for name, scale in known.items())
        is_exact = plain.jac or plain.jvp or plain.linearize
        for _ in range((1 if is_exact else ROUNDS) if seeks_x or seeks_F else 0):
            scales = cls.with_sizes(plain, x, F, x0)
            found = _equilibrated(assembled(scales.problem, scales.start(x0), tally), seeks_x, seeks_F)
            x, F = (sizes * factors.reshape(sizes.shape) for sizes, factors in zip((x, F), found))
        return cls.with_sizes(plain, x, F, x0)

    @classmethod
    def with_sizes(cls, problem: Problem, x: HostArray, F: HostArray, like: Array) -> Scales:
        """These sizes, where x0 is; those of x as powers of two, which round nothing."""
        return cls(problem, from_host(np.ldexp(1.0, np.frexp(x)[1] - 1), like), from_host(F, like))

    @property
    def problem(self) -> Problem:
        """The problem in scaled unknowns and equations; without `blocks`, which differences replace."""
        whole = self.whole
        sides = whole.bounds and tuple(host(side) / host(self.x) for side in whole.bounds)
        return Problem(
            self.residual,
            jvp=whole.jvp and self.jvp,
            vjp=whole.vjp and self.vjp,
            jac=whole.jac and self.jac,
            linearize=whole.linearize and self.linearize,
            structure=whole.structure,
            batch_ndim=whole.batch_ndim,
            bounds=sides,
            take=whole.take and self.take,
            name=whole.name,
        )

    def start(self, x0: Array) -> Array:
        """The scaled start."""
        return x0 / self.x

    def monitor(self, monitor: Monitor) -> Monitor:
        """The caller's monitor, which sees x and F in their units."""
        return mapped(monitor, lambda x, F: (self.x * x, self.F * F))

    def expanded(self, result: NonlinearResult) -> NonlinearResult:
        """The result in the units of the caller; its norms remain those of F / f_scale."""
        return replace(result, x=self.x * result.x, fun=self.F * result.fun)

    # The functions of the scaled problem

    def residual(self, y: Array) -> Array:
        return self._divided(self.whole.residual(self.x * y))

    def jvp(self, y: Array, v: Array) -> Array:
        return self._divided(self.whole.jvp(self.x * y, self.x * v))  # type: ignore[misc]

    def vjp(self, y: Array, w: Array) -> Array:
        return self.x * self.whole.vjp(self.x * y, w / self.F)  # type: ignore[misc]

    def jac(self, y: Array) -> Any:
        return self._jacobian(self.whole.jac(self.x * y), "jac")  # type: ignore[misc]

    def linearize(self, y: Array) -> Any:
        pair: Any = self.whole.linearize(self.x * y)  # type: ignore[misc]
        if not (isinstance(pair, tuple) and len(pair) == 2):
            return pair
        return self._divided(pair[0]), self._jacobian(pair[1], "linearize")

    def take(self, indices: Indices) -> Problem:
        part = chosen(replace(self.whole, x_scale=host(self.x), f_scale=host(self.F)), indices, tuple(self.x.shape))
        like = self.x
        return Scales(part, from_host(part.x_scale, like), from_host(part.f_scale, like)).problem

    def _divided(self, F: Any) -> Any:
        return F / self.F if getattr(F, "shape", None) == self.F.shape else F  # else an error, which is found later

    def _jacobian(self, J: Any, name: str) -> Any:
        batch_shape = tuple(self.x.shape[: self.whole.batch_ndim])
        xp, flat = array_namespace(self.x), (*batch_shape, -1)
        x, F = xp.reshape(self.x, flat), xp.reshape(self.F, flat)
        size = x.shape[-1]
        J = J.to_sparse() if isinstance(J, SparseMatrix) and not J.batch_shape else J
        if scipy.sparse.issparse(J) and J.shape == (size, size):
            return scipy.sparse.diags_array(1 / host(F)) @ J @ scipy.sparse.diags_array(host(x))
        if is_array(J) and tuple(J.shape) == (*batch_shape, size, size):
            return J * x[..., None, :] / F[..., :, None]
        A = checked_jacobian(J, name, batch_shape, size)
        x, F = (xp.reshape(part, (*A.batch_shape, *A.in_shape)) for part in (x, F))
        return LinearOperator(
            lambda v: A.matvec(x * v) / F,
            rmatvec=lambda w: x * A.rmatvec(w / F),
            in_shape=A.in_shape,
            batch_shape=A.batch_shape,
            dtype=A.dtype,
        )


def _equilibrated(J: Any, seeks_x: bool, seeks_F: bool) -> tuple[HostArray, HostArray]:
    """Factors (B, N) of x and F that bring the largest entry of each column and row of J near 1; 1 if not sought."""
    systems = [J.take(np.array([i])) for i in range(math.prod(J.batch_shape))] if J.batch_shape else [J]
    found: list[tuple[HostArray, HostArray]] = []
    for system in systems:
        A = abs(system.to_sparse("csr"))
        rows, columns = _largest(A, 1), np.ones(A.shape[0])
        if seeks_x:
            columns = 1 / _largest(scipy.sparse.diags_array(1 / rows) @ A if seeks_F else A, 0)
            rows = _largest(A @ scipy.sparse.diags_array(columns), 1)
        found.append((columns, rows if seeks_F else np.ones(A.shape[0])))
    columns, rows = (np.stack(part) for part in zip(*found))
    return columns, rows


def _largest(A: Any, axis: int) -> HostArray:
    """The largest entry of each row or column; 1 where all are zero, or one is not finite."""
    size = A.max(axis=axis).toarray().reshape(-1)
    return np.where((size > 0) & np.isfinite(size), size, 1.0)
