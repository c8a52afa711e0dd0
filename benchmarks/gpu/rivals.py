"""A training step through torch beside cuDNN's bidirectional LSTM of equal size: tensors go in and out by DLPack."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.benchmarks.workloads import ImplicitGRU
from benchmarks.gpu.layers import BACKWARD, FORWARD
from benchmarks.gpu.rows import Row, timed
from benchmarks.gpu.sizes import Sizes

FACTOR = 2.0  # of the LSTM's time


def rows(sizes: Sizes, seconds: float) -> Iterator[Row]:
    """One pair for each layer; nothing where torch has no CUDA."""
    if not sizes.has_rivals or find_spec("torch") is None:
        return
    import torch

    if not torch.cuda.is_available():
        return
    for shape in sizes.layers:
        workload = ImplicitGRU.draw(*shape, 1.0, np.float32, width=sizes.width)
        lstm, step = LSTMStep(workload), ImplicitStep(workload)
        base, own = timed(lstm, seconds), timed(step, seconds)
        name = f"torch B={shape[0]} T={shape[1]} k={shape[2]} float32"
        facts = {"TF32": torch.backends.cudnn.allow_tf32}  # which our products do without
        yield Row(name, "cuDNN bidirectional LSTM, both ways", base, 0.0, 0.0, None, facts)
        size = workload.size(step.states.detach().cpu().numpy())
        yield Row(name, "ImplicitGRU, both ways", own, size, 1.5 * FORWARD, FACTOR * base, {"times": own / base})


class LSTMStep:
    """Forward and backward of the LSTM."""

    def __init__(self, workload: Any) -> None:
        import torch

        B, T, k = workload.x0.shape
        self.inputs = torch.from_numpy(workload.inputs).cuda()
        self.layer = torch.nn.LSTM(workload.inputs.shape[-1], k, bidirectional=True, batch_first=True).cuda()
        self.cotangent = torch.randn(B, T, 2 * k, device="cuda")

    def __call__(self) -> None:
        """One step."""
        self.layer.zero_grad()
        self.layer(self.inputs)[0].backward(self.cotangent)


class ImplicitStep:
    """The same of the implicit GRU, from zero."""

    def __init__(self, workload: Any) -> None:
        import torch

        from implicitsolve.torch import ImplicitGRU as Layer
        from implicitsolve.torch import SolveOptions

        B, T, k = workload.x0.shape
        options = SolveOptions(
            stop=ims.NonlinearStop(atol=FORWARD, rtol=0.0),
            adjoint_stop=ims.LinearStop(rtol=BACKWARD),
            initial_guess="zeros",
            on_failure="raise",
        )
        self.inputs = torch.from_numpy(workload.inputs).cuda()
        self.layer = Layer(workload.inputs.shape[-1], k, solve_options=options).cuda()
        with torch.no_grad():
            for name, value in workload.params.items():
                getattr(self.layer, name).copy_(torch.from_numpy(value))
        self.cotangent = torch.randn(B, T, k, device="cuda")

    def __call__(self) -> None:
        """One step."""
        self.layer.zero_grad()
        self.states = self.layer(self.inputs)
        self.states.backward(self.cotangent)
