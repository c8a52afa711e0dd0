"""A training step of an implicit GRU beside one of torch's bidirectional LSTM, and adjoint solves by products.

The step is forward to max|F| <= 1e-4 and the gradients of all parameters by an adjoint solve to 1e-3, in single
precision. The LSTM has the same inputs and k states in each direction. With warm starts, forward and adjoint solve
begin where those of the last visit ended, whose parameters were one step of an optimizer away: the parameters go to and
fro between the two ends of that step.
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
OPTIMIZERS = {"SGD 0.1": ("SGD", 0.1), "Adam 1e-4": ("Adam", 1e-4), "Adam 1e-3": ("Adam", 1e-3)}


def lstm_step(inputs: Any, k: int, device: str = "cpu") -> Callable[[], Any]:
    """Forward and backward of the bidirectional LSTM."""
    import torch

    x = torch.from_numpy(inputs).to(device)
    layer = torch.nn.LSTM(inputs.shape[-1], k, bidirectional=True, batch_first=True).to(device)
    cotangent = torch.randn(*inputs.shape[:2], 2 * k, generator=torch.Generator().manual_seed(0)).to(device)

    def step() -> None:
        layer.zero_grad()
        layer(x)[0].backward(cotangent)

    return step


class ImplicitStep:
    """Steps of the implicit GRU at the workload's parameters."""

    def __init__(self, workload: Any, device: str = "cpu") -> None:
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
        self.workload, self.inputs = workload, torch.from_numpy(workload.inputs).to(device)
        self.layer = ImplicitGRU(workload.inputs.shape[-1], k, solve_options=options).to(device)
        self.own = {name: torch.from_numpy(value) for name, value in workload.params.items()}
        self.cotangent = torch.randn(B, T, k, generator=torch.Generator().manual_seed(0)).to(device)
        self.put(self.own)
        self.facts: dict[str, Any] = {}

    def put(self, parameters: Any) -> None:
        """Set the parameters."""
        import torch

        with torch.no_grad():
            for name, value in parameters.items():
                getattr(self.layer, name).copy_(value)

    def after(self, optimizer: str, rate: float) -> Any:
        """The parameters one step further, for the mean of the states times the cotangent."""
        import torch

        self.put(self.own)
        self.layer.zero_grad()
        (self.layer(self.inputs) * self.cotangent).mean().backward()
        getattr(torch.optim, optimizer)(self.layer.parameters(), lr=rate).step()
        parameters = {name: getattr(self.layer, name).detach().clone() for name in self.own}
        self.put(self.own)
        return parameters

    def __call__(self, start: Any = None) -> None:
        """Forward and backward."""
        self.layer.zero_grad()
        H, result = self.layer(self.inputs, x0=start, return_result=True)
        H.backward(self.cotangent)
        counts = result.counts
        self.facts = {"residuals": counts.residuals, "jvps": counts.jvps}
        self.states = H

    def timed(self, stopwatch: Stopwatch, parameters: Any, start: Any = None) -> float:
        """Seconds of a step at other parameters."""
        self.put(parameters)
        return stopwatch(lambda: self(start))


def measure(key: str, stopwatch: Stopwatch, repeat: int) -> dict[str, Any]:
    """Steps from every start, each in turn with the LSTM's."""
    from implicitsolve.torch import WarmStarts

    workload: Any = WORKLOADS[key]()
    lstm, step = lstm_step(workload.inputs, workload.x0.shape[-1]), ImplicitStep(workload)
    near = {name: step.after(*settings) for name, settings in OPTIMIZERS.items()}
    starts = {name: WarmStarts() for name in near}
    batch = range(len(workload.x0))
    for name, parameters in near.items():
        step.timed(stopwatch, parameters, starts[name][batch])
    lstm()
    step.put(step.own)
    step()
    facts = {"cold start": step.facts | {"residual": workload.size(step.states.detach().numpy())}}
    seconds: dict[str, list[float]] = {"nn.LSTM": [], "cold start": []}
    for turn in range(repeat):
        seconds["nn.LSTM"].append(stopwatch(lstm))
        seconds["cold start"].append(step.timed(stopwatch, step.own))
        for name, parameters in near.items():
            what = f"warm start, {name}"
            seconds["nn.LSTM"].append(stopwatch(lstm))
            now = parameters if turn % 2 else step.own
            seconds.setdefault(what, []).append(step.timed(stopwatch, now, starts[name][batch]))
            facts[what] = step.facts
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = medians["nn.LSTM"]
    rows = [{"what": "nn.LSTM", "median": base, "ratio": 1.0}]
    rows += [{"what": name, "median": medians[name], "ratio": medians[name] / base, **facts[name]} for name in facts]
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
