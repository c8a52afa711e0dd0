"""The functions of a distributed problem: halos are exchanged, and each rank calls the user's functions on its part."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
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


class LocalSystem(ABC):
    """F and J of arrays that are partitioned across ranks, by functions that each rank calls on its own part.

    What these return is checked and copied; an error of one ends all ranks.

    `given` are the caller's functions by name, `part` their first argument, which identifies this rank's part.
    """

    def __init__(
        self,
        caller: str,
        comm: Communicator,
        part: Any,
        batch_ndim: int,
        given: Mapping[str, Callable[..., Any] | None],
        parameters: Mapping[str, Any] | None,
    ) -> None:
        for key, function in given.items():
            if not callable(function) and (function is not None or key == "residual"):
                raise TypeError(f"{caller}: `{key}` must be callable, got {type(function).__name__}")
        self.comm: Communicator = comm
        self.part: Any = part
        self.batch_ndim: int = batch_ndim
        self.given: Mapping[str, Callable[..., Any] | None] = given
        self.parameters: dict[str, Any] = dict(parameters or {})

    @abstractmethod
    def with_halo(self, x: DistributedArray) -> HostArray:
        """The own part of x between the neighbours', as a new array. One message to each neighbour."""

    @abstractmethod
    def own_shape(self, with_halo: HostArray) -> tuple[int, ...]:
        """Shape of this rank's part."""

    @abstractmethod
    def whole(self, local: HostArray) -> DistributedArray:
        """An array of the state's layout from this rank's part."""

    # The caller's functions on this rank's part

    def has(self, name: str) -> bool:
        """Whether the caller passed that function."""
        return self.given[name] is not None

    def array(self, name: str, shape: tuple[int, ...], x: HostArray, *others: Any) -> HostArray:
        """The result of a function of x and others: its shape is checked, its dtype that of x."""
        return self._guarded(self.given[name], lambda F: self._checked(name, F, shape, x.dtype), self.part, x, *others)

    def linearized(self, x: HostArray) -> tuple[HostArray, LinearOperator]:
        """The result of `linearize`: F, and J of the own part."""
        shape, n = self.own_shape(x), self.batch_ndim

        def check(value: Any) -> tuple[HostArray, LinearOperator]:
            if not (isinstance(value, tuple) and len(value) == 2):
                raise TypeError(f"`linearize` must return a pair (F, J), got {type(value).__name__}")
            F, J = self._checked("linearize", value[0], shape, x.dtype), value[1]
            expected = shape[:n], x.shape[n:], shape[n:]
            if not isinstance(J, LinearOperator):
                raise TypeError(f"`linearize` must return J as a LinearOperator, got {type(J).__name__}")
            if (J.batch_shape, J.in_shape, J.out_shape) != expected:
                raise ValueError(
                    f"`linearize` must return J of batch_shape, in_shape and out_shape {expected} for {self.part}, got "
                    f"{(J.batch_shape, J.in_shape, J.out_shape)}"
                )
            return F, J

        return self._guarded(self.given["linearize"], check, self.part, x.copy())

    def product(self, J: LinearOperator, name: str, shape: tuple[int, ...], v: HostArray) -> HostArray:
        """A product with the J of `linearize`; `name` is "matvec" or "rmatvec"."""
        return self._guarded(getattr(J, name), lambda value: self._checked(f"J.{name}", value, shape, v.dtype), v)

    def _guarded(self, function: Any, check: Callable[[Any], Any], *arguments: Any, **named: Any) -> Any:
        try:
            return check(function(*arguments, **named))
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

    # The problem's functions

    def residual(self, x: DistributedArray) -> DistributedArray:
        """F(x)."""
        with_halo = self.with_halo(x)
        return self.whole(self.array("residual", self.own_shape(with_halo), with_halo))

    def parameter_products(self) -> dict[str, Any]:
        """The products of a `Problem` with the derivatives with respect to parameters, those that are available."""
        products = {"parameter_jvp": self.parameter_jvp, "parameter_vjp": self.parameter_vjp}
        return {name: product for name, product in products.items() if self.has(name)}

    def parameter_jvp(self, x: DistributedArray, tangents: Mapping[str, Any]) -> DistributedArray:
        """(dF/dtheta) dtheta. One message to each neighbour."""
        with_halo = self.with_halo(x)
        local = {key: value.local if isinstance(value, DistributedArray) else value for key, value in tangents.items()}
        return self.whole(self.array("parameter_jvp", self.own_shape(with_halo), with_halo, local))

    def parameter_vjp(
        self, x: DistributedArray, w: DistributedArray, wrt: Collection[str] | None = None
    ) -> dict[str, Any]:
        """(dF/dtheta)^H w, summed over the ranks, or each rank's own part where the parameter is split.

        One message to each neighbour, and one allreduce.
        """
        function: Any = self.given["parameter_vjp"]
        wanted = {} if wrt is None or "wrt" not in inspect.signature(function).parameters else {"wrt": wrt}
        with_halo = self.with_halo(x)
        own = w.local.reshape(self.own_shape(with_halo)).copy()
        return self._summed(self._guarded(function, _checked_gradients, self.part, with_halo, own, **wanted))

    def _summed(self, gradients: Mapping[str, HostArray]) -> dict[str, Any]:
        """The gradients of the whole from those of the ranks."""
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
            for (name, part), total in zip(shared.items(), np.split(self.comm.allreduce(flat, "sum"), ends)):
                whole[name] = total.reshape(part.shape).astype(part.dtype, copy=False)
        return {name: whole[name] for name in gradients}


