"""Finite elements of scikit-fem, reactors and a flame of Cantera, and battery models of PyBaMM."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

import implicitsolve as ims

from ._model import Array, Model, Row, outcome, timed


def cavity(points: int = 16) -> Model:
    """The driven cavity by Taylor-Hood elements: F and J in the free velocities and pressures, and Re."""
    import skfem as sk
    from skfem.helpers import ddot, div, dot, grad

    mesh = sk.MeshTri.init_tensor(*[np.linspace(0, 1, points + 1)] * 2)
    u = sk.Basis(mesh, sk.ElementVector(sk.ElementTriP2()), intorder=4)
    p = u.with_element(sk.ElementTriP1())
    A = sk.BilinearForm(lambda a, v, w: ddot(grad(a), grad(v))).assemble(u)
    B = -sk.BilinearForm(lambda a, q, w: div(a) * q).assemble(u, p)
    convection = sk.LinearForm(lambda v, w: dot(np.einsum("j...,ij...->i...", w["u"], grad(w["u"])), v))
    derivative = sk.BilinearForm(
        lambda a, v, w: dot(
            np.einsum("j...,ij...->i...", w["u"], grad(a)) + np.einsum("j...,ij...->i...", a, grad(w["u"])), v
        )
    )
    start = np.zeros(u.N + p.N)
    start[u.get_dofs(lambda x: np.isclose(x[1], 1)).all("u^1")] = 1.0
    held = np.r_[u.get_dofs().all(), u.N]
    free = np.setdiff1d(np.arange(start.size), held)

    def whole(x: Array) -> Array:
        y = start.copy()
        y[free] = x
        return y

    def F(x: Array, Re: float = 100) -> Array:
        y = whole(x)
        v, q = y[: u.N], y[u.N :]
        return np.r_[A @ v / Re + convection.assemble(u, u=u.interpolate(v)) + B.T @ q, B @ v][free]

    def jac(x: Array, Re: float = 100) -> Any:
        C = A / Re + derivative.assemble(u, u=u.interpolate(whole(x)[: u.N]))
        return sp.csc_array(sp.block_array([[C, B.T], [B, None]], format="csr"))[free][:, free]

    return Model(F, np.zeros(free.size), jac)


def ramp() -> Row:
    """The same at Re = 2,000, by a ramp; own are whole Newton steps from one Re to the next."""
    model = cavity()

    def ours() -> dict[str, Any]:
        problem = ims.Problem(model.F, jac=model.jac)
        return outcome(ims.root(problem, model.x0, ramp=("Re", 100, 2000)))

    def by_hand() -> dict[str, Any]:
        import scipy.sparse.linalg as sla

        x, F, J = model.x0, 0, 0
        for Re in (100, 400, 1000, 2000):
            while np.max(abs(value := model.F(x, Re))) > 1e-8 and J < 40:
                x, F, J = x - sla.spsolve(model.jac(x, Re), value), F + 1, J + 1
            F += 1
        return {"status": "" if J < 40 else "not solved", "F": F, "J": J}

    return {"unknowns": model.x0.size, "jac": timed(ours), "own": timed(by_hand)}


def rubber(elements: int, lam: float) -> Row:
    """A neo-Hookean block pressed to a half of its height."""
    import skfem as sk
    from skfem.helpers import ddot, grad, mul, transpose

    mesh = sk.MeshHex.init_tensor(*[np.linspace(0, 1, elements + 1)] * 3)
    basis = sk.Basis(mesh, sk.ElementVector(sk.ElementHex1()), intorder=2)

    def kinematics(x: Array) -> dict[str, Any]:
        G = np.asarray(grad(whole(x))) + np.eye(3)[:, :, None, None]
        M = np.moveaxis(G, (0, 1), (-2, -1))
        with np.errstate(all="ignore"):
            turned = np.linalg.inv(M)  # the transpose of its moved axes
            return {"G": G, "T": np.moveaxis(turned, (-2, -1), (1, 0)), "log": np.log(np.linalg.det(M))}

    def stress(v: Any, w: Any) -> Any:
        return ddot(w["G"] + (lam * w["log"] - 1) * w["T"], grad(v))

    def tangent(a: Any, v: Any, w: Any) -> Any:
        H, T = grad(a), w["T"]
        turned = mul(mul(T, transpose(H)), T)
        return ddot(H + (1 - lam * w["log"]) * turned + lam * ddot(T, H) * T, grad(v))

    residual, derivative = sk.LinearForm(stress), sk.BilinearForm(tangent)
    ends = [basis.get_dofs(lambda x, z=z: np.isclose(x[2], z)) for z in (0, 1)]
    start = np.zeros(basis.N)
    vertical = basis.get_dofs(lambda x: x[2] > -1).all("u^3")
    start[vertical] = -0.5 * basis.doflocs[2, vertical]
    free = np.setdiff1d(np.arange(basis.N), np.concatenate([end.all() for end in ends]))

    def whole(x: Array) -> Any:
        y = start.copy()
        y[free] = x
        return basis.interpolate(y)

    model = Model(
        lambda x: residual.assemble(basis, **kinematics(x))[free],
        start[free],
        lambda x: derivative.assemble(basis, **kinematics(x)).tocsc()[free][:, free],
    )
    return {"unknowns": free.size, "jac": timed(lambda: model.solve(jac=model.jac))}


def reactor(mechanism: str, fuel: str, is_mixed: bool = False, residence: float = 1e-3) -> Row:
    """A stirred reactor, by "auto" and by time steps; own is the network of reactors' solver."""
    import cantera as ct

    gas = ct.Solution(mechanism)
    gas.set_equivalence_ratio(1.0, fuel, "O2:1, N2:3.76")
    gas.TP = 300, ct.one_atm
    inlet, enthalpies = gas.Y.copy(), gas.partial_molar_enthalpies / gas.molecular_weights
    gas.equilibrate("HP")
    if is_mixed:
        gas.TPY = 1500, ct.one_atm, 0.5 * (inlet + gas.Y)
    x0 = np.r_[gas.T / 1000, gas.Y]

    def F(x: Array) -> Array:
        gas.set_unnormalized_mass_fractions(x[1:])
        gas.TP = 1000 * x[0], ct.one_atm
        rate = gas.net_production_rates * gas.molecular_weights / gas.density
        h = gas.partial_molar_enthalpies / gas.molecular_weights
        heating = (inlet @ (enthalpies - h) - residence * h @ rate) / gas.cp / 1000
        return np.r_[heating, inlet - x[1:] + residence * rate]

    def own() -> dict[str, Any]:
        gas.TPY = 300, ct.one_atm, inlet
        source = ct.Reservoir(gas)
        gas.TPY = 1000 * x0[0], ct.one_atm, x0[1:]
        tank = ct.IdealGasReactor(gas)
        sink = ct.Reservoir(gas)
        feed = ct.MassFlowController(source, tank, mdot=tank.mass / residence)
        feed.mass_flow_rate = lambda t: tank.mass / residence
        ct.PressureController(tank, sink, primary=feed, K=1e-3)
        ct.ReactorNet([tank]).solve_steady()
        return {"status": f"{tank.T:.0f} K"}

    model = Model(F, x0, details={"rejects": ct.CanteraError})
    steps = partial(model.solve, method=ims.PseudoTransient(sign=1))
    return {"unknowns": x0.size, "plain": timed(model.solve), "plain, time steps": timed(steps), "own": timed(own)}


