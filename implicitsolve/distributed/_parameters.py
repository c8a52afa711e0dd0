"""Derivatives with respect to parameters: summed over the ranks, or each rank's own where the parameter is split."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._system import System


class Parameters:
    """What a distributed problem depends on besides x."""

    def __init__(self, system: System, parameters: Mapping[str, Any] | None) -> None:
        self.system, self.parameters = system, dict(parameters or {})

    def jvp(self, x: DistributedArray, tangents: Mapping[str, Any]) -> DistributedArray:
        """(dF/dtheta) dtheta. One message to each neighbour."""
        system, seen = self.system, self.system.seen(x)
        local = {key: value.local if isinstance(value, DistributedArray) else value for key, value in tangents.items()}
        return system.whole(system.functions.array("parameter_jvp", system.own_shape(seen), seen, local))

    def vjp(self, x: DistributedArray, w: DistributedArray) -> dict[str, Any]:
        """(dF/dtheta)^H w for every parameter. One message to each neighbour, and one allreduce."""
        return self._summed(self.system.functions.gradients(self.system.seen(x), w.local.copy()))

    def vjp_of_some(
        self, x: DistributedArray, w: DistributedArray, wrt: Collection[str] | None = None
    ) -> dict[str, Any]:
        """The same for the parameters in `wrt`, where that is given."""
        wanted = {} if wrt is None else {"wrt": wrt}
        return self._summed(self.system.functions.gradients(self.system.seen(x), w.local.copy(), **wanted))

    def _summed(self, gradients: Mapping[str, HostArray]) -> dict[str, Any]:
        """The gradients of the whole from those of the ranks."""
        comm = self.system.functions.comm
        whole: dict[str, Any] = {}
        shared: dict[str, HostArray] = {}
        for name, gradient in sorted(gradients.items()):
            parameter = self.parameters.get(name)
            if isinstance(parameter, DistributedArray) and parameter.axis is not None:
                whole[name] = DistributedArray(gradient, parameter.axis, parameter.comm, parameter.counts)
            else:
                shared[name] = gradient
        if shared:
            dtype = np.result_type(*shared.values())
            flat = np.concatenate([np.ravel(part).astype(dtype) for part in shared.values()])
            ends = np.cumsum([part.size for part in shared.values()])[:-1]
            for (name, part), total in zip(shared.items(), np.split(comm.allreduce(flat, "sum"), ends)):
                whole[name] = total.reshape(part.shape).astype(part.dtype, copy=False)
        return {name: whole[name] for name in gradients}
