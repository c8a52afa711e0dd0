"""Power grids of pandapower, pipes of pandapipes, and water networks of wntr."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import implicitsolve as ims

from ._model import Array, Model, Row, outcome, timed


class PowerFlow:
    """Equations of pandapower in the angles and magnitudes that are unknown, with its derivatives."""

    def __init__(self, name: str) -> None:
        import pandapower as pp
        import pandapower.networks as networks

        net = getattr(networks, name)()
        pp.runpp(net, numba=False, init="dc", max_iteration=30)
        self.grid = grid = net._ppc["internal"]
        self.Ybus, self.Sbus, ref, pv, self.pq = (grid[key] for key in ("Ybus", "Sbus", "ref", "pv", "pq"))
        self.pvpq, held = np.r_[pv, self.pq], np.r_[ref, pv]
        self.angles, self.magnitudes = np.zeros(len(self.Sbus)), np.ones(len(self.Sbus))
        self.angles[ref], self.magnitudes[held] = np.angle(grid["V"][ref]), abs(grid["V"][held])
        self.flat = np.r_[np.full(len(self.pvpq), self.angles[ref[0]]), np.ones(len(self.pq))]

    def voltages(self, x: Array) -> Array:
        """Of all buses."""
        angles, magnitudes = self.angles.copy(), self.magnitudes.copy()
        angles[self.pvpq], magnitudes[self.pq] = np.split(x, [len(self.pvpq)])
        return magnitudes * np.exp(1j * angles)

    def F(self, x: Array, load: float = 1.0) -> Array:
        """Power that is missing at the buses."""
        V = self.voltages(x)
        S = V * (self.Ybus @ V).conj() - load * self.Sbus
        return np.r_[S[self.pvpq].real, S[self.pq].imag]

    def jac(self, x: Array, load: float = 1.0) -> Any:
        """J."""
        from pandapower.pypower.dSbus_dV import dSbus_dV

        pq, pvpq = self.pq, self.pvpq
        m, a = map(sp.csr_array, dSbus_dV(self.Ybus, self.voltages(x)))
        rows = [[a[pvpq][:, pvpq].real, m[pvpq][:, pq].real], [a[pq][:, pvpq].imag, m[pq][:, pq].imag]]
        return sp.block_array(rows, format="csc")

    def linear(self) -> Array:
        """The start by pandapower's linear ("DC") power flow."""
        from pandapower.pf.run_dc_pf import _run_dc_pf

        grid = copy.deepcopy(self.grid)
        solved = _run_dc_pf(grid | {"internal": {"ref_gens": grid["ref_gens"]}})
        return np.r_[np.deg2rad(solved["bus"][self.pvpq, 8].real), np.ones(len(self.pq))]


def power(name: str, is_flat: bool = True) -> Row:
    """A power flow by all ways."""
    grid = PowerFlow(name)
    return Model(grid.F, grid.flat if is_flat else grid.linear(), grid.jac, settings={"tol": 1e-8}).row()


def nose(name: str) -> Row:
    """The load at which the voltages collapse: a fold; the program's way are power flows at loads by bisection."""
    grid = PowerFlow(name)
    at_one = ims.root(grid.F, grid.flat, jac=grid.jac, tol=1e-8).x

    def follow(problem: Any) -> dict[str, Any]:
        highest = 1.0

        def is_past(x: Array, lam: float) -> float:
            nonlocal highest
            highest = max(highest, lam)
            return lam - 0.99 * highest

        is_past.terminal = True  # type: ignore[attr-defined]
        branch = ims.continuation(problem, at_one, 1.0, 40.0, events={"past": is_past})
        folds = [point.lam for point in branch.of_kind("fold")]
        return outcome_of_branch(branch, folds)

    def bisect() -> dict[str, Any]:
        low, high, x, flows, F, J = 1.0, 40.0, at_one, 0, 0, 0
        while high - low > 1e-6 * low:
            middle = (low + high) / 2 if high < 40 else 1.5 * low
            result = newton_at(grid, x, middle)
            flows, F, J = flows + 1, F + result[1], J + result[1] - 1
            low, high, x = (middle, high, result[0]) if result[0] is not None else (low, middle, x)
        return {"status": f"fold at {low:.5f}", "F": F, "J": J, "solves": flows}

    ways = {"plain": grid.F, "jac": ims.Problem(grid.F, jac=grid.jac)}
    row = {way: timed(partial(follow, problem)) for way, problem in ways.items()}
    return {"unknowns": at_one.size} | row | {"own": timed(bisect)}