def flame(points: int = 60) -> Row:
    """A burner's flame on a grid that stays, by Cantera's own equations, from its start."""
    import cantera as ct

    def made() -> Any:
        gas = ct.Solution("h2o2.yaml")
        gas.TPX = 373.0, 0.05 * ct.one_atm, "H2:1.5, O2:1, AR:7"
        burner = ct.BurnerFlame(gas, grid=np.linspace(0, 0.02, points))
        burner.burner.mdot = 0.06
        burner.transport_model = "mixture-averaged"
        burner.set_initial_guess()
        burner.energy_enabled = True
        return burner

    ours = made()
    flow, names = ours.flame, ["velocity", "T", *ours.gas.species_names]
    scales = np.array([1000.0 if name == "T" else 1.0 for name in names])

    def F(x: Array) -> Array:
        for name, values in zip(names, (x * scales).T):
            flow.set_values(name, values)
        ours.eval()
        return np.stack([flow.residuals(name) for name in names], axis=1) / scales

    def own() -> dict[str, Any]:
        flame = made()
        flame.solve(loglevel=0, refine_grid=False, auto=False)
        return {
            "status": f"{flame.T.max():.0f} K",
            "F": sum(flame.eval_count_stats),
            "J": sum(flame.jacobian_count_stats),
        }

    x0 = np.stack([flow.values(name) for name in names], axis=1) / scales
    blocks = ims.BlockBanded(1, 1, x0.shape[1])
    model = Model(F, x0, details={"rejects": ct.CanteraError, "structure": blocks})
    mass = np.zeros_like(x0)
    mass[1:-1, names.index("T")] = mass[1:-1, names.index("H2") :] = 1
    steps = partial(model.solve, method=ims.PseudoTransient(sign=1, mass=mass))
    return {"unknowns": x0.size, "pattern": timed(model.solve), "pattern, time steps": timed(steps), "own": timed(own)}


