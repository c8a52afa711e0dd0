"""The steps of BiCGSTAB in CUDA: one launch for each half of an iteration."""

# pyright: basic

from __future__ import annotations

from typing import Any

import cupy

from implicitsolve.backends.cupy._vectors import LONG, elementwise, launch_step, supports
from implicitsolve.krylov._bicgstab import Steps as Reference
from implicitsolve.krylov._bicgstab import bicgstab


class Steps(Reference):
    """See `implicitsolve.krylov._bicgstab`."""

    def first_half(self, shadow: Any, r: Any, v: Any, rho: Any) -> tuple[Any, Any]:
        if r.shape[1] > LONG:
            return super().first_half(shadow, r, v, rho)
        shadow, r, v, rho = map(cupy.ascontiguousarray, (shadow, r, v, rho))
        alpha, s = cupy.empty_like(rho), cupy.empty_like(r)
        launch_step("bicgstab.cu", "first_half", r, (shadow, r, v, rho, alpha, s, r.shape[1]))
        return alpha, s

    def second_half(self, shadow: Any, s: Any, t: Any, alpha: Any, rho: Any) -> tuple[Any, ...]:
        if s.shape[1] > LONG:
            return super().second_half(shadow, s, t, alpha, rho)
        shadow, s, t, rho = map(cupy.ascontiguousarray, (shadow, s, t, rho))
        (omega, new_rho, beta), r = (cupy.empty_like(rho) for _ in range(3)), cupy.empty_like(s)
        numbers = cupy.empty((len(s), 5), s.dtype)
        arguments = shadow, s, t, alpha, rho, omega, r, new_rho, beta, numbers, s.shape[1]
        launch_step("bicgstab.cu", "second_half", s, arguments)
        return omega, r, new_rho, beta, numbers

    def advance(self, dx: Any, p: Any, *parts: Any) -> tuple[Any, Any]:
        dx, p, *rest = map(cupy.ascontiguousarray, (dx, p, *parts))
        new_dx, new_p = cupy.empty_like(dx), cupy.empty_like(p)
        elementwise("moved", dx, (dx, p, *rest, new_dx, new_p, dx.shape[1], dx.size), "bicgstab.cu")
        return new_dx, new_p


bicgstab.implement("cupy", Steps, supports)