def newton_at(grid: PowerFlow, x: Array, load: float) -> tuple[Array | None, int]:
    """A power flow of at most ten steps."""
    F, evaluations = grid.F(x, load), 1
    while np.isfinite(F).all() and np.max(abs(F)) >= 1e-8 and evaluations <= 10:
        x = x - sla.spsolve(grid.jac(x), F)
        F, evaluations = grid.F(x, load), evaluations + 1
    return (x if np.max(abs(F)) < 1e-8 else None), evaluations


def outcome_of_branch(branch: Any, folds: list[float]) -> dict[str, Any]:
    """The fold, and evaluations."""
    counts = branch.counts
    status = f"fold at {folds[0]:.5f}" if folds else "no fold"
    return {"status": status, "F": counts.residuals, "J": counts.linearizations, "products": counts.jvps}


def pipes(name: str) -> Row:
    """The hydraulics of pandapipes; unknowns that it holds are equations of their own, as in its J."""
    import pandapipes.networks as networks
    import pandapipes.pf.calculation as calculation
    from pandapipes.idx_branch import IdxBranch
    from pandapipes.idx_node import IdxNode
    from pandapipes.pf.system_index import ComponentRegistry, HydraulicSystemIndex
    from pandapipes.pipeflow import init_pipeflow

    net = getattr(networks, name)()
    init_pipeflow(net, mode="hydraulics", use_numba=False)
    calculation.HydraulicCalculation().prepare(net)
    nodes, branches = net["_active_pit"]["node"], net["_active_pit"]["branch"]
    slack = np.where(nodes[:, IdxNode.NODE_TYPE] == IdxNode.P)[0]
    index = HydraulicSystemIndex(nodes, branches)
    n, parts = index.size(), [len(nodes), len(nodes) + len(branches)]
    x0 = np.r_[nodes[:, IdxNode.PINIT], branches[:, IdxBranch.MDOTINIT], nodes[slack, IdxNode.MDOTSLACKINIT]].copy()
    nodes0, branches0 = nodes.copy(), branches.copy()

    def both(x: Array) -> tuple[Array, Any]:
        nodes[:], branches[:] = nodes0, branches0
        nodes[:, IdxNode.PINIT], branches[:, IdxBranch.MDOTINIT], nodes[slack, IdxNode.MDOTSLACKINIT] = np.split(
            x, parts
        )
        registry = ComponentRegistry()
        for component in net["component_list"]:
            component.register_equations(net, branches, nodes, index, registry, mode="hydraulics")
        rows, columns, data, F = registry.assemble(n)
        return F.copy(), sp.csr_array((data, (rows, columns)), shape=(n, n))

    F0, J0 = both(x0)[0], both(x0)[1].tocoo()
    held = []
    for k in np.flatnonzero(J0.data == 1.0):
        x = x0.copy()
        x[J0.col[k]] += 1e-3
        held += [k] if both(x)[0][J0.row[k]] == F0[J0.row[k]] else []
    E = sp.csr_array((np.ones(len(held)), (J0.row[held], J0.col[held])), shape=(n, n))
    return Model(lambda x: both(x)[0] + E @ (x - x0), x0, lambda x: both(x)[1], settings={"tol": 1e-6}).row()


