"""Calls of `solve`: the root of a residual written in torch, its derivatives by the graph, and its adjoint."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from implicitsolve._typing import Array
from implicitsolve.derivatives._implicit import pull_back, push_forward
from implicitsolve.operators import LinearOperator
from implicitsolve.problem import Problem
from implicitsolve.solve import root
from implicitsolve.structure import BlockBanded
from implicitsolve.torch._function import Call, Root, replaced
from implicitsolve.torch._options import SolveOptions
from implicitsolve.torch._share import check_like, on_device, to_array, to_tensor

PRODUCTS = ("exact", "differences")


class ResidualCall(Call):
    """One `solve`; the tensors are those found in `args`."""

    def __init__(
        self,
        residual: Callable[..., Tensor],
        args: Any,
        options: SolveOptions,
        batch_ndim: int,
        structure: BlockBanded | None,
        products: str = "exact",
    ) -> None:
        if products not in PRODUCTS:
            raise ValueError(f"solve: `products` must be one of {PRODUCTS}, got {products!r}")
        super().__init__("solve", options)
        self.residual = residual
        self.args = args
        self.batch_ndim = batch_ndim
        self.structure = structure
        self.products = products
        self.is_unchecked = torch.is_grad_enabled()  # whether the residual may still turn out to use captured tensors

    def solve(self, x0: Any, tensors: Sequence[Tensor]) -> Tensor:
        """The root."""
        with on_device(x0):
            start = to_array(x0)
            problem = self.problem(start, tensors)
            if self.products == "differences":
                problem = replace(problem, linearize=None)
            self.result = root(problem, start, method=self.options.method, stop=self.options.stop)
            if self.is_unchecked:  # no linearization was needed
                self.refuse_captured(self.at(x0, tensors, [False] * len(tensors))[0])
            return to_tensor(self.result.x)

    def gradients(self, cotangent: Tensor, x: Tensor, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Any]:
        """Gradients for the wanted tensors: -(dF/dtheta)^H lam, with J^H lam = cotangent."""
        if torch.is_grad_enabled():  # they will be differentiated again
            lam: Any = Root.apply(AdjointCall(self), None, x, cotangent, *tensors)
            found = self.pull_parameters(-lam, x, tensors, wanted)
        else:
            point, parameters = self.at(x, tensors, wanted)
            found = point.pull_parameters(-self.adjoint(point, x, cotangent), parameters)
        gradients = iter(found)
        return [next(gradients) if is_wanted else None for is_wanted in wanted]

    def tangent(self, x: Tensor, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
        """Derivative of the root: dx with J dx = -(dF/dtheta) dtheta."""
        point, parameters = self.at(x, tensors, [tangent is not None for tangent in tangents])
        right = point.push_parameters([tangent for tangent in tangents if tangent is not None], parameters)
        options = self.options
        with on_device(x):
            start = to_array(x)
            problem = replace(self.problem(start, tensors, point), parameter_jvp=lambda *_: to_array(right))
            outcome = push_forward(problem, start, {}, method=options.adjoint_method, stop=options.adjoint_stop)
            found = to_tensor(outcome.tangent)
        options.report(self.caller, "tangent solve", outcome)
        return found

    def adjoint(self, point: Linearization, x: Tensor, cotangent: Tensor) -> Tensor:
        """Solve J^H lam = cotangent at the root."""
        options = self.options
        with on_device(x):
            start = to_array(x)
            problem = self.problem(start, (), point)
            outcome = pull_back(
                problem, start, to_array(cotangent), method=options.adjoint_method, stop=options.adjoint_stop
            )
            found = to_tensor(outcome.adjoint)
        options.report(self.caller, "adjoint solve", outcome)
        return found

    # The residual and its derivatives

    def evaluate(self, x: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """F(x), checked."""
        F: Any = self.residual(x, *replaced(self.args, iter(tensors)))
        if not isinstance(F, Tensor):
            raise TypeError(f"{self.caller}: `residual` must return a torch.Tensor, got {type(F).__name__}")
        if F.shape != x.shape:
            raise ValueError(
                f"{self.caller}: `residual` must return a tensor of the shape of x, {tuple(x.shape)}, "
                f"got {tuple(F.shape)}"
            )
        check_like(self.caller, "residual(x)", F, x, "x")
        return F

    def at(self, x: Tensor, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Linearization, list[Tensor]]:
        """The linearization at x, and the wanted tensors as leaves of its graph."""
        own = [leaf(tensor, needs_grad=is_wanted) for tensor, is_wanted in zip(tensors, wanted, strict=True)]
        point = Linearization(self.caller, lambda x: self.evaluate(x, own), x)
        return point, [tensor for tensor in own if tensor.requires_grad]

    def pull_parameters(
        self, w: Tensor, x: Tensor, tensors: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[Tensor, ...]:
        """(dF/dtheta)^H w for the wanted tensors, as a differentiable function of everything."""

        def residual(*parameters: Tensor) -> Tensor:
            given = iter(parameters)
            mixed = [next(given) if is_wanted else t for t, is_wanted in zip(tensors, wanted, strict=True)]
            return self.evaluate(x, mixed)

        with recording():
            parameters = [tensor for tensor, is_wanted in zip(tensors, wanted, strict=True) if is_wanted]
            return torch.func.vjp(residual, *parameters)[1](w)

    def problem(self, like: Array, tensors: Sequence[Tensor], point: Linearization | None = None) -> Problem:
        """The system on arrays; its derivatives at a `point`, where one is given."""
        constants = [leaf(tensor, needs_grad=False) for tensor in tensors]

        def residual(x: Array) -> Array:
            x = to_tensor(x)
            with torch.no_grad():
                return to_array(self.evaluate(x, constants))

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
        found = captured(point.F, [point.x]) if self.is_unchecked else None
        self.is_unchecked = False
        if found is not None:
            raise ValueError(
                f"{self.caller}: `residual` uses a tensor of shape {tuple(found.shape)} that requires grad and is none "
                "of its arguments, so that its gradient would be lost: pass it as an argument, or detach it"
            )


class AdjointCall(ResidualCall):
    """The adjoint as the root lam of J(x)^H lam - c; the tensors are x, c, and those of the first call."""

    def __init__(self, first: ResidualCall) -> None:
        structure = first.structure
        if structure is not None:
            structure = replace(structure, lower=structure.upper, upper=structure.lower)
        super().__init__(first.residual, first.args, first.options, first.batch_ndim, structure)
        self.first = first
        self.is_unchecked = False

    def solve(self, x0: Any, tensors: Sequence[Tensor]) -> Tensor:
        """The adjoint, by a linear solve."""
        x, cotangent, *rest = tensors
        point, _ = self.first.at(x, rest, [False] * len(rest))
        return self.first.adjoint(point, x, cotangent)

    def evaluate(self, x: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """J^H lam - c, where lam is the unknown."""
        root_of_first, cotangent, *rest = tensors
        pull = torch.func.vjp(lambda x: self.first.evaluate(x, rest), root_of_first)[1]
        return pull(x)[0] - cotangent


@contextmanager
def recording() -> Generator[None]:
    """Build graphs, whatever the caller's modes are."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def leaf(x: Tensor, *, needs_grad: bool) -> Tensor:
    """The tensor's values at the beginning of a graph of their own."""
    with torch.inference_mode(False):
        x = x.clone() if x.is_inference() else x.detach()
    return x.requires_grad_(needs_grad)