def _checked_gradients(value: Any) -> dict[str, HostArray]:
    if not isinstance(value, Mapping):
        raise TypeError(f"`parameter_vjp` must return a mapping, got {type(value).__name__}")
    return {str(key): np.asarray(gradient) for key, gradient in value.items()}


class BlockSystem(LocalSystem):
    """F and J on arrays (*batch, T, k) whose blocks are partitioned across ranks by `counts`."""

    def __init__(
        self,
        comm: Communicator,
        counts: Runs,
        structure: BlockBanded,
        batch_ndim: int,
        given: Mapping[str, Callable[..., Any] | None],
        parameters: Mapping[str, Any] | None,
    ) -> None:
        part = Part.of(comm, counts, structure)
        super().__init__("distributed.problem", comm, part, batch_ndim, given, parameters)
        self.counts: Runs = counts
        self.structure: BlockBanded = structure
        self.own: tuple[slice, ...] = (*(slice(None),) * batch_ndim, part.own)  # the own blocks among those seen

    def with_halo(self, x: DistributedArray) -> HostArray:
        """The own blocks of x between the neighbours', as a new array. One message to each neighbour."""
        axis, k, structure = self.batch_ndim, self.structure.block_size, self.structure
        is_split = isinstance(x, DistributedArray) and x.axis == axis and self.counts.is_same(x.counts)
        if not is_split or x.ndim != axis + 2 or x.local.shape[-1] != k:
            raise ValueError(
                f"a distributed problem needs states of shape (*batch, {self.counts.total}, {k}), whose axis {axis} is "
                f"split by {self.counts}, as `distributed.split(comm, x0, axis={axis})` makes them, got {x!r}"
            )
        around = padded(self.comm, x.local, axis, structure.lower, structure.upper, periodic=structure.periodic)
        return around.copy() if around is x.local else around

    def own_shape(self, with_halo: HostArray) -> tuple[int, ...]:
        """Shape of the own blocks."""
        return (*with_halo.shape[: self.batch_ndim], self.part.count, with_halo.shape[-1])

    def whole(self, local: HostArray) -> DistributedArray:
        """An array of the state's layout from this rank's part."""
        return DistributedArray(local, self.batch_ndim, self.comm, self.counts)

    def linearize(self, x: DistributedArray) -> tuple[DistributedArray, LinearOperator]:
        """F(x) and J(x)."""
        point = Linearization(self, x)
        if point.J is None:
            point.F = self.array("residual", self.own_shape(point.with_halo), point.with_halo.copy())
        return self.whole(point.F), point.operator()

    def vjp(self, x: DistributedArray, w: DistributedArray) -> DistributedArray:
        """J(x)^H w."""
        return Linearization(self, x).adjoint_times(w)

    def blocks(self, x: DistributedArray) -> DistributedArray:
        """The blocks of J(x), by the caller's function or by colors. One message to each neighbour."""
        if not self.has("blocks"):
            return Linearization(self, x).colored_blocks()
        with_halo = self.with_halo(x)
        k = self.structure.block_size
        return self.whole(
            self.array("blocks", (*self.own_shape(with_halo)[:-1], self.structure.width, k, k), with_halo)
        )

    @property
    def has_products(self) -> bool:
        """Whether J v comes from the caller's functions, not from differences."""
        return self.has("jvp") or self.has("linearize")

    @property
    def blocks_cost(self) -> int:
        """Number of products, or residuals (two for a central difference), of an assembly on each rank."""
        products = 1 if self.has("blocks") else self.structure.width * self.structure.block_size
        return products if self.has("blocks") or self.has_products else 2 * products


