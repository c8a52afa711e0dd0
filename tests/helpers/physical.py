"""Systems that engineers start from rough guesses: circuits from zero, kinetics, acids and bases, a diode, a battery.

`declared` is what a user knows: bounds, and the sizes of unknowns and equations. `sizes` are those of the terms of each
equation: at a solution F is a small part of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg

THERMAL = 0.025852  # volts
inf = np.inf


@dataclass(frozen=True)
class Physical:
    """F, a rough start, sizes of the equations, and what is declared."""

    name: str
    residual: Callable[[Any], Any]
    x0: Any
    sizes: Any
    declared: dict[str, Any] = field(default_factory=dict)


def junction(v, saturation=1e-14):
    """Current of a diode."""
    return saturation * np.expm1(v / THERMAL)


def rectifier(v):
    """A bridge of four diodes between a source of 10 V (behind 50 ohms) and a load of 1 kilohm: four node voltages."""
    plus, minus, up, down = v
    source = (10.0 - (plus - minus)) / 50.0
    load = (up - down) / 1e3
    d1, d2, d3, d4 = junction(plus - up), junction(minus - up), junction(down - plus), junction(down - minus)
    return np.array([source - d1 + d3, minus / 1e3 - d4 + d2 + source, d1 + d2 - load, load - d3 - d4])


def transistor(vbe, vbc, forward=100.0, reverse=1.0, saturation=1e-14):
    """Ebers and Moll: currents into base and collector of an npn transistor."""
    f, r = junction(vbe, saturation), junction(vbc, saturation)
    return f / forward + r / reverse, f - r - r / reverse


def amplifier(v):
    """Common emitter with a divider at the base: voltages of base, collector and emitter."""
    b, c, e = v
    ib, ic = transistor(b - e, b - c)
    return np.array([(12 - b) / 47e3 - b / 10e3 - ib, (12 - c) / 2.2e3 - ic, ib + ic - e / 560.0])


def schmitt_trigger(v):
    """Two transistors with a common emitter resistor: voltages of b1, c1 = b2, c2 and e."""
    b1, c1, c2, e = v
    ib1, ic1 = transistor(b1 - e, b1 - c1)
    ib2, ic2 = transistor(c1 - e, c1 - c2)
    return np.array(
        [(3.0 - b1) / 1e3 - ib1, (10 - c1) / 4e3 - ic1 - ib2, (10 - c2) / 2e3 - ic2, ib1 + ic1 + ib2 + ic2 - e / 100.0]
    )


def flip_flop(v):
    """Two transistors, the base of each driven by the collector of the other one: b1, c1, b2, c2."""
    b1, c1, b2, c2 = v
    ib1, ic1 = transistor(b1, b1 - c1)
    ib2, ic2 = transistor(b2, b2 - c2)
    return np.array(
        [
            (c2 - b1) / 10e3 - ib1,
            (5 - c1) / 1e3 - ic1 - (c1 - b2) / 10e3,
            (c1 - b2) / 10e3 - ib2,
            (5 - c2) / 1.1e3 - ic2 - (c2 - b1) / 10e3,
        ]
    )


def robertson_reactor(x):
    """Robertson's kinetics in a stirred tank, which is fed with the first species; rates per second."""
    a, b, c = x
    flow, fast, slow = 1e-4, 3e7 * b**2, 1e4 * b * c
    return np.array([flow * (1 - a) - 0.04 * a + slow, -flow * b + 0.04 * a - slow - fast, -flow * c + fast])


