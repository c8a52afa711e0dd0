"""torchdeq: the solvers of deep equilibrium models, one norm for each sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torchdeq.solver import get_solver

from benchmarks.benchmarks.workloads import ImplicitGRU, Workload
from benchmarks.peers._layers import torch_gru
from benchmarks.peers._measure import Answer, Solver

SETTINGS: dict[str, dict[str, Any]] = {
    "fixed_point_iter": {"max_iter": 300},
    "anderson": {"max_iter": 150, "m": 6, "lam": 1e-4},
    "anderson, little regularization": {"max_iter": 150, "m": 6, "lam": 1e-10},
    "broyden": {"max_iter": 60},
}
TOLERANCES = (30.0, 10.0, 3.0, 1.0)  # 2-norms are larger than the largest element


def iterate(function: Callable[[Any], Any], x0: Any, name: str, tol: float) -> Answer:
    """One solve without gradients."""
    calls = 0

    def counted(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return function(x)

    solver = get_solver(name.split(",")[0])
    with torch.no_grad():
        x, _, _ = solver(counted, torch.from_numpy(x0), tol=tol, stop_mode="abs", **SETTINGS[name])
    return Answer(x.numpy(), calls)


def solvers(workload: Workload) -> list[Solver]:
    """Its solvers for fixed points."""
    if not isinstance(workload, ImplicitGRU):
        return []
    function = torch_gru(workload.params, workload.inputs)
    return [Solver("torchdeq", name, partial(iterate, function, workload.x0, name), TOLERANCES) for name in SETTINGS]
