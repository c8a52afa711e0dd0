"""Economies of sequence-jacobian, groups of OpenMDAO and engines of pyCycle, and molecules of PySCF."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

import implicitsolve as ims

from ._model import Array, Model, Row, outcome, timed


def hank(T: int = 300) -> Row:
    """Paths after a shock of the interest rate; further with the J at the steady state; own uses that too."""
    from sequence_jacobian.examples import hank

    _, steady, model, unknowns, targets, _ = hank.dag()
    shocks = {"rstar": -0.0025 * 0.6 ** np.arange(T)}
    J = model.jacobian(steady, unknowns, targets, T=T).pack(T)
    calls = 0

    def F(x: Array) -> Array:
        nonlocal calls
        calls += 1
        paths = dict(zip(unknowns, x.reshape(len(unknowns), T)))
        out = model.impulse_nonlinear(steady, shocks | paths, targets)
        return np.concatenate([out[name] for name in targets])

    def own() -> dict[str, Any]:
        path = model.solve_impulse_nonlinear(steady, unknowns, targets, shocks, verbose=False, tol=1e-8)
        return {"status": "solved" if np.isfinite(path["Y"]).all() else "not solved"}

    x0 = np.zeros(len(unknowns) * T)
    approximate = partial(ims.root, F, x0, jac_approx=J, tol=1e-8)
    model_ = Model(F, x0, settings={"tol": 1e-8})
    return {
        "unknowns": x0.size,
        "plain": timed(model_.solve),
        "jac, `jac_approx=`": timed(lambda: outcome(approximate())),
        "own": timed(own),
    }


class Outputs:
    """F and J in the outputs of a group of OpenMDAO."""

    def __init__(self, group: Any) -> None:
        self.group, self.values, self.residuals = group, group._outputs, group._residuals
        self.x0 = self.values.asarray(copy=True)

    def bounds(self) -> list[Array]:
        """Those of the components, in the units of its solvers."""
        sides: list[list[Array]] = [[], []]
        for name, value in self.values._abs_item_iter():
            meta = self.group._var_abs2meta["output"][name]
            for side, key, missing in zip(sides, ("lower", "upper"), (-np.inf, np.inf)):
                limit = missing if meta[key] is None else (meta[key] - meta["ref0"]) / (meta["ref"] - meta["ref0"])
                side.append(np.broadcast_to(np.ravel(limit), np.size(value)))
        return [np.concatenate(side) for side in sides]

    def F(self, x: Array) -> Array:
        """Residuals of all components."""
        self.values.set_val(x)
        self.group._apply_nonlinear()
        return self.residuals.asarray(copy=True)

    def jac(self, x: Array) -> Any:
        """The assembled J."""
        self.F(x)
        self.group._linearize()
        return sp.csc_array(self.group._assembled_jac.get_dr_do_matrix())

    def sweep(self, x: Array) -> Array:
        """Each part solves for its outputs in turn."""
        self.values.set_val(x)
        self.group._nonlinear_solver._gs_iter()
        return self.values.asarray(copy=True)


def count(group: Any, run: Any) -> dict[str, Any]:
    """Evaluations of OpenMDAO's own solver."""
    solver = group._nonlinear_solver
    run()
    return {"status": "", "F": solver._iter_count + 1, "J": solver._iter_count}


def sellar() -> Row:
    """Two disciplines; own is OpenMDAO's NewtonSolver."""
    import openmdao.api as om
    from openmdao.test_suite.components.sellar import SellarDis1withDerivatives, SellarDis2withDerivatives

    def made() -> tuple[Any, Any]:
        problem = om.Problem()
        group = problem.model.add_subsystem("cycle", om.Group(), promotes=["*"])
        group.add_subsystem("d1", SellarDis1withDerivatives(), promotes=["x", "z", "y1", "y2"])
        group.add_subsystem("d2", SellarDis2withDerivatives(), promotes=["z", "y1", "y2"])
        return finish(problem, group, {"x": 1.0, "z": [5.0, 2.0]})

    return by_newton(made)


def circuit() -> Row:
    """A diode and two resistors, by components of OpenMDAO's tests."""
    import openmdao.api as om
    from openmdao.test_suite.scripts.circuit_analysis import Diode, Node, Resistor

    def made() -> tuple[Any, Any]:
        problem = om.Problem()
        group = problem.model.add_subsystem("circuit", om.Group())
        group.add_subsystem("n1", Node(n_in=1, n_out=2), promotes_inputs=[("I_in:0", "I_in")])
        group.add_subsystem("n2", Node())
        group.add_subsystem("R1", Resistor(R=100.0), promotes_inputs=[("V_out", "Vg")])
        group.add_subsystem("R2", Resistor(R=10000.0))
        group.add_subsystem("D1", Diode(), promotes_inputs=[("V_out", "Vg")])
        for source, targets in {
            "n1.V": ["R1.V_in", "R2.V_in"],
            "R1.I": ["n1.I_out:0"],
            "R2.I": ["n1.I_out:1", "n2.I_in:0"],
            "n2.V": ["R2.V_out", "D1.V_in"],
            "D1.I": ["n2.I_out:0"],
        }.items():
            group.connect(source, targets)
        values = {"circuit.I_in": 0.1, "circuit.Vg": 0.0, "circuit.n1.V": 10.0, "circuit.n2.V": 1.0}
        return finish(problem, group, values)

    return by_newton(made)


