"""The functions of a distributed problem: halos are exchanged, and each rank calls the user's functions on its part."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._communicator import Communicator
from implicitsolve.distributed._functions import reshape
from implicitsolve.distributed._layout import Part, Runs, folded, padded
from implicitsolve.linearize._jacobian import jacobian
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.problem import Problem
from implicitsolve.structure import BlockBanded


@dataclass(frozen=True)
class LocalFunctions:
    """The user's functions on one rank's part, by name: their results are checked and copied; errors end all ranks."""

    comm: Communicator
    part: Part
    batch_ndim: int
    given: Mapping[str, Callable[..., Any] | None]

    def has(self, name: str) -> bool:
        """Whether the user passed that function."""
        return self.given[name] is not None

    def array(self, name: str, shape: tuple[int, ...], x: HostArray, *others: Any) -> HostArray:
        """The result of a function of x and others: its shape is checked, its dtype that of x."""
        return self._guarded(name, lambda value: self._checked(name, value, shape, x.dtype), x, *others)

    def linearized(self, shape: tuple[int, ...], x: HostArray) -> tuple[HostArray, LinearOperator]:
        """The result of `linearize`: F, and J of the own blocks."""
        return self._guarded("linearize", lambda value: self._checked_pair(value, shape, x), x)

    def product(self, J: LinearOperator, name: str, shape: tuple[int, ...], v: HostArray) -> HostArray:
        """A product with the J of `linearize`; `name` is "matvec" or "rmatvec"."""
        try:
            return self._checked(f"J.{name}", getattr(J, name)(v), shape, v.dtype)
        except Exception as error:  # noqa: BLE001 (abort raises it, or ends the process)
            self.comm.abort(error)

    def gradients(self, x: HostArray, w: HostArray, **wanted: Any) -> dict[str, HostArray]:
        """The result of `parameter_vjp`."""
        return self._guarded("parameter_vjp", self._checked_gradients, x, w, **wanted)

    def _guarded(self, name: str, check: Callable[[Any], Any], *arguments: Any, **named: Any) -> Any:
        function: Any = self.given[name]
        try:
            return check(function(self.part, *arguments, **named))
        except Exception as error:  # noqa: BLE001 (abort raises it, or ends the process)
            self.comm.abort(error)

    def _checked(self, name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
        if value is None:
            raise TypeError(f"`{name}` returned None; it must return an array of shape {shape}")
        value = np.asarray(value)
        if value.shape != shape:
            raise ValueError(f"`{name}` must return an array of shape {shape} for {self.part}, got {value.shape}")
        if value.dtype.kind not in "biufc":
            raise TypeError(f"`{name}` must return numbers, got dtype {value.dtype}")
        if value.dtype.kind == "c" and dtype.kind != "c":
            raise TypeError(f"`{name}` returned complex numbers for a real x0: pass a complex x0 to solve in complex")
        return np.array(value, dtype=dtype)

    def _checked_pair(self, value: Any, shape: tuple[int, ...], x: HostArray) -> tuple[HostArray, LinearOperator]:
        if not (isinstance(value, tuple) and len(value) == 2):
            raise TypeError(f"`linearize` must return a pair (F, J), got {type(value).__name__}")
        F, J = self._checked("linearize", value[0], shape, x.dtype), value[1]
        expected = shape[: self.batch_ndim], x.shape[self.batch_ndim :], shape[self.batch_ndim :]
        if not isinstance(J, LinearOperator):
            raise TypeError(f"`linearize` must return J as a LinearOperator, got {type(J).__name__}")
        if (J.batch_shape, J.in_shape, J.out_shape) != expected:
            raise ValueError(
                f"`linearize` must return J of batch_shape, in_shape and out_shape {expected} for {self.part}, got "
                f"{(J.batch_shape, J.in_shape, J.out_shape)}"
            )
        return F, J

    def _checked_gradients(self, value: Any) -> dict[str, HostArray]:
        if not isinstance(value, Mapping):
            raise TypeError(f"`parameter_vjp` must return a mapping, got {type(value).__name__}")
        return {str(key): np.asarray(gradient) for key, gradient in value.items()}


@dataclass(frozen=True)
class System:
    """F and J on arrays (*batch, T, k) whose blocks are partitioned across ranks by `counts`."""

    functions: LocalFunctions
    counts: Runs
    structure: BlockBanded

    @property
    def axis(self) -> int:
        """The axis of the blocks."""
        return self.functions.batch_ndim

    def with_halo(self, x: DistributedArray) -> HostArray:
        """The own blocks of x between the neighbours', as a new array. One message to each neighbour."""
        self._check(x)
        structure, comm = self.structure, self.functions.comm
        around = padded(comm, x.local, self.axis, structure.lower, structure.upper, periodic=structure.periodic)
        return around.copy() if around is x.local else around

    def whole(self, local: HostArray) -> DistributedArray:
        """An array of the state's layout from this rank's part."""
        return DistributedArray(local, self.axis, self.functions.comm, self.counts)

    def _check(self, x: DistributedArray) -> None:
        """Raise unless x is split as this problem is."""
        is_split = isinstance(x, DistributedArray) and x.axis == self.axis and self.counts.is_same(x.counts)
        k = self.structure.block_size
        if not is_split or x.ndim != self.axis + 2 or x.local.shape[-1] != k:
            raise ValueError(
                f"a distributed problem needs states of shape (*batch, {self.counts.total}, {k}), "
                f"whose axis {self.axis} is split by {self.counts}, as `distributed.split(comm, x0, axis={self.axis})` "
                f"makes them, got {x!r}"
            )

    def own_shape(self, x: HostArray) -> tuple[int, ...]:
        """Shape of the own blocks of x."""
        return (*x.shape[: self.axis], self.functions.part.count, *x.shape[self.axis + 1 :])

    # The problem's functions

    def residual(self, x: DistributedArray) -> DistributedArray:
        """F(x)."""
        return self.whole(self.own_residual(self.with_halo(x)))

    def own_residual(self, with_halo: HostArray) -> HostArray:
        """F of the own blocks."""
        return self.functions.array("residual", self.own_shape(with_halo), with_halo)

    def linearize(self, x: DistributedArray) -> tuple[DistributedArray, LinearOperator]:
        """F(x) and J(x)."""
        point = Linearization(self, x)
        F = point.F if point.J is not None else self.own_residual(point.with_halo.copy())
        return self.whole(F), point.operator()

    def vjp(self, x: DistributedArray, w: DistributedArray) -> DistributedArray:
        """J(x)^H w."""
        return Linearization(self, x).adjoint_times(w)

    def blocks(self, x: DistributedArray) -> DistributedArray:
        """The blocks of J(x), by the user's function."""
        with_halo = self.with_halo(x)
        k = self.structure.block_size
        shape = (*self.own_shape(with_halo)[:-1], self.structure.width, k, k)
        return self.whole(self.functions.array("blocks", shape, with_halo))