def chapman(x):
    """Ozone at 30 km, molecules per cm^3: O(1D), O and O3, with NOx."""
    o1d, o, o3, no, no2 = x
    air, o2, nox = 3.5e17, 7.35e16, 3e9
    j2, j3, j3d, jn = 6e-11, 5e-4, 3e-4, 1e-2
    k2, k3, kq, ka, kb = 1.5e-33 * air, 6e-16, 3e-11, 2e-14, 8e-12
    return np.array(
        [
            j3d * o3 - kq * o1d * air,
            2 * j2 * o2 + j3 * o3 + kq * o1d * air + jn * no2 - k2 * o * o2 - k3 * o * o3 - kb * o * no2,
            k2 * o * o2 - (j3 + j3d) * o3 - k3 * o * o3 - ka * no * o3,
            no + no2 - nox,
            ka * no * o3 - kb * no2 * o - jn * no2,
        ]
    )


def oregonator(x):
    """Field and Noyes: HBrO2, Br- and Ce(IV), mol/l."""
    a, b, c = x
    A, H, f = 0.06, 1.0, 0.3
    k1, k2, k3, k4, k5 = 1.28 * H**2, 2.4e6 * H, 33.6 * H, 3e3, 1.0
    return np.array(
        [
            k1 * A * b - k2 * a * b + k3 * A * a - 2 * k4 * a**2,
            -k1 * A * b - k2 * a * b + f * k5 * c,
            2 * k3 * A * a - 2 * k5 * c,
        ]
    )


def phosphate(x):
    """A phosphate buffer: H, OH and four species of the acid; 0.15 mol/l of sodium."""
    h, oh, a0, a1, a2, a3 = x
    acid = [h * a1 - 7.1e-3 * a0, h * a2 - 6.3e-8 * a1, h * a3 - 4.5e-13 * a2, a0 + a1 + a2 + a3 - 0.1]
    return np.array([h * oh - 1e-14, *acid, h + 0.15 - oh - a1 - 2 * a2 - 3 * a3])


def limestone(x):
    """Water in contact with limestone and air: H, OH, HCO3, CO3, Ca."""
    h, oh, b, c, ca = x
    co2 = 1.3e-5
    return np.array(
        [h * oh - 1e-14, h * b - 4.45e-7 * co2, h * c - 4.69e-11 * b, ca * c - 3.3e-9, h + 2 * ca - oh - b - 2 * c]
    )


def complexes(x):
    """Calcium, magnesium and iron compete for EDTA: free ions and ligand from 1e-18 to 1e-3 mol/l; logarithms."""
    ca, mg, fe, y, ca_y, mg_y, fe_y = x
    bound = np.log([ca_y / ca / y, mg_y / mg / y, fe_y / fe / y]) - np.log(10) * np.array([10.7, 8.7, 17.0])
    total = [(ca + ca_y) / 2e-3 - 1, (mg + mg_y) / 1e-3 - 1, (fe + fe_y) / 1e-5 - 1]
    return np.array([*bound, *total, (y + ca_y + mg_y + fe_y) / 2.5e-3 - 1])


def bernoulli(t):
    with np.errstate(all="ignore"):
        return np.where(np.abs(t) < 1e-8, 1 - t / 2, t / np.expm1(t))


