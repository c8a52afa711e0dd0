"""Implicit GRUs (W1): forward solves, and forward with the gradients of all parameters."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.benchmarks.workloads import ImplicitGRU
from benchmarks.gpu.rows import Row, relative, timed
from benchmarks.gpu.sizes import Sizes
from benchmarks.peers._training import BACKWARD, FORWARD
from implicitsolve import kernels
from implicitsolve.adapters import kernels as layers

TARGETS = {(20, 40, 200): (3.0, 8.0)}  # milliseconds of both on an H200
FACTOR = 50.0  # by which the large batch is to be faster than two cores


class Step:
    """What a training step does, on arrays of one library: build the layer, solve it, and pull a cotangent back."""

    def __init__(self, workload: Any, to_array: Callable[[Any], Any]) -> None:
        self.params = {name: to_array(value) for name, value in workload.params.items()}
        self.inputs, self.x0 = to_array(workload.inputs), to_array(workload.x0)
        cotangent = np.random.default_rng(1).standard_normal(workload.x0.shape)
        self.cotangent = to_array(cotangent.astype(workload.x0.dtype))

    def forward(self) -> tuple[Any, Any]:
        """The layer and its solution."""
        layer = ims.adapters.implicit_gru(self.params, self.inputs)
        result = ims.root(layer, self.x0, stop=ims.NonlinearStop(atol=FORWARD, rtol=0.0))
        return layer, result

    def both(self) -> tuple[Any, Any]:
        """The solution, and the gradients."""
        layer, result = self.forward()
        return result, ims.pull_back(layer, result, self.cotangent, stop=ims.LinearStop(rtol=BACKWARD))


@contextmanager
def references() -> Generator[None]:
    """Leave everything to the array-API references: what CUDA kernels gain is the difference."""
    declared = [
        kernel for kernel in (*vars(kernels).values(), *vars(layers).values()) if isinstance(kernel, kernels.Kernel)
    ]
    held = [kernel.implementations.pop("cupy", None) for kernel in declared]
    try:
        yield
    finally:
        for kernel, implementation in zip(declared, held):
            if implementation is not None:
                kernel.implementations["cupy"] = implementation


def on_device(x: Any) -> Any:
    """Copy to the device."""
    import cupy

    return cupy.asarray(x)


def on_host(x: Any) -> Any:
    """Copy to the host."""
    import cupy

    return cupy.asnumpy(x)


def rows(sizes: Sizes, seconds: float) -> Iterator[Row]:
    """Each layer, then the large batch beside the CPU."""
    for shape in sizes.layers:
        yield from _measured(shape, sizes.width, seconds, *TARGETS.get(shape, (None, None)))
    yield from _against_cpu(sizes.large, sizes.width, seconds)


def _measured(
    shape: tuple[int, int, int], width: int, seconds: float, forward: float | None, both: float | None
) -> Iterator[Row]:
    """A layer's two rows; the gradients are compared with those in float64 on the CPU."""
    workload = ImplicitGRU.draw(*shape, 1.0, np.float32, width=width)
    step = Step(workload, on_device)
    _, result = step.forward()
    size, counts = workload.size(on_host(result.x)), result.counts
    facts = {"residuals": counts.residuals, "jvps": counts.jvps}
    name = f"W1 B={shape[0]} T={shape[1]} k={shape[2]} float32"
    # rounding of the outside residual is in float32, too
    yield Row(name, "forward", timed(step.forward, seconds), size, 1.5 * FORWARD, forward, facts)
    _, adjoint = step.both()
    exact = _exact_gradients(workload)
    error = max(relative(on_host(adjoint.gradients[key]), value) for key, value in exact.items())
    facts = {"adjoint products": adjoint.linear.matvecs}
    yield Row(name, "forward and gradients", timed(step.both, seconds), error, 2e-2, both, facts)
    with references():
        size = workload.size(on_host(step.forward()[1].x))
        yield Row(name, "forward without kernels", timed(step.forward, seconds), size, 1.5 * FORWARD)
        yield Row(name, "both without kernels", timed(step.both, seconds), size, 1.5 * FORWARD)


def _exact_gradients(workload: Any) -> dict[str, Any]:
    """Gradients of the parameters in float64, solved to 1e-10."""
    to64 = {name: value.astype(np.float64) for name, value in workload.params.items()}
    layer = ims.adapters.implicit_gru(to64, workload.inputs.astype(np.float64))
    result = ims.root(layer, stop=ims.NonlinearStop(atol=1e-10, rtol=0.0))
    cotangent = np.random.default_rng(1).standard_normal(workload.x0.shape).astype(workload.x0.dtype)
    found = ims.pull_back(layer, result, cotangent.astype(np.float64), stop=ims.LinearStop(rtol=1e-9))
    return {name: found.gradients[name] for name in workload.params}


def _against_cpu(shape: tuple[int, int, int], width: int, seconds: float) -> Iterator[Row]:
    """The same step on both; what is asked is the CPU's time over the factor."""
    workload = ImplicitGRU.draw(*shape, 1.0, np.float32, width=width)
    host, device = Step(workload, np.asarray), Step(workload, on_device)
    name = f"W1 B={shape[0]} T={shape[1]} k={shape[2]} float32"
    runs = ("forward", host.forward, device.forward), ("forward and gradients", host.both, device.both)
    for what, on_cpu, on_gpu in runs:
        cpu, gpu = timed(on_cpu, 0.0), timed(on_gpu, seconds)
        size = workload.size(on_host(device.forward()[1].x))
        yield Row(name, what, gpu, size, 1.5 * FORWARD, cpu / FACTOR, {"two cores ms": cpu, "times faster": cpu / gpu})
