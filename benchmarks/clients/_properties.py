"""Flashes of thermo, power flows of ANDES, and finite volumes of FiPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

import implicitsolve as ims

from ._model import Array, Model, Row, outcome, timed


def flash(T: float, P: float) -> Row:
    """Eight components by the equation of Peng and Robinson: logarithms of K and the vapor fraction."""
    from thermo import PRMIX, CEOSGas, CEOSLiquid, ChemicalConstantsPackage, FlashVL

    names = ["methane", "ethane", "propane", "n-butane", "n-pentane", "nitrogen", "carbon dioxide", "n-hexane"]
    constants, properties = ChemicalConstantsPackage.from_IDs(names)
    Tc, Pc, omega = (np.array(getattr(constants, key)) for key in ("Tcs", "Pcs", "omegas"))
    settings = {"eos_kwargs": {"Tcs": list(Tc), "Pcs": list(Pc), "omegas": list(omega)}}
    gas, liquid = (
        kind(PRMIX, HeatCapacityGases=properties.HeatCapacityGases, **settings) for kind in (CEOSGas, CEOSLiquid)
    )
    z = np.array([0.4, 0.15, 0.12, 0.1, 0.08, 0.05, 0.05, 0.05])

    def F(u: Array) -> Array:
        K = np.exp(u[:-1])
        x = z / (1 + u[-1] * (K - 1))
        y = K * x
        of_liquid, of_gas = (phase.to(T=T, P=P, zs=list(part / part.sum())) for phase, part in ((liquid, x), (gas, y)))
        return np.r_[u[:-1] + np.array(of_gas.lnphis()) - np.array(of_liquid.lnphis()), np.sum(x - y)]

    def own() -> dict[str, Any]:
        state = FlashVL(constants, properties, liquid=liquid, gas=gas).flash(T=T, P=P, zs=list(z))
        return {"status": f"vapor {state.VF:.4f}"}

    x0 = np.r_[np.log(Pc / P) + 5.37 * (1 + omega) * (1 - Tc / T), 0.5]
    return Model(F, x0, own=own, details={"rejects": (ValueError, ArithmeticError)}).row()


def andes(name: str) -> Row:
    """A power flow of ANDES, from its start; own is its Newton's method."""
    import andes as program
    from kvxopt import matrix

    def made() -> Any:
        return program.load(program.get_case(name), default_config=True, no_output=True)

    system = made()
    flow, dae = system.PFlow, system.dae
    flow.init()

    def F(z: Array) -> Array:
        dae.x[:], dae.y[:] = np.split(z, [dae.n])
        system.vars_to_models()
        flow.fg_update()
        return np.r_[dae.f, dae.g].copy()

    def jac(z: Array) -> Any:
        F(z)
        system.j_update(models=flow.models)
        blocks = [[dae.fx, dae.fy], [dae.gx, dae.gy]] if dae.n else [[dae.gy]]
        return sp.csc_array(np.block([[np.array(matrix(block)) for block in row] for row in blocks]))

    def own() -> dict[str, Any]:
        other = made()
        is_solved = other.PFlow.run()
        return {"status": "" if is_solved else "not solved", "F": other.PFlow.niter + 1, "J": other.PFlow.niter}

    row = Model(F, np.r_[dae.x, dae.y].copy(), jac, own=own).row()
    row["own"].pop("seconds", None)  # with the set-up
    return row


def porous(points: int = 24) -> Row:
    """FiPy's diffusion with the coefficient u^3 + 0.001; further with FiPy's matrix of frozen coefficients."""
    import fipy

    mesh = fipy.Grid2D(nx=points, ny=points, dx=1 / points, dy=1 / points)
    u = fipy.CellVariable(mesh=mesh, value=0.5)
    u.constrain(1.0, mesh.facesLeft)
    u.constrain(0.0, mesh.facesRight)
    equation = fipy.DiffusionTerm(coeff=u.faceValue**3 + 1e-3) + 1.0

    def F(x: Array) -> Array:
        u.setValue(x)
        return np.array(equation.justResidualVector(var=u))

    x0 = np.full(mesh.numberOfCells, 0.5)
    equation.cacheMatrix()
    F(x0)
    frozen = sp.csc_array(equation.matrix.matrix)
    return {
        "unknowns": x0.size,
        "plain": timed(Model(F, x0).solve),
        "jac, `jac_approx=`": timed(lambda: outcome(ims.root(F, x0, jac_approx=frozen))),
    }


ROWS = {
    "thermo, flash at 250 K and 2 MPa": ("thermo", partial(flash, 250.0, 2e6)),
    "thermo, flash at 350 K and 6 MPa": ("thermo", partial(flash, 350.0, 6e6)),
    "ANDES, 14 buses of IEEE": ("andes", partial(andes, "ieee14/ieee14.json")),
    "ANDES, NPCC": ("andes", partial(andes, "npcc/npcc.xlsx")),
    "FiPy, nonlinear diffusion": ("fipy", porous),
}
