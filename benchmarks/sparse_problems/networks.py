"""Systems on networks that declare nothing: power flow, diodes, pipes."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from benchmarks.benchmarks.problems import GalleryProblem as SparseProblem
from implicitsolve._typing import HostArray

RTOL = 1e-8
# The IEEE 14-bus test case: demand (MW, Mvar) of each bus; generators with MW, volts; lines with r, x, charging, tap.
DEMAND = (
    (0, 0), (21.7, 12.7), (94.2, 19.0), (47.8, -3.9), (7.6, 1.6), (11.2, 7.5), (0, 0),
    (0, 0), (29.5, 16.6), (9.0, 5.8), (3.5, 1.8), (6.1, 1.6), (13.5, 5.8), (14.9, 5.0),
)  # fmt: skip
GENERATORS = {0: (0.0, 1.06), 1: (40.0, 1.045), 2: (0.0, 1.01), 5: (0.0, 1.07), 7: (0.0, 1.09)}
LINES = (
    (1, 2, 0.01938, 0.05917, 0.0528, 1), (1, 5, 0.05403, 0.22304, 0.0492, 1), (2, 3, 0.04699, 0.19797, 0.0438, 1),
    (2, 4, 0.05811, 0.17632, 0.034, 1), (2, 5, 0.05695, 0.17388, 0.0346, 1), (3, 4, 0.06701, 0.17103, 0.0128, 1),
    (4, 5, 0.01335, 0.04211, 0, 1), (4, 7, 0, 0.20912, 0, 0.978), (4, 9, 0, 0.55618, 0, 0.969),
    (5, 6, 0, 0.25202, 0, 0.932), (6, 11, 0.09498, 0.1989, 0, 1), (6, 12, 0.12291, 0.25581, 0, 1),
    (6, 13, 0.06615, 0.13027, 0, 1), (7, 8, 0, 0.17615, 0, 1), (7, 9, 0, 0.11001, 0, 1),
    (9, 10, 0.03181, 0.0845, 0, 1), (9, 14, 0.12711, 0.27038, 0, 1), (10, 11, 0.08205, 0.19207, 0, 1),
    (12, 13, 0.22092, 0.19988, 0, 1), (13, 14, 0.17093, 0.34802, 0, 1),
)  # fmt: skip


def _power_flow(name: str, Y: HostArray, power: HostArray, volts: HostArray, source: str) -> SparseProblem:
    """Angles and voltages, stacked (2, n); bus 0 is the slack, `volts` is NaN where the voltage is free."""
    n = power.size
    Y = scipy.sparse.csr_array(Y)
    fixed = np.flatnonzero(np.isfinite(volts))
    prescribed = volts[fixed]

    def residual(x: HostArray) -> HostArray:
        angle, size = x
        V = size * np.exp(1j * angle)
        mismatch = V * np.conj(Y @ V) - power
        out = np.stack([mismatch.real, mismatch.imag])
        out[0, 0] = angle[0]
        out[1, fixed] = size[fixed] - prescribed
        return out

    x0 = np.zeros((2, n))
    x0[1] = np.where(np.isfinite(volts), volts, 1.0)
    return SparseProblem(name=name, residual=residual, x0=x0, rtol=RTOL, source=source)


def _admittances(n: int, a: HostArray, b: HostArray, z: HostArray, charging: HostArray, tap: HostArray) -> HostArray:
    y = 1.0 / z
    own = y + 0.5j * charging
    rows, columns = np.concatenate([a, a, b, b]), np.concatenate([a, b, a, b])
    values = np.concatenate([own / tap**2, -y / tap, -y / tap, own])
    return scipy.sparse.coo_array((values, (rows, columns)), (n, n)).tocsr()


def ieee14() -> SparseProblem:
    """AC power flow of the IEEE 14-bus test case."""
    line = np.array(LINES)
    a, b = line[:, 0].astype(int) - 1, line[:, 1].astype(int) - 1
    Y = _admittances(14, a, b, line[:, 2] + 1j * line[:, 3], line[:, 4], line[:, 5])
    Y = Y + scipy.sparse.coo_array(([0.19j], ([8], [8])), (14, 14)).tocsr()
    demand = np.array(DEMAND) / 100
    power, volts = -(demand[:, 0] + 1j * demand[:, 1]), np.full(14, np.nan)
    for bus, (megawatts, level) in GENERATORS.items():
        power[bus] += megawatts / 100
        volts[bus] = level
    return _power_flow("ieee-14", Y, power, volts, "American Electric Power, 1962")


def generated_edges(n: int, seed: int, ties: float) -> tuple[HostArray, HostArray]:
    """A tree that is numbered from its root on, with irregular ties."""
    random = np.random.default_rng(seed)
    b = np.arange(1, n)
    a = np.maximum(0, b - 1 - random.exponential(6.0, n - 1).astype(int))
    extra = int(ties * n)
    near = random.integers(0, n, extra)
    far = np.where(random.random(extra) < 0.8, near + random.integers(2, 60, extra), random.integers(0, n, extra))
    a, b = np.concatenate([a, near]), np.concatenate([b, far % n])
    keep = a != b
    pairs = np.unique(np.sort(np.stack([a, b])[:, keep], axis=0), axis=1)
    return pairs[0], pairs[1]


def generated_network(n: int) -> tuple[HostArray, HostArray, HostArray]:
    """Admittances, power and voltages of a network with irregular ties: every tenth bus holds its voltage."""
    random = np.random.default_rng(11)
    a, b = generated_edges(n, 10, 0.4)
    x = random.uniform(0.01, 0.05, a.size)
    Y = _admittances(n, a, b, 0.2 * x + 1j * x, np.full(a.size, 0.01), np.ones(a.size))
    demand = random.uniform(0.0, 0.02, n)
    power = -(demand + 0.3j * demand)
    volts = np.where(np.arange(n) % 10 == 0, 1.02, np.nan)
    power[::10] += 0.1
    return Y, power, volts


def power_network(n: int) -> SparseProblem:
    """AC power flow of that network."""
    return _power_flow("power-network", *generated_network(n), "generated")


def diode_network(n: int) -> SparseProblem:
    """Node voltages of resistors with a diode to ground at each third node."""
    random = np.random.default_rng(13)
    a, b = generated_edges(n, 12, 0.3)
    g = random.uniform(0.5, 2.0, a.size)
    diodes = np.arange(n) % 3 == 0
    fed = np.where(random.random(n) < 0.1, 0.5, 0.0)

    def residual(v: HostArray) -> HostArray:
        i = g * (v[a] - v[b])
        out = np.bincount(a, i, n) - np.bincount(b, i, n)
        return out + np.where(diodes, 1e-3 * np.expm1(np.minimum(v / 0.2, 40.0)), 0.0) + 1e-3 * v - fed

    return SparseProblem(name="diode-network", residual=residual, x0=np.zeros(n), rtol=RTOL, source="Shockley (1949)")


def pipe_network(n: int) -> SparseProblem:
    """Pressure heads and flows of a water network: Hazen-Williams losses, unknowns (heads, flows)."""
    random = np.random.default_rng(15)
    a, b = generated_edges(n, 14, 0.2)
    r = random.uniform(0.5, 2.0, a.size)
    demand = random.uniform(0.0, 1.0, n) / n
    demand[0] = 0.0

    def residual(x: HostArray) -> HostArray:
        head, flow = x[:n], x[n:]
        out = np.empty_like(x)
        out[:n] = np.bincount(b, flow, n) - np.bincount(a, flow, n) - demand
        out[0] = head[0] - 1.0
        out[n:] = head[a] - head[b] - r * flow * (flow * flow + 1e-4) ** 0.426
        return out

    x0 = np.concatenate([np.ones(n), np.full(a.size, 0.05)])
    return SparseProblem(name="pipe-network", residual=residual, x0=x0, rtol=RTOL, source="Todini and Pilati (1988)")


def network_problems(n: int) -> list[SparseProblem]:
    """Return all, with about n nodes."""
    return [ieee14(), power_network(n), diode_network(n), pipe_network(n // 2)]