class Junction:
    """Drift and diffusion in a pn junction in one dimension (Scharfetter and Gummel), with recombination.

    Potential in thermal voltages, densities over the largest doping: from 1e-16 to 1.
    """

    def __init__(self, nodes=41, bias=0.6):
        t = np.linspace(-1, 1, nodes)
        self.n, self.h = nodes, 1.0 / (nodes - 1)
        self.doping = np.where(t > 0, 1.0, -1.0)
        self.intrinsic, self.debye = 1e-7, 1e-4
        built_in = np.arcsinh(self.doping / (2 * self.intrinsic))
        major = (np.abs(self.doping) + np.sqrt(1 + 4 * self.intrinsic**2)) / 2
        minor = self.intrinsic**2 / major
        self.ends = built_in + np.where(t < 0, bias / THERMAL, 0.0)
        self.electrons = np.where(t > 0, major, minor)
        self.holes = np.where(t > 0, minor, major)

    @property
    def x0(self):
        """Charge neutrality, with the potential of the contacts."""
        return np.concatenate([self.ends, self.electrons, self.holes])[self.order]

    @property
    def order(self):
        """Potential and densities of one node next to each other."""
        return np.arange(3 * self.n).reshape(3, self.n).T.reshape(-1)

    def residual(self, x):
        """F for the unknowns of all nodes."""
        v, n, p = x.reshape(self.n, 3).T
        d = np.diff(v)
        into_n = n[1:] * bernoulli(d) - n[:-1] * bernoulli(-d)
        into_p = p[1:] * bernoulli(-d) - p[:-1] * bernoulli(d)
        lost = 1e-1 * self.h**2 * (n * p - self.intrinsic**2) / (n + p + 2 * self.intrinsic)
        poisson = np.concatenate([v[:1] - self.ends[:1], np.zeros(self.n - 2), v[-1:] - self.ends[-1:]])
        poisson[1:-1] = self.debye * np.diff(d) / self.h**2 - (n - p - self.doping)[1:-1]
        first = np.concatenate([n[:1] - self.electrons[:1], np.diff(into_n), n[-1:] - self.electrons[-1:]])
        second = np.concatenate([p[:1] - self.holes[:1], np.diff(into_p), p[-1:] - self.holes[-1:]])
        first[1:-1] -= lost[1:-1]
        second[1:-1] -= lost[1:-1]
        return np.stack([poisson, first, second], axis=1).reshape(-1)


def battery(x):
    """Open to charged: two electrodes of three nodes; potentials, currents, and a trace of a side product.

    Solid and liquid concentrations are some 1e4 mol/m^3, the trace is 1e-6; reaction currents follow Butler and Volmer.
    """
    n = 3
    potentials, liquid, currents, trace = x.reshape(4, 2 * n)
    stoichiometry = np.array([0.8] * n + [0.35] * n)
    ocp = np.where(
        np.arange(2 * n) < n, 0.1 + THERMAL * np.log(1 / stoichiometry - 1), 4.0 - 0.5 * stoichiometry
    ) + THERMAL * np.log(2.5e4 / 1e3)
    exchange = np.array([2.0] * n + [1.0] * n)
    kinetics = currents - 2 * exchange * np.sinh((potentials - liquid - ocp) / (2 * THERMAL))
    applied = np.array([30.0 / n] * n + [-30.0 / n] * n)
    solid = np.empty(2 * n)
    for k in (0, n):
        s = potentials[k : k + n]
        flux = 100.0 * np.diff(s)
        solid[k : k + n] = np.diff(np.concatenate([[0.0], flux, [0.0]])) - currents[k : k + n] + applied[k : k + n]
    flux = 500.0 * np.diff(liquid)
    ions = np.diff(np.concatenate([[0.0], flux, [0.0]])) + currents
    solid[0] = potentials[0]  # earth
    side = trace * 1e3 - 1e-3 * np.exp(-(potentials - liquid) / (4 * THERMAL))
    return np.concatenate([kinetics, solid, ions, side])


