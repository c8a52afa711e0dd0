"""The functions of a distributed problem: halos are exchanged, and the rest is each rank's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitsolve._jacobian import jacobian
from implicitsolve._typing import HostArray
from implicitsolve.distributed._array import DistributedArray
from implicitsolve.distributed._functions import reshape
from implicitsolve.distributed._halo import folded, padded
from implicitsolve.distributed._layout import Runs
from implicitsolve.distributed._part import LocalFunctions
from implicitsolve.operators import BlockBandedMatrix, LinearOperator
from implicitsolve.problem import Problem
from implicitsolve.structure import BlockBanded


@dataclass(frozen=True)
class System:
    """F and J on arrays (*batch, T, k) whose blocks are split over ranks by `counts`."""

    functions: LocalFunctions
    counts: Runs
    structure: BlockBanded

    # Blocks of this rank and around

    @property
    def axis(self) -> int:
        """The axis of the blocks."""
        return self.functions.batch_ndim

    def seen(self, x: DistributedArray) -> HostArray:
        """The own blocks of x with the neighbours' around them, as a new array. One message to each neighbour."""
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
        return self.whole(self.own_residual(self.seen(x)))

    def own_residual(self, seen: HostArray) -> HostArray:
        """F of the own blocks."""
        return self.functions.array("residual", self.own_shape(seen), seen)

    def linearize(self, x: DistributedArray) -> tuple[DistributedArray, LinearOperator]:
        """F(x) and J(x), which keeps what was seen of x, or what the user's `linearize` has made of it."""
        point = Linearization(self, x)
        return self.whole(point.F if point.J is not None else self.own_residual(point.seen.copy())), point.operator()

    def vjp(self, x: DistributedArray, w: DistributedArray) -> DistributedArray:
        """J(x)^H w."""
        return Linearization(self, x).adjoint_times(w)

    def blocks(self, x: DistributedArray) -> DistributedArray:
        """The blocks of J(x), by the user's function."""
        seen = self.seen(x)
        k = self.structure.block_size
        shape = (*self.own_shape(seen)[:-1], self.structure.width, k, k)
        return self.whole(self.functions.array("blocks", shape, seen))


class Linearization:
    """J at a point, by products of the user's functions."""

    def __init__(self, system: System, x: DistributedArray) -> None:
        self.system, self.x, self.seen = system, x, system.seen(x)
        self.F: Any = None
        self.J: LinearOperator | None = None  # of the own blocks
        if system.functions.has("linearize"):
            self.F, self.J = system.functions.linearized(system.own_shape(self.seen), self.seen.copy())
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
        system, seen = self.system, self.seen
        around = system.seen(v).astype(seen.dtype, copy=False)
        return system.whole(own_product(system, seen, self.J)(around))

    def adjoint_times(self, w: DistributedArray) -> DistributedArray:
        """J^H w, by the user's function, else by the blocks of J."""
        system, structure, functions = self.system, self.system.structure, self.system.functions
        if self.J is not None and self.J._rmatvec is not None:
            cotangent = functions.product(self.J, "rmatvec", self.seen.shape, w.local.copy())
        elif functions.has("vjp"):
            cotangent = functions.array("vjp", self.seen.shape, self.seen.copy(), w.local.copy())
        else:
            return self._matrix().rmatvec(w)
        bands = structure.lower, structure.upper
        return system.whole(folded(functions.comm, cotangent, system.axis, *bands, periodic=structure.periodic))

    def _matrix(self) -> BlockBandedMatrix:
        """J by its blocks, kept: no cached property, whose lock (up to Python 3.11) would hold up ranks in threads."""
        if self._assembled is None:
            system, structure = self.system, self.system.structure
            own = system.functions.has("blocks")
            blocks = system.blocks(self.x) if own else ColoredBlocks(system).of_seen(self.seen, self.J)
            bands = structure.lower, structure.upper
            self._assembled = BlockBandedMatrix(blocks, lower=bands[0], upper=bands[1], periodic=structure.periodic)
        return self._assembled


def own_product(system: System, seen: HostArray, J: LinearOperator | None) -> Callable[[HostArray], HostArray]:
    """``v -> J v`` for what a rank sees of v."""
    functions, shape = system.functions, system.own_shape(seen)
    if J is not None:
        return lambda v: functions.product(J, "matvec", shape, v)
    return lambda v: functions.array("jvp", shape, seen.copy(), v)


@dataclass(frozen=True)
class ColoredBlocks:
    """The blocks of J by products, or differences, with colored directions: each rank's from its own functions."""

    system: System

    @property
    def is_exact(self) -> bool:
        """Whether these are more than differences."""
        return self.system.functions.has("jvp") or self.system.functions.has("linearize")

    @property
    def cost(self) -> int:
        """Products, or residuals (two for a central difference), that an assembly takes on each rank."""
        products = self.system.structure.width * self.system.structure.block_size
        return products if self.is_exact else 2 * products

    def __call__(self, x: DistributedArray) -> DistributedArray:
        """Return the blocks. One message to each neighbour."""
        return self.of_seen(self.system.seen(x))

    def of_seen(self, seen: HostArray, J: LinearOperator | None = None) -> DistributedArray:
        """The blocks from what the rank sees of x, where J may be known: no message."""
        system, part = self.system, self.system.functions.part
        if J is None and system.functions.has("linearize"):
            J = system.functions.linearized(system.own_shape(seen), seen.copy())[1]
        product = own_product(system, seen, J)
        local = Problem(
            lambda y: self._square(y, system.own_residual(y)),
            jvp=(lambda y, v: self._square(y, product(v))) if self.is_exact else None,
            structure=BlockBanded(system.structure.lower, system.structure.upper, system.structure.block_size),
            batch_ndim=system.axis,
        )
        blocks = jacobian(local, seen).blocks
        return system.whole(np.ascontiguousarray(blocks[(*(slice(None),) * system.axis, part.own)]))

    def _square(self, seen: HostArray, own: HostArray) -> HostArray:
        """The own rows among as many as there are columns; zeros elsewhere."""
        rows = np.zeros_like(seen)
        rows[(*(slice(None),) * self.system.axis, self.system.functions.part.own)] = own
        return rows