class Linearization:
    """F at x, with the graph that leads there; every product is one backward pass, and none evaluates F again.

    Products with the adjoint are what `torch.autograd.grad` computes. They are linear in w, so the gradient of
    ``<J^H w, v>`` with respect to w is J v: the reverse of the reverse. `torch.func.jvp` would go through F once more
    for each product, and `torch.func.linearize` traces F, which costs more than most solves.

    Attributes
    ----------
    x, F : Tensor
        Point and value.
    """

    def __init__(self, caller: str, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.x = leaf(x, needs_grad=True)
        with recording():
            self.F = function(self.x)
        if not self.F.requires_grad:
            raise ValueError(f"{caller}: `residual` must depend on x by operations of torch, got a value without graph")
        self.reverse: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def pull(self, w: Tensor) -> Tensor:
        """J^H w."""
        return self.pull_parameters(w, [self.x])[0]

    def push(self, v: Tensor) -> Tensor:
        """J v."""
        if self.reverse is None:
            self.reverse = self._reverse([self.x])
        return self._forward(*self.reverse, [v])

    def pull_parameters(self, w: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """(dF/dtheta)^H w for each of the parameters, which are leaves of the graph."""
        return torch.autograd.grad(self.F, parameters, w, retain_graph=True, materialize_grads=True)

    def push_parameters(self, tangents: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
        """(dF/dtheta) dtheta, summed over the parameters."""
        return self._forward(*self._reverse(parameters), tangents)

    def _reverse(self, inputs: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """A cotangent w, and what reverse mode makes of it: one linear function of w for each input."""
        with recording():
            w = torch.zeros_like(self.F).requires_grad_()
            return w, torch.autograd.grad(self.F, inputs, w, create_graph=True, materialize_grads=True)

    def _forward(self, w: Tensor, pulled: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensor:
        """The transpose of `pulled`, seen as a function of w."""
        pairs = [(g, tangent) for g, tangent in zip(pulled, tangents, strict=True) if g.requires_grad]
        if not pairs:
            return torch.zeros_like(self.F)
        outputs, cotangents = zip(*pairs, strict=True)
        return torch.autograd.grad(outputs, w, cotangents, retain_graph=True, materialize_grads=True)[0]


def captured(F: Tensor, known: Sequence[Tensor]) -> Tensor | None:
    """A leaf of F's graph that is none of the known ones, or None."""
    seen: set[Any] = set()
    stack: list[Any] = [F.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().endswith("AccumulateGrad") and not any(node.variable is own for own in known):
            return node.variable
        stack.extend(following for following, _ in node.next_functions)
    return None
