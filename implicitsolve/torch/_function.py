"""The autograd functions: a root as a function of the tensors in its equations, wherever they are in its arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from implicitsolve.result import NonlinearResult
from implicitsolve.torch._options import SolveOptions
from implicitsolve.torch._share import full_precision


class Call(ABC):
    """One differentiable solve: what its forward part keeps for its derivatives.

    Each call has its own object, owned by the graph, so that any number of threads may use one module.
    `tensors` are those of which the root is a function, always in the same order.
    """

    result: NonlinearResult

    def __init__(self, caller: str, options: SolveOptions) -> None:
        self.caller = caller
        self.options = options

    @abstractmethod
    def solve(self, x0: Any, tensors: Sequence[Tensor]) -> Tensor:
        """The root, from a start or None."""

    @abstractmethod
    def gradients(self, cotangent: Tensor, x: Tensor, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Any]:
        """Gradients for the wanted tensors (None for the others) from that for the root x."""

    @abstractmethod
    def tangent(self, x: Tensor, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
        """Derivative of the root along tangents of the tensors."""


class Root(torch.autograd.Function):
    """``Root.apply(call, x0, *tensors)``: what ``call.solve(x0, tensors)`` returns, with derivatives by the tensors."""

    @staticmethod
    def forward(call: Call, x0: Tensor | None, *tensors: Tensor) -> Tensor:
        """Solve."""
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
        """One adjoint solve for all gradients."""
        x, *tensors = ctx.saved_tensors
        with full_precision(x):
            return None, None, *ctx.call.gradients(cotangent, x, tensors, ctx.needs_input_grad[2:])

    @staticmethod
    def jvp(ctx: Any, _call: None, _x0: None, *tangents: Tensor | None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One tangent solve."""
        x, *tensors = ctx.saved_tensors
        count = len(tensors)

        def solve(x: Tensor, *given: Tensor) -> Tensor:
            return ctx.call.tangent(x, given[:count], given[count:])

        message = f"{ctx.call.caller}: a forward-mode derivative cannot be differentiated again"
        with full_precision(x):
            return Once.apply(message, solve, x, *tensors, *tangents)


class Once(torch.autograd.Function):
    """``function(*tensors)`` on plain tensors, also below `torch.func`'s transforms; its derivative is an error."""

    @staticmethod
    def forward(message: str, function: Callable[..., Any], *tensors: Tensor) -> Any:
        """Call the function."""
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the message."""
        ctx.message = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> None:
        """There is none."""
        raise NotImplementedError(ctx.message)


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, lists and mappings, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from leaves(value)


def replaced(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """The same tree with other tensors."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if isinstance(tree, Mapping):
        return {name: replaced(value, tensors) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        values = [replaced(value, tensors) for value in tree]
        if isinstance(tree, tuple) and type(tree) is not tuple:  # a named one
            return type(tree)(*values)
        return tuple(values) if isinstance(tree, tuple) else values
    return tree