class Linearization:
    """J at a point, by products of the user's functions."""

    def __init__(self, system: System, x: DistributedArray) -> None:
        self.system, self.x, self.with_halo = system, x, system.with_halo(x)
        self.F: Any = None
        self.J: LinearOperator | None = None  # of the own blocks
        if system.functions.has("linearize"):
            self.F, self.J = system.functions.linearized(system.own_shape(self.with_halo), self.with_halo.copy())
        self._assembled: BlockBandedMatrix | None = None

    def operator(self) -> LinearOperator:
        """J as an operator on flat vectors."""
        shape = self.x.shape
        batch, N = shape[: self.system.axis], shape[-2] * shape[-1]

        def flat(product: Any) -> Any:
            return lambda v: reshape(product(reshape(v, shape)), (*batch, N))

        return LinearOperator(
            flat(self.times), flat(self.adjoint_times), in_shape=N, batch_shape=batch, dtype=self.x.dtype
        )

    def times(self, v: DistributedArray) -> DistributedArray:
        """J v."""
        system, with_halo = self.system, self.with_halo
        around = system.with_halo(v).astype(with_halo.dtype, copy=False)
        return system.whole(own_product(system, with_halo, self.J)(around))

    def adjoint_times(self, w: DistributedArray) -> DistributedArray:
        """J^H w, by the user's function, else by the blocks of J."""
        system, structure, functions = self.system, self.system.structure, self.system.functions
        if self.J is not None and self.J._rmatvec is not None:
            cotangent = functions.product(self.J, "rmatvec", self.with_halo.shape, w.local.copy())
        elif functions.has("vjp"):
            cotangent = functions.array("vjp", self.with_halo.shape, self.with_halo.copy(), w.local.copy())
        else:
            return self._matrix().rmatvec(w)
        bands = structure.lower, structure.upper
        return system.whole(folded(functions.comm, cotangent, system.axis, *bands, periodic=structure.periodic))

    def _matrix(self) -> BlockBandedMatrix:
        """J by its blocks; no cached property, whose lock (up to Python 3.11) would make ranks in threads wait."""
        if self._assembled is None:
            system, structure = self.system, self.system.structure
            own = system.functions.has("blocks")
            blocks = system.blocks(self.x) if own else ColoredBlocks(system).at(self.with_halo, self.J)
            bands = structure.lower, structure.upper
            self._assembled = BlockBandedMatrix(blocks, lower=bands[0], upper=bands[1], periodic=structure.periodic)
        return self._assembled


