"""How much device memory solves take: what CuPy's pool holds after a run that began with an empty one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.benchmarks.workloads import ImplicitGRU
from benchmarks.gpu.layers import FORWARD, Step, on_device, on_host
from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import Sizes


def rows(sizes: Sizes, seconds: float) -> Iterator[Row]:
    """In states (B, T, k), beside what the caller holds; the time is none."""
    import cupy

    for shape in (*sizes.layers, sizes.large):
        workload = ImplicitGRU.draw(*shape, 1.0, np.float32, width=sizes.width)
        step = Step(workload, on_device)
        step.both()
        pool = cupy.get_default_memory_pool()
        for what, run in (("forward", step.forward), ("forward and gradients", step.both)):
            pool.free_all_blocks()
            before = pool.total_bytes()
            kept = run()
            taken = pool.total_bytes() - before
            del kept
            size = workload.size(on_host(step.forward()[1].x))
            facts = {"MiB": taken / 2**20, "states": taken / workload.x0.nbytes}
            name = f"memory W1 B={shape[0]} T={shape[1]} k={shape[2]}"
            yield Row(name, what, 0.0, size, 1.5 * FORWARD, None, facts)
