"""The autograd function: a root as a function of the tensors in its equations, wherever they are in its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from implicitsolve.torch._share import full_precision


class Root(torch.autograd.Function):
    """``Root.apply(call, x0, *tensors)``: what ``call.solve(x0, tensors)`` returns, with derivatives by the tensors.

    `call` is a `Call`. Derivatives and batches are roots of other calls, and so differentiable in their turn.
    """

    @staticmethod
    def forward(call: Any, x0: Tensor | None, *tensors: Tensor) -> Tensor:
        """Solve."""
        with full_precision(tensors[0] if x0 is None else x0):
            x: Tensor = call.solve(x0, tensors)
        return x

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
    def jvp(ctx: Any, _call: None, _x0: None, *tangents: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One tangent solve."""
        x, *tensors = ctx.saved_tensors
        with full_precision(x):
            return ctx.call.tangent(x, tensors, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """One solve for all systems of a batch."""
        call, x0, *tensors = args
        batched, x0, tensors = call.batched(info.batch_size, in_dims[1:], x0, tensors)
        found: Any = Root.apply(batched, x0, *tensors)
        call.result = batched.result
        return found, 0


def leading(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The tensor with the axis of a batch before the others, the same for all of it where there is no such axis."""
    return x.expand(size, *x.shape).clone() if dim is None else x.movedim(dim, 0)


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