drift = Junction()
POSITIVE = (0.0, inf)
phosphate_sizes = np.array([1e-14, 1e-9, 1e-9, 1e-14, 0.1, 0.1])
limestone_sizes = np.array([1e-14, 1e-12, 1e-14, 1e-9, 1e-3])
GALLERY = (
    Physical("diode and resistor", lambda v: junction(v) - (5 - v) / 1e3, np.zeros(1), 1e-3),
    Physical("bridge rectifier", rectifier, np.zeros(4), 1e-3, {"bounds": (-10.0, 10.0)}),
    Physical("common emitter amplifier", amplifier, np.zeros(3), 1e-3),
    Physical("Schmitt trigger", schmitt_trigger, np.zeros(4), 1e-3),
    Physical("flip-flop", flip_flop, np.zeros(4), 1e-3),
    Physical("drift and diffusion", drift.residual, drift.x0, 1e-6, {"bounds": (np.tile([-inf, 0, 0], drift.n), inf)}),
    Physical("Robertson's kinetics in a reactor", robertson_reactor, [1.0, 0.0, 0.0], 1e-4, {"bounds": (0.0, 1.0)}),
    Physical("ozone", chapman, [1.0, 1.0, 1e10, 1.5e9, 1.5e9], [1e9, 1e9, 1e9, 1e9, 1e7], {"bounds": POSITIVE}),
    Physical("oregonator", oregonator, np.full(3, 1e-3), 1e-4, {"bounds": (1e-12, inf)}),
    Physical(
        "phosphate buffer",
        phosphate,
        np.full(6, 1e-2),
        phosphate_sizes,
        {"bounds": POSITIVE, "x_scale": [1e-7, 1e-7, 1e-6, 0.05, 0.05, 1e-7], "f_scale": phosphate_sizes},
    ),
    Physical(
        "limestone in water",
        limestone,
        np.full(5, 1e-3),
        limestone_sizes,
        {"bounds": POSITIVE, "x_scale": [1e-8, 1e-6, 1e-3, 1e-5, 1e-3], "f_scale": limestone_sizes},
    ),
    Physical(
        "metal complexes",
        complexes,
        np.full(7, 1e-4),
        1.0,
        {"bounds": POSITIVE, "x_scale": [1e-4, 1e-3, 1e-14, 1e-9, 1e-3, 1e-3, 1e-5]},
    ),
    Physical("battery", battery, np.zeros(24), 1.0, {"bounds": (np.repeat([-inf, 0.0], [18, 6]), inf)}),
)


def paths(fields, rng, length=120):
    """Paths in time, each of which depends on the past and the future of all, and F in them."""
    past, future = rng.uniform(0.9, 0.97, (2, fields, fields))
    size, lag = 10.0 ** rng.uniform(-1, 1, (fields, fields)), np.arange(length)
    responses = np.block(
        [
            [size[i, j] * scipy.linalg.toeplitz(past[i, j] ** lag, -(future[i, j] ** lag)) for j in range(fields)]
            for i in range(fields)
        ]
    )
    shock = np.tile(0.1 * 0.8**lag, fields)
    return lambda x: responses @ (x + x**2) - shock


def stirred_reactors(reactors, residence=1e4):
    """Robertson's reactions in stirred reactors in series: F of the mass fractions, and a start within (0, 1)."""

    def residual(y):
        a, b, c = y.reshape(reactors, 3).T
        first, second, third = 0.04 * a, 3e7 * b**2, 1e4 * b * c
        before = np.vstack([[1.0, 0.0, 0.0], y.reshape(reactors, 3)[:-1]])
        rates = np.stack([third - first, first - second - third, second], axis=1)
        return ((before - y.reshape(reactors, 3)) / residence + rates).ravel()

    return residual, np.tile([0.3, 1e-12, 0.7], reactors)


def collocation(n, rate):
    """F of u'' + rate(x, u, u') = 0 with u(-1) = u(1) = 0 at n + 1 points of Chebyshev: a full J of condition n^4."""
    x = np.cos(np.pi * np.arange(n + 1) / n)
    slopes = np.polynomial.chebyshev.Chebyshev.basis
    values = np.polynomial.chebyshev.chebvander(x, n)
    derivatives = np.stack([slopes(k).deriv()(x) if k else np.zeros(n + 1) for k in range(n + 1)], axis=1)
    D = np.linalg.solve(values.T, derivatives.T).T

    def residual(u):
        F = D @ (D @ u) + rate(x, u, D @ u)
        F[[0, -1]] = u[[0, -1]]
        return F

    return residual, np.zeros(n + 1)


RATES = (
    lambda x, u, slope: 0.5 * np.exp(u),  # combustion
    lambda x, u, slope: 4 * np.sin(u) + 1,  # a pendulum
    lambda x, u, slope: 1 - u**3 - 3 * slope,  # convection
)
