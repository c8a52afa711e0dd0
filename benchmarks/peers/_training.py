"""A training step of an implicit GRU beside one of torch's bidirectional LSTM, and adjoint solves by products.

The step is forward to max|F| <= 1e-4 and the gradients of all parameters and inputs by an adjoint solve to 1e-3, in
single precision. The LSTM has the same inputs and k states in each direction. A warm start is the solution at other
parameters, such as those of the epoch before: each differs by 1 %, or 0.1 %, of its size (one standard deviation).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.benchmarks.workloads import WORKLOADS
from benchmarks.peers._measure import Stopwatch

STEPS = ("W1-k200-s1-float32", "W1-k448-s1-float32")
ADJOINTS = ("W1-k200-s1", "W1-k200-s2")
FORWARD, BACKWARD = 1e-4, 1e-3
STARTS = {"cold start": None, "warm start, 1 %": 0.01, "warm start, 0.1 %": 0.001}


def lstm_step(inputs: Any, k: int) -> Callable[[], Any]:
    """Forward and backward of the bidirectional LSTM."""
    import torch

    x = torch.from_numpy(inputs).requires_grad_()
    layer = torch.nn.LSTM(inputs.shape[-1], k, bidirectional=True, batch_first=True)
    cotangent = torch.randn(*inputs.shape[:2], 2 * k, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x)[0].backward(cotangent)

    return step


def implicit_step(workload: Any, change: float | None) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Forward and backward of the implicit GRU, and what is known of the solve."""
    import torch

    import implicitsolve as ims
    from implicitsolve.torch import ImplicitGRU, SolveOptions

    options = SolveOptions(
        stop=ims.NonlinearStop(atol=FORWARD, rtol=0.0),
        adjoint_stop=ims.LinearStop(rtol=BACKWARD),
        initial_guess="zeros",
        on_failure="raise",
    )
    B, T, k = workload.x0.shape
    layer = ImplicitGRU(workload.inputs.shape[-1], k, solve_options=options)
    x = torch.from_numpy(workload.inputs).requires_grad_()
    cotangent = torch.randn(B, T, k, generator=torch.Generator().manual_seed(0))
    start = None if change is None else start_of(workload, layer, x, change)
    with torch.no_grad():
        for name, value in workload.params.items():
            getattr(layer, name).copy_(torch.from_numpy(value))

    def step() -> Any:
        layer.zero_grad()
        x.grad = None
        H, result = layer(x, x0=start, return_result=True)
        H.backward(cotangent)
        return H, result

    H, result = step()
    counts = result.counts
    facts = {"residual": workload.size(H.detach().numpy()), "residuals": counts.residuals, "jvps": counts.jvps}
    return step, facts


def start_of(workload: Any, layer: Any, x: Any, change: float) -> Any:
    """The states at parameters that differ a little."""
    import torch

    rng = np.random.default_rng(1)
    with torch.no_grad():
        for name, value in workload.params.items():
            near = value * (1 + change * rng.standard_normal(value.shape).astype(value.dtype))
            getattr(layer, name).copy_(torch.from_numpy(near))
        return layer(x).detach()


def measure(key: str, stopwatch: Stopwatch, repeat: int) -> dict[str, Any]:
    """Steps from every start, each in turn with the LSTM's."""
    workload: Any = WORKLOADS[key]()
    lstm = lstm_step(workload.inputs, workload.x0.shape[-1])
    made = {name: implicit_step(workload, change) for name, change in STARTS.items()}
    seconds: dict[str, list[float]] = {"nn.LSTM": [], **{name: [] for name in made}}
    lstm()
    for _ in range(repeat):
        for name, (step, _) in made.items():
            seconds["nn.LSTM"].append(stopwatch(lstm))
            seconds[name].append(stopwatch(step))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = medians["nn.LSTM"]
    rows = [{"what": "nn.LSTM", "median": base, "ratio": 1.0}]
    rows += [{"what": name, "median": medians[name], "ratio": medians[name] / base, **made[name][1]} for name in made]
    return {"key": key, "rows": rows}


def adjoint(key: str) -> dict[str, Any]:
    """Products of the adjoint solve to 1e-6, at the solution."""
    import implicitsolve as ims

    workload: Any = WORKLOADS[key]()
    problem: Any = workload.problem()
    result = ims.root(problem, workload.x0, stop=ims.NonlinearStop(atol=workload.target, rtol=0.0))
    cotangent = np.random.default_rng(1).standard_normal(workload.x0.shape)
    found = ims.pull_back(problem, result, cotangent, stop=ims.LinearStop(rtol=1e-6))
    _, J = problem.linearize(result.x)
    left = cotangent - J.rmatvec(found.adjoint)
    return {
        "key": key,
        "products": found.linear.matvecs,
        "iterations": int(np.max(found.linear.iterations)),
        "residual": float(max(np.linalg.norm(left[i]) / np.linalg.norm(cotangent[i]) for i in range(len(left)))),
    }
