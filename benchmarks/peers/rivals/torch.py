"""torch: nn.RNN on W5."""

from __future__ import annotations

import torch

from benchmarks.benchmarks.workloads import Elman, Workload
from benchmarks.peers._measure import Answer, Solver


def solvers(workload: Workload) -> list[Solver]:
    """The recurrence of W5; it projects the inputs at every call."""
    if not isinstance(workload, Elman):
        return []
    W, V, b = (torch.from_numpy(workload.params[name]) for name in ("W", "V", "b"))
    rnn = torch.nn.RNN(V.shape[1], W.shape[0], batch_first=True, dtype=W.dtype)
    with torch.no_grad():
        for name, value in (("weight_hh_l0", W), ("weight_ih_l0", V), ("bias_hh_l0", b), ("bias_ih_l0", 0 * b)):
            getattr(rnn, name).copy_(value)
    inputs = torch.from_numpy(workload.inputs)

    def solve(tol: float) -> Answer:
        with torch.no_grad():
            return Answer(rnn(inputs)[0].numpy(), note="projects the inputs too")

    return [Solver("torch", "nn.RNN", solve)]
