"""A training step through torch beside cuDNN's bidirectional LSTM of equal size: tensors go in and out by DLPack."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from benchmarks.benchmarks.workloads import ImplicitGRU
from benchmarks.gpu.layers import FORWARD
from benchmarks.gpu.rows import Row, timed
from benchmarks.gpu.sizes import Sizes
from benchmarks.peers._training import ImplicitStep, lstm_step

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
        lstm, step = lstm_step(workload.inputs, shape[-1], "cuda"), ImplicitStep(workload, "cuda")
        base, own = timed(lstm, seconds), timed(step, seconds)
        name = f"torch B={shape[0]} T={shape[1]} k={shape[2]} float32"
        facts = {"TF32": torch.backends.cudnn.allow_tf32}  # which our products do without
        yield Row(name, "cuDNN bidirectional LSTM, both ways", base, 0.0, 0.0, None, facts)
        size = workload.size(step.states.detach().cpu().numpy())
        yield Row(name, "ImplicitGRU, both ways", own, size, 1.5 * FORWARD, FACTOR * base, {"times": own / base})