def own_product(system: System, with_halo: HostArray, J: LinearOperator | None) -> Callable[[HostArray], HostArray]:
    """``v -> J v`` for the own blocks of v and those around them."""
    functions, shape = system.functions, system.own_shape(with_halo)
    if J is not None:
        return lambda v: functions.product(J, "matvec", shape, v)
    return lambda v: functions.array("jvp", shape, with_halo.copy(), v)


@dataclass(frozen=True)
class ColoredBlocks:
    """The blocks of J by products, or differences, with colored directions, by each rank's own functions."""

    system: System

    @property
    def is_exact(self) -> bool:
        """Whether they come from products, not differences."""
        return self.system.functions.has("jvp") or self.system.functions.has("linearize")

    @property
    def cost(self) -> int:
        """Number of products, or residuals (two for a central difference), of an assembly on each rank."""
        products = self.system.structure.width * self.system.structure.block_size
        return products if self.is_exact else 2 * products

    def __call__(self, x: DistributedArray) -> DistributedArray:
        """Return the blocks. One message to each neighbour."""
        return self.at(self.system.with_halo(x))

    def at(self, with_halo: HostArray, J: LinearOperator | None = None) -> DistributedArray:
        """The blocks from the own blocks of x and those around them; J may be known. No message."""
        system, part = self.system, self.system.functions.part
        if J is None and system.functions.has("linearize"):
            J = system.functions.linearized(system.own_shape(with_halo), with_halo.copy())[1]
        product = own_product(system, with_halo, J)
        local = Problem(
            lambda y: self._square(y, system.own_residual(y)),
            jvp=(lambda y, v: self._square(y, product(v))) if self.is_exact else None,
            structure=BlockBanded(system.structure.lower, system.structure.upper, system.structure.block_size),
            batch_ndim=system.axis,
        )
        blocks: HostArray = jacobian(local, with_halo).blocks
        return system.whole(np.ascontiguousarray(blocks[(*(slice(None),) * system.axis, part.own)]))

    def _square(self, with_halo: HostArray, own: HostArray) -> HostArray:
        """The own rows in a square matrix's, zeros elsewhere."""
        rows = np.zeros_like(with_halo)
        rows[(*(slice(None),) * self.system.axis, self.system.functions.part.own)] = own
        return rows


def check_functions(caller: str, given: Mapping[str, Any]) -> None:
    """Raise unless what is given is callable, and "residual" is given."""
    for key, function in given.items():
        if not callable(function) and (function is not None or key == "residual"):
            raise TypeError(f"{caller}: `{key}` must be callable, got {type(function).__name__}")


class Parameters:
    """Derivatives with respect to parameters: summed over ranks, or each rank's own part if the parameter is split."""

    def __init__(self, system: System, parameters: Mapping[str, Any] | None) -> None:
        self.system, self.parameters = system, dict(parameters or {})

    def offered(self, jvp: Callable[..., Any] | None, vjp: Callable[..., Any] | None) -> dict[str, Any]:
        """The products of a `Problem`, where these are the functions of one rank's part."""
        takes_wrt = vjp is not None and "wrt" in inspect.signature(vjp).parameters
        return {
            "parameter_jvp": None if jvp is None else self.jvp,
            "parameter_vjp": None if vjp is None else self.vjp_of_some if takes_wrt else self.vjp,
        }

    def jvp(self, x: DistributedArray, tangents: Mapping[str, Any]) -> DistributedArray:
        """(dF/dtheta) dtheta. One message to each neighbour."""
        system, with_halo = self.system, self.system.with_halo(x)
        local = {key: value.local if isinstance(value, DistributedArray) else value for key, value in tangents.items()}
        return system.whole(system.functions.array("parameter_jvp", system.own_shape(with_halo), with_halo, local))

    def vjp(self, x: DistributedArray, w: DistributedArray) -> dict[str, Any]:
        """(dF/dtheta)^H w for every parameter. One message to each neighbour, and one allreduce."""
        return self._summed(self.system.functions.gradients(self.system.with_halo(x), w.local.copy()))

    def vjp_of_some(
        self, x: DistributedArray, w: DistributedArray, wrt: Collection[str] | None = None
    ) -> dict[str, Any]:
        """The same for the parameters in `wrt`, where that is given."""
        wanted = {} if wrt is None else {"wrt": wrt}
        return self._summed(self.system.functions.gradients(self.system.with_halo(x), w.local.copy(), **wanted))

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
