"""A root as a function of tensors, whose calls are objects: a first call, and its adjoint, tangent and batched ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from implicitsolve._root import root
from implicitsolve._typing import Array
from implicitsolve.derivatives._implicit import pull_back, push_forward
from implicitsolve.operators import LinearOperator
from implicitsolve.problem import Problem
from implicitsolve.result import NonlinearResult
from implicitsolve.structure import BlockBanded
from implicitsolve.torch._options import SolveOptions
from implicitsolve.torch._share import (
    Linearization,
    check_like,
    find_captured,
    full_precision,
    leaf,
    on_device,
    one_by_one,
    recording,
    to_array,
    to_tensor,
)

Tensors = Sequence[Tensor]
Dims = Sequence[int | None]


class Root(torch.autograd.Function):
    """``Root.apply(call, x0, *tensors)``: what ``call.solve(x0, tensors)`` returns, with derivatives by the tensors.

    Derivatives and batches are roots of other calls, and so differentiable in their turn.
    """

    @staticmethod
    def forward(call: Any, x0: Tensor | None, *tensors: Tensor) -> Tensor:
        with full_precision(tensors[0] if x0 is None else x0):
            return call.solve(x0, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the call and its tensors; torch notices when one of them is changed in place before it is used."""
        ctx.call, _, *tensors = inputs
        ctx.save_for_backward(output, *tensors)
        ctx.save_for_forward(output, *tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, *tensors = ctx.saved_tensors
        with full_precision(x):
            gradients = partial(ctx.call.gradients, x=x, tensors=tensors, wanted=ctx.needs_input_grad[2:])
            return None, None, *one_by_one(gradients, cotangent)

    @staticmethod
    def jvp(ctx: Any, _call: None, _x0: None, *tangents: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, *tensors = ctx.saved_tensors
        with full_precision(x):
            return one_by_one(lambda *tangents: [ctx.call.tangent(x, tensors, tangents)], *tangents)[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        call, x0, *tensors = args
        batched, x0, tensors = call.for_batch(info.batch_size, in_dims[1:], x0, tensors)
        found: Any = Root.apply(batched, x0, *tensors)
        call.result = batched.result
        return found, 0


@dataclass(eq=False)
class Call(ABC):
    """One differentiable solve: what its forward part keeps for its derivatives.

    Each call has its own object, owned by the graph, so that any number of threads may use one module.
    `tensors` are those of which the root is a function, always in the same order.
    """

    caller: str
    options: SolveOptions
    batch_ndim: int
    structure: BlockBanded | None
    products: str = field(default="exact", kw_only=True)
    is_unchecked: bool = field(default=False, kw_only=True)  # whether the residual may still use captured tensors
    result: NonlinearResult | None = field(default=None, init=False)  # of a solve that is no linear one

    @abstractmethod
    def evaluate(self, x: Tensor, tensors: Tensors) -> Tensor:
        """The residual at x, by operations of torch."""

    def solve(self, x0: Any, tensors: Tensors) -> Tensor:
        with on_device(x0):
            start = to_array(x0)
            problem = self.problem(start, tensors)
            if self.products == "differences":
                problem = replace(problem, linearize=None)
            self.result = root(problem, start, method=self.options.method, stop=self.options.stop)
            if self.is_unchecked:  # no linearization was needed
                self.refuse_captured(self.at(x0, tensors, [False] * len(tensors))[0])
            return to_tensor(self.result.x)

    # Derivatives

    def gradients(self, cotangent: Tensor, x: Tensor, tensors: Tensors, wanted: Sequence[bool]) -> list[Any]:
        """Gradients for the requested tensors, None for the others: -(dF/dtheta)^H lam, with J^H lam = cotangent."""
        if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():  # they are to be transformed
            lam: Any = Root.apply(AdjointCall.of(self), None, x, cotangent, *tensors)
            found: Tensors = self.pull_parameters(-lam, x, tensors, wanted)
        else:
            found = self.plain_gradients(cotangent, x, tensors, wanted)
        gradients = iter(found)
        return [next(gradients) if is_wanted else None for is_wanted in wanted]

    def tangent(self, x: Tensor, tensors: Tensors, tangents: Sequence[Tensor | None]) -> Any:
        """Derivative of the root along the tangents that are not None."""
        given = [tangent is not None for tangent in tangents]
        return Root.apply(TangentCall.of(self, given), None, x, *tensors, *(t for t in tangents if t is not None))

    def plain_gradients(self, cotangent: Tensor, x: Tensor, tensors: Tensors, wanted: Sequence[bool]) -> Tensors:
        """The requested gradients, not to be differentiated again."""
        point, parameters = self.at(x, tensors, wanted)
        return point.pull_parameters(-self.adjoint(x, cotangent, tensors, point), parameters)

    def plain_tangent(self, x: Tensor, tensors: Tensors, tangents: Sequence[Tensor | None]) -> Tensor:
        """The tangent dx, not to be differentiated again: J dx = -(dF/dtheta) dtheta."""
        options = self.options
        with on_device(x):
            problem, at, given = self.tangent_problem(x, tensors, tangents)
            outcome = push_forward(problem, at, given, method=options.adjoint_method, stop=options.adjoint_stop)
            found = to_tensor(outcome.tangent)
        options.report(self.caller, "tangent solve", outcome)
        return found

    def tangent_problem(
        self, x: Tensor, tensors: Tensors, tangents: Sequence[Tensor | None]
    ) -> tuple[Problem, Any, Any]:
        """The arguments of `push_forward` for the tangent: problem, root, and the parameters' tangents."""
        point, parameters = self.at(x, tensors, [tangent is not None for tangent in tangents])
        right = to_array(point.push_parameters([tangent for tangent in tangents if tangent is not None], parameters))
        start = to_array(x)
        return replace(self.problem(start, tensors, point), parameter_jvp=lambda *_: right), start, {}

    def adjoint(self, x: Tensor, cotangent: Tensor, tensors: Tensors, point: Linearization | None = None) -> Tensor:
        """Solve J^H lam = cotangent at the root."""
        options = self.options
        with on_device(x):
            start, c = to_array(x), to_array(cotangent)
            problem = self.problem(start, tensors, point)
            outcome = pull_back(problem, start, c, method=options.adjoint_method, stop=options.adjoint_stop, wrt=())
            found = to_tensor(outcome.adjoint)
        options.report(self.caller, "adjoint solve", outcome)
        return found

    def for_batch(self, size: int, dims: Dims, x0: Any, tensors: Tensors) -> tuple[Call, Any, Tensors]:
        """One call, with its start and tensors, for a batch along these axes of the start and the tensors."""
        return BatchedCall.of(self, dims[1:]), leading(x0, dims[0], size), tensors

    # The residual and its derivatives

    def at(self, x: Tensor, tensors: Tensors, wanted: Sequence[bool]) -> tuple[Linearization, list[Tensor]]:
        """The linearization at x, and the requested tensors as leaves of its graph."""
        own = [leaf(tensor, needs_grad=is_wanted) for tensor, is_wanted in zip(tensors, wanted, strict=True)]
        point = Linearization(self.caller, lambda x: self.evaluate(x, own), x)
        return point, [tensor for tensor in own if tensor.requires_grad]

    def pull_parameters(self, w: Tensor, x: Tensor, tensors: Tensors, wanted: Sequence[bool]) -> tuple[Tensor, ...]:
        """(dF/dtheta)^H w for the requested tensors, as a differentiable function of everything."""
        with recording():
            function = self.by(lambda given: self.evaluate(x, given), tensors, wanted)
            return torch.func.vjp(function, *compress(tensors, wanted))[1](w)

    @staticmethod
    def by(function: Callable[[Tensors], Tensor], tensors: Tensors, wanted: Sequence[bool]) -> Callable[..., Tensor]:
        """A function of all tensors, as a function of the requested ones alone."""

        def of_some(*some: Tensor) -> Tensor:
            given = iter(some)
            return function([next(given) if is_wanted else t for t, is_wanted in zip(tensors, wanted, strict=True)])

        return of_some

    def problem(self, like: Array, tensors: Tensors, point: Linearization | None = None) -> Problem:
        """The system on arrays; its derivatives at a `point`, where one is given."""
        constants = [leaf(tensor, needs_grad=False) for tensor in tensors]

        def residual(x: Array) -> Array:
            with torch.no_grad():
                return to_array(self.evaluate(to_tensor(x), constants))

        def linearize(x: Array) -> tuple[Array, LinearOperator]:
            found = point or Linearization(self.caller, lambda x: self.evaluate(x, constants), to_tensor(x))
            self.refuse_captured(found)
            J = LinearOperator(
                lambda v: to_array(found.push(to_tensor(v))),
                lambda w: to_array(found.pull(to_tensor(w))),
                in_shape=tuple(like.shape[self.batch_ndim :]),
                batch_shape=tuple(like.shape[: self.batch_ndim]),
                dtype=like.dtype,
            )
            return to_array(found.F), J

        return Problem(residual, linearize=linearize, structure=self.structure, batch_ndim=self.batch_ndim)

    def refuse_captured(self, point: Linearization) -> None:
        """Raise if the residual uses a tensor that requires grad and is not one of its arguments; checked once."""
        found = find_captured(point.F, [point.x]) if self.is_unchecked else None
        self.is_unchecked = False
        if found is not None:
            raise ValueError(
                f"{self.caller}: `residual` uses a tensor of shape {tuple(found.shape)} that requires grad and is none "
                "of its arguments, so that its gradient would be lost: pass it as an argument, or detach it"
            )


@dataclass(eq=False)
class ResidualCall(Call):
    """One `solve`; the tensors are those found in `args`."""

    residual: Callable[..., Tensor]
    args: Any
    fixed_point: bool = field(default=False, kw_only=True)

    def problem(self, like: Array, tensors: Tensors, point: Linearization | None = None) -> Problem:
        return replace(super().problem(like, tensors, point), fixed_point=self.fixed_point)

    def evaluate(self, x: Tensor, tensors: Tensors) -> Tensor:
        given = iter(tensors)
        F: Any = self.residual(x, *tree_map_only(Tensor, lambda _: next(given), self.args))
        if not isinstance(F, Tensor):
            raise TypeError(f"{self.caller}: `residual` must return a torch.Tensor, got {type(F).__name__}")
        if F.shape != x.shape:
            shapes = f"{tuple(x.shape)}, got {tuple(F.shape)}"
            raise ValueError(f"{self.caller}: `residual` must return a tensor of the shape of x, {shapes}")
        check_like(self.caller, "residual(x)", F, x, "x")
        return F


@dataclass(eq=False)
class AdjointCall(Call):
    """The adjoint as the root lam of J(x)^H lam - c; the tensors are x, c, and those of the first call."""

    first: Call

    @classmethod
    def of(cls, first: Call) -> AdjointCall:
        structure = first.structure
        if structure is not None:
            structure = replace(structure, lower=structure.upper, upper=structure.lower)
        return cls(first.caller, first.options, first.batch_ndim, structure, first)

    def solve(self, x0: Any, tensors: Tensors) -> Tensor:
        x, cotangent, *rest = tensors
        return self.first.adjoint(x, cotangent, rest)

    def evaluate(self, x: Tensor, tensors: Tensors) -> Tensor:
        root_of_first, cotangent, *rest = tensors
        pull = torch.func.vjp(lambda x: self.first.evaluate(x, rest), root_of_first)[1]
        return pull(x)[0] - cotangent

    def for_batch(self, size: int, dims: Dims, x0: Any, tensors: Tensors) -> tuple[Call, Any, Tensors]:
        x, cotangent = (leading(tensor, dim, size) for tensor, dim in zip(tensors[:2], dims[1:3], strict=True))
        return AdjointCall.of(BatchedCall.of(self.first, dims[3:])), None, (x, cotangent, *tensors[2:])


@dataclass(eq=False)
class TangentCall(Call):
    """The tangent as the root dx of J(x) dx + (dF/dtheta) dtheta; the tensors are x, theta, and the given dtheta."""

    first: Call
    given: Sequence[bool]

    @classmethod
    def of(cls, first: Call, given: Sequence[bool]) -> TangentCall:
        return cls(first.caller, first.options, first.batch_ndim, first.structure, first, given)

    def solve(self, x0: Any, tensors: Tensors) -> Tensor:
        x, theta, dtheta = self.split(tensors)
        some = iter(dtheta)
        return self.first.plain_tangent(x, theta, [next(some) if is_given else None for is_given in self.given])

    def evaluate(self, x: Tensor, tensors: Tensors) -> Tensor:
        root_of_first, theta, dtheta = self.split(tensors)
        wanted, points = [True, *self.given], (root_of_first, *theta)
        function = self.by(lambda given: self.first.evaluate(given[0], given[1:]), points, wanted)
        return torch.func.jvp(function, tuple(compress(points, wanted)), (x, *dtheta))[1]

    def for_batch(self, size: int, dims: Dims, x0: Any, tensors: Tensors) -> tuple[Call, Any, Tensors]:
        moved = [True, *self.given, *(True for is_given in self.given if is_given)]
        tensors = [leading(t, d, size) if m else t for t, d, m in zip(tensors, dims[1:], moved, strict=True)]
        own = [0 if is_given else dim for dim, is_given in zip(dims[2:], self.given, strict=False)]
        return TangentCall.of(BatchedCall.of(self.first, own), self.given), None, tensors

    def split(self, tensors: Tensors) -> tuple[Tensor, Tensors, Tensors]:
        count = 1 + len(self.given)
        return tensors[0], tensors[1:count], tensors[count:]


@dataclass(eq=False)
class BatchedCall(Call):
    """Many calls that differ along axes of their tensors, as one on a batch of systems."""

    first: Call
    dims: Dims

    @classmethod
    def of(cls, first: Call, dims: Dims) -> BatchedCall:
        settings: Any = {"products": first.products, "is_unchecked": first.is_unchecked}
        own = first.caller, first.options, first.batch_ndim + 1, first.structure
        return cls(*own, first, tuple(dims), **settings)

    def evaluate(self, x: Tensor, tensors: Tensors) -> Tensor:
        return torch.func.vmap(lambda x, *given: self.first.evaluate(x, given), in_dims=(0, *self.dims))(x, *tensors)


def leading(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The tensor with the axis of a batch before the others, the same for all of it where there is no such axis."""
    return x.expand(size, *x.shape).clone() if dim is None else x.movedim(dim, 0)