def finish(problem: Any, group: Any, values: dict[str, Any]) -> tuple[Any, Any]:
    """With Newton's method and an assembled J."""
    import openmdao.api as om

    group.nonlinear_solver = om.NewtonSolver(solve_subsystems=False, iprint=-1, maxiter=50)
    group.linear_solver = om.DirectSolver(assemble_jac=True)
    problem.setup()
    for name, value in values.items():
        problem.set_val(name, value)
    return problem, group


def by_newton(made: Any) -> Row:
    """All ways."""
    problem, group = made()
    problem.run_model()
    problem, group = made()
    problem.final_setup()
    outputs = Outputs(group)

    def own() -> dict[str, Any]:
        problem, group = made()
        return count(group, problem.run_model)

    row = Model(outputs.F, outputs.x0, outputs.jac, own=own).row()
    row["own"].pop("seconds")  # with the set-up
    return row


def turbojet(thermodynamics: str) -> Row:
    """An engine at its design point: Newton steps and sweeps, and its parts inside the balances."""
    import openmdao.api as om
    import pycycle.api as pyc

    is_tabular = thermodynamics == "TABULAR"
    data = pyc.AIR_JETA_TAB_SPEC if is_tabular else pyc.species_data.janaf

    class Turbojet(pyc.Cycle):
        def setup(self) -> None:
            self.options["thermo_method"], self.options["thermo_data"] = thermodynamics, data
            balance = om.BalanceComp()
            balance.add_balance("W", units="lbm/s", eq_units="lbf", rhs_name="thrust", val=168.0)
            balance.add_balance("FAR", eq_units="degR", lower=1e-4, val=0.0175, rhs_name="T4")
            balance.add_balance("PR", val=4.46, lower=1.001, upper=8, eq_units="hp", rhs_val=0.0)
            parts = {
                "balance": balance,
                "fc": pyc.FlightConditions(),
                "inlet": pyc.Inlet(),
                "comp": pyc.Compressor(map_data=pyc.AXI5, map_extrap=True),
                "burner": pyc.Combustor(fuel_type="FAR" if is_tabular else "JP-7"),
                "turb": pyc.Turbine(map_data=pyc.LPT2269, map_extrap=True),
                "nozz": pyc.Nozzle(nozzType="CD", lossCoef="Cv"),
                "shaft": pyc.Shaft(num_ports=2),
                "perf": pyc.Performance(num_nozzles=1, num_burners=1),
            }
            for name, part in parts.items():
                has_speed = name in ("comp", "turb", "shaft")
                self.add_subsystem(name, part, **({"promotes_inputs": ["Nmech"]} if has_speed else {}))
            flow = ["fc", "inlet", "comp", "burner", "turb", "nozz"]
            for source, target in pairwise(flow):
                self.pyc_connect_flow(f"{source}.Fl_O", f"{target}.Fl_I", connect_w=source != "fc")
            for source, target in PIPES.items():
                self.connect(source, target)
            self.nonlinear_solver = om.NewtonSolver(solve_subsystems=True, max_sub_solves=100, iprint=-1, maxiter=15)
            self.nonlinear_solver.options["atol"] = self.nonlinear_solver.options["rtol"] = 1e-6
            self.nonlinear_solver.linesearch = om.BoundsEnforceLS(iprint=-1)
            self.linear_solver = om.DirectSolver(assemble_jac=True)
            super().setup()

    def made() -> tuple[Any, Any]:
        problem = om.Problem(reports=False)
        problem.model.add_subsystem("engine", Turbojet())
        problem.setup()
        for name, (value, units) in DESIGN.items():
            problem.set_val(f"engine.{name}", value, units=units)
        problem.set_solver_print(-1)
        return problem, problem.model.engine

    def within(task: Any) -> dict[str, Any]:
        """What a task finds as the solver of the engine."""

        class Within(om.NonlinearRunOnce):
            def solve(self) -> None:
                engine = Outputs(self._system())
                found.update(task(engine, engine.sweep(engine.x0)))

        found: dict[str, Any] = {}
        problem, group = made()
        group.nonlinear_solver = Within()
        problem.run_model()
        return found

    def hybrid(engine: Outputs, start: Array) -> dict[str, Any]:
        newton = ims.SparseNewton(line_search=ims.FullStep())
        method = ims.Preconditioned(inner=(newton, engine.sweep), outer=ims.Picard())
        problem = ims.Problem(engine.F, jac=engine.jac, bounds=engine.bounds())
        return outcome(ims.root(problem, start, method=method))

    def nested(engine: Outputs, start: Array) -> dict[str, Any]:
        inner = np.flatnonzero(abs(engine.F(start)) < 1e-6)  # balances that no part solves for are left
        nested = ims.drivers.Nested(ims.Problem(engine.F, jac=engine.jac), [inner], start, inner=engine.sweep)
        return outcome(ims.root(nested.problem))

    def own() -> dict[str, Any]:
        problem, engine = made()
        return count(engine, problem.run_model)

    found = timed(own)
    found.pop("seconds", None)  # with the set-up
    return {
        "unknowns": within(lambda engine, start: {"size": start.size})["size"],
        "jac, Newton steps and sweeps": timed(partial(within, hybrid)),
        "jac, parts nested": timed(partial(within, nested)),
        "own": found,
    }


