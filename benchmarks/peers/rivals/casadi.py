"""CasADi: KINSOL as a rootfinder, with CasADi's own derivatives of the expression."""

from __future__ import annotations

from functools import partial
from typing import Any

import casadi as ca
import numpy as np

from benchmarks.benchmarks.workloads import Bratu, Burgers, ImplicitGRU, Workload
from benchmarks.peers._layers import BOUND, merged
from benchmarks.peers._measure import Answer, Solver

ITERATIVE = {"linear_solver_type": "iterative", "iterative_solver": "gmres", "max_krylov": 40}
DIRECT = {"linear_solver_type": "user_defined", "linear_solver": "csparse"}


def logistic(a: Any) -> Any:
    """1 / (1 + exp(-a))."""
    return 0.5 * ca.tanh(0.5 * a) + 0.5


def layer(workload: ImplicitGRU) -> tuple[Any, Any]:
    """W1: unknowns and residual; a column is a position of a sequence."""
    B, T, k = workload.x0.shape
    arrays = merged(workload.params, workload.inputs)
    a = {name: ca.DM(array.reshape(-1, array.shape[-1]).T) for name, array in arrays.items()}
    h = ca.MX.sym("h", k * T * B)
    H = ca.reshape(h, k, T * B)
    starts, ends = np.arange(B) * T, np.arange(B) * T + T - 1
    inner_p, inner_q = np.setdiff1d(np.arange(T * B), starts), np.setdiff1d(np.arange(T * B), ends)

    def shifted(columns: Any, to: Any, by: int) -> Any:
        """Columns moved by one position, zero where there is no neighbour."""
        zeros = ca.MX(columns.shape[0], 1)
        moved = ca.horzcat(zeros, columns[:, :-1]) if by == 1 else ca.horzcat(columns[:, 1:], zeros)
        mask = np.zeros((1, T * B))
        mask[0, to] = 1.0
        return moved * ca.repmat(ca.DM(mask), columns.shape[0], 1)

    p, q = shifted(H, inner_p, 1), shifted(H, inner_q, -1)
    first = ca.mtimes(a["U_states"][:k, :], p) + a["x_states"][:k, :]
    second = ca.mtimes(a["U_states"][k:, :], q) + a["x_states"][k:, :]
    u, v = (1 + ca.exp(-ca.fmax(ca.fmin(e, BOUND), -BOUND)) for e in (first, second))
    s = v / (u + v)
    g = s * p + (1 - s) * q
    gates = logistic(ca.mtimes(a["U_gates"], g) + a["x_gates"])
    z, r = gates[:k, :], gates[k:, :]
    F = H - g - z * (ca.tanh(ca.mtimes(a["U_candidate"], r * g) + a["x_candidate"]) - g)
    return h, ca.vec(F)


def line(workload: Bratu | Burgers) -> tuple[Any, Any]:
    """W2: unknowns and residual."""
    n = workload.x0.size
    u = ca.MX.sym("u", n)
    left, right = (0.0, 0.0) if isinstance(workload, Bratu) else (1.0, -1.0)
    p, q = ca.vertcat(left, u[:-1]), ca.vertcat(u[1:], right)
    if isinstance(workload, Bratu):
        return u, p - 2 * u + q + workload.constant * workload.h**2 * ca.exp(u)
    return u, workload.constant * (p - 2 * u + q) - 0.5 * workload.h * u * (q - p)


class Kinsol:
    """A rootfinder for each tolerance that is asked for."""

    def __init__(self, workload: Any, unknowns: Any, residual: Any, options: dict[str, Any]) -> None:
        self.workload = workload
        self.system = {"x": unknowns, "g": residual}
        # The longest step is 1, scaled, where the start is zero.
        self.options = options | {"u_scale": [1 / (1 + np.sqrt(workload.x0.size))] * workload.x0.size}
        self.finders: dict[float, Any] = {}

    def __call__(self, tol: float) -> Answer:
        """Solve."""
        if tol not in self.finders:
            options = {**self.options, "abstol": tol, "max_iter": 60, "error_on_fail": False}
            self.finders[tol] = ca.rootfinder("finder", "kinsol", self.system, options)
        x0 = self.workload.x0
        x = np.asarray(self.finders[tol](x0=x0.reshape(-1))["x"]).reshape(x0.shape)
        stats = self.finders[tol].stats()
        return Answer(x, None, str(stats.get("return_status", stats.get("unified_return_status", ""))))


def solvers(workload: Workload) -> list[Solver]:
    """KINSOL on matrix-free GMRES for W1, on a sparse direct solver for W2."""
    if isinstance(workload, ImplicitGRU) and workload.x0.dtype == np.float64:
        make, options, name = partial(layer, workload), ITERATIVE, "KINSOL, gmres"
    elif isinstance(workload, Bratu | Burgers) and workload.x0.size <= 20_000:
        make, options, name = partial(line, workload), DIRECT, "KINSOL, sparse LU"
    else:
        return []
    return [Solver("CasADi", name, Kinsol(workload, *make(), options))]