def water(name: str, hours: float) -> Row:
    """The solves of a simulation by wntr, by several ways; and its own."""
    import wntr
    from wntr.sim import core
    from wntr.sim.solvers import SolverStatus

    path = Path(wntr.__file__).parent / "library" / "networks" / f"{name}.inp"
    own, sizes = core._solver_helper, []

    def simulate(solve: Callable[..., Any]) -> None:
        network = wntr.network.WaterNetworkModel(str(path))
        network.options.time.duration = hours * 3600
        network.options.hydraulic.demand_model = "PDD"
        core._solver_helper = solve
        try:
            wntr.sim.WNTRSimulator(network).run_sim()
        finally:
            core._solver_helper = own

    def run(has_jac: bool, keeps: bool) -> dict[str, Any]:
        last: dict[int, Any] = {}
        counts: list[dict[str, Any]] = []

        def solve(model: Any, solver: Any, options: Any) -> Any:
            model.set_structure()
            x0 = model.get_x().copy()
            jac = {"jac": lambda x: model.evaluate_jacobian(x).copy()} if has_jac else {}
            problem = ims.Problem(lambda x: np.array(model.evaluate_residuals(x)), **jac)
            result = ims.root(problem, x0, previous=last.get(x0.size), tol=1e-6)
            counts.append(outcome(result))
            sizes.append(x0.size)
            model.load_var_values_from_x(result.x)
            if keeps:
                last[x0.size] = result
            return SolverStatus.converged, result.message, result.nit

        simulate(solve)
        failed = sum(bool(count["status"]) for count in counts)
        total = {key: sum(count[key] for count in counts) for key in ("F", "J", "products")}
        return {"status": f"{failed} failed" if failed else "", "solves": len(counts)} | total

    def client() -> dict[str, Any]:
        counts = {"F": 0, "J": 0, "solves": 0}

        def solve(model: Any, solver: Any, options: Any) -> Any:
            evaluate, differentiate = model.evaluate_residuals, model.evaluate_jacobian

            def residuals(*args: Any) -> Any:
                counts["F"] += 1
                return evaluate(*args)

            def jacobian(*args: Any, **more: Any) -> Any:
                counts["J"] += 1
                return differentiate(*args, **more)

            counts["solves"] += 1
            model.evaluate_residuals, model.evaluate_jacobian = residuals, jacobian
            try:
                return own(model, solver, options)
            finally:
                model.evaluate_residuals, model.evaluate_jacobian = evaluate, differentiate

        simulate(solve)
        return {"status": ""} | counts

    ways = {
        "plain": (False, False),
        "plain, `previous=`": (False, True),
        "jac": (True, False),
        "jac, `previous=`": (True, True),
    }
    row = {way: timed(partial(run, *what)) for way, what in ways.items()}
    return {"unknowns": max(sizes)} | row | {"own": timed(client)}


ROWS = {
    "pandapower, 300 buses": ("pandapower", partial(power, "case300")),
    "pandapower, 1,354 PEGASE buses": ("pandapower", partial(power, "case1354pegase")),
    "pandapower, 2,869 PEGASE buses": ("pandapower", partial(power, "case2869pegase")),
    "pandapower, 9,241 PEGASE buses": ("pandapower", partial(power, "case9241pegase")),
    "pandapower, 6,470 RTE buses, flat start": ("pandapower", partial(power, "case6470rte")),
    "pandapower, 6,470 RTE buses, DC start": ("pandapower", partial(power, "case6470rte", False)),
    "pandapower, nose of 14 buses": ("pandapower", partial(nose, "case14")),
    "pandapower, nose of 300 buses": ("pandapower", partial(nose, "case300")),
    "pandapipes, district heating": ("pandapipes", partial(pipes, "schutterwald_heat")),
    "pandapipes, gas": ("pandapipes", partial(pipes, "schutterwald_gas")),
    "wntr, Net3, 24 hours": ("wntr", partial(water, "Net3", 24)),
    "wntr, Net6, 2 hours": ("wntr", partial(water, "Net6", 2)),
}