PIPES = {
    "comp.trq": "shaft.trq_0",
    "turb.trq": "shaft.trq_1",
    "fc.Fl_O:stat:P": "nozz.Ps_exhaust",
    "inlet.Fl_O:tot:P": "perf.Pt2",
    "comp.Fl_O:tot:P": "perf.Pt3",
    "burner.Wfuel": "perf.Wfuel_0",
    "inlet.F_ram": "perf.ram_drag",
    "nozz.Fg": "perf.Fg_0",
    "balance.W": "inlet.Fl_I:stat:W",
    "perf.Fn": "balance.lhs:W",
    "balance.FAR": "burner.Fl_I:FAR",
    "burner.Fl_O:tot:T": "balance.lhs:FAR",
    "balance.PR": "turb.PR",
    "shaft.pwr_net": "balance.lhs:PR",
}
DESIGN: dict[str, tuple[float, str | None]] = {
    "fc.alt": (0.0, "ft"),
    "fc.MN": (1e-6, None),
    "balance.thrust": (11800.0, "lbf"),
    "balance.T4": (2370.0, "degR"),
    "comp.PR": (13.5, None),
    "comp.eff": (0.83, None),
    "turb.eff": (0.86, None),
    "Nmech": (8070.0, "rpm"),
    "inlet.MN": (0.6, None),
    "comp.MN": (0.02, None),
    "burner.MN": (0.02, None),
    "turb.MN": (0.4, None),
    "burner.dPqP": (0.03, None),
    "nozz.Cv": (0.99, None),
    "fc.balance.Pt": (14.696, "psi"),
    "fc.balance.Tt": (518.67, "degR"),
}


def molecule(atoms: str, basis: str, functional: str | None = None) -> Row:
    """A self-consistent field as a fixed point of the Fock matrix; own is DIIS."""
    from pyscf import dft, gto, scf

    mol = gto.M(atom=atoms, basis=basis, verbose=0)

    def made() -> Any:
        field = scf.RHF(mol) if functional is None else dft.RKS(mol, xc=functional)
        potential, field.builds = field.get_veff, 0

        def get_veff(*args: Any, **more: Any) -> Any:
            field.builds += 1
            return potential(*args, **more)

        field.get_veff = get_veff
        return field

    field = made()
    core, (sizes, vectors) = field.get_hcore(), np.linalg.eigh(field.get_ovlp())
    X, half = vectors / np.sqrt(sizes), mol.nelectron // 2

    def density(fock: Array) -> Array:
        C = X @ np.linalg.eigh((fock + fock.T) / 2)[1][:, :half]
        return 2 * C @ C.T

    def fock(density: Array) -> Array:
        return X.T @ np.asarray(core + field.get_veff(mol, density)) @ X

    start = X.T @ np.asarray(core + field.get_veff(mol, field.get_init_guess())) @ X

    def own() -> dict[str, Any]:
        other = made()
        other.conv_tol = 1e-10
        other.kernel()
        return {"status": "" if other.converged else "not solved", "F": other.builds}

    problem = ims.Problem(lambda f: f - fock(density(f)), fixed_point=True)
    return {
        "unknowns": start.size,
        "plain": timed(lambda: outcome(ims.root(problem, start, tol=1e-5))),
        "own": timed(own),
    }


WATER = "O 0 0 0; H 0 0.757 0.587; H 0 -0.757 0.587"
ROWS = {
    "sequence-jacobian, HANK": ("sequence_jacobian", hank),
    "OpenMDAO, Sellar": ("openmdao", sellar),
    "OpenMDAO, diode circuit": ("openmdao", circuit),
    "pyCycle, turbojet, tables": ("pycycle", partial(turbojet, "TABULAR")),
    "pyCycle, turbojet, CEA": ("pycycle", partial(turbojet, "CEA")),
    "PySCF, water, Hartree-Fock": ("pyscf", partial(molecule, WATER, "6-31g")),
    "PySCF, water, LDA": ("pyscf", partial(molecule, WATER, "6-31g", "lda,vwn")),
    "PySCF, TiO, Hartree-Fock": ("pyscf", partial(molecule, "Ti 0 0 0; O 0 0 1.62", "sto-3g")),
}