class Linearization:
    """J at a point, by products of the caller's functions."""

    def __init__(self, system: BlockSystem, x: DistributedArray) -> None:
        self.system, self.x, self.with_halo = system, x, system.with_halo(x)
        self.F: Any = None
        self.J: LinearOperator | None = None  # of the own blocks
        if system.has("linearize"):
            self.F, self.J = system.linearized(self.with_halo)
        self._assembled: BlockBandedMatrix | None = None

    def operator(self) -> LinearOperator:
        """J as an operator on flat vectors."""
        shape = self.x.shape
        batch, N = shape[: self.system.batch_ndim], shape[-2] * shape[-1]

        def flat(product: Any) -> Any:
            return lambda v: reshape(product(reshape(v, shape)), (*batch, N))

        return LinearOperator(
            flat(self.times), flat(self.adjoint_times), in_shape=N, batch_shape=batch, dtype=self.x.dtype
        )

    def times(self, v: DistributedArray) -> DistributedArray:
        """J v."""
        return self.system.whole(self._own_times(self.system.with_halo(v).astype(self.with_halo.dtype, copy=False)))

    def _own_times(self, v: HostArray) -> HostArray:
        """J v for the own blocks of v and those around them."""
        system, shape = self.system, self.system.own_shape(self.with_halo)
        if self.J is not None:
            return system.product(self.J, "matvec", shape, v)
        return system.array("jvp", shape, self.with_halo.copy(), v)

    def adjoint_times(self, w: DistributedArray) -> DistributedArray:
        """J^H w, by the caller's function, else by the blocks of J."""
        system, structure, shape = self.system, self.system.structure, self.with_halo.shape
        if self.J is not None and self.J._rmatvec is not None:
            cotangent = system.product(self.J, "rmatvec", shape, w.local.copy())
        elif system.has("vjp"):
            cotangent = system.array("vjp", shape, self.with_halo.copy(), w.local.copy())
        else:
            return self._matrix().rmatvec(w)
        bands = structure.lower, structure.upper
        return system.whole(folded(system.comm, cotangent, system.batch_ndim, *bands, periodic=structure.periodic))

    def _matrix(self) -> BlockBandedMatrix:
        """J by its blocks; no cached property, whose lock (up to Python 3.11) would make ranks in threads wait."""
        if self._assembled is None:
            system, structure = self.system, self.system.structure
            blocks = system.blocks(self.x) if system.has("blocks") else self.colored_blocks()
            bands = structure.lower, structure.upper
            self._assembled = BlockBandedMatrix(blocks, lower=bands[0], upper=bands[1], periodic=structure.periodic)
        return self._assembled

    def colored_blocks(self) -> DistributedArray:
        """The blocks of J by products, or differences, with colored directions. No message."""
        system, structure, own_shape = self.system, self.system.structure, self.system.own_shape(self.with_halo)

        def square(own: HostArray) -> HostArray:
            """The own rows in a square matrix's, zeros elsewhere."""
            rows = np.zeros_like(self.with_halo)
            rows[system.own] = own
            return rows

        local = Problem(
            lambda y: square(system.array("residual", own_shape, y)),
            jvp=(lambda y, v: square(self._own_times(v))) if system.has_products else None,
            structure=BlockBanded(structure.lower, structure.upper, structure.block_size),
            batch_ndim=system.batch_ndim,
        )
        blocks: HostArray = jacobian(local, self.with_halo).blocks
        return system.whole(np.ascontiguousarray(blocks[system.own]))