def battery(kind: str, rate: float) -> Row:
    """Consistent initial states."""
    import pybamm

    values = pybamm.ParameterValues("Marquis2019")
    values["Current function [A]"] = rate * values["Nominal cell capacity [A.h]"]
    simulation = pybamm.Simulation(getattr(pybamm.lithium_ion, kind)(), parameter_values=values)
    simulation.build()
    model = simulation.built_model
    pybamm.CasadiSolver(root_method="lm").set_up(model)
    y0 = np.asarray(model.concatenated_initial_conditions.evaluate(0, inputs={})).ravel()
    fixed = model.rhs_eval(0.0, y0, []).shape[0]
    return Model(
        lambda x: np.asarray(model.algebraic_eval(0.0, np.r_[y0[:fixed], x], [])).ravel(),
        y0[fixed:],
        lambda x: sp.csc_array(model.jac_algebraic_eval(0.0, np.r_[y0[:fixed], x], []).sparse())[:, fixed:],
        settings={"tol": 1e-6},
    ).row()


ROWS = {
    "scikit-fem, driven cavity, Re 100": ("skfem", lambda: cavity().row()),
    "scikit-fem, driven cavity, ramp to Re 2,000": ("skfem", ramp),
    "scikit-fem, rubber pressed to a half, 6³": ("skfem", partial(rubber, 6, 10.0)),
    "scikit-fem, rubber pressed to a half, 8³": ("skfem", partial(rubber, 8, 10.0)),
    "Cantera, reactor, hydrogen": ("cantera", partial(reactor, "h2o2.yaml", "H2:1")),
    "Cantera, reactor, GRI-Mech 3.0, methane": ("cantera", partial(reactor, "gri30.yaml", "CH4:1")),
    "Cantera, the same from half-mixed gas": ("cantera", partial(reactor, "gri30.yaml", "CH4:1", True)),
    "Cantera, flame of 60 points": ("cantera", flame),
    "PyBaMM, DFN, 1 C": ("pybamm", partial(battery, "DFN", 1)),
    "PyBaMM, DFN, 5 C": ("pybamm", partial(battery, "DFN", 5)),
    "PyBaMM, Newman-Tobias, 1 C": ("pybamm", partial(battery, "NewmanTobias", 1)),
}
